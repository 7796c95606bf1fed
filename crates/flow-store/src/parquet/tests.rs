use super::*;
use crate::cells::ColumnCells;
use crate::columns::flow_columns;
use crate::filter::FlowFilter;
use crate::sample::{SECOND, THIRTEEN, address, foreign_record, record, records};
use crate::scan::{TimeSpan, list_flow_files, scan_records};
use packetrig_flow::collect::{GroupOptions, GroupRecordJoiner};
use packetrig_flow::element::ElementValue;
use packetrig_flow::{CarriedRecords, FlowHalf, FlowRecord};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;

const SOURCE: RecordExporter = RecordExporter { exporter: [9; 16], domain: 77 };

fn sink(directory: &Path, change: impl FnOnce(&mut ParquetOptions)) -> ParquetSink {
    let mut options = ParquetOptions::new(directory);
    change(&mut options);
    ParquetSink::new(options).unwrap()
}

/// All columns of all rows of all files, file by file.
fn read(directory: &Path) -> Vec<(PathBuf, Vec<Vec<String>>)> {
    let names: Vec<_> = flow_columns().iter().map(|column| column.name).collect();
    let mut files = Vec::new();
    for file in list_flow_files(&[directory.to_owned()]).unwrap().iter() {
        let mut rows = Vec::new();
        scan_records(std::slice::from_ref(file), &FlowFilter::default(), &names, &mut |chunk, _| {
            for row in 0..chunk.rows {
                rows.push(names.iter().map(|name| text(chunk.column(name), row)).collect());
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        files.push((file.strip_prefix(directory).unwrap().to_owned(), rows));
    }
    files
}

fn text(cells: &ColumnCells, row: usize) -> String {
    match cells {
        ColumnCells::Missing => "missing".into(),
        ColumnCells::Numbers(values) => values[row].to_string(),
        ColumnCells::Addresses(values) => format!("{:?}", values.get(row).unwrap()),
        ColumnCells::Macs(values) => format!("{:?}", values.get(row).unwrap()),
        ColumnCells::Words(_) => cells.word_at(row).to_owned(),
        ColumnCells::Flags(values) => values[row].to_string(),
    }
}

fn expected(record: FlowRecord) -> Vec<String> {
    let row = ExporterRow { record, source: SOURCE };
    let text = |value| match value {
        ElementValue::Number(number) => number.to_string(),
        ElementValue::Address(bytes) => format!("{bytes:?}"),
        ElementValue::Mac(bytes) => format!("{bytes:?}"),
        ElementValue::Word(word) => word.to_owned(),
        ElementValue::Flag(flag) => flag.to_string(),
        ElementValue::Fields(fields) => {
            let mut text = String::new();
            if !fields.is_empty() {
                fields.append_json(&mut text);
            }
            text
        }
    };
    flow_columns().iter().map(|column| text(column.value_in_row(&row))).collect()
}

#[test]
fn parquet_rows_round_trip_in_order_of_start() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = sink(directory.path(), |_| {});
    let mut given = records(3000);
    for number in (0..3000).step_by(3) {
        given[usize::from(number)] = foreign_record(number);
    }
    let in_order = given.clone();
    given.reverse();
    sink.write_records(&given, SOURCE).unwrap();
    let (kept, done) = sink.close_sink();
    done.unwrap();
    assert_eq!(
        (kept.stored.records, kept.lost, kept.waiting),
        (3000, CarriedRecords::default(), CarriedRecords::default())
    );
    assert!(kept.is_balanced());
    let files = read(directory.path());
    assert_eq!(files.len(), 1);
    assert_eq!(files[0].0, Path::new("flows/date=2026-11-21/hour=13/flows-000000.parquet"));
    for (row, record) in files[0].1.iter().zip(in_order) {
        assert_eq!(row, &expected(record));
    }
    assert_eq!(files[0].1.len(), 3000);
}

#[test]
fn rows_are_partitioned_by_start_hour() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = sink(directory.path(), |options| options.group_rows = 1000);
    sink.write_records(&records(8000), SOURCE).unwrap();
    sink.close_sink().1.unwrap();
    let files = read(directory.path());
    let rows: Vec<_> = files.iter().map(|(path, rows)| (path.display().to_string(), rows.len())).collect();
    let file = |hour, rows| (format!("flows/date=2026-11-21/hour={hour}/flows-000000.parquet"), rows);
    assert_eq!(rows, [file(13, 3600), file(14, 3600), file(15, 800)]);
}

#[test]
fn files_are_ended_by_size_and_by_age() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink =
        sink(directory.path(), |options| (options.group_rows, options.file_bytes) = (1000, 20_000));
    let at = |seconds| MonoTime::from_nanos(seconds * SECOND);
    sink.write_records(&records(2000), SOURCE).unwrap();
    assert!(sink.kept_counts().stored.records >= 1000, "{:?}", sink.kept_counts());
    sink.flush_records().unwrap();
    let many = read(directory.path()).len();
    assert!(many >= 2, "{many} files");

    sink.on_tick(at(10)).unwrap();
    sink.write_records(&records(1), SOURCE).unwrap();
    sink.on_tick(at(69)).unwrap();
    assert_eq!((sink.kept_counts().waiting.records, read(directory.path()).len()), (1, many));
    sink.on_tick(at(70)).unwrap();
    assert_eq!((sink.kept_counts().waiting.records, read(directory.path()).len()), (0, many + 1));
}

