//! Leadership of this process as a controller: a thread refreshes its record, and the leads of its nodes are given
//! back at the end.
//!
//! Invariant: the record is refreshed until the term is lost or ended, and never after. A refresh is one write, however
//! many nodes are led. A lead that may belong to this controller is either held or given back; if it cannot be given
//! back, this is tried again.

use crate::agent::now;
use crate::error::{Error, ignore_failure};
use packetrig_fleet::fabric::{self, RecordStore, StoredRecord};
use packetrig_fleet::lead::{OwnLead, UncertainLeads, release_leads};
use packetrig_fleet::term::{ControllerIdentity, ControllerTerm, ControllerTermTimes, TermRecord};
use packetrig_report::NodeName;
use packetrig_sys::clock;
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

type FoundRecord = Result<Option<StoredRecord>, fabric::Error>;

#[derive(Debug)]
pub(super) struct FleetLeadership {
    shared: Arc<LeadershipShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct LeadershipShared {
    controller: String,
    state: Mutex<LeadershipState>,
    changed: Condvar,
    /// Leads that could not be given back yet. Locked while giving them back is tried again, so that a new claim of
    /// leads waits until then.
    doubtful: Mutex<Vec<UncertainLeads>>,
}

#[derive(Debug)]
struct LeadershipState {
    term: ControllerTerm,
    /// Leads of the nodes that this controller leads.
    leads: Vec<OwnLead>,
    /// True once this process gives up its leadership.
    leaves: bool,
}

impl LeadershipShared {
    fn lock_leadership(&self) -> MutexGuard<'_, LeadershipState> {
        // A panic cannot leave the value half changed: it is consistent between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_doubtful(&self) -> MutexGuard<'_, Vec<UncertainLeads>> {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back leads that could not be given back before.
    fn release_doubtful_leads<R: RecordStore>(&self, records: &mut R) -> Result<(), fabric::Error> {
        let mut doubtful = self.lock_doubtful();
        while let Some(leads) = doubtful.last_mut() {
            leads.release_uncertain_leads(records, &self.controller)?;
            // The entry is removed only now: after a failure it stays for the next attempt.
            doubtful.pop();
        }
        Ok(())
    }
}

impl FleetLeadership {
    /// Writes the controller's record, and refreshes it from now on. The controller leads no node yet.
    pub(super) fn begin_term<R: RecordStore + 'static>(
        mut records: R,
        me: ControllerIdentity,
        times: ControllerTermTimes,
    ) -> Result<Self, Error> {
        let controller = me.controller.clone();
        let key = TermRecord::record_key(&controller);
        let record = ControllerTerm::first_record(me, clock::wall_clock_ns());
        // The term counts from before the write, so that it ends on this machine no later
        // than other controllers assume.
        let asked = now();
        let revision = match records.create_record(&key, &StoredRecord::encode_value(&record)) {
            Ok(revision) => revision,
            // This is the controller's own record: the write succeeded, but its answer was lost. No other
            // controller has this name.
            Err(fabric::Error::Exists(_)) => records.get_record(&key)?.map_or(0, |found| found.revision),
            Err(error) => return Err(error.into()),
        };
        let term = ControllerTerm::from_record(record, revision, times, asked);
        let state = Mutex::new(LeadershipState { term, leads: Vec::new(), leaves: false });
        let doubtful = Mutex::default();
        let shared = Arc::new(LeadershipShared { controller, state, changed: Condvar::new(), doubtful });
        let thread = {
            let shared = Arc::clone(&shared);
            Builder::new().name("term".to_owned()).spawn(move || keep_record_fresh(records, &key, &shared))
        };
        Ok(Self { shared, thread: Some(thread.map_err(Error::Thread)?) })
    }

    /// Adds new leads, which are given back when the leadership ends. They replace earlier leads of the same nodes.
    pub(super) fn add_own_leads(&self, leads: Vec<OwnLead>) {
        let mut state = self.shared.lock_leadership();
        state.leads.retain(|before| !leads.iter().any(|lead| lead.node == before.node));
        state.leads.extend(leads);
    }

