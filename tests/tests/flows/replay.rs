//! Stored records that are sent again: what a collector stores of them is what was stored.

use super::made::Made;
use super::{packetrig, store};
use packetrig_sys::clock;
use packetrig_tests::listening::await_place;
use packetrig_tests::nfcapd::Nfcapd;
use packetrig_tests::program::{self, Running};
use packetrig_tests::skip;
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// All records as lines, without who exported them.
fn lines(directory: &Path) -> Vec<String> {
    let shown = packetrig(&["show", "--json"], directory);
    let without_exporter = |line: &str| {
        let mut row: Value = serde_json::from_str(line).unwrap();
        let no_answer = row["reversePacketDeltaCount"] == 0;
        // Made records have flags even of a direction without packets, which no exporter has.
        let flags = no_answer.then_some("reverseTcpControlBits");
        for name in ["exporterIPv6Address", "observationDomainId"].into_iter().chain(flags) {
            row.as_object_mut().unwrap().remove(name);
        }
        row.to_string()
    };
    let mut lines: Vec<String> = shown.lines().map(without_exporter).collect();
    lines.sort();
    lines
}

fn replay(directory: &Path, more: &[&str]) -> Value {
    let mut command = Command::new(program::binary());
    let output = command.args(["flows", "replay", "--json"]).arg(directory).args(more).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn replayed_records_are_stored_unchanged() {
    let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let made = Made::new(3000);
    store(first.path(), &made);
    let file = second.path().join("a.ipfix");
    let said = replay(first.path(), &["--biflow", "--export", &format!("file:{}", file.display())]);
    assert_eq!(said["counts"]["sent"]["records"], made.records.len());
    let records = second.path().join("records");
    let collected = Command::new(program::binary())
        .args(["collect", "--quiet", "--directory"])
        .args([&records, &file])
        .output()
        .unwrap();
    assert!(collected.status.success(), "{}", String::from_utf8_lossy(&collected.stderr));
    let (stored, wanted) = (lines(&records), lines(first.path()));
    assert_eq!(stored.len(), wanted.len());
    for (stored, wanted) in stored.iter().zip(&wanted) {
        assert_eq!(stored, wanted);
    }
}

#[test]
fn replay_keeps_its_rate_and_filter() {
    let directory = tempfile::tempdir().unwrap();
    let made = Made::new(1000);
    store(directory.path(), &made);
    let listen = ["collect", "--json", "--quiet", "--listen", "udp://127.0.0.1:0"];
    let mut collector = Running::start(&listen, "");
    let place = await_place(&mut collector);
    let udp = made.protocols.get("17").copied().unwrap();
    let began_ns = clock::monotonic_ns();
    let rate = (udp / 2).to_string();
    let said =
        replay(directory.path(), &["--export", &place, "--rate", &rate, "--protocol", "udp", "--biflow"]);
    assert_eq!(said["counts"]["sent"]["records"], udp);
    // The last of them is due one interval before two seconds.
    let took_ns = clock::monotonic_ns() - began_ns;
    assert!(took_ns > 1_900_000_000, "{took_ns}");
    collector.signal(rustix::process::Signal::INT);
    let report: Value = serde_json::from_str(&collector.finish().stdout).unwrap();
    assert_eq!((&report["total"]["records"], &report["total"]["lost"]), (&udp.into(), &0.into()));
}

/// The key of Crypto-PAn's published sample.
const ANONYMISER_KEY: &str = "1522178d33a4cf80130a5b1649907d10d8988f837979652762574c2d2a842202";

fn write_key(path: &Path, mode: u32) {
    std::fs::write(path, format!("{ANONYMISER_KEY}\n")).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// What nfcapd stored of records that were sent with these flags, as nfdump prints it.
fn stored_by_nfcapd(records: &Path, more: &[&str], key_of_nfanon: Option<&str>) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let nfcapd = Nfcapd::start(directory.path()).unwrap();
    let place = format!("udp://{}", nfcapd.address());
    replay(records, &[&["--export", place.as_str()], more].concat());
    nfcapd.finish().unwrap();
    let run = |program: &str, flags: &[&str]| {
        let output = Command::new(program).args(flags).arg(directory.path()).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    if let Some(key) = key_of_nfanon {
        run("nfanon", &["-q", "-K", key, "-r"]);
    }
    let said = run("nfdump", &["-q", "-6", "-N", "-o", "fmt:%sa %sp %da %dp %pr %pkt %byt", "-R"]);
    let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn anonymised_addresses_are_those_of_nfanon() {
    if !skip::has_tool("nfanon") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().join("records");
    store(&records, &Made::new(500));
    let key = directory.path().join("secret.key");
    write_key(&key, 0o600);
    let anonymised = stored_by_nfcapd(&records, &["--anonymise", key.to_str().unwrap()], None);
    let wanted = stored_by_nfcapd(&records, &[], Some(&format!("0x{ANONYMISER_KEY}")));
    assert!(anonymised.len() >= 500 && !anonymised[0].contains("198.19."), "{anonymised:?}");
    assert_eq!(anonymised, wanted);
}

#[test]
fn key_of_anonymised_replay_must_be_secret() {
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().join("records");
    store(&records, &Made::new(1));
    let key = directory.path().join("open.key");
    write_key(&key, 0o644);
    let flags = ["--export", "udp://127.0.0.1:9", "--anonymise"];
    let mut command = Command::new(program::binary());
    let output = command.args(["flows", "replay"]).arg(&records).args(flags).arg(&key).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot read the key of --anonymise in") && said.contains("open.key"), "{said}");
}
