//! Captures out of order: the flows are those of the sorted capture, whatever one timestamp says.

use packetrig_tests::program::{Finished, Running};
use packetrig_tests::recording::{Recorded, stored, udp};
use serde_json::Value;
use std::collections::BTreeSet;

const SECOND: u64 = 1_000_000_000;
const BEGAN_NS: u64 = 1_789_984_800 * SECOND;

/// Numbers that look random and are the same in every run.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 16) % most
    }

    fn index(&mut self, most: usize) -> usize {
        usize::try_from(self.below(most as u64)).unwrap()
    }
}

/// Packets of a few flows, with silences around the idle timeout between them.
fn capture(packets: u64) -> Vec<Recorded> {
    let mut seeded = Seeded(7);
    let mut at = BEGAN_NS;
    let mut frames = Vec::new();
    for n in 0..packets {
        let is_silent = n.is_multiple_of(40);
        at += seeded.below(if is_silent { 20 * SECOND } else { 100_000_000 }) + 1;
        let mut bytes = udp(1, n, 40 + seeded.index(400));
        // The last byte of the source address.
        bytes[29] = u8::try_from(n % 3).unwrap();
        frames.push(Recorded { at, bytes });
    }
    frames
}

/// Meters frames into files with more arguments; the report and the records.
fn metered(frames: &[Recorded], more: &[&str]) -> (Value, BTreeSet<String>) {
    let (_directory, file) = stored(frames);
    let file = file.display().to_string();
    let flags = ["meter", &file, "--json", "--quiet", "--directory", "records"];
    let finished = Running::start(&[&flags[..], more].concat(), "").finish();
    assert_eq!(finished.code, Some(0), "{}{}", finished.stdout, finished.stderr);
    let report = serde_json::from_str(&finished.stdout).unwrap();
    (report, records(&finished))
}

fn records(finished: &Finished) -> BTreeSet<String> {
    let directory = finished.directory.path().join("records").display().to_string();
    let shown = Running::start(&["flows", "show", "--json", &directory], "").finish();
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    let rows: Vec<_> = shown.stdout.lines().map(str::to_owned).collect();
    let set: BTreeSet<String> = rows.iter().cloned().collect();
    assert_eq!(set.len(), rows.len(), "no two records are the same");
    set
}

fn shuffled(mut frames: Vec<Recorded>) -> Vec<Recorded> {
    let mut seeded = Seeded(11);
    for at in (1..frames.len()).rev() {
        let other = seeded.index(at + 1);
        frames.swap(at, other);
    }
    frames
}

#[test]
fn shuffled_capture_has_flows_of_sorted_one() {
    let frames = capture(2000);
    let (_, wanted) = metered(&frames, &["--idle", "5s"]);
    assert!(wanted.len() > 20, "some flows end by silence: {}", wanted.len());
    for workers in ["1", "2"] {
        let (report, found) = metered(&shuffled(frames.clone()), &["--idle", "5s", "--workers", workers]);
        assert!(found == wanted, "{} records, not {}", found.len(), wanted.len());
        assert_eq!(report["ledger"]["packets"]["backwards"], 0, "{report:#}");
    }
}

#[test]
fn one_time_in_the_future_stops_no_timers() {
    // Each flow has one packet and ends by silence: the table never holds more than those of 15 seconds.
    let flows = 80_000_u32;
    let mut frames: Vec<Recorded> = (0..flows)
        .map(|n| {
            let mut bytes = udp(1, 1, 20);
            bytes[26..30].copy_from_slice(&(0xc612_0000 + n).to_be_bytes());
            Recorded { at: BEGAN_NS + u64::from(n) * 10_000_000, bytes }
        })
        .collect();
    // Where packets come in order and are not held back any more.
    frames[70_000].at += 86_400 * SECOND;
    let (report, records) = metered(&frames, &["--flows", "4096"]);
    assert_eq!(report["ledger"]["packets"]["evicted"], 0, "{report:#}");
    assert_eq!(u32::try_from(records.len()), Ok(flows));
}

#[test]
fn short_capture_flows_keep_their_end_reasons() {
    let fin = |at: u64, flags: u8| {
        let mut bytes = packetrig_tests::recording::tcp(1, 1, 10);
        bytes[47] = flags;
        Recorded { at: BEGAN_NS + at, bytes }
    };
    let other = |at: u64| Recorded { at: BEGAN_NS + at, bytes: udp(1, 1, 10) };
    let ends = |frames: &[Recorded]| {
        let (_, records) = metered(frames, &[]);
        let end = |row: &String| {
            let row: Value = serde_json::from_str(row).unwrap();
            (row["protocolIdentifier"].as_u64().unwrap(), row["flowEndReason"].as_u64().unwrap())
        };
        records.iter().map(end).collect::<BTreeSet<_>>()
    };
    // RST ends both directions; the other flow goes on.
    assert_eq!(ends(&[fin(0, 2), fin(1, 4), other(2)]), [(6, 3), (17, 4)].into());
    // The other one is silent for long.
    assert_eq!(ends(&[other(0), fin(40 * SECOND, 2)]), [(6, 4), (17, 1)].into());
}
