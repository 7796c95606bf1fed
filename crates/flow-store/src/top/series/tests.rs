use super::*;
use crate::grouping::GroupValue;
use crate::sample::{SECOND, THIRTEEN, records};
use crate::scan::list_flow_files;
use crate::top::TopOrder;
use crate::{ParquetOptions, ParquetSink, RecordExporter, RecordSink};

fn series(by: &str, most: usize, step: u64) -> Result<TopSeries, TopSeriesError> {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = ParquetSink::new(ParquetOptions::new(directory.path())).unwrap();
    sink.write_records(&records(100), RecordExporter::default()).unwrap();
    sink.close_sink().1.unwrap();
    let files = list_flow_files(&[directory.path().to_owned()]).unwrap();
    let question = TopGroupsQuery::new(by.parse().unwrap(), TopOrder::Packets, most);
    compute_top_series(&files, &FlowFilter::default(), &question, Nanos::new(step))
}

#[test]
fn series_of_groups_add_up_to_their_sums() {
    let found = series("protocol", 10, 7 * SECOND).unwrap();
    assert_eq!((found.step_ns, found.first_ns), (7 * SECOND, THIRTEEN - THIRTEEN % (7 * SECOND)));
    for (group, steps) in found.top.groups.iter().zip(&found.series) {
        let mut sum = GroupTotals::default();
        for step in steps {
            sum.add_totals(*step);
        }
        assert_eq!(sum, group.has.sum, "{:?}", group.values);
    }
    // Every fourth record is of UDP, from the third on; record n has 3 n + 1 packets.
    let udp = found.top.groups.iter().position(|group| group.values == [GroupValue::Number(17)]).unwrap();
    let expected = |step: u64| -> u64 {
        let first = found.first_ns + step * 7 * SECOND;
        let is_in = |n: &u64| n % 4 == 3 && (first..first + 7 * SECOND).contains(&(THIRTEEN + n * SECOND));
        (0..100).filter(is_in).map(|n| 3 * n + 1).sum()
    };
    let packets: Vec<_> = found.series[udp].iter().map(|sum| sum.packets).collect();
    assert_eq!(packets, (0..packets.len() as u64).map(expected).collect::<Vec<_>>());
}

#[test]
fn series_of_each_direction_are_apart() {
    let found = series("src-ip", 3, 10 * SECOND).unwrap();
    // The other end of all flows sends 2 n packets of record n.
    let back: u64 = (0..10).map(|n| 2 * n).sum();
    assert_eq!(found.series[0][0].packets, back);
    assert_eq!((found.series.len(), found.series[0].len()), (3, 10));
}

#[test]
fn series_that_would_be_too_long_are_refused() {
    let error = series("protocol", 10, SECOND / 1000).unwrap_err().to_string();
    assert!(error.contains("99001 steps") && error.contains("10ms or more"), "{error}");
    assert!(series("protocol", 101, SECOND).unwrap_err().to_string().contains("at most 100 groups"));
}
