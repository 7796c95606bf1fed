//! Leadership of nodes: a record for each node, and the claim of a controller on all nodes of a run ([`LeadClaim`]).
//!
//! A lead (the record that names the leader of a node) is written when a controller takes the node and when it gives
//! the node back, never in between.

mod claim;

pub use claim::{ClaimProgress, LeadClaim, WantedNodes};

use crate::fabric::{Error, RecordStore, RecordWrite, StoredRecord};
use crate::message::{NodeName, RunId};
use crate::term::{ControllerIdentity, ControllerLookup, ControllerTermWatch, TermState};
use packetrig_units::MonoTime;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Present or last leader of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLead {
    /// The controller's [`ControllerIdentity::controller`].
    pub controller: String,
    /// Epoch of the lead. The record keeps it when the node is given back.
    pub epoch: u64,
    pub run: RunId,
    /// User who started the controller. Only shown in messages.
    pub user: String,
    /// Host of the controller. Only shown in messages.
    pub host: String,
    /// Time at which the lead began, nanoseconds since 1970 (UTC).
    pub since_wall_ns: u64,
    pub is_free: bool,
}

impl NodeLead {
    /// Key of the record that names the leader of `node`.
    pub fn record_key(node: &NodeName) -> String {
        format!("lead.{node}")
    }

    /// Formats the time at which the lead began, for messages.
    pub fn start_time_text(&self) -> String {
        let minutes = self.since_wall_ns / 60_000_000_000;
        format!("{:02}:{:02} UTC", minutes / 60 % 24, minutes % 60)
    }

    /// Builds the write that gives this lead back. It succeeds only if the record still has `revision`.
    fn build_release_write(&self, node: &NodeName, revision: u64) -> RecordWrite {
        // The record is not deleted, because the epoch of the node's next lead must be higher than the epoch in it.
        let free = Self { is_free: true, ..self.clone() };
        RecordWrite {
            key: Self::record_key(node),
            revision: Some(revision),
            value: StoredRecord::encode_value(&free),
        }
    }
}

impl fmt::Display for NodeLead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, user, host, .. } = self;
        write!(f, "belongs to run {run} of {user}@{host} since {}", self.start_time_text())
    }
}

/// A node that this controller leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnLead {
    pub node: NodeName,
    pub revision: u64,
    /// The lead, as it is stored in the records.
    pub lead: NodeLead,
    /// Previous leader of the node, if it had one.
    pub before: Option<NodeLead>,
}

/// Gives leads back, except those that another controller has taken over meanwhile. Returns the leads that could not be
/// given back, with the last error.
pub fn release_leads<R: RecordStore>(records: &mut R, leads: Vec<OwnLead>) -> (Vec<OwnLead>, Option<Error>) {
    let writes: Vec<RecordWrite> =
        leads.iter().map(|taken| taken.lead.build_release_write(&taken.node, taken.revision)).collect();
    let answers = records.write_all_records(&writes);
    let mut failure = None;
    let mut left = Vec::new();
    for (taken, answer) in leads.into_iter().zip(answers) {
        match answer {
            // Another controller has taken the node over since, so there is nothing to give back.
            Ok(_) | Err(Error::Stale(_)) => {}
            Err(error) => {
                left.push(taken);
                failure = Some(error);
            }
        }
    }
    (left, failure)
}

/// Nodes whose leads may still name this controller, although it does not lead the run any more: an answer of the
/// record store was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UncertainLeads {
    pub run: RunId,
    pub nodes: BTreeSet<NodeName>,
}

impl UncertainLeads {
    /// Reads the leads of the nodes and gives back those of `controller` for the run. After an error the
    /// call may be repeated.
    pub fn release_uncertain_leads<R: RecordStore>(
        &mut self,
        records: &mut R,
        controller: &str,
    ) -> Result<(), Error> {
        // The loop repeats until no lead of this controller is found: only reading the record again shows whether
        // a write with a lost answer was done.
        while !self.nodes.is_empty() {
            let nodes: Vec<NodeName> = self.nodes.iter().cloned().collect();
            let mut own = read_leads(records, &nodes)?;
            // Only leads for this run are given back: the controller may already lead the same nodes for another run.
            own.retain(|found| {
                !found.lead.is_free && found.lead.controller == controller && found.lead.run == self.run
            });
            self.nodes = own.iter().map(|found| found.node.clone()).collect();
            let writes: Vec<RecordWrite> =
                own.iter().map(|found| found.lead.build_release_write(&found.node, found.revision)).collect();
            let answers = records.write_all_records(&writes);
            for (found, answer) in own.iter().zip(answers) {
                match answer {
                    Ok(_) => _ = self.nodes.remove(&found.node),
                    // The record has changed since the last reading, so it is read again.
                    Err(Error::Stale(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

/// A node that another controller leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeadOfOtherController {
    pub lead: NodeLead,
    pub revision: u64,
    /// State of the term of the controller that leads the node.
    pub state: TermState,
}

/// Reads which of these nodes are led by controllers other than `me`. Leads of dead controllers and of ended
/// terms are left out.
pub fn read_held_leads<R: RecordStore>(
    records: &mut R,
    nodes: &[NodeName],
    (me, watch): (&ControllerIdentity, &mut ControllerTermWatch),
    is_there: ControllerLookup<'_>,
    now: MonoTime,
) -> Result<BTreeMap<NodeName, LeadOfOtherController>, Error> {
    let mut found = read_leads(records, nodes)?;
    found.retain(|found| !found.lead.is_free && found.lead.controller != me.controller);
    let mut states = BTreeMap::new();
    for RecordedLead { lead, .. } in &found {
        // One look-up for each controller, however many nodes it leads.
        if !states.contains_key(&lead.controller) {
            let seen = watch.read_controller_term(records, &lead.controller, is_there, now)?;
            states.insert(lead.controller.clone(), seen.state);
        }
    }
    let held = found.into_iter().map(|RecordedLead { node, revision, lead }| {
        let state = states.get(&lead.controller).copied().unwrap_or(TermState::Over);
        (node, LeadOfOtherController { lead, revision, state })
    });
    Ok(held.filter(|(_, held)| held.state.holds_leads()).collect())
}

/// Reads the leads of these nodes that were not given back, including leads of dead controllers.
pub fn read_unreleased_leads<R: RecordStore>(
    records: &mut R,
    nodes: &[NodeName],
) -> Result<BTreeMap<NodeName, NodeLead>, Error> {
    let found = read_leads(records, nodes)?.into_iter();
    Ok(found.filter(|found| !found.lead.is_free).map(|found| (found.node, found.lead)).collect())
}

/// A lead, as it was read from the records.
#[derive(Clone, Debug)]
struct RecordedLead {
    node: NodeName,
    revision: u64,
    lead: NodeLead,
}

/// Reads the leads of these nodes. Missing records and records that cannot be parsed are left out.
fn read_leads<R: RecordStore>(records: &mut R, nodes: &[NodeName]) -> Result<Vec<RecordedLead>, Error> {
    let keys: Vec<String> = nodes.iter().map(NodeLead::record_key).collect();
    let found = records.get_records(&keys)?;
    let leads = nodes.iter().zip(found).filter_map(|(node, record)| {
        let record = record?;
        Some(RecordedLead { node: node.clone(), revision: record.revision, lead: record.decode_value()? })
    });
    Ok(leads.collect())
}

#[cfg(test)]
mod tests;
