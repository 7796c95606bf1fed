use super::*;
use crate::filter::FlowFilter;
use crate::row_group::RowGroupBlockHead;
use crate::sample::{SECOND, records};
use crate::scan::{list_flow_files, scan_records};
use crate::{ParquetOptions, ParquetSink, RecordExporter, RecordSink};
use packetrig_sys::clock;
use packetrig_units::MonoTime;
use std::ops::ControlFlow;

const GROUP_ROWS: u16 = 40;
const GROUPS: u16 = 5;
const NAME: &str = ".flows-000000.parquet.partial";

/// The files of a process that was killed after it had written five row groups of 40 records each.
fn killed() -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let mut options = ParquetOptions::new(directory.path());
    options.group_rows = GROUP_ROWS.into();
    let mut sink = ParquetSink::new(options).unwrap();
    // One more, which is in memory.
    sink.write_records(&records(GROUPS * GROUP_ROWS + 1), RecordExporter::default()).unwrap();
    fs::read(partition(directory.path()).join(NAME)).unwrap()
}

fn partition(directory: &Path) -> PathBuf {
    directory.join("flows/date=2026-11-21/hour=13")
}

/// A directory with such a file.
fn left_with(bytes: &[u8]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(partition(directory.path())).unwrap();
    fs::write(partition(directory.path()).join(NAME), bytes).unwrap();
    directory
}

