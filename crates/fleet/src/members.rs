//! Members of the fleet: the last hello of each node, and its age.
//!
//! The input is [`NodeHello`]s and the time. A node that counts as lost has only sent no hello for a while: it may
//! still send test traffic until its lease ends.
//!
//! Invariant: a new incarnation is a restart, however quickly the node came back; a late hello of an
//! earlier incarnation changes nothing.

mod row;

pub use row::MemberRow;

use crate::hello::{FLEET_PROTOCOL_VERSION, NodeHello, ProtocolVersion};
use crate::known::KnownNode;
use crate::labels::OperatorLabels;
use crate::lead::NodeLead;
use crate::message::{MessageHead, NodeName, RunId};
use crate::term::MAX_EPOCH;
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Time without a hello after which a node is suspect. A node sends a hello once a second.
pub const SUSPECT_AFTER: Nanos = Nanos::from_secs(3);
/// Time without a hello after which a node is lost.
pub const LOST_AFTER: Nanos = Nanos::from_secs(10);

/// Maximum number of earlier incarnations of a node that are remembered.
const MAX_REMEMBERED_INCARNATIONS: usize = 4096;

/// Presence of a node, according to the age of its last hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodePresence {
    Fresh,
    /// No hello for [`SUSPECT_AFTER`].
    Suspect,
    /// No hello for [`LOST_AFTER`].
    Lost,
}

impl NodePresence {
    const fn from_silence(silence: Nanos) -> Self {
        match silence.as_u64() {
            silence if silence >= LOST_AFTER.as_u64() => Self::Lost,
            silence if silence >= SUSPECT_AFTER.as_u64() => Self::Suspect,
            _ => Self::Fresh,
        }
    }
}

impl fmt::Display for NodePresence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fresh => "fresh",
            Self::Suspect => "suspect",
            Self::Lost => "lost",
        })
    }
}

/// Protocol versions of a node and of this controller that cannot work together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "its packetrig {version} speaks protocol {}.{}; this controller accepts {}.{} and {}.{}",
    node.major, node.minor, ours.major, ours.minor, ours.major, ours.minor.saturating_sub(1)
)]
pub struct ProtocolMismatch {
    /// Version of packetrig on the node.
    pub version: String,
    pub node: ProtocolVersion,
    pub ours: ProtocolVersion,
}

impl ProtocolMismatch {
    /// Compares the protocol of a node with that of the controller, `ours`. `None` if they can work together: the major
    /// versions are equal, and the node's minor version is equal or one lower.
    pub fn find_protocol_mismatch(hello: &NodeHello, ours: ProtocolVersion) -> Option<Self> {
        let node = hello.protocol;
        let fits = node.major == ours.major
            // This lets a fleet keep working while its nodes are updated one by one, after the controller.
            && (node.minor == ours.minor || node.minor.checked_add(1) == Some(ours.minor));
        (!fits).then(|| Self { version: hello.version.clone(), node, ours })
    }
}

/// A change of a node that the members have noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberChange {
    /// First hello of the node.
    Joined(NodeName),
    /// The node's agent was restarted, so the run that it took part in is lost.
    Restarted {
        node: NodeName,
        /// The run that the node took part in, according to its last hello.
        lost: Option<MessageHead>,
    },
    /// The presence of the node has changed.
    Presence(NodeName, NodePresence),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetMember {
    hello: NodeHello,
    heard: MonoTime,
    presence: NodePresence,
    earlier: BTreeSet<u64>,
    /// Age of the hello when it was restored from the record of an earlier controller; `None` once this controller
    /// itself has received a hello of the node.
    remembered: Option<Nanos>,
}

