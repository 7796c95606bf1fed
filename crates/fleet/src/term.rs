//! Terms of controllers: the record of each term, and how other controllers judge it.
//!
//! A controller process has one record and refreshes it, however many nodes it leads ([`crate::lead`]). After some
//! time without a refresh (15 s by default), any other controller may mark the term as over by compare-and-set. The
//! term then stays over, even if its process wakes up again. A controller that could not refresh its own record for
//! this time commits no start any more. If a refresh is refused, another controller has ended the term, and the
//! controller sends nothing more.
//!
//! This module reads no clock and no process table: the callers pass in the time, and which controllers are
//! running on this machine.
//!
//! Invariant: after another controller has ended a term, the holder of the term commits no start.

use crate::fabric::{Error, RecordStore, StoredRecord};
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Highest valid epoch. Higher numbers are ignored, so a forged number cannot use up all epochs. With one new
/// controller a second it would take centuries to reach this limit.
pub const MAX_EPOCH: u64 = 1 << 53;

/// Identity of a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerIdentity {
    /// Name of the controller and of its term. Each start of a controller has a new name.
    pub controller: String,
    /// User who started the controller. Only shown in messages.
    #[serde(default)]
    pub user: String,
    /// Name of the controller's host. Only shown in messages.
    pub host: String,
    /// Boot ID of the kernel, and the directory in which the controller shows that it is running. A controller can look
    /// up only controllers with the same value. The process number does not suffice: another process may get it later.
    pub place: String,
    /// Process number of the controller. Only shown in messages.
    pub pid: u32,
}

/// Looks up whether a controller is running; `None` if this cannot be looked up, for example because it
/// runs on another host.
pub type ControllerLookup<'a> = &'a dyn Fn(&ControllerIdentity) -> Option<bool>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermRecord {
    pub holder: ControllerIdentity,
    /// Time at which the term began, nanoseconds since 1970 (UTC). Only shown to users.
    pub since_wall_ns: u64,
    /// True if another controller has found the controller dead and ended the term.
    pub is_over: bool,
}

impl TermRecord {
    /// Prefix of the keys of all term records.
    pub const KEY_PREFIX: &str = "term.";

    /// Key of the record of a controller's term.
    pub fn record_key(controller: &str) -> String {
        format!("{}{controller}", Self::KEY_PREFIX)
    }

    /// Marks the term as over if its record still has `revision`. Then the next refresh by its holder is refused.
    pub fn end_term_if_unchanged<R: RecordStore>(self, records: &mut R, revision: u64) -> Result<(), Error> {
        let key = Self::record_key(&self.holder.controller);
        // The record is not deleted, so that the holder's next refresh finds another revision and is refused.
        let ended = Self { is_over: true, ..self };
        records.replace_record(&key, revision, &StoredRecord::encode_value(&ended)).map(drop)
    }
}

/// Interval and limit for the refreshes of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerTermTimes {
    pub refresh: Nanos,
    /// Time without a refresh after which other controllers may end the term, and its holder may commit no start.
    pub stale: Nanos,
}

impl Default for ControllerTermTimes {
    fn default() -> Self {
        Self { refresh: Nanos::from_secs(2), stale: Nanos::from_secs(15) }
    }
}

/// State of another controller's term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermState {
    /// The controller has removed its record, or another controller has ended the term.
    Over,
    /// The term is not refreshed any more, or its process has ended. Any controller may end the term by replacing this
    /// revision of its record.
    Dead(u64),
    /// The controller is running.
    Alive,
    /// The watcher has not seen a refresh yet. The term is dead if it sees none until this time.
    Unclear(MonoTime),
}

impl TermState {
    /// True if a controller whose term is in this state still leads its nodes.
    pub const fn holds_leads(self) -> bool {
        matches!(self, Self::Alive | Self::Unclear(_))
    }
}

/// Term of another controller, as it was read just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherControllerTerm {
    /// State of the term, judged from the record.
    pub state: TermState,
    /// Record of the term, if one exists and can be parsed.
    pub record: Option<TermRecord>,
}

/// Watches the terms of other controllers over time.
#[derive(Clone, Debug)]
pub struct ControllerTermWatch {
    times: ControllerTermTimes,
    /// The last revision of each term's record, and the time at which this watcher first saw it.
    seen: BTreeMap<String, (u64, MonoTime)>,
}

impl ControllerTermWatch {
    pub const fn new(times: ControllerTermTimes) -> Self {
        Self { times, seen: BTreeMap::new() }
    }

