//! Who leads each node: a record for each, and how a controller takes those of all nodes of a run.
//!
//! ```text
//!   read the leads ── read the reigns of those who hold some ── end the dead ones ── write each lead ── taken
//!          ^                     |  one is held                         |  one was changed
//!          '---------- blocked <-'--------- give back all that was written
//! ```
//! A lead is written when it is taken and when it is given back, never in between. Each step does one thing with the records,
//! so that whatever other controllers do can come between any two of them.
//!
//! Invariant: a claim that is blocked holds nothing; the epoch that it writes is above every epoch that its nodes have heard
//! of or that their leads have had; a lead is written only over the value that was found free, or whose reign was over.

use crate::fabric::{Error, Record, Records};
use crate::message::{NodeName, RunId};
use crate::reign::{Identity, LAST_EPOCH, ReignRecord, ReignState, ReignWatch};
use packetrig_units::MonoTime;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// Who leads a node, or led it last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLead {
    /// The controller's [`Identity::controller`].
    pub reign: String,
    /// In which epoch. It stays when the node is given back.
    pub epoch: u64,
    /// For which run.
    pub run: RunId,
    /// Who started the controller, for people.
    pub user: String,
    /// On which host, for people.
    pub host: String,
    /// Since when, nanoseconds since 1970 (UTC).
    pub since_wall_ns: u64,
    /// Given back.
    pub is_free: bool,
}

impl NodeLead {
    /// The key it is kept under.
    pub fn key(node: &NodeName) -> String {
        format!("lead.{node}")
    }

    /// Since when, for people.
    pub fn since(&self) -> String {
        let minutes = self.since_wall_ns / 60_000_000_000;
        format!("{:02}:{:02} UTC", minutes / 60 % 24, minutes % 60)
    }
}

impl fmt::Display for NodeLead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, user, host, .. } = self;
        write!(f, "belongs to run {run} of {user}@{host} since {}", self.since())
    }
}

/// A lead that is this controller's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenLead {
    /// Of which node.
    pub node: NodeName,
    /// Its revision.
    pub revision: u64,
    /// As it is written.
    pub lead: NodeLead,
    /// Who led the node before.
    pub before: Option<NodeLead>,
}