#[test]
fn killed_sink_loses_last_rows_of_all_hours() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = sink(directory.path(), |_| {});
    let at = |seconds| MonoTime::from_nanos(seconds * SECOND);
    sink.on_tick(at(10)).unwrap();
    // Of three hours, one of which has only 100.
    let rows = records(3600 + 4096);
    sink.write_records(&rows[3500..], SOURCE).unwrap();
    sink.on_tick(at(12)).unwrap();
    sink.write_records(&rows[..7], SOURCE).unwrap();
    // What a killed process would leave: a copy of its files, because its locks end only with this sink.
    let left = tempfile::tempdir().unwrap();
    let from = directory.path().join("flows");
    assert!(Command::new("cp").arg("-r").args([&from, left.path()]).status().unwrap().success());
    crate::recover::recover_files(left.path()).unwrap();
    let rows: Vec<_> = read(left.path()).iter().map(|(_, rows)| rows.len()).collect();
    assert_eq!(rows, [100, 3600, 496]);
}

#[test]
fn scattered_times_create_bounded_number_of_files() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = sink(directory.path(), |_| {});
    let mut given = records(2000);
    for (index, record) in (0..).zip(&mut given) {
        record.forward.first_ns = index * 7_777_777 * SECOND;
        record.reverse = FlowHalf::default();
    }
    given.push(FlowRecord::default());
    sink.write_records(&given, SOURCE).unwrap();
    let (kept, done) = sink.close_sink();
    done.unwrap();
    assert_eq!(kept.stored.records, 2001);
    let files = read(directory.path());
    assert_eq!(files.len(), MAX_HOURS + 1);
    assert_eq!(files.iter().map(|(_, rows)| rows.len()).sum::<usize>(), 2001);
    let (path, rows) = files.iter().max_by_key(|(_, rows)| rows.len()).unwrap();
    let nowhere =
        "flows/date=__HIVE_DEFAULT_PARTITION__/hour=__HIVE_DEFAULT_PARTITION__/flows-000000.parquet";
    assert_eq!((path.as_path(), rows.len()), (Path::new(nowhere), 2001 - MAX_HOURS - 1));
}

