use super::*;
use crate::UnfinishedRun;
use crate::catalogue::BatchQuotas;
use crate::packs::{PackedSegment, write_pack};
use crate::room::ReportSize;
use crate::sample::{node_result, report, sample};
use crate::spool::segment::{BrokenSegment, MAX_PAYLOAD_BYTES};
use crate::spool::{NodeJournal, NodeJournalEntry, ResultSegment, ResultSpool, SpoolLimits};
use packetrig_report::RunId;
use packetrig_stats::result::CaptureResult;
use proptest::prelude::*;
use std::fs;
use std::io::ErrorKind;

struct Setup {
    place: tempfile::TempDir,
    catalogue: RunCatalogue,
    draft: RunDraft,
}

fn run() -> RunId {
    RunId("20261121-080000-aaaaaa".into())
}

fn node(name: &str) -> NodeName {
    NodeName(name.into())
}

fn begun() -> UnfinishedRun {
    UnfinishedRun {
        run: run(),
        attempt: 1,
        epoch: 4,
        record: "{\"state\":\"running\"}".into(),
        plan: "flows: []".into(),
        directory: PathBuf::new(),
        begun_at: 1_700_000_000_000_000_000,
    }
}

fn setup() -> Setup {
    let place = tempfile::tempdir().unwrap();
    let catalogue = RunCatalogue::open_or_create(place.path()).unwrap();
    let draft = catalogue.begin_resumable_run(&begun(), ReportSize::default()).unwrap();
    Setup { place, catalogue, draft }
}

/// A node's spool, filled and ended; what it would send.
fn sent(name: &str, fill: impl FnOnce(&mut NodeJournal)) -> Vec<(SegmentId, Vec<u8>)> {
    let place = tempfile::tempdir().unwrap();
    let limits = SpoolLimits { bytes: 1 << 30, keep_free: 0 };
    let spool = ResultSpool::open_or_create(place.path(), limits, Box::new(|_| None)).unwrap();
    let mut journal = spool.begin_journal(&run(), 1).unwrap();
    fill(&mut journal);
    journal.end_journal(None).unwrap();
    let read = |pending: &crate::spool::PendingSegment| {
        (pending.segment_id(&node(name)), spool.read_segment(&pending.key).unwrap())
    };
    spool.pending_segments(usize::MAX).iter().map(read).collect()
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..bytes).map(|_| next()).collect()
}

impl Setup {
    fn store(&self, segment: &(SegmentId, Vec<u8>)) -> StoreOutcome {
        self.draft.store_segment(&self.catalogue, &segment.0, &segment.1, 5).unwrap()
    }
    fn below(&self, name: &str) -> u64 {
        self.catalogue.watermark(&run(), 1, &node(name)).unwrap()
    }
    fn assemble(&self, name: &str) -> Option<crate::AssembledPart> {
        self.draft.assemble_part(&self.catalogue, 1, &node(name)).unwrap()
    }
}

#[test]
fn large_result_and_capture_are_reassembled_unchanged() {
    let setup = setup();
    let (capture, result) = (noise(3 * MAX_PAYLOAD_BYTES + 7), node_result(160, 20_000));
    let file = setup.place.path().join("rx.pcapng");
    fs::write(&file, &capture).unwrap();
    let sent = sent("a", |journal| {
        journal.append_interval(&sample(1)).unwrap();
        journal.append_capture("rx.pcapng", &file).unwrap();
        journal.append_interval(&sample(2)).unwrap();
        journal.append_result(&result).unwrap();
    });
    // Two intervals, four pieces of the capture, the End; the rest is the result.
    assert!(sent.len() >= 9, "{} segments", sent.len());
    for segment in &sent {
        assert_eq!(setup.assemble("a"), None, "before the End");
        assert_eq!(setup.store(segment), StoreOutcome::New);
    }
    let gathered = setup.assemble("a").unwrap();
    assert_eq!(gathered.doubts, Vec::<String>::new());
    assert_eq!(gathered.last_sample, Some(sample(2)));
    assert_eq!((gathered.counts.interval, gathered.missing), (2, 0));
    let [written] = &gathered.captures[..] else { panic!("{:?}", gathered.captures) };
    assert!(written.is_whole && fs::read(&written.file).unwrap() == capture);
    let mut expected = result;
    expected.captures[0].file = written.file.to_string_lossy().into_owned();
    assert!(gathered.result == Some(expected));

    let mut report = report(&run().0);
    report.captures = gathered.result.unwrap().captures;
    let directory = setup.draft.commit_run(&setup.catalogue, &mut report, "flows: []").unwrap();
    let stored = report;
    assert_eq!(stored.captures[0].file, directory.join("captures/a-rx.pcapng").to_string_lossy());
    assert!(fs::read(&stored.captures[0].file).unwrap() == capture);
    assert!(!directory.join(SEGMENTS_DIRECTORY).exists());
    assert_eq!(setup.catalogue.unfinished_runs().unwrap(), []);
    for (id, bytes) in &sent {
        assert_eq!(
            setup.catalogue.store_late_segment(id, bytes, 6).unwrap(),
            StoreOutcome::Again,
            "known for ever"
        );
    }
    assert!(!directory.join(SEGMENTS_DIRECTORY).exists());
}

