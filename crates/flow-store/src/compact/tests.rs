use super::*;
use crate::filter::FlowFilter;
use crate::ledgers::newest_ledgers;
use crate::progress::{KilledCollectorRecords, ProgressFile, StoredProgress};
use crate::recover::recover_files;
use crate::sample::{foreign_record, record};
use crate::scan::{list_flow_files, scan_records};
use crate::{ParquetOptions, ParquetSink, RecordExporter, RecordSink};
use packetrig_flow::{FlowRecord, MeterLedger};
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime};

const MOST: u64 = 64 << 20;
const MAKER: RecordExporter = RecordExporter { exporter: [7; 16], domain: 3 };

fn store(directory: &Path, records: &[FlowRecord]) {
    let mut sink = ParquetSink::new(ParquetOptions::new(directory)).unwrap();
    sink.write_records(records, MAKER).unwrap();
    sink.write_ledger(&MeterLedger::default(), MAKER, records[0].first_ns()).unwrap();
    sink.close_sink().1.unwrap();
}

/// Files of one hour, some of them with fields of routers.
fn store_some(directory: &Path) {
    for file in 0..5_u16 {
        let records: Vec<_> = (0..100).map(|row| 500 - 5 * row - file).map(record).collect();
        store(directory, &records);
        store(directory, &[foreign_record(3000 + file)]);
    }
}