/// Numbers of the flows in the files of a directory, in order.
fn flow_numbers(directory: &Path) -> Vec<u64> {
    let mut numbers = Vec::new();
    let Ok(files) = list_flow_files(&[directory.to_owned()]) else { return numbers };
    scan_records(&files, &FlowFilter::default(), &["flowId", "packetDeltaCount"], &mut |chunk, rows| {
        for &row in rows {
            let number = u64::MAX - chunk.column("flowId").number_at(row);
            assert_eq!(chunk.column("packetDeltaCount").number_at(row), number + 1, "it is another record's");
            numbers.push(number);
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    numbers
}

fn first(groups: usize) -> Vec<u64> {
    (0..groups as u64 * u64::from(GROUP_ROWS)).collect()
}

/// Offsets at which the blocks of a file end.
fn block_ends(bytes: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut at = PARQUET_MAGIC.len();
    while let Some(head) = bytes.get(at..at + RowGroupBlockHead::ENCODED_BYTES) {
        let head = RowGroupBlockHead::from_bytes(head.try_into().unwrap());
        at += RowGroupBlockHead::ENCODED_BYTES + usize::try_from(head.pages + head.footer).unwrap();
        ends.push(at);
    }
    assert_eq!(ends.last(), Some(&bytes.len()));
    ends
}

/// All ends of blocks and what is around them, and others that are drawn.
fn places_to_cut(bytes: &[u8], ends: &[usize]) -> Vec<usize> {
    let mut places: Vec<_> = (0..40).collect();
    for &end in ends {
        places.extend(end - 12..(end + RowGroupBlockHead::ENCODED_BYTES + 2).min(bytes.len()));
    }
    let mut drawn: u64 = 20_261_123;
    for _ in 0..200 {
        drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        places.push(usize::try_from(drawn >> 33).unwrap() % bytes.len());
    }
    places.push(bytes.len());
    places
}

#[test]
fn truncated_file_recovers_all_whole_row_groups() {
    let bytes = killed();
    let ends = block_ends(&bytes);
    assert_eq!(ends.len(), usize::from(GROUPS));
    for cut in places_to_cut(&bytes, &ends) {
        let directory = left_with(&bytes[..cut]);
        let recovered = recover_files(directory.path()).unwrap();
        let whole = ends.iter().filter(|&&end| end <= cut).count();
        let behind = cut - ends[..whole].last().copied().unwrap_or(PARQUET_MAGIC.len()).min(cut);
        let expected = RecoveredFiles {
            files: u64::from(whole > 0),
            records: (whole * usize::from(GROUP_ROWS)) as u64,
            cut_files: u64::from(behind > 0),
            cut_bytes: behind as u64,
            ..RecoveredFiles::default()
        };
        assert_eq!(recovered, expected, "cut at {cut}");
        assert_eq!(flow_numbers(directory.path()), first(whole), "cut at {cut}");
        assert!(!partition(directory.path()).join(NAME).exists(), "cut at {cut}");
        assert!(recover_files(directory.path()).unwrap().is_empty(), "cut at {cut}");
    }
}

/// All but those of the row groups from `from` to before `to`.
fn without(from: usize, to: usize) -> Vec<u64> {
    let rows = usize::from(GROUP_ROWS);
    let mut numbers = first(GROUPS.into());
    numbers.drain(from * rows..to * rows);
    numbers
}

#[test]
fn damaged_row_group_is_left_out_alone() {
    let bytes = killed();
    let ends = block_ends(&bytes);
    for at in places_to_cut(&bytes, &ends).into_iter().filter(|&at| at < bytes.len()) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        let directory = left_with(&damaged);
        let recovered = recover_files(directory.path()).unwrap();
        let hit = ends.iter().filter(|&&end| end <= at).count();
        let lost = usize::from(at >= PARQUET_MAGIC.len());
        let found = flow_numbers(directory.path());
        assert_eq!(found, without(hit, hit + lost), "damaged at {at}: {recovered:?}");
        assert_eq!(recovered.damaged_groups + recovered.cut_files, lost as u64, "damaged at {at}");
        assert_eq!((recovered.files, recovered.records), (1, found.len() as u64), "damaged at {at}");
        assert!(recover_files(directory.path()).unwrap().is_empty(), "damaged at {at}");
    }
}

#[test]
fn row_groups_between_damage_are_recovered() {
    let bytes = killed();
    let ends = block_ends(&bytes);
    let mut damaged = bytes.clone();
    // A page of zeros over the end of the first row group and the beginning of the second, and noise in the fourth's head.
    damaged[ends[0] - 2000..ends[0] + 2000].fill(0);
    damaged[ends[2]..ends[2] + RowGroupBlockHead::ENCODED_BYTES].fill(0xa5);
    let directory = left_with(&damaged);
    let recovered = recover_files(directory.path()).unwrap();
    let two = usize::from(GROUP_ROWS);
    let expected: Vec<u64> =
        [2, 4].iter().flat_map(|group| (group * two) as u64..((group + 1) * two) as u64).collect();
    assert_eq!(flow_numbers(directory.path()), expected);
    assert_eq!((recovered.damaged_groups, recovered.records, recovered.cut_bytes), (2, 80, 0));
}

#[test]
fn damage_is_not_destroyed() {
    let bytes = killed();
    let ends = block_ends(&bytes);
    // In the last row group, whose length is right.
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let directory = left_with(&damaged);
    assert_eq!(recover_files(directory.path()).unwrap().damaged_groups, 1);
    let kept = fs::read(partition(directory.path()).join("flows-000000.parquet")).unwrap();
    assert!(kept.starts_with(&damaged), "what cannot be read is still there");
    assert_eq!(flow_numbers(directory.path()), first(4));

    let mut damaged = bytes[..ends[0]].to_vec();
    damaged[ends[0] - 100] ^= 1;
    let directory = left_with(&damaged);
    let recovered = recover_files(directory.path()).unwrap();
    assert_eq!((recovered.damaged_files, recovered.damaged_groups, recovered.files), (1, 1, 0));
    let kept = fs::read(partition(directory.path()).join("flows-000000.parquet.damaged")).unwrap();
    assert_eq!(kept, damaged);
    assert!(recover_files(directory.path()).unwrap().is_empty());
    assert!(flow_numbers(directory.path()).is_empty());
}

/// Damage costs one look at each byte: four times as many bytes, about four times as long.
#[test]
fn the_search_costs_what_the_file_is_worth() {
    let block = killed()[..block_ends(&killed())[0]].to_vec();
    let cost = |times: usize| {
        let mut bytes = PARQUET_MAGIC.to_vec();
        // Bytes that look like a head at every offset: small numbers.
        bytes.extend([16_u8, 0, 0, 0, 0, 0, 0, 0].repeat(times << 14));
        bytes.extend(&block[PARQUET_MAGIC.len()..]);
        let directory = left_with(&bytes);
        let begun_ns = clock::thread_cpu_ns();
        recover_files(directory.path()).unwrap();
        clock::thread_cpu_ns() - begun_ns
    };
    let [once, four_times] = [1, 4].map(|times| (0..3).map(|_| cost(times)).min().unwrap());
    assert!(four_times < 8 * once, "{once} ns, then {four_times} ns");
}

#[test]
fn recovery_accepts_table_partition_or_linked_directory() {
    let bytes = killed();
    for place in ["", "flows", "flows/date=2026-11-21", "flows/date=2026-11-21/hour=13"] {
        let directory = left_with(&bytes);
        let recovered = recover_files(&directory.path().join(place)).unwrap();
        assert_eq!(recovered.files, 1, "{place}");
    }
    // The directory itself is somewhere else, as on another disk.
    let disk = left_with(&bytes);
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(disk.path().join("flows"), directory.path().join("flows")).unwrap();
    assert_eq!(recover_files(directory.path()).unwrap().files, 1);
    assert_eq!(flow_numbers(directory.path()), first(5));

    let refused = |place: &str| recover_files(&directory.path().join(place)).unwrap_err().to_string();
    assert!(refused("nowhere").contains("cannot read"), "{}", refused("nowhere"));
    fs::create_dir(directory.path().join("empty")).unwrap();
    assert!(refused("empty").contains("no flow records"), "{}", refused("empty"));
    assert!(recover_before_writing(&directory.path().join("empty")).unwrap().is_empty());
}

#[test]
fn complete_unnamed_file_is_only_renamed() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = ParquetOptions::new(directory.path());
    options.group_rows = GROUP_ROWS.into();
    let mut sink = ParquetSink::new(options).unwrap();
    sink.write_records(&records(3 * GROUP_ROWS), RecordExporter::default()).unwrap();
    sink.close_sink().1.unwrap();
    let finished = partition(directory.path()).join("flows-000000.parquet");
    let bytes = fs::read(&finished).unwrap();
    let left = left_with(&bytes);
    let recovered = recover_files(left.path()).unwrap();
    assert_eq!((recovered.files, recovered.records, recovered.cut_files), (1, 120, 0));
    assert_eq!(flow_numbers(left.path()), first(3));
}

#[test]
fn file_of_running_process_is_not_recovered() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = ParquetOptions::new(directory.path());
    options.group_rows = GROUP_ROWS.into();
    let mut sink = ParquetSink::new(options).unwrap();
    sink.write_records(&records(GROUP_ROWS), RecordExporter::default()).unwrap();
    assert!(recover_files(directory.path()).unwrap().is_empty());
    sink.write_records(&records(GROUP_ROWS), RecordExporter::default()).unwrap();
    let (kept, done) = sink.close_sink();
    done.unwrap();
    assert_eq!(kept.stored.records, 80);
    assert_eq!(flow_numbers(directory.path()), [first(1), first(1)].concat());
}

