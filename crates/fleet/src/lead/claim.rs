//! Claim of a controller on all nodes of a run: it gets the leads of all of them or of none.
//!
//! ```text
//!   read the leads ── read the terms of their holders ── end the dead terms ── write each lead ── taken
//!          ^                     |  one is held                         |  one was changed
//!          '---------- blocked <-'--------- give back all that was written
//! ```
//! Each call performs one step, so other controllers may act between any two steps. A step writes up to 64 leads at the
//! same time. After a conflict with another claim, a claim writes one lead after the other, in the order of node names:
//! if several claims do this, one of them always gets all its nodes.
//!
//! Invariant: a blocked claim holds no lead. A claim writes an epoch that is higher than every valid epoch of its
//! nodes and of their leads. It replaces only leads that were given back, that belong to an ended term, or that
//! name its own controller.

use super::{LeadOfOtherController, NodeLead, OwnLead, release_leads};
use crate::fabric::{Error, RecordStore, RecordWrite, StoredRecord};
use crate::message::{NodeName, RunId};
use crate::term::{
    ControllerIdentity, ControllerLookup, ControllerTermWatch, MAX_EPOCH, OtherControllerTerm, TermState,
};
use packetrig_units::MonoTime;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum number of leads that a claim writes in one step, until it has a conflict with another claim.
const MAX_WRITES_PER_STEP: usize = 64;

/// Progress of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimProgress {
    /// The claim needs another step.
    UnderWay,
    /// All leads belong to this controller, in this epoch.
    Taken(u64, Vec<OwnLead>),
    /// These leads belong to other controllers; none belongs to this one.
    Blocked(BTreeMap<NodeName, LeadOfOtherController>),
}

/// Nodes that a claim wants to lead, with the data for their leads.
#[derive(Clone, Debug)]
pub struct WantedNodes {
    pub run: RunId,
    pub nodes: BTreeSet<NodeName>,
    /// Highest epoch that any of the nodes has reported.
    pub heard: u64,
    /// Present time, nanoseconds since 1970 (UTC).
    pub wall_ns: u64,
}

/// Record of a lead, as it was read. Without a record both fields are `None`; `lead` is also `None` if the
/// record cannot be parsed.
#[derive(Clone, Debug, Default)]
struct FoundRecord {
    revision: Option<u64>,
    lead: Option<NodeLead>,
}

#[derive(Clone, Debug)]
enum ClaimStage {
    ReadLeads,
    /// Controllers that hold some of the leads, and whose terms must still be read.
    ReadTerms(VecDeque<String>),
    /// Terms of dead controllers, with their revisions.
    EndTerms(VecDeque<(String, u64)>),
    Write(VecDeque<NodeName>),
    GiveBack,
}

#[derive(Clone, Debug)]
pub struct LeadClaim {
    me: ControllerIdentity,
    wanted: WantedNodes,
    watch: ControllerTermWatch,
    stage: ClaimStage,
    found: BTreeMap<NodeName, FoundRecord>,
    /// Leader of each node before this claim. Leads that the claim itself has written do not replace it.
    before: BTreeMap<NodeName, NodeLead>,
    terms: BTreeMap<String, OtherControllerTerm>,
    epoch: u64,
    taken: Vec<OwnLead>,
    /// Nodes whose leads this claim has tried to write, and has not given back.
    with_possible_lead: BTreeSet<NodeName>,
    writes_at_once: usize,
}

impl LeadClaim {
    /// Creates a claim of the controller `me`. `watch` contains what it has observed of the terms of other controllers.
    pub fn new(me: ControllerIdentity, wanted: WantedNodes, watch: ControllerTermWatch) -> Self {
        Self {
            me,
            wanted,
            watch,
            stage: ClaimStage::ReadLeads,
            found: BTreeMap::new(),
            before: BTreeMap::new(),
            terms: BTreeMap::new(),
            epoch: 0,
            taken: Vec::new(),
            with_possible_lead: BTreeSet::new(),
            writes_at_once: MAX_WRITES_PER_STEP,
        }
    }

    /// Returns the watch of [`Self::new`], with the observations that the claim has added.
    pub fn into_watch(self) -> ControllerTermWatch {
        self.watch
    }

    /// Nodes whose leads this claim has written, or may have written if an answer was lost. A caller that gives up the
    /// claim must give these leads back.
    pub const fn nodes_with_possible_lead(&self) -> &BTreeSet<NodeName> {
        &self.with_possible_lead
    }

