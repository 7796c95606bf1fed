//! A disk that is really full.

use super::SOURCE;
use super::made::Made;
use packetrig_flow_store::{Error, ParquetOptions, ParquetSink, RecordSink};
use packetrig_tests::small_disk::SmallDisk;
use packetrig_units::MonoTime;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

const BALLAST: usize = 1 << 20;

fn files_below(directory: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            names.extend(files_below(&path));
        } else {
            names.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    names.sort();
    names
}

#[test]
fn full_disk_leaves_no_partial_file_or_loss() {
    let Some(disk) = SmallDisk::mount(c"size=1m") else { return };
    let ballast = disk.path().join("ballast");
    fs::write(&ballast, vec![1; BALLAST]).unwrap();
    let mut sink = ParquetSink::new(ParquetOptions::new(disk.path())).unwrap();
    let made = Made::new(5000);
    let count = made.records.len() as u64;
    sink.on_tick(MonoTime::from_nanos(1)).unwrap();
    sink.write_records(&made.records, SOURCE).unwrap();
    let error = sink.flush_records().unwrap_err();
    let Error::File { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), ErrorKind::StorageFull, "{error}");
    assert_eq!((sink.kept_counts().waiting.records, sink.kept_counts().lost.records), (count, 0));
    assert_eq!(files_below(disk.path()), ["ballast"]);
    fs::remove_file(ballast).unwrap();
    sink.on_tick(MonoTime::from_nanos(60_000_000_000)).unwrap();
    assert_eq!((sink.kept_counts().stored.records, sink.kept_counts().waiting.records), (count, 0));
    assert!(files_below(disk.path()).iter().all(|name| name.starts_with("flows-")));
}

/// Row groups that were written before the disk was full are readable without any room for them.
#[test]
fn full_disk_keeps_written_row_groups() {
    let Some(disk) = SmallDisk::mount(c"size=1m") else { return };
    let mut options = ParquetOptions::new(disk.path());
    options.group_rows = 2000;
    let mut sink = ParquetSink::new(options).unwrap();
    let made = Made::new(2000);
    let mut error = None;
    for _ in 0..100 {
        if let Err(met) = sink.write_records(&made.records, SOURCE) {
            error = Some(met);
            break;
        }
    }
    let error = error.expect("100 times two thousand records do not fit").to_string();
    assert!(error.contains("No space left"), "{error}");
    let stored_before = sink.kept_counts().stored.records;
    assert!(stored_before > 0 && sink.kept_counts().is_balanced(), "{:?}", sink.kept_counts());
    let (kept, done) = sink.close_sink();
    done.unwrap_err();
    assert!(kept.is_balanced() && kept.waiting.records == 0 && kept.lost.records >= 500, "{kept:?}");
    assert!(kept.stored.records >= stored_before, "{kept:?}");
    assert!(files_below(disk.path()).iter().all(|name| name.starts_with("flows-")));
    let files = packetrig_flow_store::scan::list_flow_files(&[disk.path().to_owned()]).unwrap();
    let filter = packetrig_flow_store::filter::FlowFilter::default();
    let totals = packetrig_flow_store::totals::flow_totals(&files, &filter, None).unwrap();
    assert_eq!(totals.records, kept.stored.records);
}
