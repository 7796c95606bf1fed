//! Being a controller: has a record that says so, keeps it fresh in a thread of its own, and gives back in the end whatever
//! it leads.
//!
//! Invariant: the record is refreshed until the reign is lost or left, never after; a refresh is one write, however many
//! nodes are led.

use crate::agent::now;
use crate::error::Error;
use packetrig_fleet::fabric::{self, Record, Records};
use packetrig_fleet::lead::TakenLead;
use packetrig_fleet::reign::{Identity, Reign, ReignRecord, ReignTerms};
use packetrig_sys::clock;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// See the module.
#[derive(Debug)]
pub(super) struct Leadership {
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
    /// Nodes that are led.
    leads: Vec<TakenLead>,
    /// It is to end.
    leaves: bool,
}

impl Shared {
    fn own(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leadership {
    /// Writes the record and keeps it fresh from now on. It leads no node yet.
    pub(super) fn begin<R: Records + 'static>(
        mut records: R,
        me: Identity,
        terms: ReignTerms,
    ) -> Result<Self, Error> {
        let key = ReignRecord::key(&me.controller);
        let record = Reign::record(me, clock::wall_clock_ns());
        let asked = now();
        let revision = match records.create(&key, &written(&record)) {
            Ok(revision) => revision,
            // Its own: an answer was lost. Nobody else has this name.
            Err(fabric::Error::Exists(_)) => records.get(&key)?.map_or(0, |found| found.revision),
            Err(error) => return Err(error.into()),
        };
        let reign = Reign::begun(record, revision, terms, asked);
        let state = Mutex::new(State { reign, leads: Vec::new(), leaves: false });
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let thread = {
            let shared = Arc::clone(&shared);
            Builder::new().name("reign".to_owned()).spawn(move || refresh(records, &key, &shared))
        };
        Ok(Self { shared, thread: Some(thread.map_err(Error::Thread)?) })
    }

    /// These are led from now on: they are given back when it ends.
    pub(super) fn hold(&self, leads: Vec<TakenLead>) {
        self.shared.own().leads.extend(leads);
    }

    /// What is led, for whoever gives it back.
    pub(super) fn take_leads(&self) -> Vec<TakenLead> {
        std::mem::take(&mut self.shared.own().leads)
    }

    /// Another controller has found it dead.
    pub(super) fn is_lost(&self) -> bool {
        self.shared.own().reign.is_lost()
    }

    /// Whether a start may be committed now.
    pub(super) fn may_commit(&self) -> bool {
        self.shared.own().reign.may_commit(now())
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.shared.own().leaves = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // What could not be given back may be taken over when the record is stale.
            drop(thread.join());
        }
    }
}

fn refresh<R: Records>(mut records: R, key: &str, shared: &Shared) {
    loop {
        let state = shared.own();
        let wait = state.reign.next_refresh().since(now()).to_std();
        let early = |state: &mut State| !state.leaves && now() < state.reign.next_refresh();
        let waited = shared.changed.wait_timeout_while(state, wait, early);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.leaves {
            let (leads, is_lost) = (std::mem::take(&mut state.leads), state.reign.is_lost());
            drop(state);
            leave(&mut records, key, leads, is_lost);
            return;
        }
        if state.reign.is_lost() {
            // Nothing is written any more; what is led is given back by whoever ends this.
            drop(shared.changed.wait_while(state, |state| !state.leaves));
            continue;
        }
        if let Some((revision, record)) = state.reign.refresh(now()) {
            // The store may take its time, and whoever asks meanwhile shall not wait for it.
            drop(state);
            let answer = records.replace(key, revision, &written(&record));
            let found = matches!(answer, Err(fabric::Error::Stale(_))).then(|| records.get(key));
            settle_refresh(&mut shared.own().reign, answer, found.and_then(Result::ok).flatten());
        }
    }
}