    /// Gives back the leads of all nodes except `kept`, and returns them. A failure is tried again with each refresh.
    pub(super) fn give_back_leads_except<R: RecordStore>(
        &self,
        records: &mut R,
        kept: &BTreeSet<NodeName>,
    ) -> Vec<OwnLead> {
        let mut state = self.shared.lock_leadership();
        let leads: Vec<OwnLead> = state.leads.extract_if(.., |lead| !kept.contains(&lead.node)).collect();
        // Releasing the leads uses the record store, which may be slow, and `may_commit` must not wait for it.
        drop(state);
        for OwnLead { node, lead, .. } in release_leads(records, leads.clone()).0 {
            self.queue_leads_for_release(UncertainLeads { run: lead.run, nodes: [node].into() });
        }
        leads
    }

    /// Adds leads that may belong to this controller. They are given back with the next refresh.
    pub(super) fn queue_leads_for_release(&self, leads: UncertainLeads) {
        if !leads.nodes.is_empty() {
            self.shared.lock_doubtful().push(leads);
        }
    }

    /// Gives back leads that could not be given back before. A new claim needs this: otherwise its leads could be
    /// mistaken for the old ones.
    pub(super) fn release_doubtful_leads<R: RecordStore>(
        &self,
        records: &mut R,
    ) -> Result<(), fabric::Error> {
        self.shared.release_doubtful_leads(records)
    }

    /// Returns whether another controller has ended this controller's term.
    pub(super) fn is_lost(&self) -> bool {
        self.shared.lock_leadership().term.is_lost()
    }

    /// Returns whether a start may be committed now: false if another controller may have ended this controller's term.
    pub(super) fn may_commit(&self) -> bool {
        self.shared.lock_leadership().term.may_commit(now())
    }
}

impl Drop for FleetLeadership {
    fn drop(&mut self) {
        self.shared.lock_leadership().leaves = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // Other controllers may take over the remaining leads once this controller's record is stale.
            drop(thread.join());
        }
    }
}

fn keep_record_fresh<R: RecordStore>(mut records: R, key: &str, shared: &LeadershipShared) {
    loop {
        let state = shared.lock_leadership();
        let wait = state.term.next_refresh().since(now()).to_std();
        let waited = shared
            .changed
            .wait_timeout_while(state, wait, |state| !state.leaves && now() < state.term.next_refresh());
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.leaves {
            let leads = std::mem::take(&mut state.leads);
            let is_lost = state.term.is_lost();
            drop(state);
            // Another controller takes over the remaining leads once this controller's record is stale.
            ignore_failure(shared.release_doubtful_leads(&mut records));
            end_term(&mut records, key, leads, is_lost);
            return;
        }
        if state.term.is_lost() {
            // Another controller has ended this term: this controller may write nothing any more. The
            // leads are given back when this value is dropped.
            drop(shared.changed.wait_while(state, |state| !state.leaves));
            continue;
        }
        if let Some((revision, record)) = state.term.take_due_refresh(now()) {
            // This runs without the lock: the store may be slow, and `may_commit` must not wait for it.
            drop(state);
            let answer = records.replace_record(key, revision, &StoredRecord::encode_value(&record));
            // If the revision is stale, this controller itself may have written the newer one, in a write whose answer
            // was lost. The record shows who wrote it.
            let found = matches!(answer, Err(fabric::Error::Stale(_))).then(|| records.get_record(key));
            apply_refresh_answer(&mut shared.lock_leadership().term, &answer, found);
            // A failure is tried again with the next refresh, which is soon enough.
            ignore_failure(shared.release_doubtful_leads(&mut records));
        }
    }
}

/// Gives back all leads and removes the record. After a failure, other controllers can take the leads only when
/// the record is stale.
fn end_term<R: RecordStore>(records: &mut R, key: &str, leads: Vec<OwnLead>, is_lost: bool) {
    drop(release_leads(records, leads));
    if !is_lost {
        ignore_failure(records.remove_record(key));
    }
}

