//! Capture files, replayed.

use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::xdp;
use packetrig_testkit::Lab;
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::recording::{self, Recorded, captured, mixture, stored, udp};
use packetrig_tests::skip;

/// Replays `frames` from port 0 to port 1 with these flags, captured there; `None` without rights.
fn replayed(frames: &[Recorded], flags: &[&str]) -> Option<Finished> {
    let lab = skip::lab(Lab::cabled_pair)?;
    let (_directory, file) = stored(frames);
    let (tx, rx) = (lab.location(0), lab.location(1));
    let usual = ["--tx", &tx, "--rx", &rx, "--capture"];
    Some(Running::replay(&file, &[&usual[..], flags].concat()).finish())
}

/// What the receiving side captured.
fn frames_of(finished: &Finished) -> Vec<Vec<u8>> {
    captured(&finished.capture())
}

fn bytes_of(frames: &[Recorded]) -> Vec<Vec<u8>> {
    frames.iter().map(|frame| frame.bytes.clone()).collect()
}

fn numbers(finished: &Finished, paths: &[&str]) -> Vec<u64> {
    let report = finished.report();
    paths.iter().map(|path| report.number("replay", path)).collect()
}

#[test]
fn untagged_replay_delivers_file_bytes_unchanged() {
    let frames = mixture(1200, 100_000);
    let Some(finished) = replayed(&frames, &["--no-tag"]) else { return };
    // Nothing was measured, so nothing is proven.
    assert_eq!(finished.code, Some(7), "{}{}", finished.stdout, finished.stderr);
    assert_eq!(frames_of(&finished), bytes_of(&frames));
    assert_eq!(numbers(&finished, &["/sent/planned", "/sent/frames"]), [1200, 1200]);
}

#[test]
fn replay_without_receiver_warns_and_is_inconclusive() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let (_directory, file) = stored(&mixture(12, 100_000));
    let (file, tx) = (file.display().to_string(), lab.location(0));
    let arguments = ["replay", &file, "--tx", &tx, "--out", "{out}", "--store", "{out}-store"];
    let finished = Running::start(&arguments, "").finish();
    assert_eq!(finished.code, Some(7), "{}", finished.stderr);
    let warning = finished.stderr.find("the verdict will be INCONCLUSIVE (exit code 7)");
    assert!(warning < finished.stderr.find("run: sending") && warning.is_some(), "{}", finished.stderr);
}

#[test]
fn tagged_replay_verifies_frames_with_room() {
    let frames = mixture(1200, 100_000);
    let Some(finished) = replayed(&frames, &[]) else { return };
    finished.report().assert_clean();
    // Acknowledgements and ARP, and every sixth segment with 1 to 5 bytes.
    let fits = |frame: &Recorded| {
        !matches!(frame.bytes[12..14], [8, 6]) && frame.bytes.len() >= 54 + 6
            || frame.bytes[23] == 17 && frame.bytes.len() >= 42 + 6
    };
    let untagged = frames.iter().filter(|frame| !fits(frame)).count() as u64;
    assert!(untagged > 300);
    let paths =
        ["/sent/frames", "/sent/untagged", "/loss/expected", "/loss/lost", "/received/sequence/unique"];
    assert_eq!(numbers(&finished, &paths), [1200, untagged, 1200 - untagged, 0, 1200 - untagged]);
    let told = format!("{untagged} of 1200 frames have no room for a tag");
    assert!(finished.report().0["caveats"].to_string().contains(&told), "{}", finished.report().0["caveats"]);
    // Only the ends of payloads and checksums are not as they were.
    let arrived = frames_of(&finished);
    assert_eq!(arrived.len(), 1200);
    for (sent, arrived) in frames.iter().zip(&arrived) {
        assert_eq!((sent.bytes.len(), &sent.bytes[..34]), (arrived.len(), &arrived[..34]));
    }
}

#[test]
fn no_frame_leaves_before_its_scaled_time() {
    let frames = mixture(300, 1_000_000);
    for (speed, span) in [("2x", 149_500_000), ("0.5x", 598_000_000)] {
        let Some(finished) = replayed(&frames, &["--speed", speed]) else { return };
        finished.report().assert_clean();
        let [last, planned] = numbers(&finished, &["/sent/last", "/sent/planned"])[..] else { return };
        assert!(last >= span, "{speed}: {last}");
        assert_eq!(planned, 300);
        let plan = std::fs::read_to_string(finished.out().join("plan.yaml")).unwrap_or_default();
        assert!(plan.contains(&format!("speed: \"{speed}\"")), "{plan}");
    }
}

#[test]
fn replay_at_top_or_fixed_speed_ignores_timestamps() {
    let frames = mixture(6000, 1_000_000_000);
    for flags in [["--speed", "max"], ["--rate", "20kpps"], ["--rate", "100Mbit/s"]] {
        let Some(finished) = replayed(&frames, &flags) else { return };
        finished.report().assert_clean();
        assert_eq!(numbers(&finished, &["/sent/planned", "/sent/frames"]), [6000, 6000], "{flags:?}");
        let arrived: Vec<usize> = frames_of(&finished).iter().map(Vec::len).collect();
        let sent: Vec<usize> = frames.iter().map(|frame| frame.bytes.len()).collect();
        assert!(arrived == sent, "{flags:?}: {} of {}", arrived.len(), sent.len());
    }
}

