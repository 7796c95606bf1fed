//! Reads which controller leads each node, for `fleet status` and `fleet up`.

use crate::error::Error;
use crate::fleet_place::FleetPlace;
use packetrig_fleet::fabric::{Fabric as _, RecordStore};
use packetrig_fleet::lead::{NodeLead, read_unreleased_leads};
use packetrig_nats::NatsRecords;
use packetrig_report::NodeName;
use packetrig_units::{MonoTime, Nanos};
use std::collections::{BTreeMap, BTreeSet};

/// Interval between two readings of all leads. If the hello of a node names another run than before, the lead of the
/// node is read at once.
const ALL_LEADS_READ_INTERVAL: Nanos = Nanos::from_secs(5);

/// Reads the leads (which controller and run use a node) on a separate connection.
#[derive(Debug)]
pub(super) struct LeadReader<R = NatsRecords>(R);

impl LeadReader {
    pub(super) fn open_reader(place: &FleetPlace) -> Result<Self, Error> {
        Ok(Self(place.make_controller_fabric()?.open_records().map_err(packetrig_fleet_io::Error::from)?))
    }
}

impl<R: RecordStore> LeadReader<R> {
    /// Reads the leads of these nodes; nodes without a controller are left out.
    pub(super) fn read_leads<'a>(
        &mut self,
        nodes: impl IntoIterator<Item = &'a NodeName>,
    ) -> Result<BTreeMap<NodeName, NodeLead>, Error> {
        let nodes: Vec<NodeName> = nodes.into_iter().cloned().collect();
        Ok(read_unreleased_leads(&mut self.0, &nodes).map_err(packetrig_fleet_io::Error::from)?)
    }
}

/// The leads from the last reading.
///
/// Invariant: a reader that has failed is replaced by a new one, and leads that cannot be read keep their last value.
pub(super) struct CachedNodeLeads<R = NatsRecords> {
    pub(super) known: BTreeMap<NodeName, NodeLead>,
    /// Nodes whose run has begun, changed or ended since their lead was last read.
    pub(super) changed: BTreeSet<NodeName>,
    reader: Option<LeadReader<R>>,
    all_at: MonoTime,
}

impl<R> Default for CachedNodeLeads<R> {
    fn default() -> Self {
        Self { known: BTreeMap::new(), changed: BTreeSet::new(), reader: None, all_at: MonoTime::default() }
    }
}

impl<R: RecordStore> CachedNodeLeads<R> {
    /// Reads the leads that are due: those of all `nodes`, or only of the nodes in `changed`. True if leads were read.
    pub(super) fn read_due_leads<'a>(
        &mut self,
        nodes: impl Iterator<Item = &'a NodeName>,
        now: MonoTime,
        open: impl FnOnce() -> Result<LeadReader<R>, Error>,
    ) -> bool {
        let is_all = now >= self.all_at;
        // Each lead needs a separate request, so most readings include only nodes that have changed.
        let due: BTreeSet<NodeName> =
            if is_all { nodes.cloned().collect() } else { std::mem::take(&mut self.changed) };
        if due.is_empty() {
            return false;
        }
        if self.reader.is_none() {
            self.reader = open().ok();
        }
        // Nodes with unread leads stay due: the next reader that works reads them.
        let read = self.reader.as_mut().and_then(|reader| reader.read_leads(&due).ok());
        let Some(read) = read else {
            // A connection that failed once may never work again, so the next reading opens a new one.
            self.reader = None;
            self.changed.extend(due);
            return false;
        };
        if is_all {
            self.all_at = now + ALL_LEADS_READ_INTERVAL;
            self.changed.clear();
        }
        // A requested node without a lead in the answer has no controller any more. Other nodes keep their last lead.
        self.known.retain(|node, _| !is_all && !due.contains(node));
        self.known.extend(read);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_fleet::fabric::{self, StoredRecord};
    use packetrig_report::RunId;
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    /// Every node is led for the run `r`; keys that are read are counted.
    #[derive(Clone, Default)]
    struct Store {
        is_down: Arc<AtomicBool>,
        read: Arc<Mutex<Vec<String>>>,
    }

    impl RecordStore for Store {
        fn get_record(&mut self, key: &str) -> Result<Option<StoredRecord>, fabric::Error> {
            if self.is_down.load(Ordering::Relaxed) {
                return Err(fabric::Error::Down("for now".into()));
            }
            self.read.lock().unwrap().push(key.to_owned());
            let lead = NodeLead {
                controller: "c".into(),
                epoch: 1,
                run: RunId("r".into()),
                user: String::new(),
                host: String::new(),
                since_wall_ns: 0,
                is_free: false,
            };
            Ok(Some(StoredRecord { value: StoredRecord::encode_value(&lead), revision: 1 }))
        }
        fn create_record(&mut self, key: &str, _: &[u8]) -> Result<u64, fabric::Error> {
            panic!("{key} is written")
        }
        fn replace_record(&mut self, key: &str, _: u64, _: &[u8]) -> Result<u64, fabric::Error> {
            panic!("{key} is written")
        }
        fn remove_record(&mut self, key: &str) -> Result<(), fabric::Error> {
            panic!("{key} is removed")
        }
        fn list_keys(&mut self, _: &str) -> Result<Vec<String>, fabric::Error> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn lead_reader_reads_changes_and_survives_outage() {
        let store = Store::default();
        let opened = Cell::new(0);
        let nodes: Vec<NodeName> = (0..100).map(|number| NodeName(format!("n{number}"))).collect();
        let at = |seconds| MonoTime::default() + Nanos::from_secs(seconds);
        let mut leads = CachedNodeLeads::default();
        let read = |leads: &mut CachedNodeLeads<Store>, seconds| {
            let is_new = leads.read_due_leads(nodes.iter(), at(seconds), || {
                opened.set(opened.get() + 1);
                Ok(LeadReader(store.clone()))
            });
            (is_new, std::mem::take(&mut *store.read.lock().unwrap()).len())
        };
        assert_eq!(read(&mut leads, 1), (true, 100));
        assert_eq!(read(&mut leads, 2), (false, 0));
        leads.changed.insert(nodes[7].clone());
        assert_eq!(read(&mut leads, 3), (true, 1), "only that of the node that has changed");
        store.is_down.store(true, Ordering::Relaxed);
        leads.changed.insert(nodes[8].clone());
        assert_eq!(read(&mut leads, 4), (false, 0));
        assert_eq!(leads.known.len(), 100, "what was known before is shown");
        store.is_down.store(false, Ordering::Relaxed);
        assert_eq!(read(&mut leads, 5), (true, 1), "what could not be read is read again");
        assert_eq!(opened.get(), 2, "over another connection");
        assert_eq!(read(&mut leads, 6), (true, 100));
    }
}
