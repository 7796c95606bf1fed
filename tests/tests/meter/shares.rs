//! Several meters that see the same traffic: every flow is in one of them, and a dead one takes its own share with it and no more.

use super::{ledger, number, send, udp};
use packetrig_testkit::Lab;
use packetrig_tests::program::Running;
use packetrig_tests::{recording, skip};
use rustix::process::Signal;
use serde_json::Value;

const METERS: usize = 3;
const HOSTS: u8 = 60;

/// Both directions of a flow of each host.
fn hosts() -> Vec<Vec<u8>> {
    let of = |host: u8, is_back| {
        let mut frame = udp(1, is_back);
        frame[if is_back { 33 } else { 29 }] = 100 + host;
        frame
    };
    (0..HOSTS).flat_map(|host| [of(host, false), of(host, true)]).collect()
}

#[test]
fn shares_of_a_file_have_each_flow_once_with_any_number_of_workers() {
    let recorded = |(n, bytes): (usize, Vec<u8>)| recording::Recorded {
        at: 1_700_000_000_000_000_000 + n as u64,
        bytes,
    };
    let frames: Vec<_> = hosts().into_iter().cycle().take(1200).enumerate().map(recorded).collect();
    let (_directory, file) = recording::stored(&frames);
    let file = file.display().to_string();
    for workers in ["1", "2"] {
        let of = |number: usize| {
            let share = format!("{number}/{METERS}");
            let flags = ["meter", &file, "--json", "-q", "--share", &share, "--workers", workers];
            ledger(&Running::start(&flags, "").finish())
        };
        let results: Vec<Value> = (1..=METERS).map(of).collect();
        let sum = |path: &str| results.iter().map(|result| number(result, path)).sum::<u64>();
        assert_eq!(sum("/ledger/packets/recorded"), 1200);
        assert_eq!(sum("/ledger/packets/flows"), u64::from(HOSTS));
        assert_eq!(sum("/ledger/packets/ignored/elsewhere"), 1200 * (METERS as u64 - 1));
        assert!(results.iter().all(|result| number(result, "/ledger/packets/flows") > 0), "{results:?}");
    }
}

#[test]
fn a_share_that_is_none_is_refused() {
    for wrong in ["0/3", "4/3", "2"] {
        Running::start(&["meter", "a.pcap", "--share", wrong], "")
            .finish()
            .assert_refused(2, &[wrong, "2/3"]);
    }
}

/// Meters of one interface, each with its share, and their collector.
struct Cluster {
    meters: Vec<Running>,
    collector: Running,
}

impl Cluster {
    fn start(lab: &Lab) -> Self {
        let flags = ["collect", "--json", "--directory", "flows", "--listen", "tcp://127.0.0.1:0"];
        let mut collector = Running::start(&flags, "");
        collector.await_remark("listening at ");
        collector.await_remark("\n");
        let said = collector.remarks();
        let place =
            said.split("listening at ").nth(1).and_then(|rest| rest.lines().next()).unwrap().to_owned();
        let location = lab.location(1);
        let meter = |number: usize| {
            let (share, domain) = (format!("{number}/{METERS}"), number.to_string());
            let flags =
                ["--direction", "in", "--json", "--share", &share, "--domain", &domain, "--export", &place];
            let mut meter = Running::start(&[&["meter", location.as_str()], &flags[..]].concat(), "");
            meter.await_remark("listening");
            meter
        };
        Self { meters: (1..=METERS).map(meter).collect(), collector }
    }

    /// Ends all that are left; gives their ledgers and the collector's words.
    fn finish(self) -> (Vec<Value>, Value) {
        let Self { meters, mut collector } = self;
        let end = |mut meter: Running| {
            meter.signal(Signal::TERM);
            ledger(&meter.finish())
        };
        let ledgers = meters.into_iter().map(end).collect();
        collector.signal(Signal::TERM);
        let finished = collector.finish();
        let said = serde_json::from_str(&finished.stdout).unwrap_or_else(|_| panic!("{}", finished.stderr));
        (ledgers, said)
    }
}

#[test]
fn a_collector_of_several_meters_has_every_packet_once() {
    let Some(lab) = skip::lab(Lab::pair) else { return };
    let cluster = Cluster::start(&lab);
    send(&lab.ports()[0], &hosts(), 6000);
    let (ledgers, said) = cluster.finish();
    let sum = |path: &str| ledgers.iter().map(|ledger| number(ledger, path)).sum::<u64>();
    assert_eq!(sum("/ledger/packets/recorded"), 6000);
    assert_eq!(sum("/ledger/packets/flows"), u64::from(HOSTS));
    assert!(ledgers.iter().all(|ledger| number(ledger, "/ledger/capture/arrived") == 6000));
    assert_eq!(number(&said, "/total/packets"), 6000, "{said}");
}

#[test]
fn a_meter_that_is_killed_takes_its_own_share_and_no_more() {
    let Some(lab) = skip::lab(Lab::pair) else { return };
    let mut cluster = Cluster::start(&lab);
    send(&lab.ports()[0], &hosts(), 6000);
    let mut killed = cluster.meters.remove(1);
    killed.signal(Signal::KILL);
    drop(killed.finish());
    send(&lab.ports()[0], &hosts(), 6000);
    let (ledgers, said) = cluster.finish();
    let metered: u64 = ledgers.iter().map(|ledger| number(ledger, "/ledger/packets/recorded")).sum();
    for ledger in &ledgers {
        let elsewhere = number(ledger, "/ledger/packets/ignored/elsewhere");
        assert_eq!(elsewhere + number(ledger, "/ledger/packets/recorded"), 12_000);
    }
    // No flow of its had ended, so the collector has none of its records.
    assert_eq!(number(&said, "/total/packets"), metered, "{said}");
    assert!(metered < 12_000, "its share");
}