    /// Reads the record of `controller` and judges the state of its term.
    pub fn read_controller_term<R: RecordStore>(
        &mut self,
        records: &mut R,
        controller: &str,
        is_there: ControllerLookup<'_>,
        now: MonoTime,
    ) -> Result<OtherControllerTerm, Error> {
        let found = records.get_record(&TermRecord::record_key(controller))?;
        let revision = found.as_ref().map_or(0, |found| found.revision);
        let record = found.as_ref().and_then(StoredRecord::decode_value::<TermRecord>);
        let state = self.judge_term_record(
            controller,
            record.as_ref().map(|record| (record, revision)),
            is_there,
            now,
        );
        Ok(OtherControllerTerm { state, record })
    }

    /// Judges the term of `controller` from its record, given as value and revision; `None` if there is no record.
    pub fn judge_term_record(
        &mut self,
        controller: &str,
        found: Option<(&TermRecord, u64)>,
        is_there: ControllerLookup<'_>,
        now: MonoTime,
    ) -> TermState {
        let Some((record, revision)) = found.filter(|(record, _)| !record.is_over) else {
            self.seen.remove(controller);
            // A missing record means that the term has ended: a controller writes its record before it takes a lead.
            return TermState::Over;
        };
        let known = self.seen.get(controller).copied();
        // The time counts from the moment at which this watcher first saw the revision, so the clocks of two
        // hosts are never compared.
        let since = known.filter(|(seen, _)| *seen == revision).map_or(now, |(_, since)| since);
        self.seen.insert(controller.to_owned(), (revision, since));
        let stale_at = since + self.times.stale;
        let is_there = is_there(&record.holder);
        // On the same host, the look-up shows at once that a process has ended, so no wait is needed.
        if now >= stale_at || is_there == Some(false) {
            TermState::Dead(revision)
        } else if is_there == Some(true) || known.is_some_and(|(seen, _)| seen != revision) {
            // On another host, only a new revision proves that a controller is running.
            TermState::Alive
        } else {
            TermState::Unclear(stale_at)
        }
    }
}

/// A controller's own term.
#[derive(Clone, Debug)]
pub struct ControllerTerm {
    /// The record that each refresh writes again.
    record: TermRecord,
    revision: u64,
    times: ControllerTermTimes,
    /// Time at which the last successful refresh was requested.
    refreshed: MonoTime,
    next: MonoTime,
    /// Times at which the first and the last of the unconfirmed refreshes were requested.
    open: Option<(MonoTime, MonoTime)>,
    is_lost: bool,
}

impl ControllerTerm {
    /// Returns the record with which a term begins.
    pub const fn first_record(me: ControllerIdentity, since_wall_ns: u64) -> TermRecord {
        TermRecord { holder: me, since_wall_ns, is_over: false }
    }

    /// Creates the term after its record was first written. The write was requested at `asked` and returned `revision`.
    pub fn from_record(
        record: TermRecord,
        revision: u64,
        times: ControllerTermTimes,
        asked: MonoTime,
    ) -> Self {
        let next = asked + times.refresh;
        Self { record, revision, times, refreshed: asked, next, open: None, is_lost: false }
    }

    /// True if the controller may commit a start. False if another controller may have ended this term unnoticed.
    pub fn may_commit(&self, now: MonoTime) -> bool {
        !self.is_lost && now < self.refreshed + self.times.stale
    }

    /// True if another controller has ended the term: this controller must send nothing more.
    pub const fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Time at which the next refresh is due.
    pub const fn next_refresh(&self) -> MonoTime {
        self.next
    }

    /// If a refresh is due, returns the revision to replace and the record to write, and notes
    /// the request. Otherwise `None`.
    pub fn take_due_refresh(&mut self, now: MonoTime) -> Option<(u64, TermRecord)> {
        if self.is_lost || now < self.next {
            return None;
        }
        // After a late refresh the next one is due a whole interval from now: missed refreshes are not done later.
        self.next = now + self.times.refresh;
        // Several refreshes may have no answer. The time of the first is kept, because perhaps only
        // that one was stored.
        self.open = Some((self.open.map_or(now, |(first, _)| first), now));
        Some((self.revision, self.record.clone()))
    }

    pub const fn on_term_refreshed(&mut self, revision: u64) {
        self.revision = revision;
        // The time counts from the request and not from the answer: the write happened between them, so the term never
        // seems fresher than it is.
        if let Some((_, last)) = self.open.take() {
            self.refreshed = last;
        }
    }

    /// Handles a refused refresh: the record has another revision. `found` is the present record, if it could be read.
    /// It may be this controller's own write whose answer was lost; otherwise the term is lost.
    pub fn on_term_refresh_refused(&mut self, found: Option<(&TermRecord, u64)>) {
        match found {
            Some((record, revision)) if *record == self.record => {
                self.revision = revision;
                // It is unknown which of the open refreshes was stored. The time of the first one is the safe choice.
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