/// A place where nothing can be written, as a full disk is: a file stands where the directory should be.
#[test]
fn failed_disk_write_is_retried_without_loss() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = sink(directory.path(), |_| {});
    let at = |seconds| MonoTime::from_nanos(seconds * SECOND);
    fs::write(directory.path().join("flows"), "in the way").unwrap();
    sink.on_tick(at(1)).unwrap();
    sink.write_records(&records(10), SOURCE).unwrap();
    let error = sink.flush_records().unwrap_err().to_string();
    assert!(error.contains("flows"), "{error}");
    assert_eq!((sink.kept_counts().waiting.records, sink.kept_counts().failures), (10, 1));
    // Too early for another attempt, then late enough, then mended.
    sink.on_tick(at(1)).unwrap();
    assert_eq!(sink.kept_counts().failures, 1);
    sink.on_tick(at(2)).unwrap_err();
    assert_eq!(sink.kept_counts().failures, 2);
    fs::remove_file(directory.path().join("flows")).unwrap();
    sink.on_tick(at(60)).unwrap();
    assert_eq!((sink.kept_counts().stored.records, sink.kept_counts().waiting.records), (10, 0));
    assert_eq!(read(directory.path())[0].1.len(), 10);
}

/// A sink whose files end after one or two row groups of a hundred records.
fn small_files(directory: &Path) -> ParquetSink {
    sink(directory, |options| {
        options.group_rows = 100;
        options.file_bytes = 30_000;
    })
}

fn partition(directory: &Path) -> PathBuf {
    directory.join("flows/date=2026-11-21/hour=13")
}

fn rows_on_disk(directory: &Path) -> u64 {
    read(directory).iter().map(|(_, rows)| rows.len() as u64).sum()
}

#[test]
fn removed_partition_loses_only_its_open_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = small_files(directory.path());
    let at = |seconds| MonoTime::from_nanos(seconds * SECOND);
    sink.on_tick(at(1)).unwrap();
    sink.write_records(&records(100), SOURCE).unwrap();
    fs::remove_dir_all(partition(directory.path())).unwrap();
    let mut failures = Vec::new();
    for second in 2..40 {
        failures.extend(sink.on_tick(at(second)).err());
        failures.extend(sink.write_records(&records(100), SOURCE).err());
        assert!(sink.kept_counts().is_balanced(), "{:?}", sink.kept_counts());
    }
    failures.extend(sink.flush_records().err());
    let kept = sink.kept_counts();
    assert!(kept.is_balanced() && kept.waiting == CarriedRecords::default(), "{kept:?}");
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].to_string().contains("removed"), "{failures:?}");
    assert!((100..=300).contains(&kept.lost.records), "{kept:?}");
    assert_eq!(rows_on_disk(directory.path()), kept.stored.records);
    sink.on_tick(at(41)).unwrap();
    sink.close_sink().1.unwrap();
}

/// A directory with the file's final name keeps the file from getting it until somebody removes the directory.
#[test]
fn unfinishable_file_does_not_block_others() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = small_files(directory.path());
    let at = |seconds| MonoTime::from_nanos(seconds * SECOND);
    sink.on_tick(at(1)).unwrap();
    sink.write_records(&records(100), SOURCE).unwrap();
    let in_the_way = partition(directory.path()).join("flows-000000.parquet");
    fs::create_dir_all(in_the_way.join("not empty")).unwrap();
    let mut failures = 0;
    for second in 2..40 {
        failures += u32::from(sink.on_tick(at(second)).is_err());
        failures += u32::from(sink.write_records(&records(100), SOURCE).is_err());
        assert!(sink.kept_counts().is_balanced(), "{:?}", sink.kept_counts());
        let stuck = sink.kept_counts().waiting.records;
        assert!((100..=500).contains(&stuck), "{stuck} records wait after {second} s");
    }
    assert!((1..=7).contains(&failures), "{failures} attempts");
    fs::remove_dir_all(&in_the_way).unwrap();
    let (kept, done) = sink.close_sink();
    done.unwrap();
    assert_eq!((kept.stored.records, kept.lost.records), (3900, 0));
    assert_eq!(rows_on_disk(directory.path()), 3900);
}