#[test]
fn repeated_segment_is_accepted_and_different_bytes_refused() {
    let setup = setup();
    let sent = sent("a", |journal| drop(journal.append_interval(&sample(1))));
    assert_eq!(setup.store(&sent[0]), StoreOutcome::New);
    assert_eq!(setup.store(&sent[0]), StoreOutcome::Again);
    let other = self::sent("a", |journal| drop(journal.append_interval(&sample(2))));
    let refused = setup.draft.store_segment(&setup.catalogue, &other[0].0, &other[0].1, 5);
    assert!(matches!(refused, Err(Error::Differs(_))), "{refused:?}");
    setup.store(&sent[1]);
    let gathered = setup.assemble("a").unwrap();
    assert_eq!((gathered.counts.segments, gathered.last_sample), (1, Some(sample(1))));
}

#[test]
fn invalid_or_foreign_segment_is_refused() {
    let setup = setup();
    let (id, bytes) = sent("a", |_| ()).remove(0);
    let store = |id: &SegmentId, bytes: &[u8]| setup.draft.store_segment(&setup.catalogue, id, bytes, 5);
    let torn = store(&id, &bytes[..bytes.len() - 1]);
    assert!(matches!(torn, Err(Error::BadSegment { source: BrokenSegment::Form, .. })), "{torn:?}");
    let moved = store(&SegmentId { number: 1, ..id.clone() }, &bytes);
    assert!(matches!(moved, Err(Error::BadSegment { source: BrokenSegment::Checksum, .. })), "{moved:?}");
    let foreign = store(&SegmentId { run: RunId("x".into()), ..id.clone() }, &bytes);
    assert!(matches!(foreign, Err(Error::Foreign(_))), "{foreign:?}");
    for name in ["", "..", "a/b", ".a"] {
        let bad = store(&SegmentId { node: node(name), ..id.clone() }, &bytes);
        assert!(matches!(bad, Err(Error::BadNode(_))), "{bad:?}");
    }
    assert_eq!(setup.below("a"), 0);
}

#[test]
fn watermark_is_first_missing_segment_number() {
    let setup = setup();
    let sent = sent("a", |journal| (0..4).for_each(|second| drop(journal.append_interval(&sample(second)))));
    for (number, below) in [(1, 0), (0, 2), (4, 2), (3, 2), (2, 5)] {
        setup.store(&sent[number]);
        assert_eq!(setup.below("a"), below, "after {number}");
    }
    assert_eq!((setup.below("b"), setup.catalogue.watermark(&run(), 2, &node("a")).unwrap()), (0, 0));
}

#[test]
fn restarted_controller_resumes_unfinished_run() {
    let Setup { place, catalogue, draft } = setup();
    let sent = sent("a", |journal| drop(journal.append_result(&node_result(1, 10))));
    draft.store_segment(&catalogue, &sent[0].0, &sent[0].1, 5).unwrap();
    catalogue.store_unfinished_state(&run(), 2, 7, "{}").unwrap();
    drop((draft, catalogue));

    let catalogue = RunCatalogue::open_or_create(place.path()).unwrap();
    assert!(matches!(catalogue.begin_run(run(), ReportSize::default()), Err(Error::Taken(_))));
    let [found] = &catalogue.unfinished_runs().unwrap()[..] else { panic!("one is unfinished") };
    let (draft, resumed) = catalogue.resume_run(&run()).unwrap();
    assert_eq!(resumed, *found);
    let expected = UnfinishedRun {
        attempt: 2,
        epoch: 7,
        record: "{}".into(),
        directory: found.directory.clone(),
        ..begun()
    };
    assert_eq!(resumed, expected);
    assert!(matches!(catalogue.find_run(&run().0), Err(Error::Unknown(_))), "not listed yet");
    let setup = Setup { place, catalogue, draft };
    assert_eq!((setup.below("a"), setup.store(&sent[0])), (1, StoreOutcome::Again));
    setup.store(&sent[1]);
    assert!(setup.assemble("a").unwrap().result.is_some());
    setup.draft.commit_run(&setup.catalogue, &mut report(&run().0), &resumed.plan).unwrap();
    assert!(matches!(setup.catalogue.resume_run(&run()), Err(Error::NotUnfinished(_))));
    assert_eq!(setup.catalogue.find_run(&run().0).unwrap().run, run());
}

