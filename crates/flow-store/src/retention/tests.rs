use super::*;
use crate::columns::LedgerRow;
use crate::sample::{SECOND, THIRTEEN, record};
use crate::scan::list_flow_files;
use crate::{ParquetOptions, ParquetSink, RecordExporter, RecordSink};
use packetrig_flow::MeterLedger;
use std::time::{Duration, SystemTime};

/// Stores one file with the records that began at these seconds after thirteen o'clock.
fn store(directory: &Path, seconds: &[u16]) {
    let mut sink = ParquetSink::new(ParquetOptions::new(directory)).unwrap();
    let records: Vec<_> = seconds.iter().map(|second| record(*second)).collect();
    sink.write_records(&records, RecordExporter::default()).unwrap();
    sink.close_sink().1.unwrap();
}

fn of_size(bytes: u64) -> RetentionLimits {
    RetentionLimits { bytes: Some(bytes), ..RetentionLimits::default() }
}

fn total_bytes(directory: &Path) -> u64 {
    let mut found = FinishedFiles::default();
    found.rescan(directory).unwrap();
    found.total_bytes()
}

#[test]
fn oldest_file_by_latest_record_goes_first() {
    let directory = tempfile::tempdir().unwrap();
    // The file that was written last has the oldest latest record.
    for seconds in [&[0, 300][..], &[200], &[100]] {
        store(directory.path(), seconds);
    }
    let to_remove =
        list_files_to_remove(directory.path(), of_size(total_bytes(directory.path()) - 1)).unwrap();
    assert_eq!(to_remove.len(), 1);
    assert_eq!(to_remove[0].latest_ns / SECOND, THIRTEEN / SECOND + 100);
    assert_eq!((to_remove[0].records, to_remove[0].why), (1, "size"));
    assert_eq!(
        list_flow_files(&[directory.path().to_owned()]).unwrap().len(),
        3,
        "a dry run removes nothing"
    );
    let removed = remove_old_files(directory.path(), of_size(1)).unwrap();
    assert_eq!((removed.files, removed.records, removed.for_size), (3, 4, 3));
    let flows = directory.path().join("flows");
    assert_eq!(fs::read_dir(flows).unwrap().count(), 0, "empty partitions go, too");
}

#[test]
fn files_of_others_are_counted_but_never_removed() {
    let directory = tempfile::tempdir().unwrap();
    store(directory.path(), &[1]);
    let partition = list_flow_files(&[directory.path().to_owned()]).unwrap()[0].parent().unwrap().to_owned();
    let foreign =
        ["flows-000007.parquet", "notes.txt", ".flows-000009.parquet.partial", "flows-1.parquet.damaged"];
    for name in foreign {
        fs::write(partition.join(name), [0; 1000]).unwrap();
    }
    fs::copy(partition.join("flows-000000.parquet"), partition.join("mine.parquet")).unwrap();
    let before = total_bytes(directory.path());
    let removed = remove_old_files(directory.path(), of_size(0)).unwrap();
    assert_eq!((removed.files, before - removed.bytes), (1, total_bytes(directory.path())));
    for name in foreign.iter().chain(&["mine.parquet"]) {
        assert!(partition.join(name).exists(), "{name}");
    }
}

#[test]
fn age_counts_from_the_latest_record() {
    let directory = tempfile::tempdir().unwrap();
    store(directory.path(), &[0, 60]);
    store(directory.path(), &[30]);
    let now_ns = clock::wall_clock_ns();
    let age_ns = now_ns - THIRTEEN - 45 * SECOND;
    let limits = RetentionLimits { age: Some(Nanos::new(age_ns)), ..RetentionLimits::default() };
    let removed = remove_old_files(directory.path(), limits).unwrap();
    assert_eq!((removed.files, removed.for_age), (1, 1));
}

