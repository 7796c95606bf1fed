//! What an output does not get is named and makes the exit code, and a meter of files waits where it can.

use super::{ledger, number, udp};
use packetrig_sys::netns::NetNs;
use packetrig_sys::ports::ReservedPort;
use packetrig_tests::listening::await_place;
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::recording::{self, Recorded};
use packetrig_tests::still_disk::StillDisk;
use rustix::process::Signal;
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// A file with a packet of each of so many flows.
fn file_of(flows: u32) -> (tempfile::TempDir, PathBuf) {
    let frame = |number: u32| {
        let mut bytes = udp(1, false);
        bytes[26..30].copy_from_slice(&(0xc612_0000 + number).to_be_bytes());
        Recorded { at: u64::from(number) * 1000, bytes }
    };
    recording::stored(&(0..flows).map(frame).collect::<Vec<_>>())
}

fn start(file: &Path, flags: &[&str]) -> Running {
    let file = file.display().to_string();
    Running::start(&[&["meter", &file, "--json", "-q"], flags].concat(), "")
}

/// The report of a meter of which one output has nothing. It balances.
fn lost(finished: &Finished, cause: &str, records: u64) -> Value {
    assert_eq!(finished.code, Some(4), "{}{}", finished.stdout, finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(report["imbalances"], serde_json::json!([]), "{report}");
    assert_eq!(number(&report, &format!("/outputs/0/losses/{cause}/records")), records, "{report}");
    let said = format!("records lost: {records} (packets: {records})");
    assert!(finished.stderr.contains(&said), "{}", finished.stderr);
    report
}

/// Longer than a collector that is gone is waited for.
#[test]
fn frozen_disk_delays_file_meter_without_loss() {
    let Some(mut disk) = StillDisk::mount() else { return };
    // More than its queue holds.
    let (_directory, file) = file_of(200_000);
    let records = disk.path().join("records");
    std::fs::create_dir(&records).unwrap();
    disk.freeze();
    let running = start(&file, &["--flows", "524288", "--directory", &records.display().to_string()]);
    thread::sleep(Duration::from_millis(11_500));
    disk.thaw();
    let result = ledger(&running.finish());
    assert_eq!(number(&result, "/outputs/0/sent/records"), 200_000, "{result}");
    assert_eq!(result["outputs"][0]["losses"], serde_json::json!({}));
}

#[test]
fn unreachable_target_fails_file_meter_with_reason() {
    let (_directory, file) = file_of(300);
    let closed =
        ReservedPort::reserve_any_tcp(&NetNs::current().unwrap(), Ipv4Addr::LOCALHOST.into()).unwrap();
    let target = format!("tcp://127.0.0.1:{}", closed.port());
    let of_connections = start(&file, &["--export", &target]);
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    drop(silent);
    // Bound and not connected to: it takes nothing, and nobody else gets the port.
    let report =
        lost(&start(&file, &["--export", &format!("udp://127.0.0.1:{port}")]).finish(), "refused", 300);
    assert_eq!(number(&report, "/outputs/0/sent/records"), 0, "a datagram that ICMP reports was not sent");
    let finished = of_connections.finish();
    lost(&finished, "unreachable", 300);
    assert!(finished.stderr.contains(&format!("{target}: records lost: 300")), "{}", finished.stderr);
    assert!(finished.stderr.contains("Connection refused"), "{}", finished.stderr);
}

/// A certificate of itself and its key. `openssl req -x509` marks such as authorities.
fn certify(directory: &Path, name: &str) -> [String; 2] {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut wanted = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    wanted.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    wanted.distinguished_name = rcgen::DistinguishedName::new();
    wanted.distinguished_name.push(rcgen::DnType::CommonName, name);
    let texts = [wanted.self_signed(&key).unwrap().pem(), key.serialize_pem()];
    let paths = ["pem", "key"].map(|kind| directory.join(format!("{name}.{kind}")));
    for (path, text) in paths.iter().zip(texts) {
        std::fs::write(path, text).unwrap();
    }
    paths.map(|path| path.display().to_string())
}

#[test]
fn tls_export_accepts_only_the_trusted_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let [certificate, key] = certify(directory.path(), "collector-7");
    let [other, _] = certify(directory.path(), "somebody");
    let (_directory, file) = file_of(300);
    for (trusted, is_accepted) in [(&certificate, true), (&other, false)] {
        let flags = ["collect", "--json", "--listen", "tls://127.0.0.1:0", "--cert", &certificate];
        let mut collector = Running::start(&[&flags[..], &["--key", &key]].concat(), "");
        let place = await_place(&mut collector);
        let metered = start(&file, &["--export", &place, "--tls-ca", trusted]).finish();
        collector.signal(Signal::INT);
        let collected = collector.finish();
        let report: Value = serde_json::from_str(&collected.stdout).unwrap();
        if is_accepted {
            assert_eq!(number(&ledger(&metered), "/outputs/0/sent/records"), 300);
            assert_eq!((collected.code, number(&report, "/total/records")), (Some(0), 300));
            continue;
        }
        lost(&metered, "unreachable", 300);
        assert_eq!(collected.code, Some(7), "{}\n{}", collected.stderr, metered.stderr);
        assert!(number(&report, "/intake/0/handshakes_failed") > 0, "{report}");
        let of_collector = report["intake"][0]["handshake_failure"].as_str().unwrap();
        for text in [metered.stderr.as_str(), &collected.stderr, of_collector] {
            assert!(text.contains("CN=collector-7"), "{text}");
        }
        assert!(metered.stderr.contains(&other), "{}", metered.stderr);
    }
}

#[test]
fn a_named_pipe_is_read_like_a_file() {
    let (directory, file) = file_of(300);
    let pipe = directory.path().join("live");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let running = start(&pipe, &[]);
    let bytes = std::fs::read(file).unwrap();
    File::options().write(true).open(pipe).unwrap().write_all(&bytes).unwrap();
    assert_eq!(number(&ledger(&running.finish()), "/ledger/packets/metered"), 300);
}
