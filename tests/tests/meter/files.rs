//! Files of known content.

use super::{ledger, number};
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::{recording, skip, tools};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::Path;

fn meter(file: &Path, flags: &[&str]) -> Finished {
    let file = file.display().to_string();
    let mut arguments = vec!["meter", &file, "--json", "-q"];
    arguments.extend(flags);
    Running::start(&arguments, "").finish()
}

/// Of 600 frames of [`recording::mixture`]: packets by protocol and ARP.
const KNOWN: [(&str, u64); 2] = [("17", 300), ("6", 200)];

#[test]
fn file_flows_match_known_frames_for_any_workers() {
    if !skip::has_tool("tshark") {
        return;
    }
    let (_directory, file) = recording::stored(&recording::mixture(600, 2_000));
    for workers in ["1", "2", "3"] {
        let finished = meter(&file, &["--workers", workers, "--export", "file:out.ipfix"]);
        let result = ledger(&finished);
        assert_eq!(number(&result, "/ledger/capture/arrived"), 600);
        assert_eq!(number(&result, "/ledger/packets/ignored/arp"), 100, "ARP");
        assert_eq!(number(&result, "/ledger/packets/recorded"), 500);
        assert_eq!(number(&result, "/ledger/packets/flows"), 3);
        assert_eq!(number(&result, "/outputs/0/sent/packets"), 500);
        let out = finished.directory.path().join("out.ipfix");
        let mut packets = BTreeMap::<String, u64>::new();
        for message in tools::tshark(&out, &["cflow.protocol", "cflow.packets"]) {
            let of = |n: usize| message[n].split(',').filter(|text| !text.is_empty());
            for (protocol, count) in of(0).zip(of(1)) {
                *packets.entry(protocol.to_owned()).or_default() += count.parse::<u64>().unwrap();
            }
        }
        for (protocol, count) in KNOWN {
            assert_eq!(packets.get(protocol), Some(&count), "{packets:?}");
        }
    }
}

#[test]
fn compressed_and_truncated_files_are_metered() {
    let (directory, file) = recording::stored(&recording::mixture(600, 2_000));
    let bytes = std::fs::read(&file).unwrap();
    let cut = directory.path().join("cut.pcap");
    std::fs::write(&cut, &bytes[..bytes.len() - 3]).unwrap();
    let result = ledger(&meter(&cut, &[]));
    assert_eq!(number(&result, "/ledger/capture/delivered"), 599);
    assert!(result["remarks"][0].as_str().unwrap().contains("ends within its last packet"), "{result}");
    if skip::has_tool("zstd") {
        let packed = directory.path().join("a.zst");
        let done = std::process::Command::new("zstd").arg("-q").arg(&file).arg("-o").arg(&packed).status();
        assert!(done.unwrap().success());
        assert_eq!(number(&ledger(&meter(&packed, &[])), "/ledger/packets/recorded"), 500);
    }
}

#[test]
fn sampling_passes_packets_over_and_says_so() {
    let (_directory, file) = recording::stored(&recording::mixture(600, 2_000));
    let result = ledger(&meter(&file, &["--sample", "7"]));
    assert_eq!(number(&result, "/ledger/packets/ignored/sampled"), 600 - 600 / 7);
    assert_eq!(number(&result, "/ledger/packets/seen"), 600);
}

#[test]
fn paced_file_has_the_same_flows() {
    // A tenth of a second of it, twice as fast.
    let (_directory, file) = recording::stored(&recording::mixture(600, 160_000));
    let result = ledger(&meter(&file, &["--pace", "2x", "--workers", "2"]));
    assert_eq!(number(&result, "/ledger/packets/recorded"), 500);
    assert_eq!(number(&result, "/ledger/packets/flows"), 3);
}

#[test]
fn records_are_kept_as_parquet_too() {
    let (_directory, file) = recording::stored(&recording::mixture(600, 2_000));
    let finished = meter(&file, &["--directory", "flows"]);
    let result = ledger(&finished);
    assert_eq!(number(&result, "/outputs/0/sent/packets"), 500);
    assert!(finished.directory.path().join("flows/flows").is_dir());
}