#[test]
fn crash_before_run_row_is_repaired_on_resume() {
    let Setup { place, catalogue, draft } = setup();
    let sent = sent("a", |_| ());
    draft.store_segment(&catalogue, &sent[0].0, &sent[0].1, 5).unwrap();
    // All that a commit does before its row.
    crate::files::write_run_files(
        draft.partial_directory(),
        &report(&run().0),
        "",
        crate::files::PageChoice::Write,
    )
    .unwrap();
    fs::rename(draft.partial_directory(), catalogue.run_directory(&run())).unwrap();
    drop(draft);
    let (draft, _) = catalogue.resume_run(&run()).unwrap();
    let setup = Setup { place, catalogue, draft };
    assert!(setup.assemble("a").is_some());
    setup.draft.commit_run(&setup.catalogue, &mut report(&run().0), "").unwrap();
    assert!(setup.catalogue.find_run(&run().0).is_ok());
}

#[test]
fn crash_before_segment_row_is_repaired_by_resend() {
    let setup = setup();
    let sent = sent("a", |journal| drop(journal.append_interval(&sample(1))));
    let run = setup.draft.partial_directory();
    let (id, bytes) = &sent[0];
    let packed = PackedSegment { id, hash: ResultSegment::read_checksum(bytes), bytes };
    let pack = write_pack(setup.place.path(), run, &[packed]).unwrap()[0].file_path(run, id);
    fs::write(&pack, "half").unwrap();
    fs::write(run.join(SEGMENTS_DIRECTORY).join(".x.pack.tmp"), "half").unwrap();
    assert_eq!(setup.below("a"), 0, "no row, not stored");
    for segment in &sent {
        assert_eq!(setup.store(segment), StoreOutcome::New);
    }
    assert_eq!(setup.assemble("a").unwrap().last_sample, Some(sample(1)));
    // And a file that the disk lost is missed, and comes back with a repeat.
    fs::remove_file(&pack).unwrap();
    let without = setup.assemble("a").unwrap();
    assert_eq!((without.last_sample, without.missing, without.doubts.len()), (None, 1, 2));
    assert_eq!(setup.store(&sent[0]), StoreOutcome::Again);
    assert_eq!(setup.assemble("a").unwrap().last_sample, Some(sample(1)));
}

#[test]
fn a_run_that_is_given_up_leaves_nothing() {
    let Setup { place, catalogue, draft } = setup();
    let sent = sent("a", |journal| drop(journal.append_interval(&sample(1))));
    draft.store_segment(&catalogue, &sent[0].0, &sent[0].1, 5).unwrap();
    assert_eq!(draft.abandon_run(&catalogue).unwrap(), None);
    assert_eq!(catalogue.unfinished_runs().unwrap(), []);
    assert_eq!(fs::read_dir(place.path().join("runs")).unwrap().count(), 0);
}

#[test]
fn captures_of_abandoned_run_are_assembled_and_kept() {
    let Setup { place, catalogue, draft } = setup();
    let capture = NodeJournalEntry::Capture { name: "rx.pcapng", offset: 0, last: true };
    let sent = sent("a", |journal| drop(journal.append_entry(capture, &[7; 500])));
    for (id, bytes) in &sent {
        draft.store_segment(&catalogue, id, bytes, 5).unwrap();
    }
    let kept = draft.abandon_run(&catalogue).unwrap().unwrap();
    assert_eq!(kept.captures[0].file.file_name().unwrap(), "a-rx.pcapng");
    assert_eq!(fs::read(&kept.captures[0].file).unwrap(), [7; 500]);
    assert_eq!(
        (catalogue.unfinished_runs().unwrap(), catalogue.list_unlisted_runs().unwrap().len()),
        (vec![], 1)
    );
    catalogue.discard_run(&run().0).unwrap();
    assert_eq!(fs::read_dir(place.path().join("runs")).unwrap().count(), 0);
}

