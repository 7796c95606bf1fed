use super::*;
use crate::alert::AlertEventKind;
use crate::columns::flow_columns;
use crate::filter::FlowFilter;
use crate::grouping::GroupValue;
use crate::parquet::{ParquetOptions, ParquetSink};
use crate::sample::{SECOND, THIRTEEN, address, foreign_record, record};
use crate::scan::{list_flow_files, scan_records};
use packetrig_flow::FlowHalf;
use std::ops::ControlFlow;

const SOURCE: RecordExporter = RecordExporter { exporter: [9; 16], domain: 77 };

fn format_event(event: &AlertEvent) -> String {
    let sign = if event.kind == AlertEventKind::Raised { '+' } else { '-' };
    let group = match event.group[..] {
        [GroupValue::Address(address)] => address[15],
        _ => 0,
    };
    let second = (event.from_ns - THIRTEEN) / SECOND;
    format!("{sign}{} {group} {second} {}", event.rule.name, event.value)
}

/// Watches records of files, and returns the events.
fn watch(rules: &str, records: &[FlowRecord]) -> (Vec<String>, Vec<AlertCounts>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("alerts");
    let counts = AlertCountsReader::default();
    let mut sink = AlertSink::new(AlertOptions {
        rules: AlertRules::parse_with_names(rules, &Arc::default()).unwrap(),
        places: vec![AlertDestination::File(path.clone())],
        is_live: false,
        format_event,
        counts: counts.clone(),
    })
    .unwrap();
    for records in records.chunks(7) {
        sink.write_records(records, SOURCE).unwrap();
        sink.on_tick(MonoTime::from_nanos(SECOND)).unwrap();
    }
    let (kept, done) = sink.close_sink();
    done.unwrap();
    assert_eq!((kept.offered.records, kept.stored.records), (records.len() as u64, records.len() as u64));
    let text = std::fs::read_to_string(path).unwrap();
    (text.lines().map(str::to_owned).collect(), counts.read_counts())
}

/// A flow between two addresses, in seconds after 13:00.
fn flow(from: u16, to: u16, first_s: u64, last_s: u64, bytes: [u64; 2]) -> FlowRecord {
    let half = |bytes| FlowHalf {
        packets: bytes / 100,
        bytes,
        first_ns: THIRTEEN + first_s * SECOND,
        last_ns: THIRTEEN + last_s * SECOND,
        ..FlowHalf::default()
    };
    let mut flow = FlowRecord { part: 0, forward: half(bytes[0]), reverse: half(bytes[1]), ..record(0) };
    flow.key.source = address(from);
    flow.key.destination = address(to);
    flow
}

#[test]
fn alerts_tell_directions_apart() {
    let rules = "[[alert]]\nname = \"sent\"\nby = \"src-ip\"\nwindow = \"10s\"\nmeasure = \"bytes\"\nabove = 1000\n\
                 [[alert]]\nname = \"all\"\nfilter = \"ip 198.18.0.2\"\nwindow = \"10s\"\nmeasure = \"bps\"\nabove = 2000";
    let (events, counts) = watch(
        rules,
        &[flow(1, 2, 0, 0, [900, 2000]), flow(1, 3, 5, 5, [200, 0]), flow(2, 1, 30, 50, [4004, 10])],
    );
    assert_eq!(
        events,
        [
            // The last flow has 2002 bytes in each window. The first one has 2900 bytes in both directions: 2320 bit/s.
            "+sent 2 0 2000",
            "+sent 1 0 1100",
            "-sent 1 10 0",
            "-sent 2 10 0",
            "+sent 2 30 2002",
            "-sent 2 50 0",
            "+all 0 0 2320",
            "-all 0 10 0",
        ]
    );
    let counts: Vec<_> = counts.iter().map(|one| (one.raised, one.active, one.late_records)).collect();
    assert_eq!(counts, [(3, 0, 0), (1, 0, 0)]);
}

#[test]
fn too_many_groups_are_judged_early_and_late_records_counted() {
    let rules = "[[alert]]\nname = \"r\"\nby = \"src-ip,src-port,dst-port\"\nwindow = \"10s\"\nmeasure = \"packets\"\nabove = 1";
    let mut records = Vec::new();
    let ports = (0..u16::MAX).flat_map(|port| (0..5).map(move |other| (port, other)));
    for (port, other) in ports.take(MAX_OPEN_GROUPS + 10) {
        let second = u64::from(port % 2) * 10;
        let mut one = flow(1, 2, second, second, [100, 0]);
        one.key.source_port = port;
        one.key.destination_port = other;
        records.push(one);
    }
    records.push(flow(1, 2, 0, 0, [900, 0]));
    let (events, counts) = watch(rules, &records);
    assert_eq!(events.len(), 0);
    assert!(counts[0].late_records > 0, "{counts:?}");
}

#[test]
fn records_in_memory_have_the_columns_of_files() {
    let directory = tempfile::tempdir().unwrap();
    let records: Vec<_> =
        (0..20).map(|number| if number % 3 == 0 { foreign_record(number) } else { record(number) }).collect();
    let mut sink = ParquetSink::new(ParquetOptions::new(directory.path())).unwrap();
    sink.write_records(&records, SOURCE).unwrap();
    sink.close_sink().1.unwrap();
    let names: Vec<_> = flow_columns().iter().map(|column| column.name).collect();
    let rows: Vec<_> =
        records.iter().map(|record| ExporterRow { record: record.clone(), source: SOURCE }).collect();
    let memory = RowChunk::from_rows(&rows, &names);
    let mut compared = 0;
    let files = list_flow_files(&[directory.path().to_owned()]).unwrap();
    scan_records(&files, &FlowFilter::default(), &names, &mut |stored, _| {
        for name in &names {
            assert_eq!(stored.column(name), memory.column(name), "{name}");
            compared += 1;
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(compared, names.len());
}
