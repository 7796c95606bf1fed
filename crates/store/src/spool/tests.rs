use super::manifest::SegmentTally;
use super::*;
use crate::sample::{node_result, sample};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

const ROOMY: SpoolLimits = SpoolLimits { bytes: 1 << 30, keep_free: 0 };

fn run() -> RunId {
    RunId("20261121-080000-aaaaaa".into())
}

fn plenty() -> FreeSpaceFunction {
    Box::new(|_| Some(u64::MAX))
}

fn open(place: &Path) -> ResultSpool {
    ResultSpool::open_or_create(place, ROOMY, plenty()).unwrap()
}

/// All segments of the run from `from` on, as they would travel.
fn segments(spool: &ResultSpool, from: u64) -> Vec<(u64, ResultSegment)> {
    let pending = spool.pending_segments(usize::MAX);
    let read = |pending: &PendingSegment| {
        let bytes = spool.read_segment(&pending.key).unwrap();
        (pending.key.number, ResultSegment::from_bytes(&pending.key, &bytes).unwrap())
    };
    pending.iter().filter(|pending| pending.key.number >= from).map(read).collect()
}

fn intervals(journal: &mut NodeJournal, many: u64) {
    for second in 0..many {
        journal.append_interval(&sample(second)).unwrap();
    }
}

fn manifest(spool: &ResultSpool) -> PartManifest {
    let (_, end) = segments(spool, 0).pop().unwrap();
    assert_eq!(end.kind, SegmentKind::End);
    serde_json::from_slice(&end.payload).unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn journal_entries_wait_in_order_until_manifest() {
    let place = tempfile::tempdir().unwrap();
    let spool = open(place.path());
    let mut journal = spool.begin_journal(&run(), 1).unwrap();
    assert_eq!(journal.append_interval(&sample(1)).unwrap(), 0);
    assert_eq!(
        journal
            .append_entry(NodeJournalEntry::Capture { name: "rx.pcapng", offset: 0, last: true }, &[7; 100])
            .unwrap(),
        1
    );
    assert_eq!(
        journal.append_entry(NodeJournalEntry::Result, &vec![3; MAX_PAYLOAD_BYTES * 2 + 5]).unwrap(),
        4
    );
    assert!(!spool.is_finished(&run(), 1));
    assert_eq!(journal.end_journal(None).unwrap(), 5);
    assert_eq!(spool.final_segment_count(&run(), 1), Some(6));

    let segments = segments(&spool, 0);
    let kinds: Vec<_> = segments.iter().map(|(number, segment)| (*number, segment.kind)).collect();
    let result = SegmentKind::Result;
    assert_eq!(
        kinds,
        [
            (0, SegmentKind::Interval),
            (1, SegmentKind::Capture),
            (2, result),
            (3, result),
            (4, result),
            (5, SegmentKind::End)
        ]
    );
    assert_eq!(
        value::unpack_value::<packetrig_stats::result::CountSample>(&segments[0].1.payload).unwrap(),
        sample(1)
    );
    assert_eq!(segments[1].1.name, "rx.pcapng");
    let pieces = [&segments[2].1, &segments[3].1, &segments[4].1];
    assert_eq!(
        pieces.map(|piece| (piece.offset, piece.last)),
        [
            (0, false),
            (u64::try_from(MAX_PAYLOAD_BYTES).unwrap(), false),
            (u64::try_from(MAX_PAYLOAD_BYTES * 2).unwrap(), true)
        ]
    );
    let manifest = manifest(&spool);
    assert_eq!(manifest.counts, SegmentCounts { segments: 5, interval: 1, result: 3, capture: 1, lost: 0 });
    assert!(!manifest.cut_short);
}

#[test]
fn second_process_or_journal_on_spool_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let spool = open(place.path());
    assert!(matches!(ResultSpool::open_or_create(place.path(), ROOMY, plenty()), Err(Error::InUse(_))));
    let journal = spool.begin_journal(&run(), 1).unwrap();
    assert!(matches!(spool.begin_journal(&run(), 1), Err(Error::Taken { .. })));
    spool.begin_journal(&run(), 2).unwrap().end_journal(None).unwrap();
    journal.end_journal(None).unwrap();
    spool.release_segments(&run(), 1, 1).unwrap();
    drop(spool);
    let spool = open(place.path());
    assert!(matches!(spool.begin_journal(&run(), 1), Err(Error::Taken { .. })), "over, and remembered");
    for bad in ["", "..", "a/b", "a.b"] {
        assert!(matches!(spool.begin_journal(&RunId(bad.into()), 1), Err(Error::BadId(_))), "{bad}");
    }
}

