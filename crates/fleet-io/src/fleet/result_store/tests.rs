use super::*;
use packetrig_report::outcome::RunOutcome;
use packetrig_report::{AcceptanceCriteria, PlanHash, RunFacts};
use packetrig_stats::result::NodeResult;
use packetrig_store::spool::{ResultSpool, SpoolLimits};
use std::fs;

fn run() -> RunId {
    RunId("r".into())
}

/// Segments of a node for a run with a result.
fn segments_of(result: &NodeResult) -> Vec<(SegmentId, Vec<u8>)> {
    let place = tempfile::tempdir().unwrap();
    let limits = SpoolLimits { bytes: 1 << 30, keep_free: 0 };
    let spool = ResultSpool::open_or_create(place.path(), limits, Box::new(|_| None)).unwrap();
    let mut journal = spool.begin_journal(&run(), 1).unwrap();
    journal.append_result(result).unwrap();
    journal.end_journal(None).unwrap();
    let all = spool.pending_segments(usize::MAX);
    all.iter()
        .map(|one| (one.segment_id(&NodeName("a".into())), spool.read_segment(&one.key).unwrap()))
        .collect()
}

fn segments() -> Vec<(SegmentId, Vec<u8>)> {
    segments_of(&NodeResult { node: "a".into(), ..NodeResult::default() })
}

fn shelf(place: &std::path::Path, quota: RunQuota) -> RunResultStore {
    let shelf = RunResultStore::with_quota(RunCatalogue::open_or_create(place).unwrap(), quota);
    let begun = UnfinishedRun {
        run: run(),
        attempt: 1,
        epoch: 1,
        record: "{}".into(),
        plan: String::new(),
        directory: PathBuf::new(),
        begun_at: 1,
    };
    shelf.begin_run(&begun, ReportSize::default()).unwrap();
    shelf
}

fn received((id, body): &(SegmentId, Vec<u8>)) -> ReceivedSegment {
    ReceivedSegment { id: id.clone(), body: body.clone() }
}

/// Outcome of storing a single segment.
fn stored(shelf: &mut RunResultStore, segment: &(SegmentId, Vec<u8>)) -> StoredPart {
    let StoredBatch { outcomes, mut parts } = shelf.store_segments(&[received(segment)]);
    assert_eq!((outcomes, parts.len()), (vec![Ok(())], 1));
    parts.remove(0)
}

#[test]
fn complete_part_is_assembled_once() {
    let place = tempfile::tempdir().unwrap();
    let mut shelf = shelf(place.path(), RunQuota::default());
    let segments = segments();
    let told: Vec<StoredPart> = segments.iter().map(|segment| stored(&mut shelf, segment)).collect();
    let whole = told.last().unwrap();
    assert!(whole.contents.result.is_some() && whole.mark.below == segments.len() as u64);
    // A second read would find nothing.
    let files = shelf.lock_store().draft.as_ref().map(|_| place.path().join("runs/r.partial/segments"));
    fs::remove_dir_all(files.unwrap()).unwrap();
    assert_eq!(stored(&mut shelf, &segments[0]), *whole);
}

#[test]
fn result_belongs_to_node_that_sealed_it() {
    let place = tempfile::tempdir().unwrap();
    let mut shelf = shelf(place.path(), RunQuota::default());
    let forged = segments_of(&NodeResult { node: "b".into(), ..NodeResult::default() });
    let last = forged.iter().map(|segment| stored(&mut shelf, segment)).last().unwrap();
    assert_eq!(last.contents.result.unwrap().node, "a");
    assert!(
        last.contents.doubts.iter().any(|doubt| doubt.contains("names node `b`")),
        "{:?}",
        last.contents.doubts
    );
}

#[test]
fn node_over_quota_is_reported_once() {
    let place = tempfile::tempdir().unwrap();
    let mut shelf = shelf(place.path(), RunQuota { bytes: 1 << 30, segments: 1 });
    let segments = segments();
    let again = segments.iter().chain(&segments);
    let told: Vec<StoredPart> = again.map(|segment| stored(&mut shelf, segment)).collect();
    let doubts: Vec<&String> = told.iter().flat_map(|part| &part.contents.doubts).collect();
    assert!(matches!(&doubts[..], [only] if only.starts_with("a: result quota used up")), "{doubts:?}");
    assert!(told.iter().all(|part| part.contents.result.is_none() && part.mark.below == 1));
}

/// A result that came when the run had ended and its report was not written yet.
#[test]
fn shown_report_equals_stored_report() {
    let place = tempfile::tempdir().unwrap();
    let mut shelf = shelf(place.path(), RunQuota::default());
    let document = "ports: [{name: a, location: a/eth0}]";
    let facts = RunFacts {
        run: run(),
        name: String::new(),
        plan: PlanHash::from_document(document),
        started_wall_ns: 1,
        seed: 1,
        nodes: vec![NodeName("a".into())],
        places: Vec::new(),
        criteria: AcceptanceCriteria::default(),
        limits: Vec::new(),
        steered: false,
    };
    let outcome = RunOutcome::Partial { reasons: vec!["node a: silent for 3s".into()], stopped: false };
    let open = OpenRun::without_results(facts, outcome);
    let mut report = open.build_report(document).unwrap();
    assert_eq!(report.coverage.reported, 0);
    for segment in &segments() {
        stored(&mut shelf, segment);
    }
    shelf.commit_report(&mut report, document, Some(&open)).unwrap();
    assert_eq!(report.coverage.reported, 1, "it is here");
    let stored = shelf.lock_store().catalogue.load_report("r").unwrap().1;
    assert_eq!(report, stored);
    assert!(stored.caveats.iter().any(|caveat| caveat.text.contains("after the report was first written")));
}

#[test]
fn unreadable_segment_leaves_rest_of_batch_stored() {
    let place = tempfile::tempdir().unwrap();
    let mut shelf = shelf(place.path(), RunQuota::default());
    let mut batch: Vec<ReceivedSegment> = segments().iter().map(received).collect();
    let late = SegmentId { run: RunId("old".into()), ..batch[0].id.clone() };
    batch.insert(1, ReceivedSegment { id: late.clone(), body: b"nonsense".to_vec() });
    let StoredBatch { outcomes, parts } = shelf.store_segments(&batch);
    let is_unreadable =
        |outcome: &Result<(), ResultStoreError>| matches!(outcome, Err(ResultStoreError::Unreadable(_)));
    let refused: Vec<bool> = outcomes.iter().map(is_unreadable).collect();
    assert_eq!(refused, [false, true, false]);
    let [part] = &parts[..] else { panic!("{parts:?}") };
    assert!(part.contents.result.is_some() && part.mark.below == 2 && part.mark.run == run());
}
