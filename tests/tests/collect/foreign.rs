//! Exporters that others made: softflowd and nfreplay.
//!
//! What Debian's softflowd 1.1.0 does in its own way: RFC 7011 numbers an IPFIX message by the records before it, softflowd by
//! those before it and in it. Where messages differ in size that looks like gaps and new beginnings, so of its IPFIX only what
//! is in the messages is judged here, and no times that are uptimes.

use super::{Collected, Collector, is_v6, known, recorded};
use packetrig_tests::{recording, skip};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;

/// Runs a program that reads a file and ends; one that does not is ended, and fails.
fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    let output = command.args(["60", program]).args(arguments).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}: {said}", output.status);
    output
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Softflowd reads the file and exports every flow at its end. It writes where nobody else does: its process number and its
/// control socket are in the directory.
fn softflowd(options: &[&str]) -> Collected {
    let (directory, file) = recording::stored(&recorded());
    let collector = Collector::start("udp", &[]);
    let [pid, control] = ["pid", "control"].map(|name| directory.path().join(name));
    let place = ["-p", text(&pid), "-c", text(&control), "-r", text(&file), "-n", collector.address()];
    // In the foreground, with the times of the file.
    run("softflowd", &[&["-d", "-a"], &place[..], options].concat());
    collector.finish()
}

#[test]
fn softflowd_is_understood_in_every_version() {
    if !skip::has_tool("softflowd") {
        return;
    }
    for (options, protocol, precision_ns) in [
        (&["-v", "5"][..], "netflow5", Some(MILLISECOND)),
        (&["-v", "9"], "netflow9", Some(SECOND)),
        (&["-v", "10"], "ipfix", None),
        (&["-v", "10", "-b"], "ipfix", None),
        (&["-v", "10", "-A", "sec"], "ipfix", Some(SECOND)),
        (&["-v", "10", "-A", "milli"], "ipfix", Some(MILLISECOND)),
        (&["-v", "10", "-A", "micro"], "ipfix", Some(MILLISECOND)),
        (&["-v", "10", "-A", "nano"], "ipfix", Some(MILLISECOND)),
    ] {
        // NetFlow 5 knows no IPv6.
        let wanted = known(|n| protocol != "netflow5" || !is_v6(n));
        let collected = softflowd(options);
        assert_eq!(collected.report["exporters"][0]["protocol"], protocol, "{options:?}");
        if protocol != "ipfix" {
            collected.assert_in_order();
        }
        collected.assert_stored(&wanted);
        assert_eq!(collected.kept(), wanted, "{options:?}");
        if let Some(precision_ns) = precision_ns {
            // Both directions have the time of the first packet of either.
            collected.assert_times(precision_ns, |way| way.destination.1 == 53);
        }
    }
}

/// Files of flows, as nfpcapd makes them of the capture file.
fn nfdump_files(directory: &Path, file: &Path) -> Vec<PathBuf> {
    let flows = directory.join("nf");
    std::fs::create_dir(&flows).unwrap();
    run("nfpcapd", &["-r", text(file), "-w", text(&flows)]);
    let entries = std::fs::read_dir(&flows).unwrap().map(|entry| entry.unwrap().path());
    let is_done = |path: &PathBuf| text(path.file_name().unwrap().as_ref()).starts_with("nfcapd.2");
    let mut files: Vec<_> = entries.filter(is_done).collect();
    files.sort();
    assert!(!files.is_empty(), "nfpcapd wrote nothing");
    files
}

#[test]
fn nfreplay_is_understood() {
    if !skip::has_tool("nfpcapd") || !skip::has_tool("nfreplay") {
        return;
    }
    let (directory, file) = recording::stored(&recorded());
    let files = nfdump_files(directory.path(), &file);
    for (version, protocol) in [("5", "netflow5"), ("9", "netflow9")] {
        let collector = Collector::start("udp", &[]);
        let (host, port) = collector.address().split_once(':').unwrap();
        for file in &files {
            run("nfreplay", &["-v", version, "-H", host, "-p", port, "-r", text(file)]);
        }
        let wanted = known(|n| protocol != "netflow5" || !is_v6(n));
        let collected = collector.finish();
        assert_eq!(collected.report["exporters"][0]["protocol"], protocol);
        collected.assert_in_order();
        collected.assert_stored(&wanted);
        assert_eq!(collected.kept(), wanted, "{protocol}");
        collected.assert_times(SECOND, |_| true);
    }
}
