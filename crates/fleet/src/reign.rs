//! Which controller is in charge: the lock as a value, and what follows from having seen it.
//!
//! The lock is one record, changed by compare-and-set only. Whoever holds it refreshes it; a lock that nobody refreshed
//! for long enough is taken over with a higher epoch. A controller that could not refresh its own for as long commits no
//! start any more, and one whose refresh is refused has lost: it says nothing more to anyone.
//!
//! It reads no record and asks no process: what was found is told to it, what is to be written it gives back.
//!
//! Invariant: no two controllers reign in the same epoch, and a later reign has a higher one.

use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};

/// Highest epoch there can be: more is nobody's, and there is always room for the next. A controller a second needs
/// centuries to come here.
pub const LAST_EPOCH: u64 = 1 << 53;

/// The key of the lock.
pub const LOCK: &str = "ctl.lock";

/// Who a controller is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// New at each start of a controller.
    pub controller: String,
    /// Its host's name, for people.
    pub host: String,
    /// Names its host's kernel since that was started: processes of the same one can be looked for.
    pub boot_id: String,
    /// Its process.
    pub pid: u32,
}

/// The record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Who holds it, or held it last.
    pub holder: Identity,
    /// Of the holder's reign.
    pub epoch: u64,
    /// Since when, nanoseconds since 1970 (UTC); for people.
    pub since_wall_ns: u64,
    /// Given back: the next one need not wait.
    pub is_free: bool,
}

/// Times of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReignTerms {
    /// Between two refreshes.
    pub refresh: Nanos,
    /// Without a change, until it may be taken over, and until its holder may commit no start.
    pub stale: Nanos,
    /// With no lock there at all, until one is made: nodes may know of higher epochs than an empty store.
    pub gather: Nanos,
}

impl Default for ReignTerms {
    fn default() -> Self {
        let stale = Nanos::from_secs(15);
        Self { refresh: Nanos::from_secs(2), stale, gather: stale }
    }
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read the lock again then; whose it is, if anyone's.
    Wait(MonoTime, Option<Identity>),
    /// Create the lock with this value.
    Create(Lock),
    /// Replace the lock that was found by this value.
    Replace(u64, Lock),
}

/// Somebody who wants to reign.
#[derive(Clone, Debug)]
pub struct Candidate {
    me: Identity,
    terms: ReignTerms,
    since_wall_ns: u64,
    began: MonoTime,
    /// The lock's revision, and since when it is known.
    seen: Option<(u64, MonoTime)>,
    /// Highest epoch that anyone told of.
    heard: u64,
}

impl Candidate {
    /// Wants it from now on.
    pub const fn new(me: Identity, terms: ReignTerms, since_wall_ns: u64, now: MonoTime) -> Self {
        Self { me, terms, since_wall_ns, began: now, seen: None, heard: 0 }
    }

    /// A node has said which is the highest epoch it has seen.
    pub fn hear(&mut self, epoch: u64) {
        if epoch < LAST_EPOCH {
            self.heard = self.heard.max(epoch);
        }
    }

    /// The lock was read: its value and its revision, or nothing. `runs` says whether a process of this host does.
    pub fn look(&mut self, found: Option<(&Lock, u64)>, runs: impl Fn(u32) -> bool, now: MonoTime) -> Step {
        let Some((lock, revision)) = found else {
            let until = self.began + self.terms.gather;
            return if now < until { Step::Wait(until, None) } else { Step::Create(self.lock(0)) };
        };
        let since = match self.seen {
            Some((known, since)) if known == revision => since,
            _ => now,
        };
        self.seen = Some((revision, since));
        let is_dead = lock.holder.boot_id == self.me.boot_id && !runs(lock.holder.pid);
        let stale_at = since + self.terms.stale;
        if lock.is_free || is_dead || now >= stale_at {
            return Step::Replace(revision, self.lock(lock.epoch));
        }
        Step::Wait(stale_at.min(now + self.terms.refresh), Some(lock.holder.clone()))
    }

    fn lock(&self, stored: u64) -> Lock {
        Lock {
            holder: self.me.clone(),
            epoch: stored.min(LAST_EPOCH).max(self.heard) + 1,
            since_wall_ns: self.since_wall_ns,
            is_free: false,
        }
    }

    /// What it wrote, asked at `asked`, is there with this revision: it reigns.
    pub fn reign(self, lock: Lock, revision: u64, asked: MonoTime) -> Reign {
        let (terms, next) = (self.terms, asked + self.terms.refresh);
        let wanted = lock.epoch;
        Reign { lock, wanted, revision, terms, refreshed: asked, next, open: None, is_lost: false }
    }
}

/// A reign.
#[derive(Clone, Debug)]
pub struct Reign {
    /// As it is written.
    lock: Lock,
    /// The epoch to write next.
    wanted: u64,
    revision: u64,
    terms: ReignTerms,
    /// When the last refresh that worked was asked for.
    refreshed: MonoTime,
    next: MonoTime,
    /// When the first and the last of the refreshes were asked for that are not known to have worked.
    open: Option<(MonoTime, MonoTime)>,
    is_lost: bool,
}

impl Reign {
    /// Its epoch.
    pub const fn epoch(&self) -> u64 {
        self.lock.epoch
    }

    /// Whether it may commit a start: not when somebody else may have taken over without being heard of.
    pub fn may_commit(&self, now: MonoTime) -> bool {
        !self.is_lost && now < self.refreshed + self.terms.stale
    }

    /// Whether it is over: everything stops.
    pub const fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// When to refresh next.
    pub const fn next_refresh(&self) -> MonoTime {
        self.next
    }

    /// What to write, over which revision.
    pub fn refresh(&mut self, now: MonoTime) -> Option<(u64, Lock)> {
        if self.is_lost || now < self.next {
            return None;
        }
        self.next = now + self.terms.refresh;
        self.open = Some((self.open.map_or(now, |(first, _)| first), now));
        Some((self.revision, Lock { epoch: self.wanted, ..self.lock.clone() }))
    }

    /// The refresh of this value worked.
    pub fn refreshed(&mut self, lock: Lock, revision: u64) {
        (self.lock, self.revision) = (lock, revision);
        if let Some((_, last)) = self.open.take() {
            self.refreshed = last;
        }
    }

    /// The refresh was refused because the record has another revision; this is what is there now, if it could be read.
    /// It may be its own writing, if an answer to that was lost.
    pub fn refused(&mut self, found: Option<(&Lock, u64)>) {
        match found {
            Some((lock, revision))
                if lock.holder.controller == self.lock.holder.controller && !lock.is_free =>
            {
                (self.lock, self.revision) = (lock.clone(), revision);
                // Which of them it was is not known.
                if let Some((first, _)) = self.open.take() {
                    self.refreshed = first;
                }
            }
            _ => self.is_lost = true,
        }
    }

    /// A node has said which is the highest epoch it has seen. One above this reign's raises it, as soon as that is
    /// written; the refresh that does it is due at once.
    pub fn hear(&mut self, epoch: u64, now: MonoTime) -> bool {
        let rises = epoch > self.wanted && epoch < LAST_EPOCH;
        if rises {
            (self.wanted, self.next) = (epoch + 1, now);
        }
        rises
    }

    /// What to write to give the lock back.
    pub fn release(self) -> (u64, Lock) {
        (self.revision, Lock { is_free: true, ..self.lock })
    }
}

#[cfg(test)]
mod tests;