#[test]
fn finished_runs_are_remembered_up_to_limit() {
    let place = tempfile::tempdir().unwrap();
    let spool = open(place.path());
    let name = |number: usize| RunId(format!("r{number:04}"));
    for number in 0..MAX_REMEMBERED_RUNS + 3 {
        spool.begin_journal(&name(number), 1).unwrap().end_journal(None).unwrap();
        spool.release_segments(&name(number), 1, 1).unwrap();
    }
    drop(spool);
    let spool = open(place.path());
    assert!(!spool.is_finished(&name(2), 1) && spool.is_finished(&name(3), 1));
}

#[test]
fn a_journal_that_is_dropped_ends_cut_short() {
    let place = tempfile::tempdir().unwrap();
    let spool = open(place.path());
    spool.begin_journal(&run(), 1).unwrap().append_interval(&sample(1)).unwrap();
    let manifest = manifest(&spool);
    assert!(manifest.cut_short && manifest.reason.unwrap().contains("abandoned the run"));
}

#[test]
fn discarded_journal_leaves_no_pending_segments() {
    let place = tempfile::tempdir().unwrap();
    let spool = open(place.path());
    let mut journal = spool.begin_journal(&run(), 1).unwrap();
    journal.append_interval(&sample(1)).unwrap();
    journal.discard_journal().unwrap();
    assert_eq!((spool.pending_segments(9), spool.used_bytes()), (vec![], 0));
    drop(spool);
    let spool = open(place.path());
    assert_eq!(spool.recovered_parts(), RecoveredParts::default());
    assert!(matches!(spool.begin_journal(&run(), 1), Err(Error::Taken { .. })));
}

#[test]
fn release_deletes_segments_and_numbering_continues() {
    let place = tempfile::tempdir().unwrap();
    let spool = open(place.path());
    let mut journal = spool.begin_journal(&run(), 1).unwrap();
    for second in 0..4 {
        journal.append_interval(&sample(second)).unwrap();
    }
    spool.release_segments(&run(), 1, 3).unwrap();
    spool.release_segments(&run(), 1, 3).unwrap();
    spool.release_segments(&run(), 1, 1).unwrap();
    spool.release_segments(&RunId("other".into()), 1, 9).unwrap();
    let waiting = |spool: &ResultSpool| {
        spool.pending_segments(9).iter().map(|pending| pending.key.number).collect::<Vec<_>>()
    };
    assert_eq!(waiting(&spool), [3]);
    let gone = SegmentKey { run: run(), attempt: 1, number: 2 };
    assert!(matches!(spool.read_segment(&gone), Err(Error::Unknown { number: 2, .. })));
    spool.release_segments(&run(), 1, 99).unwrap();
    assert_eq!(journal.append_interval(&sample(4)).unwrap(), 4, "although nothing was left");
    journal.end_journal(None).unwrap();
    let before = manifest(&spool);
    spool.release_segments(&run(), 1, 5).unwrap();
    assert_eq!(before.counts.interval, 5);
    drop(spool);

    let spool = open(place.path());
    assert_eq!((waiting(&spool), manifest(&spool)), (vec![5], before));
    spool.release_segments(&run(), 1, 6).unwrap();
    assert_eq!(
        (waiting(&spool), spool.final_segment_count(&run(), 1), spool.used_bytes()),
        (vec![], Some(6), 0)
    );
}

