use super::*;
use crate::disk;
use crate::room::ReportSize;
use crate::sample::sample;
use crate::segments::SEGMENTS_DIRECTORY;
use crate::spool::{ResultSpool, SpoolLimits};
use crate::{RunQuota, UnfinishedRun};
use packetrig_report::NodeName;

type Sent = Vec<(SegmentId, Vec<u8>)>;

fn run() -> RunId {
    RunId("20261121-080000-aaaaaa".into())
}

fn begin(catalogue: &RunCatalogue) -> RunDraft {
    let begun = UnfinishedRun {
        run: run(),
        attempt: 1,
        epoch: 1,
        record: "{}".into(),
        plan: String::new(),
        directory: PathBuf::new(),
        begun_at: 1,
    };
    catalogue.begin_resumable_run(&begun, ReportSize::default()).unwrap()
}

/// The segments that this many nodes send of a run: two each.
fn sent(nodes: usize) -> Sent {
    let place = tempfile::tempdir().unwrap();
    let limits = SpoolLimits { bytes: 1 << 30, keep_free: 0 };
    let spool = ResultSpool::open_or_create(place.path(), limits, Box::new(|_| None)).unwrap();
    let mut journal = spool.begin_journal(&run(), 1).unwrap();
    journal.append_interval(&sample(1)).unwrap();
    journal.end_journal(None).unwrap();
    let mut sent = Vec::new();
    for number in 0..nodes {
        let name = NodeName(format!("n{number}"));
        for pending in spool.pending_segments(usize::MAX) {
            sent.push((pending.segment_id(&name), spool.read_segment(&pending.key).unwrap()));
        }
    }
    sent
}

fn store(
    catalogue: &RunCatalogue,
    draft: &RunDraft,
    sent: &[(SegmentId, Vec<u8>)],
) -> Vec<Result<StoreOutcome, Error>> {
    let mut batch = SegmentBatch::new(catalogue, 5);
    for (id, bytes) in sent {
        batch.add_segment(draft, id, bytes);
    }
    batch.store_segments()
}

fn are_new(answers: &[Result<StoreOutcome, Error>]) -> bool {
    answers.iter().all(|answer| matches!(answer, Ok(StoreOutcome::New)))
}

/// The disk works for a batch, not for each node of it.
#[test]
fn batch_syncs_do_not_grow_with_node_count() {
    let syncs = |nodes: usize| {
        let place = tempfile::tempdir().unwrap();
        let catalogue = RunCatalogue::open_or_create(place.path()).unwrap();
        let draft = begin(&catalogue);
        let sent = sent(nodes);
        disk::tests::synced();
        assert!(are_new(&store(&catalogue, &draft, &sent)));
        disk::tests::synced().len()
    };
    let few = syncs(8);
    assert_eq!(few, 4, "the new directory, the pack, its name, the commit");
    assert_eq!(syncs(64), few);
}

#[test]
fn bad_segment_does_not_affect_its_batch() {
    let place = tempfile::tempdir().unwrap();
    let catalogue = RunCatalogue::open_or_create(place.path()).unwrap();
    let mut draft = begin(&catalogue);
    draft.set_quota(RunQuota { bytes: 1 << 30, segments: 1 });
    let mut sent = sent(3);
    sent[2].1.truncate(60);
    sent.push(sent[0].clone());
    let mut other = sent[0].clone();
    other.1.clone_from(&sent[1].1);
    sent.push(other);
    let answers = store(&catalogue, &draft, &sent);
    assert!(matches!(answers[0], Ok(StoreOutcome::New)));
    assert!(matches!(answers[1], Err(Error::RunQuota { .. })), "it has its one");
    assert!(matches!(answers[2], Err(Error::BadSegment { .. })));
    assert!(matches!(answers[3], Ok(StoreOutcome::New)));
    assert!(matches!(answers[4], Ok(StoreOutcome::New)) && matches!(answers[5], Err(Error::RunQuota { .. })));
    assert!(matches!(answers[6], Ok(StoreOutcome::Again)), "it came twice");
    assert!(matches!(answers[7], Err(Error::BadSegment { .. })), "its name is in its checksum");
    let refused =
        |node: &str| catalogue.read_stored_run_share(&run(), &NodeName(node.into())).unwrap().refused;
    assert_eq!([refused("n0"), refused("n1"), refused("n2")], [1, 0, 1]);
    assert!(
        store(&catalogue, &draft, &sent[..1]).iter().all(|answer| matches!(answer, Ok(StoreOutcome::Again)))
    );
}