#[test]
fn uncreatable_partition_does_not_block_others() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = small_files(directory.path());
    fs::create_dir_all(directory.path().join("flows/date=2026-11-21")).unwrap();
    fs::write(partition(directory.path()), "in the way").unwrap();
    // 3600 of them began in the hour that has no place.
    drop(sink.write_records(&records(5000), SOURCE));
    sink.flush_records().unwrap_err();
    let kept = sink.kept_counts();
    assert_eq!((kept.stored.records, kept.waiting.records), (1400, 3600));
    fs::remove_file(partition(directory.path())).unwrap();
    sink.close_sink().1.unwrap();
    assert_eq!(rows_on_disk(directory.path()), 5000);
}

#[test]
fn refused_records_of_meters_hold_up_later_ones() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = small_files(directory.path());
    fs::create_dir_all(directory.path().join("flows/date=2026-11-21")).unwrap();
    fs::write(partition(directory.path()), "in the way").unwrap();
    let mut groups = GroupRecordJoiner::new(GroupOptions::default(), 0);
    let mut of_group = |record| {
        groups
            .reduce_to_unstored_packets(FlowRecord { history: Some(Box::default()), ..record }, 1)
            .next()
            .unwrap()
    };
    // The first 50 began in the hour that has no place.
    let of_meters: Vec<_> = (3550..3650).map(|number| of_group(record(number))).collect();
    drop(sink.write_records(&of_meters, SOURCE));
    sink.flush_records().unwrap_err();
    drop(sink.write_records(&[record(3700)], SOURCE));
    sink.flush_records().unwrap_err();
    let kept = sink.kept_counts();
    assert_eq!((kept.stored.records, kept.waiting.records), (1, 100));
    fs::remove_file(partition(directory.path())).unwrap();
    sink.close_sink().1.unwrap();
    assert_eq!(rows_on_disk(directory.path()), 101);
}

#[test]
fn dead_disk_backlog_is_bounded_and_loss_counted() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink =
        sink(directory.path(), |options| (options.group_rows, options.waiting_bytes) = (100, 40_000));
    fs::write(directory.path().join("flows"), "in the way").unwrap();
    sink.on_tick(MonoTime::from_nanos(SECOND)).unwrap();
    // All within the wait for the second attempt.
    for _ in 0..40 {
        drop(sink.write_records(&records(100), SOURCE));
        assert!(
            sink.writer.waiting_page_bytes() <= 40_000,
            "{} bytes wait",
            sink.writer.waiting_page_bytes()
        );
    }
    assert_eq!(sink.kept_counts().failures, 1);
    let kept = sink.kept_counts();
    assert!(kept.lost.records > 0 && kept.waiting.records > 0 && kept.is_balanced(), "{kept:?}");
    let (kept, done) = sink.close_sink();
    done.unwrap_err();
    assert_eq!((kept.lost.records, kept.stored.records, kept.waiting.records), (4000, 0, 0));
}

#[test]
fn a_sink_that_is_dropped_keeps_its_records() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = sink(directory.path(), |_| {});
    sink.write_records(&records(10), SOURCE).unwrap();
    drop(sink);
    assert_eq!(read(directory.path())[0].1.len(), 10);
}