#[test]
fn unfinished_node_yields_its_partial_results() {
    let setup = setup();
    let sent = sent("a", |journal| {
        journal.append_interval(&sample(1)).unwrap();
        journal
            .append_entry(NodeJournalEntry::Capture { name: "rx.pcapng", offset: 0, last: false }, &[1; 50])
            .unwrap();
        journal.append_interval(&sample(2)).unwrap();
        journal.append_entry(NodeJournalEntry::Result, &vec![1; MAX_PAYLOAD_BYTES + 1]).unwrap();
    });
    // All but the interval 2, the second half of the result, and the End.
    for number in [0, 1, 3] {
        setup.store(&sent[number]);
    }
    assert_eq!(setup.assemble("a"), None);
    let there = setup.draft.assemble_incomplete_part(&setup.catalogue, 1, &node("a")).unwrap();
    assert_eq!((there.last_sample, there.result, there.end, there.missing), (Some(sample(1)), None, None, 1));
    assert_eq!((there.captures[0].is_whole, there.captures[0].bytes), (false, 50));
    let doubts = [
        "a: segments missing: 1",
        "a: its final manifest is missing, so more results may exist",
        "a: capture rx.pcapng is incomplete",
    ];
    assert_eq!(there.doubts, doubts);
    let nothing = setup.draft.assemble_incomplete_part(&setup.catalogue, 1, &node("b")).unwrap();
    assert_eq!((nothing.last_sample, nothing.counts.segments), (None, 0));
}

#[test]
fn killed_agent_and_lost_segments_raise_doubts() {
    let place = tempfile::tempdir().unwrap();
    let limits = SpoolLimits { bytes: 1 << 30, keep_free: 0 };
    let spool = ResultSpool::open_or_create(place.path(), limits, Box::new(|_| None)).unwrap();
    let mut journal = spool.begin_journal(&run(), 1).unwrap();
    (0..3).for_each(|second| drop(journal.append_interval(&sample(second))));
    drop((journal, spool));
    fs::write(place.path().join(format!("{}.1/{}", run(), file_name(1))), "torn").unwrap();
    let spool = ResultSpool::open_or_create(place.path(), limits, Box::new(|_| None)).unwrap();
    let setup = setup();
    for pending in spool.pending_segments(9) {
        setup.store(&(pending.segment_id(&node("a")), spool.read_segment(&pending.key).unwrap()));
    }
    let gathered = setup.assemble("a").unwrap();
    assert_eq!((gathered.counts.lost, gathered.last_sample), (1, Some(sample(2))));
    assert!(gathered.doubts.contains(&"a: disk: segments lost: 1".to_owned()), "{:?}", gathered.doubts);
    assert!(gathered.doubts.contains(&"a: the agent abandoned the run".to_owned()), "{:?}", gathered.doubts);
}

#[test]
fn captures_of_two_nodes_never_share_a_file() {
    let setup = setup();
    let of = |name: &str, file: &str, byte: u8| {
        sent(name, |journal| {
            journal
                .append_entry(NodeJournalEntry::Capture { name: file, offset: 0, last: true }, &[byte; 9])
                .unwrap();
        })
    };
    for segment in of("a", "b-c", 1).iter().chain(&of("a-b", "c", 2)).chain(&of("z", "../.x y", 3)) {
        setup.store(segment);
    }
    let file = |name: &str| setup.assemble(name).unwrap().captures[0].file.clone();
    let files = [file("a"), file("a-b"), file("z")];
    assert_eq!(files.each_ref().map(|file| fs::read(file).unwrap()[0]), [1, 2, 3]);
    let inside = setup.draft.create_capture_directory().unwrap();
    assert!(files.iter().all(|file| file.parent() == Some(&*inside)), "{files:?}");
}

#[test]
fn missing_capture_is_named_with_its_node() {
    let setup = setup();
    let mut result = node_result(1, 1);
    result.captures =
        vec![CaptureResult { port: 0, file: "/tmp/x/tx.pcapng".into(), written: 1, dropped: 0 }];
    for segment in &sent("a", |journal| drop(journal.append_result(&result))) {
        setup.store(segment);
    }
    let gathered = setup.assemble("a").unwrap();
    assert_eq!(gathered.result.unwrap().captures[0].file, "a:/tmp/x/tx.pcapng");
    assert_eq!(gathered.elsewhere, ["a: capture tx.pcapng did not arrive"]);
    assert_eq!(gathered.doubts, Vec::<String>::new());
}