#[test]
fn damaged_capture_file_ends_with_error() {
    let (directory, file) = recording::stored(&recording::mixture(600, 2_000));
    let mut bytes = std::fs::read(&file).unwrap();
    // After the header of the file, the captured length is the third number of a record.
    bytes[24 + 8..][..4].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    let damaged = directory.path().join("damaged.pcap");
    std::fs::write(&damaged, bytes).unwrap();
    let finished = meter(&damaged, &[]);
    finished.assert_refused(2, &["error:", "damaged.pcap is damaged at packet 1 "]);
    let result: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(number(&result, "/ledger/capture/delivered"), 0);
    let empty = directory.path().join("empty.pcap");
    std::fs::write(&empty, []).unwrap();
    meter(&empty, &[]).assert_refused(2, &["empty.pcap is not a capture file: it is empty"]);
}

#[test]
fn meter_refuses_invalid_inputs_with_reason() {
    let refused = |arguments: &[&str], code, words: &[&str]| {
        let arguments = [&["meter"], arguments].concat();
        Running::start(&arguments, "").finish().assert_refused(code, words);
    };
    refused(&["nosuch.pcap"], 2, &["nosuch.pcap", "No such file"]);
    refused(&["/etc/passwd"], 2, &["/etc/passwd", "not a capture file"]);
    refused(&["nosuch0"], 4, &["nosuch0"]);
    refused(&["lo", "nosuch.pcap"], 2, &["one meter for each kind"]);
    refused(&["lo", "--pace", "1x"], 2, &["--pace works with capture files only"]);
    refused(&["lo,lo"], 2, &["lo,lo", "spaces"]);
    refused(&["lo", "lo"], 2, &["twice"]);
    refused(&["lo", "--source", "headers", "--direction", "both"], 2, &["--direction both"]);
    refused(&["lo", "--export", "sctp://198.18.0.9"], 2, &["sctp"]);
}

#[test]
fn interrupted_or_limited_file_meter_reports_stop() {
    // Two seconds of it, a thousand times as slow.
    let (_directory, file) = recording::stored(&recording::mixture(1_000, 2_000_000));
    let file = file.display().to_string();
    for workers in ["1", "2"] {
        let flags = ["meter", &file, "--json", "--pace", "0.001x", "--workers", workers];
        let mut running = Running::start(&flags, "");
        running.await_remark("reading");
        running.signal(Signal::INT);
        let limited = Running::start(&[&flags[..], &["--time", "10ms"]].concat(), "").finish();
        for (finished, code) in [(running.finish(), 130), (limited, 0)] {
            assert_eq!(finished.code, Some(code), "{}", finished.stderr);
            let result: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
            assert_eq!(result["stopped"], true, "{result}");
            assert_eq!(result["imbalances"], serde_json::json!([]), "{result}");
            assert!(
                result["remarks"][0].as_str().unwrap().contains("stopped before the end of the files"),
                "{result}"
            );
        }
    }
}

#[test]
fn meter_summary_has_valid_shares_and_sizes() {
    let (_directory, file) = recording::stored(&recording::mixture(600, 2_000));
    let file = file.display().to_string();
    let full = ["--export", "file:/dev/full", "--export", "file:/dev/full"];
    let finished =
        Running::start(&[&["meter", &file, "-q"][..], &full, &["--directory", "d"]].concat(), "").finish();
    let said = &finished.stdout;
    let share = |line: &str| line.strip_suffix(" %")?.rsplit(' ').next()?.parse::<f64>().ok();
    let shares: Vec<f64> = said.lines().filter_map(share).collect();
    assert!(!shares.is_empty() && shares.iter().all(|share| *share <= 100.0), "{said}");
    let size = said.lines().find(|line| line.trim_start().starts_with("d ")).unwrap();
    assert!(!size.ends_with(" 0 B"), "{said}");
}

#[test]
fn unsupported_link_type_is_named() {
    let (_directory, file) = recording::stored(&recording::mixture(6, 2_000));
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[20..24].copy_from_slice(&195_u32.to_be_bytes());
    std::fs::write(&file, bytes).unwrap();
    let result = ledger(&meter(&file, &[]));
    let remarks = result["remarks"].to_string();
    assert!(
        remarks.contains("link type 195 (IEEE 802.15.4) is not supported; packets not metered: 6"),
        "{remarks}"
    );
    assert_eq!(number(&result, "/ledger/packets/ignored/not_ip"), 6);
}