/// The rows of all files with all their values, sorted.
fn rows_of(directory: &Path) -> Vec<String> {
    let names: Vec<_> = crate::columns::flow_columns().iter().map(|column| column.name).collect();
    let mut rows = Vec::new();
    let files = list_flow_files(&[directory.to_owned()]).unwrap();
    scan_records(&files, &FlowFilter::default(), &names, &mut |chunk, selected| {
        for &row in selected {
            let values = names.iter().map(|name| {
                let cells = chunk.column(name);
                let (number, word) = (cells.number_at(row), cells.word_at(row));
                format!("{number} {word} {:?} {:?}", cells.address_at(row), cells.mac_at(row))
            });
            rows.push(values.collect::<Vec<_>>().join(" "));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    rows.sort();
    rows
}

fn compact(directory: &Path) -> CompactedFiles {
    compact_files(directory, MOST, &|| false).unwrap()
}

/// Names in the partition of the flows, hidden ones as well.
fn names(directory: &Path) -> Vec<String> {
    let partition = directory.join("flows/date=2026-11-21/hour=13");
    let mut names: Vec<_> = fs::read_dir(partition)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn compaction_keeps_every_row_and_value() {
    let directory = tempfile::tempdir().unwrap();
    store_some(directory.path());
    let before = rows_of(directory.path());
    let ledgers = newest_ledgers(&[directory.path().to_owned()]).unwrap();
    let compacted = compact(directory.path());
    assert_eq!(
        (compacted.joined_files, compacted.new_files, compacted.records),
        (20, 2, 505),
        "{compacted:?}"
    );
    assert!(compacted.new_bytes < compacted.joined_bytes / 5, "{compacted:?}");
    assert_eq!(rows_of(directory.path()), before);
    assert_eq!(newest_ledgers(&[directory.path().to_owned()]).unwrap(), ledgers);
    assert_eq!(names(directory.path()), ["flows-000010.parquet"]);
    let again = compact(directory.path());
    assert_eq!(again, CompactedFiles::default(), "one file is not joined again");
}

#[test]
fn joined_rows_are_in_order_of_start() {
    let directory = tempfile::tempdir().unwrap();
    store_some(directory.path());
    compact(directory.path());
    let mut starts = Vec::new();
    let files = list_flow_files(&[directory.path().to_owned()]).unwrap();
    scan_records(&files, &FlowFilter::default(), &["flowStartNanoseconds"], &mut |chunk, rows| {
        starts.extend(rows.iter().map(|row| chunk.column("flowStartNanoseconds").number_at(*row)));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(starts.len() == 505 && starts.is_sorted(), "{starts:?}");
}

#[test]
fn readers_see_each_record_once_at_each_step() {
    for last in [ReplacementStep::Written, ReplacementStep::Noted, ReplacementStep::Named] {
        let directory = tempfile::tempdir().unwrap();
        store_some(directory.path());
        let before = rows_of(directory.path());
        let mut found = FinishedFiles::default();
        found.rescan(directory.path()).unwrap();
        let ((table, partition), files) = group_files_by_partition(found)
            .into_iter()
            .find(|((table, _), _)| *table == WritableTable::Flows)
            .unwrap();
        let place = directory.path().join(table.name());
        let set = PartitionFileSet { table, place, partition: &partition, files: &files };
        set.join_files(&mut CompactedFiles::default(), &mut |step| step != last).unwrap();
        if last == ReplacementStep::Named {
            // Killed while it removes the old files.
            fs::remove_file(&files[0].path).unwrap();
            assert_eq!(names(directory.path()).len(), 11, "the new file, the note and nine old ones");
        }
        // What a killed compaction leaves of the file that it wrote.
        fs::write(partition.join(".flows-000077.parquet.merging"), "half").unwrap();
        assert_eq!(rows_of(directory.path()), before, "{last:?}");
        recover_files(directory.path()).unwrap();
        assert_eq!(rows_of(directory.path()), before, "{last:?} and recovered");
        let is_hidden = |name: &String| name.starts_with('.');
        assert!(!names(directory.path()).iter().any(is_hidden), "{:?}", names(directory.path()));
        assert_eq!(names(directory.path()).len(), if last == ReplacementStep::Named { 1 } else { 10 });
        compact(directory.path());
        assert_eq!(rows_of(directory.path()), before);
    }
}

#[test]
fn files_of_an_unfinished_replacement_are_not_joined_again() {
    let directory = tempfile::tempdir().unwrap();
    store_some(directory.path());
    let before = rows_of(directory.path());
    let mut found = FinishedFiles::default();
    found.rescan(directory.path()).unwrap();
    let ((table, partition), files) = group_files_by_partition(found)
        .into_iter()
        .find(|((table, _), _)| *table == WritableTable::Flows)
        .unwrap();
    let place = directory.path().join(table.name());
    let set = PartitionFileSet { table, place: place.clone(), partition: &partition, files: &files };
    set.join_files(&mut CompactedFiles::default(), &mut |step| step != ReplacementStep::Named).unwrap();
    // The note is still there, as after a compaction that was killed while a query kept the next one from finishing its work.
    let mut found = FinishedFiles::default();
    found.rescan(directory.path()).unwrap();
    let again: Vec<_> = found.files.into_iter().filter(|file| file.table == table).collect();
    assert_eq!(again.len(), 11, "the new file, and ten old ones");
    let mut compacted = CompactedFiles::default();
    PartitionFileSet { table, place, partition: &partition, files: &again }
        .join_files(&mut compacted, &mut |_| true)
        .unwrap();
    assert_eq!((compacted.new_files, compacted.abandoned), (0, 1));
    assert_eq!(rows_of(directory.path()), before);
    recover_files(directory.path()).unwrap();
    assert_eq!(rows_of(directory.path()), before);
}

#[test]
fn compaction_waits_for_readers() {
    let directory = tempfile::tempdir().unwrap();
    store_some(directory.path());
    let listed = list_flow_files(&[directory.path().to_owned()]).unwrap();
    std::thread::scope(|scope| {
        let compaction = scope.spawn(|| compact(directory.path()));
        // The new file is written, and takes no place while the list is in use.
        while !names(directory.path()).iter().any(|name| name.ends_with(".merging")) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(listed.iter().all(|file| file.exists()));
        drop(listed);
        assert_eq!(compaction.join().unwrap().new_files, 2);
    });
}

#[test]
fn file_removed_meanwhile_does_not_come_back() {
    let directory = tempfile::tempdir().unwrap();
    store_some(directory.path());
    let mut found = FinishedFiles::default();
    found.rescan(directory.path()).unwrap();
    let ((table, partition), files) = group_files_by_partition(found).into_iter().next().unwrap();
    let set = PartitionFileSet {
        table,
        place: directory.path().join(table.name()),
        partition: &partition,
        files: &files,
    };
    let mut compacted = CompactedFiles::default();
    let removed = files[3].path.clone();
    let remove = |step| {
        assert_eq!(step, ReplacementStep::Written);
        fs::remove_file(&removed).unwrap();
        false
    };
    set.join_files(&mut compacted, &mut { remove }).unwrap();
    assert_eq!((compacted.abandoned, names(directory.path()).len()), (1, 9));
    set.join_files(&mut compacted, &mut |_| panic!("a file is missing from the start")).unwrap();
    assert_eq!((compacted.abandoned, names(directory.path()).len()), (2, 9));
}

#[test]
fn files_of_a_running_collector_stay_countable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    store(path, &[record(1)]);
    store(path, &[record(2)]);
    let note = ProgressFile::create_in(path, &KilledCollectorRecords::default()).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    for number in 3..6 {
        store(path, &[record(number)]);
    }
    let compacted = compact(path);
    assert_eq!((compacted.joined_files, compacted.recent_files), (4, 6), "{compacted:?}");
    // The collector is killed: its next one counts exactly the rows after the note.
    drop(note);
    let stored: StoredProgress = KilledCollectorRecords::find_in(path).unwrap().stored;
    assert_eq!(stored[&MAKER].records, 3);
}

#[test]
fn new_file_keeps_the_time_of_its_newest_part() {
    let directory = tempfile::tempdir().unwrap();
    store_some(directory.path());
    let files = list_flow_files(&[directory.path().to_owned()]).unwrap();
    let newest = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_000_000);
    for (age, file) in files.iter().enumerate() {
        let written = newest - Duration::from_secs(age as u64);
        File::options().write(true).open(file).unwrap().set_modified(written).unwrap();
    }
    drop(files);
    compact(directory.path());
    let files = list_flow_files(&[directory.path().to_owned()]).unwrap();
    assert_eq!(files[0].metadata().unwrap().modified().unwrap(), newest);
}

#[test]
fn large_and_foreign_files_stay() {
    let directory = tempfile::tempdir().unwrap();
    store_some(directory.path());
    let bytes = list_flow_files(&[directory.path().to_owned()]).unwrap()[0].metadata().unwrap().len();
    assert_eq!(compact_files(directory.path(), bytes, &|| false).unwrap(), CompactedFiles::default());
    let partition = directory.path().join("flows/date=2026-11-21/hour=13");
    let old = include_bytes!("../scan/records-of-2026-11.parquet");
    fs::write(partition.join("flows-000099.parquet"), old).unwrap();
    fs::write(partition.join("flows-000098.parquet"), "no Parquet").unwrap();
    let compacted = compact(directory.path());
    assert_eq!((compacted.joined_files, compacted.other_files), (20, 1), "{compacted:?}");
    assert!(names(directory.path()).contains(&"flows-000098.parquet".to_owned()));
    compact_files(&partition, MOST, &|| false).unwrap_err();
    assert_eq!(compact_files(directory.path(), MOST, &|| true).unwrap().joined_files, 0);
}
