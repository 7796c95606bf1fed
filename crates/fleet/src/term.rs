//! Which controllers there are: the record of each as a value, and what follows from having seen it.
//!
//! A controller process has one record and refreshes it, however many nodes it leads ([`crate::lead`]). A record that nobody
//! refreshed for long enough may be ended by anybody, by compare-and-set: then it is over for good, whether its process wakes
//! up again or not. A controller that could not refresh its own for as long commits no start any more, and one whose refresh
//! is refused has lost: it sends nothing more.
//!
//! Which controllers run on this machine and what time it is are arguments.
//!
//! Invariant: a term that somebody else has ended commits no start.

use crate::fabric::{Error, RecordStore, StoredRecord};
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Highest valid epoch. Higher numbers are ignored, so there is always room for the next. One controller a second needs
/// centuries to come here.
pub const LAST_EPOCH: u64 = 1 << 53;

/// Who a controller is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// New at each start of a controller; names its term.
    pub controller: String,
    /// Who started it, for people.
    #[serde(default)]
    pub user: String,
    /// Its host's name, for people.
    pub host: String,
    /// Names the boot of the kernel and the directory in which it shows that it is there. Only controllers with the same value can be
    /// looked up. A process number would not do: it may be another process's later.
    pub place: String,
    /// The number of its process, for people.
    pub pid: u32,
}

/// Whether a controller is there; `None` if that cannot be looked up here.
pub type ControllerLookup<'a> = &'a dyn Fn(&Identity) -> Option<bool>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermRecord {
    pub holder: Identity,
    /// Since when, nanoseconds since 1970 (UTC); for people.
    pub since_wall_ns: u64,
    /// Somebody else has found it dead and ended it.
    pub is_over: bool,
}

impl TermRecord {
    /// How the keys of all of them begin.
    pub const PREFIX: &str = "term.";

    /// The key it is kept under.
    pub fn key(controller: &str) -> String {
        format!("{}{controller}", Self::PREFIX)
    }

    /// Writes over what was seen as `revision` that it has ended. The holder's next refresh is refused.
    pub fn end_over<R: RecordStore>(self, records: &mut R, revision: u64) -> Result<(), Error> {
        let key = Self::key(&self.holder.controller);
        let ended = Self { is_over: true, ..self };
        records.replace(&key, revision, &StoredRecord::written(&ended)).map(drop)
    }
}

/// Times of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermTimes {
    pub refresh: Nanos,
    /// Without a change, until it may be ended, and until its holder may commit no start.
    pub stale: Nanos,
}

impl Default for TermTimes {
    fn default() -> Self {
        Self { refresh: Nanos::from_secs(2), stale: Nanos::from_secs(15) }
    }
}

/// What is known of another controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermState {
    /// It has ended, or was ended.
    Over,
    /// It is not refreshed any more, or its process is gone: it may be ended over this revision.
    Dead(u64),
    /// It is at work.
    Alive,
    /// It was not seen to be refreshed yet: it is dead if that is still so then.
    Unclear(MonoTime),
}

impl TermState {
    /// Whether what it leads is its own for now.
    pub const fn holds(self) -> bool {
        matches!(self, Self::Alive | Self::Unclear(_))
    }
}

/// Another controller, as it was seen just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenTerm {
    /// What follows from it.
    pub state: TermState,
    /// Its record, if there is one that can be read.
    pub record: Option<TermRecord>,
}

/// Looks at other controllers over time.
#[derive(Clone, Debug)]
pub struct TermWatch {
    times: TermTimes,
    /// The revision of each, and since when it is known.
    seen: BTreeMap<String, (u64, MonoTime)>,
}

impl TermWatch {
    pub const fn new(times: TermTimes) -> Self {
        Self { times, seen: BTreeMap::new() }
    }

