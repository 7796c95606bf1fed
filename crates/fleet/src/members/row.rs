//! A node of the fleet as one row of a table, and the reason that keeps it from taking part in a run.

use super::{FleetMember, NodePresence, ProtocolMismatch};
use crate::hello::NodeHello;
use crate::labels::OperatorLabels;
use crate::lead::NodeLead;
use crate::message::{NodeName, RunId};
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};

/// A node as `fleet status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRow {
    pub node: NodeName,
    /// Presence of the node, according to the age of its last hello.
    pub presence: NodePresence,
    pub silent: Nanos,
    /// Number of restarts that this controller has noticed.
    pub restarts: usize,
    /// Protocol versions of node and controller, if they cannot work together.
    pub skew: Option<ProtocolMismatch>,
    /// Labels from the operator that are in effect.
    #[serde(default)]
    pub operator_labels: Vec<String>,
    /// Labels from the operator without effect, because the node's owner uses their keys.
    #[serde(default)]
    pub overruled_labels: Vec<String>,
    /// Lead of the controller that leads the node, if any.
    #[serde(default)]
    pub lead: Option<NodeLead>,
    pub hello: NodeHello,
}

impl MemberRow {
    pub(super) fn from_member(
        name: &NodeName,
        member: &FleetMember,
        labels: &OperatorLabels,
        now: MonoTime,
    ) -> Self {
        Self {
            node: name.clone(),
            presence: member.presence_at(now),
            silent: member.silence_at(now),
            restarts: member.earlier.len(),
            skew: member.protocol_mismatch(),
            operator_labels: labels.effective_labels(&member.hello),
            overruled_labels: labels.overruled_labels(&member.hello),
            lead: None,
            hello: member.hello.clone(),
        }
    }

    /// Returns the row as it would be after a further time `age` without a hello.
    #[must_use]
    pub fn with_added_age(mut self, age: Nanos) -> Self {
        self.silent = Nanos::new(self.silent.as_u64().saturating_add(age.as_u64()));
        self.presence = NodePresence::from_silence(self.silent);
        self
    }

    /// Replaces the operator's labels in this row; `None` removes them.
    pub fn set_operator_labels(&mut self, labels: Option<&OperatorLabels>) {
        self.operator_labels = labels.map(|labels| labels.effective_labels(&self.hello)).unwrap_or_default();
        self.overruled_labels = labels.map(|labels| labels.overruled_labels(&self.hello)).unwrap_or_default();
    }

    /// All labels in effect: labels of the node's owner, then labels that the operator added.
    pub fn labels(&self) -> impl Iterator<Item = &String> {
        self.hello.labels.iter().chain(&self.operator_labels)
    }

    /// Returns the reason why the node cannot take part in `run`; `None` if it can. A run of an earlier controller on
    /// the node is no reason: the next leader ends that run.
    pub fn find_exclusion_reason(&self, run: Option<&RunId>) -> Option<String> {
        // A lead for the same run is no obstacle, because it belongs to the caller.
        let lead = self.lead.as_ref().filter(|lead| Some(&lead.run) != run);
        // Silence is checked first, because other facts about a silent node may be out of date.
        if self.presence == NodePresence::Lost {
            // The text gives the time of the last hello that reached a controller. The node may
            // have become silent later.
            Some(format!("it does not answer; it was last heard {} ago", self.silent))
        } else if let Some(skew) = &self.skew {
            Some(skew.to_string())
        } else {
            lead.map(|lead| format!("it {lead}"))
        }
    }
}