#[test]
fn looped_replay_repeats_file_and_continues_numbers() {
    let frames = mixture(100, 1_000_000);
    let Some(finished) = replayed(&frames, &["--loop", "7", "--speed", "10x", "--no-tag"]) else { return };
    let again: Vec<_> = std::iter::repeat_n(bytes_of(&frames), 7).flatten().collect();
    assert_eq!(frames_of(&finished), again);
    let Some(finished) = replayed(&frames, &["--loop", "7", "--speed", "10x"]) else { return };
    finished.report().assert_clean();
    assert_eq!(numbers(&finished, &["/sent/planned", "/sent/frames", "/loss/lost"]), [700, 700, 0]);
}

#[test]
fn endless_replay_loop_ends_with_ctrl_c() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let (_directory, file) = stored(&mixture(100, 100_000));
    let flags = ["--tx", &lab.location(0), "--rx", &lab.location(1), "--loop", "0"];
    let mut running = Running::replay(&file, &flags);
    super::await_traffic(&lab);
    running.signal(rustix::process::Signal::INT);
    let finished = running.finish();
    // On a busy machine the signal may come between a frame's instant and its departure, which is said, not hidden.
    assert!(matches!(finished.code, Some(0 | 7)), "{}{}", finished.stdout, finished.stderr);
    let [planned, frames, lost] = numbers(&finished, &["/sent/planned", "/sent/frames", "/loss/lost"])[..]
    else {
        return;
    };
    assert!(frames >= 100 && planned >= frames && lost == 0);
}

/// What the kernel says of a frame is more than a test of ours can: a tag beyond the MTU is taken, nothing else is.
#[test]
fn full_size_replay_accepts_pushed_vlan_tag() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    for port in lab.ports() {
        NamespaceLinks::open_in(port.netns()).unwrap().set_mtu(port.link.index, 1500).unwrap();
    }
    let frames: Vec<_> = (0..50)
        .map(|n| Recorded { at: n * 100_000, bytes: udp(1, n, if n % 2 == 0 { 1472 } else { 60 }) })
        .collect();
    let (_directory, file) = stored(&frames);
    let (tx, rx) = (lab.location(0), lab.location(1));
    let replay = |back_end: &str, flags: &[&str]| {
        let usual = ["--tx", &tx, "--rx", &rx, "--capture", "--no-tag", "--back-end", back_end];
        Running::replay(&file, &[&usual[..], flags].concat()).finish()
    };
    let mut back_ends = vec!["packet"];
    if skip::may_use_bpf(xdp::bpf_obstacle().map_or(Ok(()), Err)) {
        back_ends.push("af-xdp");
    }
    for back_end in back_ends {
        let finished = replay(back_end, &["--vlan", "push:7"]);
        assert_eq!(finished.code, Some(7), "{}{}", finished.stdout, finished.stderr);
        let pushed = |frame: &Recorded| [&frame.bytes[..12], &[0x81, 0, 0, 7], &frame.bytes[12..]].concat();
        assert_eq!(frames_of(&finished), frames.iter().map(pushed).collect::<Vec<_>>(), "{back_end}");
    }
    for port in lab.ports() {
        NamespaceLinks::open_in(port.netns()).unwrap().set_mtu(port.link.index, 1499).unwrap();
    }
    replay("packet", &["--vlan", "push:7"]).assert_refused(3, &["are too long for port", "1522 B"]);
}

#[test]
fn truncated_file_is_replayed_to_the_cut() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let (_directory, file) = stored(&mixture(100, 100_000));
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let flags = ["--tx", &lab.location(0), "--rx", &lab.location(1)];
    let finished = Running::replay(&file, &flags).finish();
    finished.report().assert_clean();
    assert_eq!(numbers(&finished, &["/sent/frames"]), [99]);
    assert!(finished.report().0["caveats"].to_string().contains("ends inside its last packet"));
}

#[test]
fn replay_refuses_unusable_files_and_flags() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let (_directory, file) = stored(&[]);
    let (tx, rx) = (lab.location(0), lab.location(1));
    let refused =
        |more: &[&str]| Running::replay(&file, &[&["--tx", &tx, "--rx", &rx], more].concat()).finish();
    refused(&[]).assert_refused(3, &["recorded.pcap", "no packet"]);
    std::fs::write(&file, "not a capture at all, but some text").unwrap();
    refused(&[]).assert_refused(3, &["neither a pcap nor a pcapng"]);
    std::fs::remove_file(&file).unwrap();
    refused(&[]).assert_refused(3, &["recorded.pcap", "No such file"]);
    recording::write(&file, &[Recorded { at: 0, bytes: udp(1, 1, 60_000) }]);
    refused(&[]).assert_refused(3, &["several packets on the wire", "60046 B"]);
    for flags in
        [&["--speed", "0"][..], &["--vlan", "drop"], &["--map-ip", "10.0.0.0/8=::/8"], &["--rate", "x"]]
    {
        refused(flags).assert_refused(2, &[flags[0]]);
    }
}