#[test]
fn one_thread_writes_while_another_reads() {
    let place = tempfile::tempdir().unwrap();
    let spool = open(place.path());
    let mut journal = spool.begin_journal(&run(), 1).unwrap();
    let reader = spool.clone();
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            intervals(&mut journal, 50);
            journal.end_journal(None).unwrap()
        });
        let mut seen = 0;
        while reader.final_segment_count(&run(), 1) != Some(seen) {
            for pending in reader.pending_segments(3) {
                assert_eq!(pending.key.number, seen, "in order, none left out");
                let bytes = reader.read_segment(&pending.key).unwrap();
                ResultSegment::from_bytes(&pending.key, &bytes).unwrap();
                seen += 1;
            }
            reader.release_segments(&run(), 1, seen).unwrap();
        }
        writer.join().unwrap()
    });
    assert_eq!((written, spool.pending_segments(1).len()), (50, 0));
}

#[test]
fn full_spool_refuses_captures_then_intervals_then_results() {
    let place = tempfile::tempdir().unwrap();
    let limits = SpoolLimits { bytes: 80_000, keep_free: 0 };
    let spool = ResultSpool::open_or_create(place.path(), limits, plenty()).unwrap();
    let mut journal = spool.begin_journal(&run(), 1).unwrap();
    let capture = |journal: &mut NodeJournal| {
        journal.append_entry(NodeJournalEntry::Capture { name: "c", offset: 0, last: true }, &[1; 900])
    };
    while capture(&mut journal).is_ok() {}
    assert!((35_000..=40_000).contains(&spool.used_bytes()), "{}", spool.used_bytes());
    let error = capture(&mut journal).unwrap_err();
    assert!(matches!(error, Error::Refused { kind: SegmentKind::Capture, most: 80_000, .. }), "{error}");
    let mut kept = [0, 0];
    for _ in 0..300 {
        let is_coarse = usize::from(spool.used_bytes() > 58_000);
        match journal.append_entry(NodeJournalEntry::Interval, &[2; 900]) {
            Ok(_) => kept[is_coarse] += 1,
            Err(error) => {
                assert!(matches!(error, Error::Refused { kind: SegmentKind::Interval, .. }), "{error}");
            }
        }
    }
    assert!(kept[0] > 10 && kept[1] > 3, "{kept:?}");
    assert!(spool.used_bytes() <= 70_000, "a part is left for results: {}", spool.used_bytes());
    journal.append_entry(NodeJournalEntry::Result, &[3; 5000]).unwrap();
    let error = journal.append_entry(NodeJournalEntry::Result, &[3; 9000]).unwrap_err();
    assert!(matches!(error, Error::Full { most: 80_000, .. }), "{error}");
    journal.end_journal(Some("disk".into())).unwrap();
    let manifest = manifest(&spool);
    assert_eq!(manifest.refused_captures, 2);
    assert!(manifest.refused_intervals > 100);
    assert_eq!(manifest.reason.as_deref(), Some("disk"));
}

#[test]
fn captures_and_intervals_respect_free_disk_reserve() {
    let place = tempfile::tempdir().unwrap();
    static FREE: AtomicU64 = AtomicU64::new(1 << 20);
    let limits = SpoolLimits { bytes: 1 << 30, keep_free: 100_000 };
    let spool =
        ResultSpool::open_or_create(place.path(), limits, Box::new(|_| Some(FREE.load(Ordering::Relaxed))))
            .unwrap();
    let mut journal = spool.begin_journal(&run(), 1).unwrap();
    let capture = NodeJournalEntry::Capture { name: "c", offset: 0, last: true };
    journal.append_entry(capture, &[1; 100]).unwrap();
    FREE.store(100_000, Ordering::Relaxed);
    assert!(matches!(
        journal.append_entry(capture, &[1; 100]),
        Err(Error::Refused { kind: SegmentKind::Capture, .. })
    ));
    assert!(matches!(
        journal.append_interval(&sample(1)),
        Err(Error::Refused { kind: SegmentKind::Interval, .. })
    ));
    journal.append_result(&node_result(1, 1)).unwrap();
    journal.end_journal(None).unwrap();
}