impl FleetMember {
    /// Last hello that this controller, or an earlier one, has received from the node.
    pub const fn hello(&self) -> &NodeHello {
        &self.hello
    }
    /// Presence of the node at the time `now`.
    pub const fn presence_at(&self, now: MonoTime) -> NodePresence {
        NodePresence::from_silence(self.silence_at(now))
    }
    /// True if this controller itself has received a hello of the node.
    pub const fn was_heard_by_this_controller(&self) -> bool {
        self.remembered.is_none()
    }
    const fn silence_at(&self, now: MonoTime) -> Nanos {
        // For a restored node, the age of the hello at that time is added.
        let before = if let Some(before) = self.remembered { before } else { Nanos::ZERO };
        Nanos::new(now.since(self.heard).as_u64().saturating_add(before.as_u64()))
    }
    /// Protocol versions, if they keep this controller from working with the node; otherwise `None`.
    pub fn protocol_mismatch(&self) -> Option<ProtocolMismatch> {
        ProtocolMismatch::find_protocol_mismatch(&self.hello, FLEET_PROTOCOL_VERSION)
    }
}

/// Result of a node in an attempt of a run that is still on the node, because no controller has collected it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UncollectedResult {
    pub node: NodeName,
    pub run: RunId,
    pub attempt: u32,
    pub segments: u64,
}

/// The nodes of the fleet that are known so far, with their labels and leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetMembers {
    nodes: BTreeMap<NodeName, FleetMember>,
    labels: BTreeMap<NodeName, OperatorLabels>,
    leads: BTreeMap<NodeName, NodeLead>,
}

impl FleetMembers {
    /// Handles a hello of a node, and returns the changes since the node's last hello.
    pub fn on_hello(&mut self, from: &NodeName, hello: NodeHello, now: MonoTime) -> Vec<MemberChange> {
        // A node that was restored from a record counts as new: this controller has not received a hello of it before.
        let heard_before = self.nodes.get_mut(from).filter(|member| member.remembered.is_none());
        let Some(member) = heard_before else {
            let member = FleetMember {
                hello,
                heard: now,
                presence: NodePresence::Fresh,
                earlier: BTreeSet::new(),
                remembered: None,
            };
            self.nodes.insert(from.clone(), member);
            return vec![MemberChange::Joined(from.clone())];
        };
        // A late hello of an earlier incarnation must not undo the restart.
        if member.earlier.contains(&hello.incarnation) {
            return Vec::new();
        }
        let mut changes = Vec::new();
        if member.hello.incarnation != hello.incarnation {
            // The list is bounded: a node that invents incarnations must not fill the memory.
            if member.earlier.len() < MAX_REMEMBERED_INCARNATIONS {
                member.earlier.insert(member.hello.incarnation);
            }
            // The old hello names the run. The new hello comes from an agent that does not know the run.
            changes.push(MemberChange::Restarted { node: from.clone(), lost: member.hello.busy.clone() });
        }
        if member.presence != NodePresence::Fresh {
            member.presence = NodePresence::Fresh;
            changes.push(MemberChange::Presence(from.clone(), NodePresence::Fresh));
        }
        member.hello = hello;
        member.heard = now;
        changes
    }

    /// Adds a node from the record of an earlier controller, unless this controller has already received a hello of it.
    pub fn restore_node(&mut self, node: &NodeName, known: &KnownNode, wall_clock_ns: u64, now: MonoTime) {
        // However new the record is, the node counts as lost until this controller itself receives a hello of it.
        let silent = Nanos::new(wall_clock_ns.saturating_sub(known.heard_at)).max(LOST_AFTER);
        // A hello that this controller has received is newer than any record.
        self.nodes.entry(node.clone()).or_insert_with(|| FleetMember {
            hello: known.to_hello(),
            heard: now,
            presence: NodePresence::Lost,
            earlier: BTreeSet::new(),
            remembered: Some(silent),
        });
    }

    /// Replaces the labels that the operator has given to nodes.
    pub fn replace_labels(&mut self, labels: BTreeMap<NodeName, OperatorLabels>) {
        self.labels = labels;
    }

    /// Replaces the leads that controllers hold on nodes now.
    pub fn replace_leads(&mut self, leads: BTreeMap<NodeName, NodeLead>) {
        self.leads = leads;
    }

    /// Computes the presence of all nodes, and returns its changes since the last call.
    pub fn update_presence(&mut self, now: MonoTime) -> Vec<MemberChange> {
        let silent = self.nodes.iter_mut().filter_map(|(name, member)| {
            let presence = member.presence_at(now);
            let is_new = presence != member.presence;
            member.presence = presence;
            is_new.then(|| MemberChange::Presence(name.clone(), presence))
        });
        silent.collect()
    }