#[test]
fn only_row_groups_in_the_span_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = sink(directory.path(), |options| options.group_rows = 100);
    sink.write_records(&records(1000), SOURCE).unwrap();
    sink.close_sink().1.unwrap();
    let files = list_flow_files(&[directory.path().to_owned()]).unwrap();
    let span = TimeSpan { from_ns: Some(THIRTEEN + 250 * SECOND), to_ns: Some(THIRTEEN + 300 * SECOND) };
    let mut rows = 0;
    let wanted = ["sourceIPv6Address", "noSuchColumn"];
    scan_records(&files, &FlowFilter::started_in(span), &wanted, &mut |chunk, kept| {
        rows += chunk.rows;
        assert_eq!(kept, (50..100).collect::<Vec<_>>());
        assert_eq!(chunk.column(wanted[0]).address_at(0), address(200));
        assert_eq!(chunk.column(wanted[1]), &ColumnCells::Missing);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(rows, 100);
    assert_eq!(record(200).key.source, address(200));
}

#[test]
fn invalid_flow_file_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let read = |path: &Path| {
        list_flow_files(&[path.to_owned()])
            .and_then(|files| {
                scan_records(&files, &FlowFilter::default(), &["protocolIdentifier"], &mut |_, _| {
                    ControlFlow::Continue(())
                })
            })
            .unwrap_err()
            .to_string()
    };
    assert!(read(directory.path()).contains("no flow records"));
    assert!(read(&directory.path().join("nowhere")).contains("nowhere"));
    let file = directory.path().join("a.parquet");
    fs::write(&file, b"PAR1 no, it is not PAR1").unwrap();
    assert!(read(&file).contains("is not a Parquet file, or it is damaged: "), "{}", read(&file));
    let mut sink = sink(directory.path(), |_| {});
    sink.write_ledger(&MeterLedger::default(), SOURCE, THIRTEEN).unwrap();
    sink.close_sink().1.unwrap();
    let stats = directory.path().join("meter_stats/date=2026-11-21/hour=13/meter_stats-000000.parquet");
    fs::rename(stats, &file).unwrap();
    assert!(read(&file).contains("no column flowStartNanoseconds"), "{}", read(&file));
}

/// A record of one direction that began then.
fn begun_at(at_ns: u64) -> FlowRecord {
    let mut record = record(1);
    record.forward.first_ns = at_ns;
    record.forward.last_ns = at_ns;
    record.reverse = FlowHalf::default();
    record
}

/// All files below a directory.
fn count_files(directory: &Path) -> usize {
    list_flow_files(&[directory.to_owned()]).unwrap().len()
}

#[test]
fn live_sink_bounds_files_for_arbitrary_times() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = sink(directory.path(), |options| {
        options.is_live = true;
        options.group_rows = 50;
    });
    let hour = 3_600_000_000_000;
    let now = clock::wall_clock_ns();
    // Each row group has records of any time since 1970, of the future, and of the last and the next hours.
    for n in 0..200_u64 {
        let far: Vec<_> =
            (0..25).map(|k| begun_at((n * 25 + k).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
        let near: Vec<_> = (0..25).map(|k| begun_at(now + hour - (k % 9) * hour)).collect();
        sink.write_records(&far, SOURCE).unwrap();
        sink.write_records(&near, SOURCE).unwrap();
    }
    let (kept, done) = sink.close_sink();
    done.unwrap();
    assert_eq!((kept.stored.records, kept.is_balanced()), (10_000, true), "every record is kept");
    // At most nine hours, if the hour has changed during the test, and the default partition.
    let files = count_files(directory.path());
    println!("{files} files of 5009 hours that an exporter chose");
    assert!((8..=2 + PartitionedHours::NEAR_HOURS + 1).contains(&files), "{files} files");
    let rest = directory.path().join("flows/date=__HIVE_DEFAULT_PARTITION__");
    assert_eq!(count_files(&rest), 1);
}

#[test]
fn counts_that_exporters_choose_saturate_and_never_wrap() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = sink(directory.path(), |options| options.group_rows = 2);
    let mut huge = record(1);
    huge.forward.packets = u64::MAX - 3;
    huge.forward.bytes = u64::MAX;
    for n in 0..5 {
        sink.write_records(&[huge.clone(), record(n)], SOURCE).unwrap();
    }
    let kept = sink.kept_counts();
    assert_eq!((kept.offered.packets, kept.offered.bytes), (u64::MAX, u64::MAX));
    assert!(kept.is_balanced());
    let (kept, done) = sink.close_sink();
    done.unwrap();
    assert_eq!((kept.stored.records, kept.stored.packets, kept.is_balanced()), (10, u64::MAX, true));
}