#[test]
fn failed_batch_commit_leaves_no_file() {
    let place = tempfile::tempdir().unwrap();
    let catalogue = RunCatalogue::open_or_create(place.path()).unwrap();
    let draft = begin(&catalogue);
    let sent = sent(5);
    catalogue.refuse_writes(true);
    let answers = store(&catalogue, &draft, &sent);
    assert!(answers.iter().all(|answer| matches!(answer, Err(Error::OfBatch(_)))), "{answers:?}");
    let files = fs::read_dir(draft.partial_directory().join(SEGMENTS_DIRECTORY)).unwrap();
    assert_eq!(files.count(), 0, "the disk may be full");
    catalogue.refuse_writes(false);
    assert!(are_new(&store(&catalogue, &draft, &sent)));
}

#[test]
fn pack_write_failure_fails_only_its_own_segments() {
    let place = tempfile::tempdir().unwrap();
    let catalogue = RunCatalogue::open_or_create(place.path()).unwrap();
    let draft = begin(&catalogue);
    // No directory can be made there.
    fs::write(draft.partial_directory().join(SEGMENTS_DIRECTORY), "").unwrap();
    let sent = sent(2);
    let stranger = SegmentId { run: RunId("stranger".into()), ..sent[0].0.clone() };
    let bytes = ResultSegment::from_bytes(&segment_key(&sent[0].0), &sent[0].1)
        .unwrap()
        .to_bytes(&segment_key(&stranger))
        .unwrap();
    let mut batch = SegmentBatch::new(&catalogue, 5);
    batch.add_segment(&draft, &sent[0].0, &sent[0].1);
    batch.add_late_segment(&stranger, &bytes);
    batch.add_segment(&draft, &sent[2].0, &sent[2].1);
    let answers = batch.store_segments();
    assert!(matches!(answers[..], [Err(Error::OfBatch(_)), Ok(StoreOutcome::New), Err(Error::OfBatch(_))]));
    assert_eq!(catalogue.watermark(&run(), 1, &sent[0].0.node).unwrap(), 0);
}

/// A run that began with an earlier version, and is ended by this one.
#[test]
fn unpacked_segments_are_read_beside_packs() {
    let place = tempfile::tempdir().unwrap();
    let catalogue = RunCatalogue::open_or_create(place.path()).unwrap();
    let draft = begin(&catalogue);
    let sent = sent(1);
    let (id, bytes) = &sent[0];
    assert!(are_new(&store(&catalogue, &draft, &sent[..1])));
    let packed = catalogue.find_listed_segment(id).unwrap().unwrap().place;
    let own = SegmentLocation { pack: None, position: 0, ..packed };
    let file = own.file_path(draft.partial_directory(), id);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, bytes).unwrap();
    let connection = rusqlite::Connection::open(place.path().join("catalogue.sqlite")).unwrap();
    connection.execute("UPDATE segments SET pack = NULL, position = 0", []).unwrap();
    assert!(matches!(store(&catalogue, &draft, &sent[..1])[..], [Ok(StoreOutcome::Again)]), "it is there");
    assert!(are_new(&store(&catalogue, &draft, &sent[1..])));
    let gathered = draft.assemble_part(&catalogue, 1, &id.node).unwrap().unwrap();
    assert_eq!((gathered.last_sample, gathered.doubts), (Some(sample(1)), vec![]));
    fs::remove_file(&file).unwrap();
    assert!(
        matches!(store(&catalogue, &draft, &sent[..1])[..], [Ok(StoreOutcome::Again)]),
        "it is stored anew"
    );
    assert_eq!(draft.assemble_part(&catalogue, 1, &id.node).unwrap().unwrap().last_sample, Some(sample(1)));
}