    /// Performs the next step of the claim. After an error the call may be repeated.
    pub fn advance_claim<R: RecordStore>(
        &mut self,
        records: &mut R,
        is_there: ControllerLookup<'_>,
        now: MonoTime,
    ) -> Result<ClaimProgress, Error> {
        match &mut self.stage {
            ClaimStage::ReadLeads => self.read_leads(records)?,
            // Each entry leaves its queue only after it succeeded, so that a step can be repeated after an error.
            ClaimStage::ReadTerms(left) => match left.front().cloned() {
                Some(controller) => {
                    let seen = self.watch.read_controller_term(records, &controller, is_there, now)?;
                    left.pop_front();
                    self.terms.insert(controller, seen);
                }
                None => return Ok(self.decide_claim()),
            },
            ClaimStage::EndTerms(left) => match left.front().cloned() {
                Some((controller, revision)) => self.end_term(records, &controller, revision)?,
                None => self.stage = ClaimStage::Write(self.wanted.nodes.iter().cloned().collect()),
            },
            ClaimStage::Write(left) if left.is_empty() => {
                return Ok(ClaimProgress::Taken(self.epoch, std::mem::take(&mut self.taken)));
            }
            ClaimStage::Write(left) => {
                let next: Vec<NodeName> = left.iter().take(self.writes_at_once).cloned().collect();
                self.write_leads(records, next)?;
            }
            ClaimStage::GiveBack if self.taken.is_empty() => self.stage = ClaimStage::ReadLeads,
            ClaimStage::GiveBack => self.release_written_leads(records)?,
        }
        Ok(ClaimProgress::UnderWay)
    }

    fn read_leads<R: RecordStore>(&mut self, records: &mut R) -> Result<(), Error> {
        let keys: Vec<String> = self.wanted.nodes.iter().map(NodeLead::record_key).collect();
        let found = records.get_records(&keys)?;
        // Answers of an earlier round may be out of date.
        self.found.clear();
        self.terms.clear();
        for (node, record) in self.wanted.nodes.iter().zip(found) {
            let revision = record.as_ref().map(|record| record.revision);
            // A lead that cannot be parsed counts as free.
            let lead: Option<NodeLead> = record.as_ref().and_then(StoredRecord::decode_value);
            let of_another = lead.iter().find(|lead| !self.is_own_lead(lead)).cloned();
            // A later round may read a lead that this claim has written itself, so only leads of other controllers or
            // other runs replace an entry.
            self.before.extend(of_another.map(|lead| (node.clone(), lead)));
            self.found.insert(node.clone(), FoundRecord { revision, lead });
        }
        // One look-up for each controller, however many of the nodes it leads.
        let holders: BTreeSet<&String> = self.leads_of_others().map(|(_, lead)| &lead.controller).collect();
        self.stage = ClaimStage::ReadTerms(holders.into_iter().cloned().collect());
        Ok(())
    }

    /// Returns the leads of this claim in the records as they were last read.
    fn own_leads(&self) -> Vec<OwnLead> {
        let own = self.found.iter().filter_map(|(node, found)| {
            let lead = found.lead.clone().filter(|lead| self.is_own_lead(lead) && !lead.is_free)?;
            Some(OwnLead { node: node.clone(), revision: found.revision?, lead, before: None })
        });
        own.collect()
    }

    fn is_own_lead(&self, lead: &NodeLead) -> bool {
        lead.controller == self.me.controller && lead.run == self.wanted.run
    }

    /// Returns the leads of other controllers that were not given back.
    fn leads_of_others(&self) -> impl Iterator<Item = (&NodeName, &NodeLead)> {
        let leads = self.found.iter().filter_map(|(node, found)| Some((node, found.lead.as_ref()?)));
        leads.filter(|(_, lead)| !lead.is_free && lead.controller != self.me.controller)
    }

    /// Decides how to continue once all leads and terms are read. If a live controller leads a node, the claim is
    /// blocked; otherwise it takes the nodes.
    fn decide_claim(&mut self) -> ClaimProgress {
        let held = self.nodes_held_by_others();
        if !held.is_empty() {
            // If the answer to a write was lost, the records may contain leads of this claim that `taken` does not.
            self.taken = self.own_leads();
            self.stage = ClaimStage::GiveBack;
            let holds_nothing = self.taken.is_empty();
            return if holds_nothing { ClaimProgress::Blocked(held) } else { ClaimProgress::UnderWay };
        }
        let leads = self.found.values().filter_map(|found| found.lead.as_ref());
        let known = leads.map(|lead| lead.epoch).chain([self.wanted.heard]);
        // Nodes refuse an epoch below the highest one that they have seen. An epoch of `MAX_EPOCH` or more is ignored:
        // otherwise one forged number would use up all remaining epochs.
        self.epoch = known.filter(|epoch| *epoch < MAX_EPOCH).max().unwrap_or(0) + 1;
        let dead = self.terms.iter().filter_map(|(controller, seen)| match seen.state {
            TermState::Dead(revision) => Some((controller.clone(), revision)),
            _ => None,
        });
        // The terms of dead controllers are ended before leads are written: a controller that wakes up meanwhile must
        // see that its whole term is over, and not only that it has lost some nodes.
        self.stage = ClaimStage::EndTerms(dead.collect());
        ClaimProgress::UnderWay
    }