#[test]
fn torn_and_missing_segments_keep_their_numbers() {
    let place = tempfile::tempdir().unwrap();
    let spool = open(place.path());
    let mut journal = spool.begin_journal(&run(), 1).unwrap();
    intervals(&mut journal, 6);
    let crashed = tempfile::tempdir().unwrap();
    copy(place.path(), crashed.path());
    let directory = crashed.path().join(format!("{}.1", run()));
    fs::write(directory.join("00000000000000000002.seg"), "torn").unwrap();
    fs::remove_file(directory.join("00000000000000000003.seg")).unwrap();
    fs::write(directory.join("00000000000000000005.seg"), "").unwrap();
    fs::write(directory.join("00000000000000000006.tmp"), "half").unwrap();

    for _ in 0..2 {
        let spool = open(crashed.path());
        assert_eq!((spool.recovered_parts().torn >= 3, spool.recovered_parts().waiting), (true, 7));
        let kinds: Vec<_> = segments(&spool, 0).iter().map(|(_, segment)| segment.kind).collect();
        let (interval, lost) = (SegmentKind::Interval, SegmentKind::Lost);
        assert_eq!(kinds, [interval, interval, lost, lost, interval, lost, SegmentKind::End]);
        assert_eq!(
            manifest(&spool).counts,
            SegmentCounts { segments: 6, interval: 3, lost: 3, ..SegmentCounts::default() }
        );
        assert!(manifest(&spool).cut_short);
    }
    let spool = open(crashed.path());
    spool.release_segments(&run(), 1, 7).unwrap();
    assert_eq!(fs::read_dir(directory).unwrap().count(), 1, "only the note is left");
}

#[test]
fn unknown_segment_version_refuses_to_open_spool() {
    let place = tempfile::tempdir().unwrap();
    let spool = open(place.path());
    spool.begin_journal(&run(), 1).unwrap().append_interval(&sample(1)).unwrap();
    drop(spool);
    let path = place.path().join(format!("{}.1/00000000000000000000.seg", run()));
    let mut bytes = fs::read(&path).unwrap();
    bytes[4] = 2;
    fs::write(&path, bytes).unwrap();
    let error = ResultSpool::open_or_create(place.path(), ROOMY, plenty()).unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");
}