#[test]
fn late_segments_join_their_run_or_stray_directory() {
    let Setup { place, catalogue, draft } = setup();
    let sent = sent("a", |journal| drop(journal.append_interval(&sample(1))));
    let (early, bytes) = &sent[1];
    assert_eq!(
        catalogue.store_late_segment(early, bytes, 5).unwrap(),
        StoreOutcome::New,
        "while it is under way, to its draft"
    );
    let is_below = |run: &Path, id: &SegmentId| {
        catalogue.find_listed_segment(id).unwrap().is_some_and(|listed| listed.place.is_on_disk(run, id))
    };
    assert!(is_below(draft.partial_directory(), early));
    let directory = draft.commit_run(&catalogue, &mut report(&run().0), "").unwrap();
    let (id, bytes) = &sent[0];
    assert_eq!(catalogue.store_late_segment(id, bytes, 5).unwrap(), StoreOutcome::New);
    assert_eq!(catalogue.store_late_segment(id, bytes, 5).unwrap(), StoreOutcome::Again);
    assert!(is_below(&directory, id));
    let stranger = SegmentId { run: RunId("stranger".into()), ..id.clone() };
    let key = segment_key(&stranger);
    let bytes = ResultSegment::from_bytes(&segment_key(id), bytes).unwrap().to_bytes(&key).unwrap();
    assert_eq!(catalogue.store_late_segment(&stranger, &bytes, 5).unwrap(), StoreOutcome::New);
    assert!(is_below(&place.path().join("stray/stranger"), &stranger));
    let bad = SegmentId { run: RunId("../x".into()), ..stranger };
    assert!(matches!(catalogue.store_late_segment(&bad, &bytes, 5), Err(Error::BadId(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn reordered_segments_of_two_nodes_assemble_correctly(order in prop::collection::vec(any::<prop::sample::Index>(), 40..60)) {
        let setup = setup();
        let of = |name: &str, seconds: u64| sent(name, |journal| {
            (0..=seconds).for_each(|second| drop(journal.append_interval(&sample(second)).unwrap().to_string()));
            journal.append_result(&node_result(2, seconds)).unwrap();
        });
        let all = [of("a", 3), of("b", 5)].concat();
        let mut seen = std::collections::BTreeSet::new();
        for segment in order.iter().map(|index| index.get(&all)).chain(&all) {
            let expected = if seen.insert(segment.0.clone()) { StoreOutcome::New } else { StoreOutcome::Again };
            prop_assert_eq!(setup.store(segment), expected);
        }
        for (name, seconds) in [("a", 3), ("b", 5)] {
            let gathered = setup.assemble(name).unwrap();
            prop_assert_eq!(gathered.counts.interval, seconds + 1);
            prop_assert_eq!(gathered.last_sample, Some(sample(seconds)));
            prop_assert_eq!(gathered.result.unwrap().receive, node_result(2, seconds).receive);
        }
    }
}

#[test]
fn late_results_have_node_and_total_quotas() {
    use crate::{MAX_LATE, MAX_LATE_BYTES_OF_NODE};
    let place = tempfile::tempdir().unwrap();
    let catalogue = RunCatalogue::open_or_create(place.path()).unwrap();
    let late = |name: &str| {
        let (id, bytes) = sent(name, |_| ()).remove(0);
        catalogue.store_late_segment(&id, &bytes, 5)
    };
    // The state in which the node has one small segment left of its share.
    let share = usize::try_from(MAX_LATE_BYTES_OF_NODE).unwrap();
    let (id, _) = sent("a", |_| ()).remove(0);
    let admit = |id: &SegmentId, bytes, free| {
        let mut quotas = BatchQuotas::with_free(free);
        let admitted = quotas.admit_late_segment(&catalogue, id, bytes);
        catalogue.commit_written_segments(&[], &quotas, 5).unwrap();
        admitted
    };
    admit(&id, share - 5000, u64::MAX).unwrap();
    assert_eq!(late("a").unwrap(), StoreOutcome::New);
    let (other, bytes) = sent("a", |journal| drop(journal.append_interval(&sample(1)))).remove(1);
    for _ in 0..3 {
        let error = catalogue.store_late_segment(&other, &bytes, 5).unwrap_err();
        assert!(matches!(error, Error::LateQuota { most: MAX_LATE_BYTES_OF_NODE, .. }), "{error}");
    }
    assert_eq!(catalogue.watermark(&run(), 1, &node("a")).unwrap(), 1, "the node keeps it");
    assert_eq!(late("b").unwrap(), StoreOutcome::New, "another node has its own share");
    for number in 0..3 {
        let id = SegmentId { node: node(&format!("n{number}")), ..id.clone() };
        admit(&id, share - 5000, u64::MAX).unwrap_or(());
    }
    let id = SegmentId { node: node("last"), ..id.clone() };
    assert!(admit(&id, share - 5000, u64::MAX).is_err());
    admit(&id, 10_000, u64::MAX).unwrap();
    assert!(matches!(late("c"), Err(Error::LateQuota { most: MAX_LATE, .. })));
    let counted = catalogue.list_late_results().unwrap();
    assert_eq!((counted[0].segments, counted[0].refused), (2, 3), "{counted:?}");
    assert!(counted.iter().map(|late| late.bytes).sum::<u64>() <= MAX_LATE);
    catalogue.discard_late_results().unwrap();
    let nearly_full = admit(&id, 10_000, 100 << 20);
    // Runs that are waited for need the room. It comes again when there is more.
    let why = nearly_full.unwrap_err();
    assert!(matches!(&why, Error::File { source, .. } if source.kind() == ErrorKind::StorageFull), "{why}");
    assert!(!why.is_unreadable());
    catalogue.discard_late_results().unwrap();
    assert_eq!(catalogue.list_late_results().unwrap(), []);
    assert!(!place.path().join(UNKNOWN_RUNS_DIRECTORY).exists());
    assert_eq!(late("a").unwrap(), StoreOutcome::New, "after the user made room");
}

#[test]
fn excess_capture_pieces_raise_doubt_for_node() {
    let setup = setup();
    let sent = sent("a", |journal| {
        let piece = |name: &str, offset| {
            journal.append_entry(NodeJournalEntry::Capture { name, offset, last: true }, &[1; 10]).unwrap();
        };
        let mut piece = piece;
        piece("far.pcapng", u64::MAX - 5);
        for number in 0..300 {
            piece(&format!("{number}.pcapng"), 0);
        }
    });
    for segment in &sent {
        setup.store(segment);
    }
    let gathered = setup.assemble("a").unwrap();
    assert_eq!(gathered.captures.len(), 256);
    assert!(
        gathered.doubts.iter().any(|doubt| doubt.contains("(pieces that were refused: 45)")),
        "{:?}",
        gathered.doubts
    );
}

#[test]
fn node_segment_quota_holds_across_attempts() {
    let mut setup = setup();
    let many = sent("a", |journal| {
        for at in 1..=9 {
            journal.append_interval(&sample(at)).unwrap();
        }
    });
    setup.draft.set_quota(crate::RunQuota { bytes: 1 << 30, segments: 4 });
    let store = |segment: &(SegmentId, Vec<u8>)| {
        setup.draft.store_segment(&setup.catalogue, &segment.0, &segment.1, 5)
    };
    let refused = many.iter().filter(|segment| store(segment).is_err()).count();
    assert_eq!((many.len(), refused), (10, 6));
    assert!(matches!(store(&many[9]), Err(Error::RunQuota { share, .. }) if share.refused == 7));
    assert_eq!(store(&many[0]).unwrap(), StoreOutcome::Again, "what is stored is known");
    assert_eq!(setup.below("a"), 4, "the node keeps the rest");
    let other = sent("b", |journal| drop(journal.append_interval(&sample(1))));
    assert!(other.iter().all(|segment| store(segment).is_ok()), "another node has its own share");
    assert!(setup.assemble("b").is_some() && setup.assemble("a").is_none());
    let id = SegmentId { attempt: 2, ..many[9].0.clone() };
    let bytes = ResultSegment::from_bytes(&segment_key(&many[9].0), &many[9].1)
        .unwrap()
        .to_bytes(&segment_key(&id))
        .unwrap();
    let again = setup.draft.store_segment(&setup.catalogue, &id, &bytes, 5);
    assert!(matches!(again, Err(Error::RunQuota { .. })), "an attempt gives no new share");
}
