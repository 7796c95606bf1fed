use super::*;

fn at(ms: u64) -> MonoTime {
    MonoTime::from_nanos(ms * 1_000_000)
}

fn identity(name: &str, boot: &str, pid: u32) -> Identity {
    Identity { controller: name.into(), host: "h".into(), boot_id: boot.into(), pid }
}

fn candidate(name: &str) -> Candidate {
    Candidate::new(identity(name, "boot-a", 7), ReignTerms::default(), 0, at(0))
}

fn held(by: Identity, epoch: u64) -> Lock {
    Lock { holder: by, epoch, since_wall_ns: 0, is_free: false }
}

fn reign(epoch: u64) -> Reign {
    let me = candidate("me");
    let lock = held(me.me.clone(), epoch);
    me.reign(lock, 5, at(0))
}

#[test]
fn an_empty_store_is_not_believed_before_the_nodes_had_time_to_join() {
    let mut me = candidate("me");
    assert_eq!(me.look(None, |_| true, at(1)), Step::Wait(at(15_000), None));
    me.hear(41);
    let Step::Create(lock) = me.look(None, |_| true, at(15_000)) else { panic!("must be made") };
    assert_eq!(lock.epoch, 42, "the store was wiped, the nodes know better");
}

#[test]
fn a_lock_that_changes_is_waited_for_and_one_that_does_not_is_taken_over() {
    let mut me = candidate("me");
    let lock = held(identity("other", "boot-b", 7), 3);
    for (revision, ms) in [(1, 0), (2, 2_000), (3, 4_000)] {
        assert!(matches!(me.look(Some((&lock, revision)), |_| false, at(ms)), Step::Wait(..)));
    }
    let Step::Wait(again, Some(holder)) = me.look(Some((&lock, 3)), |_| false, at(18_999)) else {
        panic!("4 + 15 s is not reached")
    };
    assert_eq!((again, holder), (at(19_000), lock.holder.clone()));
    me.hear(9);
    let Step::Replace(3, mine) = me.look(Some((&lock, 3)), |_| false, again) else { panic!("stale") };
    assert_eq!((mine.epoch, mine.holder.controller.as_str()), (10, "me"));
}

#[test]
fn a_holder_whose_process_is_gone_and_a_free_lock_need_no_waiting() {
    let here = held(identity("other", "boot-a", 99), 3);
    assert!(matches!(candidate("me").look(Some((&here, 1)), |pid| pid == 99, at(1)), Step::Wait(..)));
    assert!(matches!(candidate("me").look(Some((&here, 1)), |_| false, at(1)), Step::Replace(1, _)));
    let elsewhere = held(identity("other", "boot-b", 99), 3);
    assert!(matches!(candidate("me").look(Some((&elsewhere, 1)), |_| false, at(1)), Step::Wait(..)));
    let free = Lock { is_free: true, ..elsewhere };
    let Step::Replace(1, lock) = candidate("me").look(Some((&free, 1)), |_| true, at(1)) else {
        panic!("free")
    };
    assert_eq!((lock.epoch, lock.is_free), (4, false));
}

#[test]
fn a_reign_that_cannot_refresh_commits_nothing_and_one_that_is_refused_is_over() {
    let mut reign = reign(3);
    assert_eq!(reign.refresh(at(1_999)), None);
    assert!(matches!(reign.refresh(at(2_000)), Some((5, _))));
    assert!(!reign.may_commit(at(15_000)), "no answer: it counts from the last one that worked");
    assert!(matches!(reign.refresh(at(4_000)), Some((5, _))), "the same again");
    reign.refreshed(6);
    assert!(reign.may_commit(at(18_999)));
    assert!(!reign.may_commit(at(19_000)), "counted from when it was asked for, not from the answer");
    assert!(matches!(reign.refresh(at(6_000)), Some((6, _))));
    reign.refused(Some((&held(identity("other", "b", 1), 4), 7)));
    assert!(reign.is_lost());
    assert!(!reign.may_commit(at(6_001)));
    assert_eq!(reign.refresh(at(60_000)), None);
}

#[test]
fn a_refusal_by_its_own_writing_is_none() {
    let mut reign = reign(3);
    let (_, lock) = reign.refresh(at(2_000)).expect("due");
    // It was written, the answer was lost, and the same again is refused.
    reign.refresh(at(4_000));
    reign.refused(Some((&lock, 6)));
    assert!(!reign.is_lost());
    assert!(!reign.may_commit(at(17_000)), "it may have been the first that was written");
    assert!(matches!(reign.refresh(at(6_000)), Some((6, _))));
}

#[test]
fn a_node_that_knows_a_higher_epoch_raises_it() {
    let mut reign = reign(3);
    assert!(!reign.hear(3, at(100)), "that is this one");
    assert!(reign.hear(8, at(100)));
    assert_eq!(reign.epoch(), 9);
    let Some((5, lock)) = reign.refresh(at(100)) else { panic!("due at once") };
    assert_eq!(lock.epoch, 9);
    let (_, free) = reign.release();
    assert!(free.is_free && free.epoch == 9, "the next one must go on from here");
}
