use super::*;
use std::collections::BTreeMap;

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
    reign.refreshed(held(candidate("me").me, 3), 6);
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
    assert_eq!(reign.epoch(), 3, "not before it is written: somebody else may write the same");
    let Some((5, lock)) = reign.refresh(at(100)) else { panic!("due at once") };
    reign.refreshed(lock, 6);
    assert_eq!(reign.epoch(), 9);
    let (_, free) = reign.release();
    assert!(free.is_free && free.epoch == 9, "the next one must go on from here");
}

/// splitmix64.
fn draw(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % bound
}

enum Who {
    Waits(Candidate),
    Reigns(Reign),
    Lost,
}

/// A controller; between its reading and its writing any time may pass.
struct Actor {
    who: Who,
    /// What is to be written over which revision (0: nothing is there), and when that was decided.
    writing: Option<(u64, Lock, MonoTime)>,
    sleeps_until: u64,
}

fn actor(name: &str, now: u64) -> Actor {
    let me = identity(name, name, 1);
    let who = Who::Waits(Candidate::new(me, ReignTerms::default(), 0, at(now)));
    Actor { who, writing: None, sleeps_until: 0 }
}

type Kept = Option<(Lock, u64)>;

impl Actor {
    fn turn(&mut self, store: &mut Kept, heard: u64, ms: u64, answer_is_lost: bool) {
        match self.writing.take() {
            Some(writing) => self.write(writing, store, answer_is_lost),
            None => self.writing = self.decide(store.as_ref(), heard, at(ms)),
        }
    }

    fn decide(
        &mut self,
        found: Option<&(Lock, u64)>,
        heard: u64,
        now: MonoTime,
    ) -> Option<(u64, Lock, MonoTime)> {
        match &mut self.who {
            Who::Waits(me) => {
                me.hear(heard);
                match me.look(found.map(|(lock, revision)| (lock, *revision)), |_| true, now) {
                    Step::Wait(..) => None,
                    Step::Create(lock) => Some((0, lock, now)),
                    Step::Replace(revision, lock) => Some((revision, lock, now)),
                }
            }
            Who::Reigns(reign) => {
                reign.hear(heard, now);
                reign.refresh(now).map(|(revision, lock)| (revision, lock, now))
            }
            Who::Lost => None,
        }
    }

    fn write(&mut self, (over, lock, asked): (u64, Lock, MonoTime), store: &mut Kept, answer_is_lost: bool) {
        let revision = store.as_ref().map_or(0, |(_, revision)| *revision);
        let works = revision == over;
        if works {
            *store = Some((lock.clone(), revision + 1));
        }
        if answer_is_lost {
            return;
        }
        self.who = match std::mem::replace(&mut self.who, Who::Lost) {
            Who::Waits(me) if works => Who::Reigns(me.reign(lock, revision + 1, asked)),
            Who::Reigns(mut reign) => {
                if works {
                    reign.refreshed(lock, revision + 1);
                } else {
                    reign.refused(store.as_ref().map(|(lock, revision)| (lock, *revision)));
                }
                if reign.is_lost() { Who::Lost } else { Who::Reigns(reign) }
            }
            other => other,
        };
    }
}

#[test]
fn whoever_sleeps_and_whatever_answer_is_lost_one_reigns_and_epochs_rise() {
    let mut reigns = 0;
    for seed in 0..300 {
        let (mut random, mut store, mut ms) = (seed, None, 0);
        let mut actors: Vec<Actor> = ["a", "b", "c"].iter().map(|name| actor(name, 0)).collect();
        let mut held: BTreeMap<u64, usize> = BTreeMap::new();
        while ms < 200_000 {
            ms += draw(&mut random, 400);
            let index = usize::try_from(draw(&mut random, 3)).expect("small");
            if actors[index].sleeps_until <= ms {
                // Nodes have seen what was reigned with, and now and then something higher.
                let seen = held.keys().max().copied().unwrap_or(0);
                let heard = seen + if draw(&mut random, 50) == 0 { 5 } else { 0 };
                let lost = draw(&mut random, 5) == 0;
                actors[index].turn(&mut store, heard, ms, lost);
                if draw(&mut random, 40) == 0 {
                    actors[index].sleeps_until = ms + draw(&mut random, 40_000);
                }
            }
            let may = |who: &Who| matches!(who, Who::Reigns(it) if it.may_commit(at(ms)));
            let commits = actors.iter().filter(|actor| may(&actor.who)).count();
            assert!(commits <= 1, "seed {seed}: {commits} may commit at {ms} ms");
            for (index, actor) in actors.iter().enumerate() {
                if let Who::Reigns(reign) = &actor.who {
                    let holder = *held.entry(reign.epoch()).or_insert(index);
                    assert_eq!(holder, index, "seed {seed}: two reigns in one epoch");
                }
            }
        }
        reigns += held.len();
    }
    assert!(reigns > 600, "{reigns}: hardly anyone took over");
}
