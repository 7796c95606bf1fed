//! Files of `packetrig capture`, read by others.

use packetrig_engine::packet::quiet::FRAME_CHANGING_OFFLOADS;
use packetrig_sys::ethtool::EthtoolCalls;
use packetrig_sys::link::{Link, NamespaceLinks};
use packetrig_testkit::Lab;
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::skip::{self, OwnLab};
use packetrig_tests::{station, tools};
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::Command;

/// A lab, if tshark is there to judge.
fn lab() -> Option<OwnLab> {
    if skip::has_tool("tshark") { skip::lab(Lab::cabled_pair) } else { None }
}

/// Captures at the second port what the first sends, then is interrupted like by Ctrl-C.
fn capture(lab: &Lab, flags: &[&str], frames: &[Vec<u8>]) -> Finished {
    let location = lab.location(1);
    let mut arguments = vec!["capture", &location, "--direction", "in", "--json"];
    arguments.extend(flags);
    let mut running = Running::start(&arguments, "");
    running.await_remark("listening");
    station::send(&lab.ports()[0], frames);
    if !flags.contains(&"--count") {
        running.signal(Signal::INT);
    }
    let finished = running.finish();
    assert_eq!(finished.code, Some(0), "{}{}", finished.stdout, finished.stderr);
    finished
}

/// UDP over IPv4 to `port`, tagged if `vlan` is not 0.
fn udp(vlan: u8, port: u16, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    if vlan > 0 {
        frame.extend([0x81, 0, 0, vlan]);
    }
    let ip_len = u16::try_from(len - frame.len() - 2).unwrap();
    frame.extend([8, 0, 0x45, 0]);
    frame.extend(ip_len.to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, 4, 0]);
    frame.extend(port.to_be_bytes());
    frame.extend((ip_len - 20).to_be_bytes());
    frame.extend([0, 0]);
    frame.resize(len, 0x5a);
    frame
}

/// Frames of many kinds, 20 of each.
fn mixture() -> Vec<Vec<u8>> {
    let mut arp = udp(0, 1, 60);
    arp[12..14].copy_from_slice(&[8, 6]);
    let kinds =
        [udp(0, 53, 60), udp(0, 80, 1514), udp(100, 53, 64), udp(100, 80, 800), udp(200, 53, 64), arp];
    kinds.iter().cycle().take(120).cloned().collect()
}

fn json(finished: &Finished) -> serde_json::Value {
    serde_json::from_str(&finished.stdout).unwrap()
}

#[test]
fn every_frame_is_in_files_of_both_formats() {
    for name in ["a.pcap", "a.pcapng"] {
        let Some(lab) = lab() else { return };
        let finished = capture(&lab, &["-w", name], &mixture());
        let result = json(&finished);
        let file = finished.directory.path().join(name);
        assert_eq!((&result["frames"], &result["written"]), (&120.into(), &120.into()), "{result}");
        assert_eq!(result["dropped"], serde_json::json!({"kernel_ring": 0, "our_queue": 0, "disk": 0}));
        let fields = ["frame.len", "frame.cap_len", "vlan.id", "frame.time_epoch"];
        let read = tools::tshark(&file, &fields);
        let wanted = mixture();
        assert_eq!(read.len(), wanted.len(), "{name}");
        for (read, wanted) in read.iter().zip(&wanted) {
            assert_eq!(read[..2], [wanted.len().to_string(), wanted.len().to_string()], "{name}");
            let vlan = if wanted[12] == 0x81 { wanted[15].to_string() } else { String::new() };
            assert_eq!(read[2], vlan, "the tag is in its place");
        }
        assert!(read.iter().any(|frame| !frame[3].ends_with("000")), "nanoseconds: {:?}", read[0]);
        if skip::has_tool("tcpdump") {
            assert_eq!(tools::tcpdump_count(&file), 120, "{name}");
        }
    }
}

#[test]
fn compressed_files_are_read_by_others_and_replayed() {
    if !skip::has_tool("zstd") {
        return;
    }
    let Some(lab) = lab() else { return };
    for flags in [&["-w", "a.pcapng.zst"][..], &["-w", "a.zst", "--zstd=9"]] {
        let finished = capture(&lab, flags, &mixture());
        assert_eq!(json(&finished)["written"], 120);
        let packed = finished.directory.path().join(flags[1]);
        let plain = finished.directory.path().join("plain.pcapng");
        let done =
            Command::new("zstd").args(["-q", "-d"]).arg(&packed).arg("-o").arg(&plain).status().unwrap();
        assert!(done.success());
        let lengths: Vec<_> = mixture().iter().map(|frame| vec![frame.len().to_string()]).collect();
        assert_eq!(tools::tshark(&plain, &["frame.len"]), lengths);
        let dry = ["replay", packed.to_str().unwrap(), "--tx", &lab.location(0), "--print-plan"];
        let dry = Running::start(&dry, "").finish();
        assert!(dry.stdout.contains("120"), "{}{}", dry.stdout, dry.stderr);
    }
}