    /// Reads the record of `controller` and looks at it.
    pub fn look_up<R: RecordStore>(
        &mut self,
        records: &mut R,
        controller: &str,
        is_there: ControllerLookup<'_>,
        now: MonoTime,
    ) -> Result<SeenTerm, Error> {
        let found = records.get(&TermRecord::key(controller))?;
        let revision = found.as_ref().map_or(0, |found| found.revision);
        let record = found.as_ref().and_then(StoredRecord::read::<TermRecord>);
        let state = self.look(controller, record.as_ref().map(|record| (record, revision)), is_there, now);
        Ok(SeenTerm { state, record })
    }

    /// The record of `controller` was read: its value and its revision, or nothing.
    pub fn look(
        &mut self,
        controller: &str,
        found: Option<(&TermRecord, u64)>,
        is_there: ControllerLookup<'_>,
        now: MonoTime,
    ) -> TermState {
        let Some((record, revision)) = found.filter(|(record, _)| !record.is_over) else {
            self.seen.remove(controller);
            return TermState::Over;
        };
        let known = self.seen.get(controller).copied();
        // Counted from when this watcher first saw the revision: clocks of hosts are never compared.
        let since = known.filter(|(seen, _)| *seen == revision).map_or(now, |(_, since)| since);
        self.seen.insert(controller.to_owned(), (revision, since));
        let stale_at = since + self.times.stale;
        let is_there = is_there(&record.holder);
        if now >= stale_at || is_there == Some(false) {
            TermState::Dead(revision)
        } else if is_there == Some(true) || known.is_some_and(|(seen, _)| seen != revision) {
            // Of one on another host only a new revision proves that it is alive.
            TermState::Alive
        } else {
            TermState::Unclear(stale_at)
        }
    }
}

/// A controller's own term.
#[derive(Clone, Debug)]
pub struct ControllerTerm {
    /// As it is written.
    record: TermRecord,
    revision: u64,
    times: TermTimes,
    /// When the last refresh that worked was asked for.
    refreshed: MonoTime,
    next: MonoTime,
    /// When the first and the last of the refreshes were asked for that are not known to have worked.
    open: Option<(MonoTime, MonoTime)>,
    is_lost: bool,
}

impl ControllerTerm {
    /// What is written to begin one.
    pub const fn record(me: Identity, since_wall_ns: u64) -> TermRecord {
        TermRecord { holder: me, since_wall_ns, is_over: false }
    }

    /// What was written, asked at `asked`, is there with this revision.
    pub fn begun(record: TermRecord, revision: u64, times: TermTimes, asked: MonoTime) -> Self {
        let next = asked + times.refresh;
        Self { record, revision, times, refreshed: asked, next, open: None, is_lost: false }
    }

    /// Whether it may commit a start: not if another controller may have ended this term unnoticed.
    pub fn may_commit(&self, now: MonoTime) -> bool {
        !self.is_lost && now < self.refreshed + self.times.stale
    }

    /// Whether it was ended: everything stops.
    pub const fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// When to refresh next.
    pub const fn next_refresh(&self) -> MonoTime {
        self.next
    }

    /// What to write, over which revision.
    pub fn refresh(&mut self, now: MonoTime) -> Option<(u64, TermRecord)> {
        if self.is_lost || now < self.next {
            return None;
        }
        self.next = now + self.times.refresh;
        self.open = Some((self.open.map_or(now, |(first, _)| first), now));
        Some((self.revision, self.record.clone()))
    }

    pub const fn refreshed(&mut self, revision: u64) {
        self.revision = revision;
        if let Some((_, last)) = self.open.take() {
            self.refreshed = last;
        }
    }

    /// The refresh was refused because the record has another revision; this is what is there now, if it could be read.
    /// It may be its own writing, if an answer to that was lost.
    pub fn refused(&mut self, found: Option<(&TermRecord, u64)>) {
        match found {
            Some((record, revision)) if *record == self.record => {
                self.revision = revision;
                // Which of the open refreshes it was is not known: the first is the safe one.
                if let Some((first, _)) = self.open.take() {
                    self.refreshed = first;
                }
            }
            _ => self.is_lost = true,
        }
    }
}

#[cfg(test)]
mod tests;