    /// Forgets a node that was removed from the fleet.
    pub fn forget_node(&mut self, node: &NodeName) {
        self.nodes.remove(node);
    }

    /// Returns a node by name.
    pub fn get(&self, node: &NodeName) -> Option<&FleetMember> {
        self.nodes.get(node)
    }

    /// Iterates over all nodes by name.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeName, &FleetMember)> {
        self.nodes.iter()
    }

    /// Highest valid epoch that any of these nodes has seen; 0 without one. A controller that wants to lead them
    /// needs a higher epoch. Numbers from [`MAX_EPOCH`] on are ignored, so a forged number does not hide the
    /// epochs of other nodes.
    pub fn highest_epoch(&self, nodes: &BTreeSet<NodeName>) -> u64 {
        let epochs = nodes.iter().filter_map(|node| Some(self.nodes.get(node)?.hello.epoch));
        epochs.filter(|epoch| *epoch < MAX_EPOCH).max().unwrap_or(0)
    }

    /// Iterates over the results that are still on nodes, because no controller has collected them.
    pub fn iter_uncollected_results(&self) -> impl Iterator<Item = UncollectedResult> {
        self.nodes.iter().flat_map(|(name, member)| {
            member.hello.spooled.iter().map(move |(run, attempt, segments)| UncollectedResult {
                node: name.clone(),
                run: run.clone(),
                attempt: *attempt,
                segments: *segments,
            })
        })
    }

    /// Returns one row for each node, in the order of their names.
    pub fn member_rows(&self, now: MonoTime) -> Vec<MemberRow> {
        let none = OperatorLabels::default();
        let rows = self.nodes.iter().map(|(name, member)| {
            let labels = self.labels.get(name).unwrap_or(&none);
            MemberRow {
                lead: self.leads.get(name).cloned(),
                ..MemberRow::from_member(name, member, labels, now)
            }
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> NodeName {
        NodeName(text.to_owned())
    }

    fn at(ms: u64) -> MonoTime {
        MonoTime::from_nanos(ms * 1_000_000)
    }

    fn hello(incarnation: u64) -> NodeHello {
        NodeHello { incarnation, protocol: FLEET_PROTOCOL_VERSION, ..NodeHello::default() }
    }

    #[test]
    fn member_presence_follows_silence_and_recovery() {
        let (mut members, a) = (FleetMembers::default(), name("a"));
        assert_eq!(members.on_hello(&a, hello(1), at(0)), [MemberChange::Joined(a.clone())]);
        assert_eq!(members.update_presence(at(2_999)), []);
        assert_eq!(
            members.update_presence(at(3_000)),
            [MemberChange::Presence(a.clone(), NodePresence::Suspect)]
        );
        assert_eq!(members.update_presence(at(9_999)), []);
        assert_eq!(
            members.update_presence(at(10_000)),
            [MemberChange::Presence(a.clone(), NodePresence::Lost)]
        );
        assert_eq!(members.member_rows(at(10_500))[0].silent, Nanos::from_millis(10_500));
        let back = members.on_hello(&a, hello(1), at(11_000));
        assert_eq!(back, [MemberChange::Presence(a.clone(), NodePresence::Fresh)]);
        assert_eq!(members.on_hello(&a, hello(1), at(12_000)), []);
    }

    #[test]
    fn new_incarnation_supersedes_late_old_hello() {
        let (mut members, a) = (FleetMembers::default(), name("a"));
        let head = MessageHead {
            run: RunId("r".into()),
            attempt: 1,
            epoch: 4,
            plan: crate::message::PlanHash::from_document(""),
        };
        members.on_hello(&a, NodeHello { busy: Some(head.clone()), ..hello(7) }, at(0));
        let restarted = MemberChange::Restarted { node: a.clone(), lost: Some(head) };
        assert_eq!(members.on_hello(&a, hello(3), at(1)), [restarted]);
        assert_eq!(members.on_hello(&a, NodeHello { epoch: 99, ..hello(7) }, at(2)), []);
        let row = &members.member_rows(at(2))[0];
        assert_eq!((row.hello.incarnation, row.restarts, row.hello.epoch), (3, 1, 0));
    }

    #[test]
    fn forged_epoch_does_not_raise_highest_epoch() {
        let mut members = FleetMembers::default();
        let nodes = |names: &[&str]| names.iter().map(|node| name(node)).collect::<BTreeSet<_>>();
        assert_eq!(members.highest_epoch(&nodes(&["a"])), 0);
        for (node, epoch) in [("a", 4), ("b", 9), ("c", 2), ("forged", u64::MAX), ("last", MAX_EPOCH)] {
            members.on_hello(&name(node), NodeHello { epoch, ..hello(1) }, at(0));
        }
        assert_eq!(members.highest_epoch(&nodes(&["a", "b", "c"])), 9);
        assert_eq!(members.highest_epoch(&nodes(&["a", "c"])), 4, "of those that are wanted");
        assert_eq!(members.highest_epoch(&nodes(&["a", "b", "c", "forged", "last"])), 9);
    }

    #[test]
    fn protocol_skew_allows_one_older_minor() {
        let skew = |major, minor| {
            let said = NodeHello {
                protocol: ProtocolVersion { major, minor },
                version: "9.9".into(),
                ..NodeHello::default()
            };
            ProtocolMismatch::find_protocol_mismatch(&said, ProtocolVersion { major: 2, minor: 5 })
        };
        assert_eq!((skew(2, 5), skew(2, 4)), (None, None));
        for (major, minor) in [(2, 3), (2, 6), (1, 5), (3, 5), (2, u16::MAX)] {
            assert!(skew(major, minor).is_some(), "{major}.{minor}");
        }
        let text = skew(2, 6).unwrap().to_string();
        assert_eq!(text, "its packetrig 9.9 speaks protocol 2.6; this controller accepts 2.5 and 2.4");
    }

    #[test]
    fn member_hindrance_names_its_cause() {
        let mut members = FleetMembers::default();
        let head = MessageHead {
            run: RunId("r1".into()),
            attempt: 1,
            epoch: 1,
            plan: crate::message::PlanHash::from_document(""),
        };
        members.on_hello(&name("a"), NodeHello { busy: Some(head), ..hello(1) }, at(0));
        assert_eq!(members.member_rows(at(0))[0].find_exclusion_reason(None), None, "nobody leads it");
        let lead = NodeLead {
            controller: "c1".into(),
            epoch: 1,
            run: RunId("r1".into()),
            user: "alice".into(),
            host: "rig7".into(),
            since_wall_ns: 50_580_000_000_000,
            is_free: false,
        };
        members.replace_leads(BTreeMap::from([(name("a"), lead)]));
        let row = |now| members.member_rows(at(now)).remove(0);
        assert_eq!(
            row(0).find_exclusion_reason(None).unwrap(),
            "it belongs to run r1 of alice@rig7 since 14:03 UTC"
        );
        assert_eq!(row(0).find_exclusion_reason(Some(&RunId("r1".into()))), None);
        assert_eq!(
            row(20_000).find_exclusion_reason(None).unwrap(),
            "it does not answer; it was last heard 20s ago"
        );
    }

    /// A controller of protocol 2 would lead the whole fleet, and a node of that version reports to nobody in which
    /// epoch it is led.
    #[test]
    fn protocol_2_and_3_refuse_each_other() {
        let (two, three) = (ProtocolVersion { major: 2, minor: 0 }, FLEET_PROTOCOL_VERSION);
        assert_eq!(three.major, 3);
        for (node, controller) in [(two, three), (three, two)] {
            let said = NodeHello { protocol: node, version: "1.2".into(), ..NodeHello::default() };
            let text = ProtocolMismatch::find_protocol_mismatch(&said, controller).unwrap().to_string();
            let ProtocolVersion { major, minor } = node;
            let words = format!("its packetrig 1.2 speaks protocol {major}.{minor}; this controller accepts");
            assert!(text.starts_with(&words), "{text}");
        }
    }
}