#[test]
fn a_filter_keeps_what_a_display_filter_shows() {
    let Some(lab) = lab() else { return };
    let all = capture(&lab, &["-w", "all.pcapng"], &mixture());
    let all = all.directory.path().join("all.pcapng");
    let pairs = [
        ("udp dst port 53", "udp.dstport == 53 && !vlan"),
        ("not ip", "!ip || vlan"),
        ("vlan", "vlan"),
        ("vlan 100 and udp port 53", "vlan.id == 100 && udp.port == 53"),
        ("not vlan 100", "!(vlan.id == 100)"),
        ("len > 100", "frame.len > 100"),
        ("arp or vlan 200", "arp || vlan.id == 200"),
    ];
    for (expression, display) in pairs {
        let wanted = tools::tshark_shown(&all, display);
        assert!(wanted > 0 && wanted < 120, "{display} decides nothing");
        for more in [&[][..], &["--snap", "40"]] {
            let flags = [&["-w", "f.pcapng"], more, &[expression][..]].concat();
            let finished = capture(&lab, &flags, &mixture());
            assert_eq!(json(&finished)["written"], wanted, "{expression} {more:?}");
            let read = tools::tshark(&finished.directory.path().join("f.pcapng"), &["frame.number"]);
            assert_eq!(read.len(), wanted, "{expression} {more:?}");
        }
    }
}

#[test]
fn snapped_frames_keep_their_length() {
    let Some(lab) = lab() else { return };
    let finished = capture(&lab, &["-w", "s.pcapng", "--snap", "50"], &mixture());
    let read = tools::tshark(&finished.directory.path().join("s.pcapng"), &["frame.len", "frame.cap_len"]);
    let wanted: Vec<_> = mixture().iter().map(|frame| vec![frame.len().to_string(), "50".into()]).collect();
    assert_eq!(read, wanted);
}

#[test]
fn capture_ring_keeps_newest_complete_files() {
    let Some(lab) = lab() else { return };
    let frames = vec![udp(0, 53, 1000); 500];
    let flags = ["-w", "r.pcapng", "--ring-size", "100kB", "--ring-files", "3"];
    let finished = capture(&lab, &flags, &frames);
    let result = json(&finished);
    assert_eq!(result["written"], 500, "{result}");
    let names = result["files"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    let files: Vec<PathBuf> = names.map(|name| finished.directory.path().join(name)).collect();
    assert_eq!(files.len(), 3, "{result}");
    let begun = 3 + usize::try_from(result["files_removed"].as_u64().unwrap()).unwrap();
    // 500 frames of 1032 bytes, at most 96 a file.
    assert_eq!(begun, 6, "{result}");
    for file in &files {
        assert!(std::fs::metadata(file).unwrap().len() <= 100_000);
        assert!(tools::tshark(file, &["frame.number"]).len() >= 20);
    }
    let there = std::fs::read_dir(finished.directory.path()).unwrap();
    let there =
        there.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "pcapng"));
    assert_eq!(there.count(), 3);
}

#[test]
fn count_ends_capture_and_count_only_writes_nothing() {
    let Some(lab) = lab() else { return };
    let finished = capture(&lab, &["-w", "c.pcapng", "--count", "7"], &mixture());
    let read = tools::tshark(&finished.directory.path().join("c.pcapng"), &["frame.number"]);
    assert_eq!((read.len(), &json(&finished)["frames"]), (7, &7.into()));
    let finished = capture(&lab, &["--count-only", "vlan"], &mixture());
    assert_eq!(json(&finished)["frames"], 60);
    assert_eq!(json(&finished)["written"], serde_json::Value::Null);
    let sum: u64 =
        json(&finished)["seconds"].as_array().unwrap().iter().map(|s| s[0].as_u64().unwrap()).sum();
    assert_eq!(sum, 60, "by the second, too");
}

#[test]
fn capinfos_reads_capture_origin_and_statistics() {
    if !skip::has_tool("capinfos") {
        return;
    }
    let Some(lab) = lab() else { return };
    let finished = capture(&lab, &["-w", "i.pcapng", "udp"], &mixture());
    let file = finished.directory.path().join("i.pcapng");
    let output = Command::new("capinfos").arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for part in ["packetrig", "Linux", "Filter string = udp", "nanoseconds", "Number of stat entries = 1"] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
}

#[test]
fn capturing_leaves_the_interface_as_it_is() {
    let Some(lab) = lab() else { return };
    let port = &lab.ports()[1];
    let look = || {
        let link = NamespaceLinks::open_in(port.netns()).unwrap().find_link_by_name(&port.link.name).unwrap();
        let ethtool = EthtoolCalls::open_in(port.netns()).unwrap();
        let offloads = FRAME_CHANGING_OFFLOADS.map(|offload| ethtool.is_offload_on(&link.name, offload).ok());
        // Promiscuous mode is the exception.
        (Link { promiscuous: false, ..link }, offloads)
    };
    let before = look();
    let mut running = Running::start(&["capture", &port.location(), "-w", "x.pcapng"], "");
    running.await_remark("listening");
    assert_eq!(look(), before);
    running.signal(Signal::INT);
    assert_eq!(running.finish().code, Some(0));
    assert_eq!(look(), before);
}

#[test]
fn invalid_filter_and_missing_directory_are_refused() {
    let Some(lab) = lab() else { return };
    let location = lab.location(1);
    let refused = Running::start(&["capture", &location, "-w", "x", "udp and and"], "").finish();
    refused.assert_refused(2, &["udp and and", "syntax error"]);
    assert!(!refused.directory.path().join("x").exists());
    let refused = Running::start(&["capture", &location, "-w", "no/such/x"], "").finish();
    refused.assert_refused(4, &["no/such/x"]);
}
