//! A node's spool on a disk that is really full.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use packetrig_report::RunId;
use packetrig_store::spool::{
    Error, NodeJournalEntry, RecoveredParts, ResultSegment, ResultSpool, SegmentKind, SpoolLimits,
};
use packetrig_tests::small_disk::SmallDisk;
use std::path::Path;

fn open(place: &Path) -> ResultSpool {
    // The limits promise more than there is, and nobody says how much is free.
    ResultSpool::open_or_create(place, SpoolLimits { bytes: 1 << 40, keep_free: 0 }, Box::new(|_| None))
        .unwrap()
}

#[test]
fn spool_keeps_results_when_disk_is_full() {
    let Some(disk) = SmallDisk::mount(c"size=1m") else { return };
    let (spool, run) = (open(disk.path()), RunId("full".into()));
    let mut journal = spool.begin_journal(&run, 1).unwrap();
    let mut kept = 0;
    let error = loop {
        match journal.append_entry(NodeJournalEntry::Result, &[7; 3000]) {
            Ok(number) => kept = number + 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::DiskFull(_)), "{error}");
    assert!(kept > 100, "{kept}");
    let error = journal.end_journal(None).unwrap_err();
    assert!(matches!(error, Error::DiskFull(_)), "{error}");
    assert!(!spool.is_finished(&run, 1));
    for pending in spool.pending_segments(usize::MAX) {
        ResultSegment::from_bytes(&pending.key, &spool.read_segment(&pending.key).unwrap()).unwrap();
    }
    assert_eq!(spool.pending_segments(usize::MAX).len() as u64, kept);

    // The agent is started again while the disk is still full.
    drop(spool);
    let spool = open(disk.path());
    assert_eq!(spool.recovered_parts(), RecoveredParts { waiting: kept, torn: 0, cut_short: 1 });
    assert!(!spool.is_finished(&run, 1));
    spool.release_segments(&run, 1, kept).unwrap();
    assert_eq!(spool.final_segment_count(&run, 1), Some(kept + 1), "the End that was owed");
    assert_eq!(
        spool.pending_segments(9).iter().map(|pending| pending.kind).collect::<Vec<_>>(),
        [SegmentKind::End]
    );
    spool.release_segments(&run, 1, kept + 1).unwrap();
    assert_eq!((spool.pending_segments(1), spool.used_bytes()), (vec![], 0));
}

#[test]
fn spool_reserves_space_for_run_counts() {
    let Some(disk) = SmallDisk::mount(c"size=2m") else { return };
    let (spool, run) = (open(disk.path()), RunId("counts".into()));
    let mut journal = spool.begin_journal(&run, 1).unwrap();
    let others = disk.path().join("others");
    let filled = std::fs::write(&others, vec![1; 8 << 20]).unwrap_err();
    assert_eq!(filled.kind(), std::io::ErrorKind::StorageFull);
    let error = journal.append_entry(NodeJournalEntry::Interval, &[1; 3000]).unwrap_err();
    assert!(matches!(error, Error::DiskFull(_)), "what is not the result has no claim to it: {error}");
    journal.append_entry(NodeJournalEntry::Result, &vec![2; 30_000]).unwrap();
    journal.end_journal(None).unwrap();
    assert!(spool.is_finished(&run, 1));
    // The next run would find none, and is not begun.
    std::fs::remove_file(&others).unwrap();
    std::fs::write(&others, vec![1; 8 << 20]).unwrap_err();
    let error = spool.begin_journal(&RunId("next".into()), 1).unwrap_err();
    assert!(matches!(error, Error::NoRoom(_)), "{error}");
    std::fs::remove_file(&others).unwrap();
    spool.begin_journal(&RunId("after".into()), 1).unwrap();
}