#[test]
fn buffered_rows_reach_disk_within_one_second() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = ParquetSink::new(ParquetOptions::new(directory.path())).unwrap();
    // 3600 of them began in the first hour and 800 in the third: rows of all hours go to the disk together.
    sink.write_records(&records(8000), RecordExporter::default()).unwrap();
    sink.on_tick(MonoTime::from_nanos(SECOND)).unwrap();
    let on_disk = |hour| {
        let place = directory.path().join(format!("flows/date=2026-11-21/hour={hour}")).join(NAME);
        fs::metadata(place).map_or(0, |facts| facts.len())
    };
    sink.on_tick(MonoTime::from_nanos(2 * SECOND - 1)).unwrap();
    assert_eq!([13, 14, 15].map(on_disk), [0; 3]);
    sink.write_records(&records(5000), RecordExporter::default()).unwrap();
    sink.on_tick(MonoTime::from_nanos(2 * SECOND)).unwrap();
    let [first, second, third] = [13, 14, 15].map(on_disk);
    assert!(first > 0 && second > 0 && third > 0, "{first} {second} {third}");
    let (kept, done) = sink.close_sink();
    done.unwrap();
    assert_eq!((kept.stored.records, kept.offered.records), (13_000, 13_000));
    assert_eq!(flow_numbers(directory.path()).len(), 13_000);
}