impl TakenLead {
    /// Gives it back. That somebody else has taken it over meanwhile does no harm.
    pub fn give_back<R: Records>(self, records: &mut R) -> Result<(), Error> {
        let Self { node, revision, lead, .. } = self;
        let free = NodeLead { is_free: true, ..lead };
        match records.replace(&NodeLead::key(&node), revision, &written(&free)) {
            Ok(_) | Err(Error::Stale(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A node that another controller leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLead {
    /// Its lead.
    pub lead: NodeLead,
    /// Of the lead.
    pub revision: u64,
    /// What is known of that controller.
    pub state: ReignState,
}

/// How far a claim is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimProgress {
    /// It wants another step.
    UnderWay,
    /// All leads are this controller's, in this epoch.
    Taken(u64, Vec<TakenLead>),
    /// These are held by others; none is this controller's.
    Blocked(BTreeMap<NodeName, HeldLead>),
}

/// What a claim is about.
#[derive(Clone, Debug)]
pub struct WantedNodes {
    /// For which run.
    pub run: RunId,
    /// Which nodes.
    pub nodes: BTreeSet<NodeName>,
    /// Highest epoch that any of them has told of.
    pub heard: u64,
    /// Now, nanoseconds since 1970 (UTC).
    pub wall_ns: u64,
}

/// What was found.
#[derive(Clone, Debug)]
struct FoundLead {
    /// `None` where there is no record.
    revision: Option<u64>,
    lead: Option<NodeLead>,
}

#[derive(Clone, Debug)]
enum Stage {
    ReadLeads,
    /// Controllers that hold some of the leads, and are yet to be looked at.
    ReadReigns(VecDeque<String>),
    /// Those that are dead.
    EndReigns(VecDeque<(String, u64)>),
    Write(VecDeque<NodeName>),
    GiveBack,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct LeadClaim {
    me: Identity,
    wanted: WantedNodes,
    watch: ReignWatch,
    stage: Stage,
    found: BTreeMap<NodeName, FoundLead>,
    /// Who led each node before this claim, whatever it has written and given back since.
    before: BTreeMap<NodeName, NodeLead>,
    reigns: BTreeMap<String, (ReignState, Option<ReignRecord>)>,
    epoch: u64,
    taken: Vec<TakenLead>,
}

impl LeadClaim {
    /// Of this controller. `watch` is what it has seen of others so far.
    pub fn new(me: Identity, wanted: WantedNodes, watch: ReignWatch) -> Self {
        Self {
            me,
            wanted,
            watch,
            stage: Stage::ReadLeads,
            found: BTreeMap::new(),
            before: BTreeMap::new(),
            reigns: BTreeMap::new(),
            epoch: 0,
            taken: Vec::new(),
        }
    }

    /// What it has seen of other controllers.
    pub fn into_watch(self) -> ReignWatch {
        self.watch
    }

    /// Does the next thing. After an error the same may be tried again. `runs` says whether a process of this host does.
    pub fn step<R: Records>(
        &mut self,
        records: &mut R,
        runs: &dyn Fn(u32) -> bool,
        now: MonoTime,
    ) -> Result<ClaimProgress, Error> {
        match &mut self.stage {
            Stage::ReadLeads => self.read_leads(records)?,
            Stage::ReadReigns(left) => match left.pop_front() {
                Some(controller) => {
                    let key = ReignRecord::key(&controller);
                    let found = match records.get(&key) {
                        Ok(found) => found.as_ref().and_then(read::<ReignRecord>),
                        Err(error) => {
                            left.push_front(controller);
                            return Err(error);
                        }
                    };
                    let seen = found.as_ref().map(|(record, revision)| (record, *revision));
                    let state = self.watch.look(&controller, seen, runs, now);
                    self.reigns.insert(controller, (state, found.map(|(record, _)| record)));
                }
                None => return Ok(self.weigh()),
            },
            Stage::EndReigns(left) => match left.front().cloned() {
                Some((controller, revision)) => self.end_reign(records, &controller, revision)?,
                None => self.stage = Stage::Write(self.wanted.nodes.iter().cloned().collect()),
            },
            Stage::Write(left) => match left.front().cloned() {
                Some(node) => self.write(records, &node)?,
                None => return Ok(ClaimProgress::Taken(self.epoch, std::mem::take(&mut self.taken))),
            },
            Stage::GiveBack => match self.taken.last().cloned() {
                Some(taken) => {
                    taken.give_back(records)?;
                    self.taken.pop();
                }
                None => self.stage = Stage::ReadLeads,
            },
        }
        Ok(ClaimProgress::UnderWay)
    }

    fn read_leads<R: Records>(&mut self, records: &mut R) -> Result<(), Error> {
        let keys: Vec<String> = self.wanted.nodes.iter().map(NodeLead::key).collect();
        let found = records.get_many(&keys)?;
        self.found.clear();
        self.reigns.clear();
        for (node, record) in self.wanted.nodes.iter().zip(found) {
            let revision = record.as_ref().map(|record| record.revision);
            // What cannot be read is nobody's.
            let lead = record.as_ref().and_then(read::<NodeLead>).map(|(lead, _)| lead);
            let of_another = lead.iter().find(|lead| !self.is_own(lead)).cloned();
            self.before.extend(of_another.map(|lead| (node.clone(), lead)));
            self.found.insert(node.clone(), FoundLead { revision, lead });
        }
        let holders: BTreeSet<&String> = self.others().map(|(_, lead)| &lead.reign).collect();
        self.stage = Stage::ReadReigns(holders.into_iter().cloned().collect());
        Ok(())
    }

    /// Leads that were found to be written by this claim.
    fn own_leads(&self) -> Vec<TakenLead> {
        let own = self.found.iter().filter_map(|(node, found)| {
            let lead = found.lead.clone().filter(|lead| self.is_own(lead) && !lead.is_free)?;
            Some(TakenLead { node: node.clone(), revision: found.revision?, lead, before: None })
        });
        own.collect()
    }

    fn is_own(&self, lead: &NodeLead) -> bool {
        lead.reign == self.me.controller && lead.run == self.wanted.run
    }

    /// Leads that other controllers have not given back.
    fn others(&self) -> impl Iterator<Item = (&NodeName, &NodeLead)> {
        let leads = self.found.iter().filter_map(|(node, found)| Some((node, found.lead.as_ref()?)));
        leads.filter(|(_, lead)| !lead.is_free && lead.reign != self.me.controller)
    }

    /// All is known: either somebody at work holds a node, or nobody does.
    fn weigh(&mut self) -> ClaimProgress {
        let state_of =
            |lead: &NodeLead| self.reigns.get(&lead.reign).map_or(ReignState::Over, |(state, _)| *state);
        let held = self.others().map(|(node, lead)| (node, lead, state_of(lead)));
        let held: BTreeMap<NodeName, HeldLead> = held
            .filter(|(.., state)| state.holds())
            .map(|(node, lead, state)| {
                let revision = self.found.get(node).and_then(|found| found.revision).unwrap_or(0);
                (node.clone(), HeldLead { lead: lead.clone(), revision, state })
            })
            .collect();
        if !held.is_empty() {
            // An answer to its own writing may have been lost.
            self.taken = self.own_leads();
            self.stage = Stage::GiveBack;
            let is_rid = self.taken.is_empty();
            return if is_rid { ClaimProgress::Blocked(held) } else { ClaimProgress::UnderWay };
        }
        let leads = self.found.values().filter_map(|found| found.lead.as_ref());
        let known = leads.map(|lead| lead.epoch).chain([self.wanted.heard]);
        self.epoch = known.filter(|epoch| *epoch < LAST_EPOCH).max().unwrap_or(0) + 1;
        let dead = self.reigns.iter().filter_map(|(controller, (state, _))| match state {
            ReignState::Dead(revision) => Some((controller.clone(), *revision)),
            _ => None,
        });
        self.stage = Stage::EndReigns(dead.collect());
        ClaimProgress::UnderWay
    }

    /// From here on that controller has lost, even if its process wakes up: its next refresh is refused.
    fn end_reign<R: Records>(
        &mut self,
        records: &mut R,
        controller: &str,
        revision: u64,
    ) -> Result<(), Error> {
        let record = self.reigns.get(controller).and_then(|(_, record)| record.clone());
        let ended = record.map(|record| ReignRecord { is_over: true, ..record });
        let done = ended.map(|ended| {
            records.replace(&ReignRecord::key(controller), revision, &written(&ended)).map(|_| ())
        });
        match done {
            Some(Err(Error::Stale(_))) => self.stage = Stage::ReadLeads,
            Some(Err(error)) => return Err(error),
            Some(Ok(())) | None => {
                if let Stage::EndReigns(left) = &mut self.stage {
                    left.pop_front();
                }
            }
        }
        Ok(())
    }

    fn write<R: Records>(&mut self, records: &mut R, node: &NodeName) -> Result<(), Error> {
        let lead = NodeLead {
            reign: self.me.controller.clone(),
            epoch: self.epoch,
            run: self.wanted.run.clone(),
            user: self.me.user.clone(),
            host: self.me.host.clone(),
            since_wall_ns: self.wanted.wall_ns,
            is_free: false,
        };
        let found = self.found.get(node).cloned().unwrap_or(FoundLead { revision: None, lead: None });
        let (key, value) = (NodeLead::key(node), written(&lead));
        let done = match found.revision {
            Some(revision) => records.replace(&key, revision, &value),
            None => records.create(&key, &value),
        };
        match done {
            Ok(revision) => {
                let before = self.before.get(node).cloned();
                self.taken.push(TakenLead { node: node.clone(), revision, lead, before });
                if let Stage::Write(left) = &mut self.stage {
                    left.pop_front();
                }
            }
            Err(Error::Stale(_) | Error::Exists(_)) => self.stage = Stage::GiveBack,
            Err(error) => {
                // It may have been written. Then it is found to be this controller's own.
                self.stage = Stage::GiveBack;
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Who leads these nodes now, of those that are led by a controller other than `me`.
pub fn held_leads<R: Records>(
    records: &mut R,
    nodes: &[NodeName],
    (me, watch): (&Identity, &mut ReignWatch),
    runs: &dyn Fn(u32) -> bool,
    now: MonoTime,
) -> Result<BTreeMap<NodeName, HeldLead>, Error> {
    let keys: Vec<String> = nodes.iter().map(NodeLead::key).collect();
    let found = records.get_many(&keys)?;
    let mut held = Vec::new();
    for (node, record) in nodes.iter().zip(&found) {
        let lead = record.as_ref().and_then(read::<NodeLead>);
        held.extend(lead.map(|(lead, revision)| (node.clone(), lead, revision)));
    }
    held.retain(|(_, lead, _)| !lead.is_free && lead.reign != me.controller);
    let reigns: BTreeSet<String> = held.iter().map(|(_, lead, _)| lead.reign.clone()).collect();
    let mut states = BTreeMap::new();
    for controller in reigns {
        let found = records.get(&ReignRecord::key(&controller))?;
        let record = found.as_ref().and_then(read::<ReignRecord>);
        let seen = record.as_ref().map(|(record, revision)| (record, *revision));
        let state = watch.look(&controller, seen, runs, now);
        states.insert(controller, state);
    }
    let state_of = |lead: &NodeLead| states.get(&lead.reign).copied().unwrap_or(ReignState::Over);
    let held = held.into_iter().map(|(node, lead, revision)| {
        let state = state_of(&lead);
        (node, HeldLead { lead, revision, state })
    });
    Ok(held.filter(|(_, held)| held.state.holds()).collect())
}

/// Leads of these nodes that were not given back, whether their controller is at work or not.
pub fn shown_leads<R: Records>(
    records: &mut R,
    nodes: &[NodeName],
) -> Result<BTreeMap<NodeName, NodeLead>, Error> {
    let keys: Vec<String> = nodes.iter().map(NodeLead::key).collect();
    let found = records.get_many(&keys)?;
    let leads = nodes.iter().zip(&found).filter_map(|(node, record)| {
        let (lead, _) = read::<NodeLead>(record.as_ref()?)?;
        (!lead.is_free).then(|| (node.clone(), lead))
    });
    Ok(leads.collect())
}

pub(crate) fn read<T: DeserializeOwned>(record: &Record) -> Option<(T, u64)> {
    Some((serde_json::from_slice(&record.value).ok()?, record.revision))
}

fn written<T: Serialize>(value: &T) -> Vec<u8> {
    // Plain strings and numbers: it can always be written.
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests;