#[test]
fn record_times_ahead_do_not_keep_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = ParquetSink::new(ParquetOptions::new(directory.path())).unwrap();
    let mut ahead = record(1);
    ahead.forward.last_ns = u64::MAX;
    sink.write_records(&[ahead], RecordExporter::default()).unwrap();
    sink.close_sink().1.unwrap();
    let path = list_flow_files(&[directory.path().to_owned()]).unwrap()[0].clone();
    let written =
        SystemTime::UNIX_EPOCH + Duration::from_nanos(clock::wall_clock_ns()) - Duration::from_hours(2);
    fs::File::options().write(true).open(path).unwrap().set_modified(written).unwrap();
    let limits = RetentionLimits { age: Some(Nanos::from_secs(3600)), ..RetentionLimits::default() };
    assert_eq!(remove_old_files(directory.path(), limits).unwrap().files, 1);
}

#[test]
fn disk_short_of_room_removes_files() {
    let directory = tempfile::tempdir().unwrap();
    store(directory.path(), &[1]);
    let of_free = |free| RetentionLimits { free: Some(free), ..RetentionLimits::default() };
    assert_eq!(remove_old_files(directory.path(), of_free(0)).unwrap(), RemovedFiles::default());
    let removed = remove_old_files(directory.path(), of_free(u64::MAX)).unwrap();
    assert_eq!((removed.files, removed.for_free), (1, 1));
}

#[test]
fn missing_space_is_freed_once() {
    let directory = tempfile::tempdir().unwrap();
    (1..=4).for_each(|second| store(directory.path(), &[second]));
    let bytes = total_bytes(directory.path()) / 4;
    // One and a half files are missing, so two go, whatever else uses the disk.
    let free = 1 << 30;
    let limits = RetentionLimits { free: Some(free + bytes * 3 / 2), ..RetentionLimits::default() };
    let mut keeper = scan_retention_directory(directory.path(), limits).unwrap();
    keeper.remove_files_beyond_limits(Some(free)).unwrap();
    assert_eq!((keeper.removed.files, keeper.removed.for_free), (2, 2));
}

#[test]
fn sink_stays_within_its_limit() {
    let directory = tempfile::tempdir().unwrap();
    let most = 400_000;
    let options = ParquetOptions {
        file_bytes: 1,
        group_rows: 500,
        limits: of_size(most),
        ..ParquetOptions::new(directory.path())
    };
    let mut sink = ParquetSink::new(options).unwrap();
    for tick in 0..40_u16 {
        sink.on_tick(MonoTime::from_nanos(u64::from(tick) * SECOND)).unwrap();
        let records: Vec<_> = (0..500).map(|number| record(tick * 500 + number)).collect();
        sink.write_records(&records, RecordExporter::default()).unwrap();
        assert!(total_bytes(directory.path()) <= most, "after {tick}: {}", total_bytes(directory.path()));
    }
    let (kept, done) = sink.close_sink();
    done.unwrap();
    assert_eq!((kept.stored.records, kept.lost.records), (20_000, 0), "{kept:?}");
    assert!(kept.removed.files > 5 && kept.removed.records.is_multiple_of(500), "{kept:?}");
    let left = list_flow_files(&[directory.path().to_owned()]).unwrap().len() as u64;
    // One for each tick, and one more for each hour that a tick's records reach into.
    assert!((40..50).contains(&(left + kept.removed.files)), "{left} {kept:?}");
}

#[test]
fn old_ledgers_are_removed_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = ParquetSink::new(ParquetOptions::new(directory.path())).unwrap();
    let LedgerRow { source, ledger, at_ns } =
        LedgerRow { at_ns: THIRTEEN, source: RecordExporter::default(), ledger: MeterLedger::default() };
    sink.write_ledger(&ledger, source, at_ns).unwrap();
    sink.close_sink().1.unwrap();
    let removed = remove_old_files(directory.path(), of_size(0)).unwrap();
    assert_eq!((removed.files, removed.records), (1, 0));
}