    fn nodes_held_by_others(&self) -> BTreeMap<NodeName, LeadOfOtherController> {
        let held = self.leads_of_others().filter_map(|(node, lead)| {
            let state = self.terms.get(&lead.controller)?.state;
            let revision = self.found.get(node).and_then(|found| found.revision).unwrap_or(0);
            state
                .holds_leads()
                .then(|| (node.clone(), LeadOfOtherController { lead: lead.clone(), revision, state }))
        });
        held.collect()
    }

    fn end_term<R: RecordStore>(
        &mut self,
        records: &mut R,
        controller: &str,
        revision: u64,
    ) -> Result<(), Error> {
        let record = self.terms.get(controller).and_then(|seen| seen.record.clone());
        // After this write the controller leads no node, even if its process wakes up: its next refresh is refused.
        let done = record.map(|record| record.end_term_if_unchanged(records, revision));
        match done {
            // The controller has refreshed its record, or a third controller has ended the term: all
            // leads are read again.
            Some(Err(Error::Stale(_))) => self.stage = ClaimStage::ReadLeads,
            Some(Err(error)) => return Err(error),
            Some(Ok(())) | None => {
                if let ClaimStage::EndTerms(left) = &mut self.stage {
                    left.pop_front();
                }
            }
        }
        Ok(())
    }

    fn build_lead(&self) -> NodeLead {
        NodeLead {
            controller: self.me.controller.clone(),
            epoch: self.epoch,
            run: self.wanted.run.clone(),
            user: self.me.user.clone(),
            host: self.me.host.clone(),
            since_wall_ns: self.wanted.wall_ns,
            is_free: false,
        }
    }

    /// Writes the leads of these nodes. If another process has changed a lead, or an answer is lost, the claim gives
    /// all its leads back and starts again.
    fn write_leads<R: RecordStore>(&mut self, records: &mut R, nodes: Vec<NodeName>) -> Result<(), Error> {
        let lead = self.build_lead();
        let value = StoredRecord::encode_value(&lead);
        let writes = nodes.iter().map(|node| RecordWrite {
            key: NodeLead::record_key(node),
            revision: self.found.get(node).and_then(|found| found.revision),
            value: value.clone(),
        });
        let writes: Vec<RecordWrite> = writes.collect();
        // The nodes are recorded before the call, because a lead may be written although the answer is lost.
        self.with_possible_lead.extend(nodes.iter().cloned());
        let answers = records.write_all_records(&writes);
        let mut is_contested = false;
        let mut failure = None;
        for (node, answer) in nodes.into_iter().zip(answers) {
            match answer {
                Ok(revision) => {
                    let before = self.before.get(&node).cloned();
                    self.taken.push(OwnLead { node, revision, lead: lead.clone(), before });
                    if let ClaimStage::Write(left) = &mut self.stage {
                        left.pop_front();
                    }
                }
                Err(Error::Stale(_) | Error::Exists(_)) => is_contested = true,
                // The lead may have been written. Then the next reading finds it as a lead of this claim.
                Err(error) => failure = Some(error),
            }
        }
        // Lock ordering: two claims that take leads one by one, in the order of names, cannot each hold a lead that the
        // other needs. With many writes at the same time, two claims could block each other again and again.
        if is_contested {
            self.writes_at_once = 1;
        }
        if is_contested || failure.is_some() {
            self.stage = ClaimStage::GiveBack;
        }
        failure.map_or(Ok(()), Err)
    }

    fn release_written_leads<R: RecordStore>(&mut self, records: &mut R) -> Result<(), Error> {
        let first = self.taken.len().saturating_sub(self.writes_at_once);
        let leads = self.taken.split_off(first);
        let given: Vec<NodeName> = leads.iter().map(|lead| lead.node.clone()).collect();
        let (left, failure) = release_leads(records, leads);
        for node in given {
            if !left.iter().any(|lead| lead.node == node) {
                self.with_possible_lead.remove(&node);
            }
        }
        self.taken.extend(left);
        failure.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
impl LeadClaim {
    /// Makes the claim write one lead after the other from the beginning.
    pub(super) fn with_single_writes(mut self) -> Self {
        self.writes_at_once = 1;
        self
    }
}
