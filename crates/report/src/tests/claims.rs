//! Results of other machines with counts that cannot be true.

use super::*;
use packetrig_stats::outage::StreamOutage;
use packetrig_stats::ranges::{NumberRange, NumberRanges};
use packetrig_stats::result::MisdeliveredFrames;

/// A result of another machine: a part that is larger than its whole is left out and forbids PASS; it makes no figure wrong.
#[test]
fn impossible_counts_are_left_out_and_forbid_pass() {
    let lies: [fn(&mut NodeResult); 5] = [
        |node| node.send[0].counts.untagged = 1002,
        |node| node.send[0].counts.frames = u64::MAX,
        |node| node.receive[0].counts.sequence.duplicates = u64::MAX,
        |node| node.misdelivered.push(astray(5, 6, 5)),
        |node| node.misdelivered.push(astray(5, 5, 6)),
    ];
    for lie in lies {
        let mut hostile = node(&[1001]);
        lie(&mut hostile);
        let report = kernel_report_from(vec![hostile]);
        let words = "rows of its result contain impossible counts and were left out (number: 1)";
        assert!(report.caveats.iter().any(|caveat| caveat.text == words), "{:?}", report.caveats);
        assert_ne!(report.verdict, RunVerdict::Pass);
        assert!(!matches!(report.verdict, RunVerdict::Fail(_)), "a lie of the rig is no fault of the device");
    }
}

fn astray(frames: u64, to_groups: u64, numbers: u64) -> MisdeliveredFrames {
    let numbers = NumberRanges { numbers, ..NumberRanges::default() };
    MisdeliveredFrames { stream: 0, port: 0, frames, to_groups, numbers }
}

/// Counts that no row contradicts may still be as large as their types allow.
#[test]
fn largest_counts_cause_no_panic() {
    let mut hostile = node(&[1001]);
    hostile.send[0].counts.bytes = u64::MAX;
    hostile.receive.push(hostile.receive[0].clone());
    for row in &mut hostile.receive {
        row.counts.bytes = u64::MAX;
        row.series.seconds = vec![(u64::MAX, u64::MAX)];
        let lost =
            StreamOutage { first: 0, last: u64::MAX, frames: u64::MAX, gaps: 1, begin: None, end: None };
        let (begin, end) = (Some(MonoTime::from_nanos(1)), Some(MonoTime::from_nanos(2)));
        let between = StreamOutage { begin, end, ..lost };
        row.outages.outages = vec![lost, between, StreamOutage { first: u64::MAX, last: 0, ..between }];
        row.outages.gaps = u64::MAX;
    }
    for row in &mut hostile.ports {
        let most = Some(u64::MAX);
        row.tx = TxCounters { handed_over: u64::MAX, refused: u64::MAX, on_wire: most, dropped: most };
        row.rx = RxCounters {
            arrived: most,
            ring_dropped: u64::MAX,
            foreign: u64::MAX,
            protocol: u64::MAX,
            other_runs: u64::MAX,
            ..RxCounters::default()
        };
        row.ledger.add_frames(LedgerAccount::Planned, u64::MAX);
        row.ledger.add_frames(LedgerAccount::Built, u64::MAX);
        row.ledger.add_frames(LedgerAccount::Unsent, u64::MAX);
        row.untagged_contents.frames.extend([(1, u64::MAX), (2, u64::MAX)]);
    }
    hostile.send[0].counts.untagged = 1;
    hostile.send[0].untagged_contents.frames.extend([(1, u64::MAX), (2, u64::MAX)]);
    hostile.misdelivered = vec![astray(5, 5, 5), astray(5, 5, 5)];
    let whole = NumberRange { first: 0, last: u64::MAX };
    hostile.misdelivered[0].numbers.ranges = vec![whole, NumberRange { first: u64::MAX, last: 0 }, whole];
    let report = kernel_report_from(vec![hostile]);
    assert_ne!(report.verdict, RunVerdict::Pass);
    let of_run = PortTable::COLUMNS.iter().find(|column| column.name == "rx_of_run").unwrap();
    assert!(PortTable::report_rows(&report).iter().all(|row| of_run.value_in(row).is_some()));
}