/// Actions of the writing side between two crashes.
#[derive(Clone, Debug)]
enum CrashStep {
    Interval,
    Value(usize),
    Release(prop::sample::Index),
    /// The power fails; a part of a file that was being written is on the disk.
    Crash(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<CrashStep>> {
    let step = prop_oneof![
        4 => Just(CrashStep::Interval),
        2 => (0..3 * MAX_PAYLOAD_BYTES).prop_map(CrashStep::Value),
        2 => any::<prop::sample::Index>().prop_map(CrashStep::Release),
        1 => any::<prop::sample::Index>().prop_map(CrashStep::Crash),
    ];
    prop::collection::vec(step, 1..20)
}

/// The controller: what it was given, by (attempt, number).
type StoredSegments = BTreeMap<(u32, u64), (Vec<u8>, SegmentKey)>;

fn upload(spool: &ResultSpool, stored: &mut StoredSegments) {
    for PendingSegment { key, .. } in spool.pending_segments(usize::MAX) {
        let bytes = spool.read_segment(&key).unwrap();
        let (before, _) =
            stored.entry((key.attempt, key.number)).or_insert_with(|| (bytes.clone(), key.clone()));
        assert_eq!(*before, bytes, "a number means the same bytes for ever");
    }
}

/// Every attempt that ended is complete at the controller, and its manifest says so.
fn check(stored: &StoredSegments) {
    let attempts: BTreeSet<u32> = stored.keys().map(|(attempt, _)| *attempt).collect();
    for attempt in attempts {
        let mut tally = SegmentTally::default();
        let of = stored.range((attempt, 0)..=(attempt, u64::MAX));
        for (expected, ((_, number), (bytes, key))) in (0..).zip(of) {
            assert_eq!(*number, expected, "no gap");
            let segment = ResultSegment::from_bytes(key, bytes).unwrap();
            if segment.kind == SegmentKind::End {
                let manifest: PartManifest = serde_json::from_slice(&segment.payload).unwrap();
                assert_eq!(
                    (manifest.counts, manifest.sha256),
                    (tally.counts, segment::hash_in_hex(&tally.chain))
                );
                assert!(!stored.contains_key(&(attempt, number + 1)), "nothing after the End");
            }
            tally.add_segment(segment.kind, &ResultSegment::read_checksum(bytes));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn acknowledged_segments_survive_any_crash_sequence(steps in steps()) {
        let mut place = tempfile::tempdir().unwrap();
        let mut spool = open(place.path());
        let (mut stored, mut attempt, mut appended) = (StoredSegments::new(), 1, BTreeSet::new());
        let mut journal = spool.begin_journal(&run(), attempt).unwrap();
        for (second, step) in (0..).zip(steps) {
            match step {
                CrashStep::Interval => drop(appended.insert((attempt, journal.append_interval(&sample(second)).unwrap()))),
                CrashStep::Value(size) => drop(appended.insert((attempt, journal.append_entry(NodeJournalEntry::Result, &vec![9; size]).unwrap()))),
                CrashStep::Release(upto) => {
                    upload(&spool, &mut stored);
                    let numbers: Vec<u64> = stored.keys().filter(|(of, _)| *of == attempt).map(|(_, number)| *number).collect();
                    if !numbers.is_empty() {
                        spool.release_segments(&run(), attempt, numbers[upto.index(numbers.len())] + 1).unwrap();
                    }
                }
                CrashStep::Crash(at) => {
                    let after = tempfile::tempdir().unwrap();
                    copy(place.path(), after.path());
                    let half = vec![1; at.index(5000)];
                    fs::write(after.path().join(format!("{}.{attempt}/{:020}.tmp", run(), 77)), half).unwrap();
                    drop(journal);
                    spool = open(after.path());
                    place = after;
                    prop_assert_eq!(spool.recovered_parts().torn, 1);
                    prop_assert_eq!(spool.recovered_parts().cut_short, 1);
                    attempt += 1;
                    journal = spool.begin_journal(&run(), attempt).unwrap();
                }
            }
        }
        journal.end_journal(None).unwrap();
        upload(&spool, &mut stored);
        check(&stored);
        for taken in appended {
            prop_assert!(stored.contains_key(&taken), "{:?}", taken);
        }
        for attempt in 1..=attempt {
            spool.release_segments(&run(), attempt, u64::MAX).unwrap();
        }
        prop_assert_eq!((spool.pending_segments(9), spool.used_bytes()), (vec![], 0));
    }

    #[test]
    fn crash_during_write_or_release_is_recovered(
        taken in 1..6_u64, cut in any::<prop::sample::Index>(), below in 0..6_u64, deleted in 0..6_u64,
    ) {
        let place = tempfile::tempdir().unwrap();
        let spool = open(place.path());
        let mut journal = spool.begin_journal(&run(), 1).unwrap();
        intervals(&mut journal, taken);
        let mut stored = StoredSegments::new();
        upload(&spool, &mut stored);
        let crashed = tempfile::tempdir().unwrap();
        copy(place.path(), crashed.path());
        let directory = format!("{}.1", run());
        // The note of a release is written, and of the files only some are gone.
        spool.release_segments(&run(), 1, below).unwrap();
        if below > 0 {
            fs::copy(place.path().join(&directory).join("released"), crashed.path().join(&directory).join("released")).unwrap();
        }
        for number in 0..deleted.min(below) {
            fs::remove_file(crashed.path().join(&directory).join(format!("{number:020}.seg"))).unwrap_or(());
        }
        // The next segment is half there, under its temporary name.
        let whole = fs::read(crashed.path().join(&directory).join(format!("{:020}.seg", taken - 1))).unwrap_or_default();
        let half = if whole.is_empty() { &whole[..] } else { &whole[..cut.index(whole.len())] };
        fs::write(crashed.path().join(&directory).join(format!("{taken:020}.tmp")), half).unwrap();

        let spool = open(crashed.path());
        prop_assert_eq!(spool.recovered_parts().waiting, taken - below.min(taken) + 1, "and an End");
        upload(&spool, &mut stored);
        check(&stored);
        prop_assert!(manifest(&spool).cut_short);
    }
}