/// Updates the term after a refresh was answered. Without an answer it is unknown whether the write happened; the
/// next refresh shows this.
fn apply_refresh_answer(
    term: &mut ControllerTerm,
    answer: &Result<u64, fabric::Error>,
    found: Option<FoundRecord>,
) {
    match (answer, found) {
        (Ok(revision), _) => term.on_term_refreshed(*revision),
        (Err(_), Some(Ok(found))) => {
            let record: Option<TermRecord> = found.as_ref().and_then(StoredRecord::decode_value);
            let revision = found.map_or(0, |found| found.revision);
            // The stored record shows who wrote it: another controller, or this one in a write without an answer.
            term.on_term_refresh_refused(record.as_ref().map(|record| (record, revision)));
        }
        (Err(_), Some(Err(_)) | None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_fleet::fabric::Fabric as _;
    use packetrig_fleet::lead::NodeLead;
    use packetrig_fleet::local::{LocalFabric, LocalRecords};
    use packetrig_report::RunId;
    use packetrig_units::Nanos;

    /// Counts what is written, by key.
    struct CountedRecords(LocalRecords, Arc<Mutex<Vec<String>>>);

    impl RecordStore for CountedRecords {
        fn get_record(&mut self, key: &str) -> Result<Option<StoredRecord>, fabric::Error> {
            self.0.get_record(key)
        }
        fn create_record(&mut self, key: &str, value: &[u8]) -> Result<u64, fabric::Error> {
            self.1.lock().unwrap().push(key.to_owned());
            self.0.create_record(key, value)
        }
        fn replace_record(&mut self, key: &str, revision: u64, value: &[u8]) -> Result<u64, fabric::Error> {
            self.1.lock().unwrap().push(key.to_owned());
            self.0.replace_record(key, revision, value)
        }
        fn remove_record(&mut self, key: &str) -> Result<(), fabric::Error> {
            self.0.remove_record(key)
        }
        fn list_keys(&mut self, prefix: &str) -> Result<Vec<String>, fabric::Error> {
            self.0.list_keys(prefix)
        }
    }

    fn taken(number: u64) -> OwnLead {
        let lead = NodeLead {
            controller: "c".into(),
            epoch: 1,
            run: RunId("r".into()),
            user: String::new(),
            host: String::new(),
            since_wall_ns: 0,
            is_free: false,
        };
        OwnLead { node: NodeName(format!("n{number}")), revision: 1, lead, before: None }
    }

    /// Writes until it was refreshed so often, while so many nodes are led; and what was written at all.
    fn writes(nodes: u64) -> Vec<String> {
        const REFRESHES: usize = 20;
        let told = Arc::new(Mutex::new(Vec::new()));
        let records = CountedRecords(LocalFabric::default().open_records().unwrap(), Arc::clone(&told));
        let me = ControllerIdentity {
            controller: "c".into(),
            user: String::new(),
            host: String::new(),
            place: String::new(),
            pid: 1,
        };
        let times = ControllerTermTimes { refresh: Nanos::from_millis(1), ..ControllerTermTimes::default() };
        let leadership = FleetLeadership::begin_term(records, me, times).unwrap();
        leadership.add_own_leads((0..nodes).map(taken).collect());
        let is_enough = (0..20_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            let refreshed = told.lock().unwrap().iter().filter(|key| *key == "term.c").count();
            refreshed > REFRESHES
        });
        assert!(is_enough && !leadership.is_lost(), "it is not refreshed");
        told.lock().unwrap().clone()
    }

    /// The store was full of work: it refused a refresh because an earlier one had been done, and did not
    /// say what is there.
    #[test]
    fn a_refusal_that_nobody_explains_is_no_loss() {
        let me = ControllerIdentity {
            controller: "c".into(),
            user: String::new(),
            host: String::new(),
            place: String::new(),
            pid: 1,
        };
        let begin = || {
            ControllerTerm::from_record(
                ControllerTerm::first_record(me.clone(), 0),
                1,
                ControllerTermTimes::default(),
                now(),
            )
        };
        let stale = Err(fabric::Error::Stale("term.c".into()));
        let mut term = begin();
        apply_refresh_answer(&mut term, &stale, Some(Err(fabric::Error::Unanswered("get".into()))));
        assert!(!term.is_lost());
        apply_refresh_answer(&mut term, &stale, Some(Ok(None)));
        assert!(term.is_lost(), "it was taken away");
    }

    #[test]
    fn leadership_refresh_costs_one_write() {
        for nodes in [100, 400] {
            let written = writes(nodes);
            assert!(written.iter().all(|key| key == "term.c"), "{nodes} nodes: {written:?}");
        }
    }
}
