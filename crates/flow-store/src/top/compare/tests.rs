use super::*;
use crate::sample::{SECOND, THIRTEEN, record, records};
use crate::scan::{ListedFiles, TimeSpan, list_flow_files};
use crate::{ParquetOptions, ParquetSink, RecordExporter, RecordSink};
use packetrig_flow::FlowRecord;

fn store_records(records: &[FlowRecord]) -> (tempfile::TempDir, ListedFiles) {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = ParquetSink::new(ParquetOptions::new(directory.path())).unwrap();
    sink.write_records(records, RecordExporter::default()).unwrap();
    sink.close_sink().1.unwrap();
    let files = list_flow_files(&[directory.path().to_owned()]).unwrap();
    (directory, files)
}

fn question(by: &str, order: TopOrder) -> GroupComparisonQuery {
    GroupComparisonQuery { grouping: by.parse().unwrap(), order, most: 10, only: Vec::new() }
}

/// A side of the records that began in these seconds after thirteen o'clock.
fn side(files: &[PathBuf], from: u64, to: u64) -> ComparedSide<'_> {
    let span = TimeSpan { from_ns: Some(THIRTEEN + from * SECOND), to_ns: Some(THIRTEEN + to * SECOND) };
    ComparedSide { files, filter: FlowFilter::started_in(span), length_ns: Some((to - from) * SECOND) }
}

/// Record n has n + 1 packets forward and 2 n back, and begins n seconds after thirteen o'clock.
fn packets(n: u64) -> u64 {
    3 * n + 1
}

#[test]
fn comparison_names_new_gone_grown_and_shrunk() {
    let mut all = records(8);
    // Source ports of 0 to 7: gone, grown, shrunk; 4 to 7 are new ones, but for those of 1 and 2.
    (all[5].key.source_port, all[6].key.source_port) = (40_001, 40_002);
    all[6].forward.packets = 1;
    all[6].reverse.packets = 0;
    let (_directory, files) = store_records(&all);
    let asked = question("src-port", TopOrder::Packets);
    let found = compare_groups([&side(&files, 0, 4), &side(&files, 4, 8)], &asked).unwrap();
    let of_port = |port: u64| {
        let change = found.changes.iter().find(|change| change.values == [GroupValue::Number(port)]);
        change.map(|change| (change.kind, change.sums.map(|sum| sum.packets)))
    };
    // Records 1 and 5 have 2 and 6 packets forward.
    assert_eq!(of_port(40_001), Some((ChangeKind::Grown, [2, 6])));
    assert_eq!(of_port(40_002), Some((ChangeKind::Shrunk, [3, 1])));
    assert_eq!(of_port(40_000), Some((ChangeKind::Gone, [1, 0])));
    assert_eq!(of_port(40_007), Some((ChangeKind::New, [0, 8])));
    // The answers come from port 443: 0, 2, 4 and 6 packets before; 8, 10, 0 and 14 then.
    assert_eq!(of_port(443), Some((ChangeKind::Grown, [12, 32])));
    assert_eq!(found.changes[0].values, [GroupValue::Number(443)]);
    let kinds = [ChangeKind::New, ChangeKind::Gone, ChangeKind::Grown, ChangeKind::Shrunk];
    assert_eq!(kinds.map(|kind| found.kinds[&kind]), [2, 2, 2, 1]);
    assert_eq!(found.uncompared_rate, None);
    assert!(
        (found.rate_change([GroupTotals::default(), found.changes[0].sums[1]], TopOrder::Packets) - 8.0)
            .abs()
            < 1e-9
    );
}

#[test]
fn comparison_takes_rates_of_windows_of_different_length() {
    let (_directory, files) = store_records(&records(12));
    let asked = question("protocol", TopOrder::Flows);
    // Two seconds and ten: the same rate in flows would be five times as many.
    let found = compare_groups([&side(&files, 0, 2), &side(&files, 2, 12)], &asked).unwrap();
    let rates = found
        .changes
        .iter()
        .map(|change| [0, 1].map(|side| found.group_rate(side, change.sums[side], TopOrder::Flows)));
    for [before, after] in rates {
        assert!(before <= 1.0 && after <= 1.0, "{before} {after}");
    }
    assert_eq!(found.lengths_ns, [2 * SECOND, 10 * SECOND]);
}

#[test]
fn comparison_without_windows_uses_the_time_of_the_records() {
    let (_first, one) = store_records(&records(5));
    let (_second, two) = store_records(&[record(1)]);
    let whole = |files| ComparedSide { files, filter: FlowFilter::default(), length_ns: None };
    let found = compare_groups([&whole(&one), &whole(&two)], &question("pair", TopOrder::Bytes)).unwrap();
    // Four seconds and the 1500 ns of the last one; a single record still is a second.
    assert_eq!(found.lengths_ns, [4 * SECOND + 1500, SECOND]);
    assert_eq!(found.totals.map(|total| total.sum.packets), [(0..5).map(packets).sum(), packets(1)]);
    assert_eq!(found.kinds, BTreeMap::from([(ChangeKind::Gone, 4), (ChangeKind::Grown, 1)]));
}

/// More groups than candidates and than the table holds: every number that is shown is exact, and what may be missing is said.
#[test]
fn comparison_of_many_groups_is_exact_or_says_what_it_left_out() {
    let mut all = records(2000);
    for (n, record) in (0_u16..).zip(&mut all) {
        record.key.source_port = n % 1000;
    }
    let (_directory, files) = store_records(&all);
    let sides = [&side(&files, 0, 1000), &side(&files, 1000, 2000)];
    let mut asked = question("src-port", TopOrder::Packets);
    asked.most = 5;
    let exact = compare_groups_within_bound(sides, &asked, 5000, 100_000).unwrap();
    assert_eq!((exact.uncompared_rate, exact.has_other_groups), (None, false));
    let narrow = compare_groups_within_bound(sides, &asked, 40, 150).unwrap();
    for change in &narrow.changes {
        let [GroupValue::Number(port)] = change.values[..] else { panic!() };
        // Port 443 also has the answers.
        if port != 443 {
            assert_eq!(change.sums.map(|sum| sum.packets), [port + 1, port + 1001], "{port}");
        }
    }
    // All changes are by 1000 packets: those that were not compared may be as large.
    assert!(narrow.uncompared_rate.is_some() && narrow.has_other_groups);
    assert_eq!(narrow.changes[0], exact.changes[0]);
    asked.most = 1;
    let largest = compare_groups_within_bound(sides, &asked, 40, 150).unwrap();
    assert_eq!((largest.uncompared_rate, &largest.changes[..]), (None, &exact.changes[..1]));
}