/// What fails here is only slower for the next one: a lead whose reign is over may be taken.
fn leave<R: Records>(records: &mut R, key: &str, leads: Vec<TakenLead>, is_lost: bool) {
    for lead in leads {
        lead.give_back(records).unwrap_or(());
    }
    if !is_lost {
        records.remove(key).unwrap_or(());
    }
}

fn settle_refresh(reign: &mut Reign, answer: Result<u64, fabric::Error>, found: Option<Record>) {
    match answer {
        Ok(revision) => reign.refreshed(revision),
        Err(fabric::Error::Stale(_)) => {
            let record = found.as_ref().and_then(read);
            reign.refused(record.as_ref().map(|(record, revision)| (record, *revision)));
        }
        // It may have happened or not; the next one tells.
        Err(_) => {}
    }
}

fn read(record: &Record) -> Option<(ReignRecord, u64)> {
    Some((serde_json::from_slice(&record.value).ok()?, record.revision))
}

fn written(record: &ReignRecord) -> Vec<u8> {
    // Plain strings and numbers: it can always be written.
    serde_json::to_vec(record).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_fleet::fabric::Fabric as _;
    use packetrig_fleet::lead::NodeLead;
    use packetrig_fleet::local::{Local, LocalRecords};
    use packetrig_fleet::{NodeName, RunId};
    use packetrig_units::Nanos;

    /// Counts what is written, by key.
    struct Counted(LocalRecords, Arc<Mutex<Vec<String>>>);

    impl Records for Counted {
        fn get(&mut self, key: &str) -> Result<Option<Record>, fabric::Error> {
            self.0.get(key)
        }
        fn create(&mut self, key: &str, value: &[u8]) -> Result<u64, fabric::Error> {
            self.1.lock().unwrap().push(key.to_owned());
            self.0.create(key, value)
        }
        fn replace(&mut self, key: &str, revision: u64, value: &[u8]) -> Result<u64, fabric::Error> {
            self.1.lock().unwrap().push(key.to_owned());
            self.0.replace(key, revision, value)
        }
        fn remove(&mut self, key: &str) -> Result<(), fabric::Error> {
            self.0.remove(key)
        }
        fn keys(&mut self, prefix: &str) -> Result<Vec<String>, fabric::Error> {
            self.0.keys(prefix)
        }
    }

    fn taken(number: u64) -> TakenLead {
        let lead = NodeLead {
            reign: "c".into(),
            epoch: 1,
            run: RunId("r".into()),
            user: String::new(),
            host: String::new(),
            since_wall_ns: 0,
            is_free: false,
        };
        TakenLead { node: NodeName(format!("n{number}")), revision: 1, lead, before: None }
    }

    /// Writes until it was refreshed so often, while so many nodes are led; and what was written at all.
    fn writes(nodes: u64) -> Vec<String> {
        const REFRESHES: usize = 20;
        let told = Arc::new(Mutex::new(Vec::new()));
        let records = Counted(Local::default().records().unwrap(), Arc::clone(&told));
        let me = Identity {
            controller: "c".into(),
            user: String::new(),
            host: String::new(),
            boot_id: String::new(),
            pid: 1,
        };
        let terms = ReignTerms { refresh: Nanos::from_millis(1), ..ReignTerms::default() };
        let leadership = Leadership::begin(records, me, terms).unwrap();
        leadership.hold((0..nodes).map(taken).collect());
        let is_enough = (0..20_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            let refreshed = told.lock().unwrap().iter().filter(|key| *key == "reign.c").count();
            refreshed > REFRESHES
        });
        assert!(is_enough && !leadership.is_lost(), "it is not refreshed");
        told.lock().unwrap().clone()
    }

    #[test]
    fn refreshing_costs_one_write_however_many_nodes_are_led() {
        for nodes in [100, 400] {
            let written = writes(nodes);
            assert!(written.iter().all(|key| key == "reign.c"), "{nodes} nodes: {written:?}");
        }
    }
}
