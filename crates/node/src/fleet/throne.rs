//! Being the fleet's one controller: takes the lock, keeps it fresh in a thread of its own, gives it back in the end.
//!
//! Invariant: the lock is refreshed until the reign is lost or left, never after.

use crate::agent::now;
use crate::error::Error;
use packetrig_fleet::fabric::{self, Record, Records};
use packetrig_fleet::reign::{Candidate, Identity, LOCK, Lock, Reign, ReignTerms, Step};
use packetrig_sys::{clock, process};
use packetrig_units::Nanos;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// How often a lock that somebody else holds is looked at.
const LOOK: Nanos = Nanos::from_millis(100);

/// See the module.
#[derive(Debug)]
pub(super) struct Throne {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    reign: Reign,
    /// It is to be given back.
    leaves: bool,
}

impl Shared {
    fn own(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Throne {
    /// Waits until nobody else is in charge, then is. `heard` is the highest epoch any node knows; `told` hears who is
    /// waited for, and says whether to go on waiting.
    pub(super) fn take<R: Records + 'static>(
        mut records: R,
        me: Identity,
        terms: ReignTerms,
        heard: u64,
        told: &mut dyn FnMut(Option<&Identity>) -> bool,
    ) -> Result<Self, Error> {
        let mut candidate = Candidate::new(me, terms, clock::wall_clock_ns(), now());
        candidate.hear(heard);
        let reign = loop {
            let found = records.get(LOCK)?;
            let lock = found.as_ref().and_then(read);
            let asked = now();
            match candidate.look(lock.as_ref().map(|(l, r)| (l, *r)), process::exists, asked) {
                Step::Wait(until, holder) => {
                    if !told(holder.as_ref()) {
                        return Err(Error::Taken(holder.map(|holder| holder.host)));
                    }
                    clock::sleep_until_ns(until.min(asked + LOOK).as_nanos());
                }
                Step::Create(lock) => {
                    if let Some(revision) = settle(records.create(LOCK, &written(&lock)))? {
                        break candidate.reign(lock, revision, asked);
                    }
                }
                Step::Replace(revision, lock) => {
                    if let Some(revision) = settle(records.replace(LOCK, revision, &written(&lock)))? {
                        break candidate.reign(lock, revision, asked);
                    }
                }
            }
        };
        Self::keep(records, reign)
    }

    fn keep<R: Records + 'static>(records: R, reign: Reign) -> Result<Self, Error> {
        let state = Mutex::new(State { reign, leaves: false });
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let thread = {
            let shared = Arc::clone(&shared);
            Builder::new().name("reign".to_owned()).spawn(move || refresh(records, &shared))
        };
        Ok(Self { shared, thread: Some(thread.map_err(Error::Thread)?) })
    }

    /// Of this reign.
    pub(super) fn epoch(&self) -> u64 {
        self.shared.own().reign.epoch()
    }

    /// A node knows of this epoch; the reign's own rises above it.
    pub(super) fn hear(&self, epoch: u64) {
        if self.shared.own().reign.hear(epoch, now()) {
            self.shared.changed.notify_all();
        }
    }

    /// Has an epoch above what any node knows, once that is written: nodes would not obey another.
    pub(super) fn outrank(&self, heard: u64, within: Nanos) -> Result<(), Error> {
        self.hear(heard);
        let until = now() + within;
        while self.epoch() < heard {
            if self.is_lost() || now() >= until {
                return Err(Error::Taken(None));
            }
            clock::sleep_until_ns((now() + LOOK).as_nanos());
        }
        Ok(())
    }

    /// Another controller has taken over.
    pub(super) fn is_lost(&self) -> bool {
        self.shared.own().reign.is_lost()
    }

    /// Whether a start may be committed now.
    pub(super) fn may_commit(&self) -> bool {
        self.shared.own().reign.may_commit(now())
    }
}

impl Drop for Throne {
    fn drop(&mut self) {
        self.shared.own().leaves = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A lock that could not be given back is taken over when it is stale.
            drop(thread.join());
        }
    }
}

fn refresh<R: Records>(mut records: R, shared: &Shared) {
    loop {
        let state = shared.own();
        let wait = state.reign.next_refresh().since(now()).to_std();
        let early = |state: &mut State| !state.leaves && now() < state.reign.next_refresh();
        let waited = shared.changed.wait_timeout_while(state, wait, early);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.reign.is_lost() {
            return;
        }
        if state.leaves {
            let (revision, lock) = state.reign.clone().release();
            drop(state);
            // As above: it is only slower for the next one.
            drop(records.replace(LOCK, revision, &written(&lock)));
            return;
        }
        if let Some((revision, lock)) = state.reign.refresh(now()) {
            // The store may take its time, and whoever asks meanwhile shall not wait for it.
            drop(state);
            let answer = records.replace(LOCK, revision, &written(&lock));
            let found = matches!(answer, Err(fabric::Error::Stale(_))).then(|| records.get(LOCK));
            let answer = answer.map(|revision| (lock, revision));
            settle_refresh(&mut shared.own().reign, answer, found.and_then(Result::ok).flatten());
        }
    }
}

fn settle_refresh(reign: &mut Reign, answer: Result<(Lock, u64), fabric::Error>, found: Option<Record>) {
    match answer {
        Ok((lock, revision)) => reign.refreshed(lock, revision),
        Err(fabric::Error::Stale(_)) => {
            let lock = found.as_ref().and_then(read);
            reign.refused(lock.as_ref().map(|(lock, revision)| (lock, *revision)));
        }
        // It may have happened or not; the next one tells.
        Err(_) => {}
    }
}

fn read(record: &Record) -> Option<(Lock, u64)> {
    Some((serde_json::from_slice(&record.value).ok()?, record.revision))
}

fn written(lock: &Lock) -> Vec<u8> {
    // Plain strings and numbers: it can always be written.
    serde_json::to_vec(lock).unwrap_or_default()
}

/// `None` if somebody else was faster.
fn settle(written: Result<u64, fabric::Error>) -> Result<Option<u64>, Error> {
    match written {
        Ok(revision) => Ok(Some(revision)),
        Err(fabric::Error::Stale(_) | fabric::Error::Exists(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
