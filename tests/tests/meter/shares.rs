//! Several meters that see the same traffic: every flow is in one of them, and a dead one takes its own share with it and no more.

use super::{ledger, number, send, udp};
use packetrig_testkit::Lab;
use packetrig_tests::listening::await_place;
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
fn file_shares_meter_each_flow_once() {
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

fn length_of(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap().to_le_bytes()
}

/// A block of pcapng.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = length_of(body.len() + 12);
    [&kind.to_le_bytes(), &length, body, &length].concat()
}

/// A capture of two interfaces, one of which is of a link type that nobody reads.
fn of_mixed_links(frames: &[Vec<u8>]) -> Vec<u8> {
    let interface =
        |link: u16| block(1, &[&link.to_le_bytes()[..], &[0; 2], &65_535_u32.to_le_bytes()].concat());
    let section = [&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
    let mut file = [block(0x0a0d_0d0a, &section), interface(1), interface(147)].concat();
    for (index, frame) in frames.iter().enumerate() {
        let length = length_of(frame.len());
        let head = [length_of(index % 2), [0; 4], length_of(index), length, length];
        let padding = vec![0; frame.len().next_multiple_of(4) - frame.len()];
        file.extend(block(6, &[head.as_flattened(), frame, &padding].concat()));
    }
    file
}

#[test]
fn unread_packets_belong_to_first_share() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mixed.pcapng");
    std::fs::write(&file, of_mixed_links(&hosts())).unwrap();
    let file = file.display().to_string();
    let of = |share: &str| {
        ledger(&Running::start(&["meter", &file, "--json", "-q", "--share", share], "").finish())
    };
    let frames = u64::from(HOSTS);
    for (share, unread) in [("1/2", frames), ("2/2", 0)] {
        let result = of(share);
        assert_eq!(number(&result, "/ledger/packets/seen"), 2 * frames);
        assert_eq!(number(&result, "/ledger/packets/ignored/not_ip"), unread, "{share}");
        let elsewhere = number(&result, "/ledger/packets/ignored/elsewhere");
        assert_eq!(elsewhere + unread + number(&result, "/ledger/packets/recorded"), 2 * frames, "{share}");
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
        let place = await_place(&mut collector);
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
fn cluster_collector_has_every_packet_once() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
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
fn killed_meter_loses_only_its_share() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
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
