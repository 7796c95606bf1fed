//! States of a run, and its outcomes.

use packetrig_units::Blame;
use packetrig_units::text::deserialize_line;
use serde::{Deserialize, Serialize};
use std::fmt;

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// No command was sent to a node yet.
    Draft,
    /// Nodes read the plan, open ports and begin to receive.
    Preparing,
    Armed,
    /// The start time was sent to the nodes.
    Committed,
    /// All nodes accepted the start time; it cannot change any more.
    Confirmed,
    Running,
    /// Senders are done; frames in flight still arrive.
    Draining,
    /// Receivers stop; results arrive.
    Collecting,
    /// Ended: all results have arrived.
    Complete,
    /// Ended: a part of the results is missing.
    Partial,
    /// Ended: the run was aborted before anything was sent, or by force.
    Aborted,
    /// Ended: the run could not start.
    Failed,
}

impl RunState {
    /// True if no state follows.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Complete | Self::Partial | Self::Aborted | Self::Failed)
    }
}

impl RunState {
    /// Present activity, for a person who watches the run.
    pub const fn activity(self) -> &'static str {
        match self {
            Self::Draft => "reading the plan",
            Self::Preparing => "opening ports",
            Self::Armed => "ports are ready",
            Self::Committed | Self::Confirmed => "ports are ready, waiting for the start time",
            Self::Running => "sending",
            Self::Draining => "waiting for late frames",
            Self::Collecting => "collecting results",
            Self::Complete => "complete",
            Self::Partial => "partial",
            Self::Aborted => "aborted",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Draft => "draft",
            Self::Preparing => "preparing",
            Self::Armed => "armed",
            Self::Committed => "committed",
            Self::Confirmed => "confirmed",
            Self::Running => "running",
            Self::Draining => "draining",
            Self::Collecting => "collecting",
            Self::Complete => "complete",
            Self::Partial => "partial",
            Self::Aborted => "aborted",
            Self::Failed => "failed",
        })
    }
}

/// A fault in the form in which a node reports it to its controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFault {
    pub blame: Blame,
    /// What failed and where, as a phrase that begins in lower case. A text from another machine is
    /// limited to one line.
    #[serde(deserialize_with = "deserialize_line::<MAX_FAULT_CHARACTERS, _>")]
    pub text: String,
}

/// Longest text of a fault, in characters: a refusal may name many streams.
const MAX_FAULT_CHARACTERS: usize = 16_384;

impl fmt::Display for NodeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl NodeFault {
    /// Fault of a run for which no start time was accepted by all nodes, so that no frame was sent.
    pub fn no_common_start(attempts: u32, late: &str) -> Self {
        Self { blame: Blame::Peer, text: format!("{NO_START_TIME_REASON} in {attempts} attempts{late}") }
    }

    /// True if the start time reached a node too late, so that the run may start if it is repeated.
    pub fn is_late_start(&self) -> bool {
        self.text.starts_with(NO_START_TIME_REASON) || self.text.contains(SPLIT_START_MARK)
    }
}

const NO_START_TIME_REASON: &str = "no start time was accepted by all nodes";
/// Prefix of each reason why a node did not start with the other nodes.
pub const SPLIT_START_MARK: &str = "(split_start)";

/// Outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum RunOutcome {
    /// All results have arrived.
    Complete {
        /// True if the user stopped the run.
        stopped: bool,
    },
    Partial {
        /// Missing parts, each with its node.
        reasons: Vec<String>,
        /// True if the user stopped the run.
        stopped: bool,
    },
    /// The user aborted the run.
    Aborted,
    /// The run could not start.
    Failed { fault: NodeFault },
}

impl RunOutcome {
    /// Final state of this outcome.
    pub const fn state(&self) -> RunState {
        match self {
            Self::Complete { .. } => RunState::Complete,
            Self::Partial { .. } => RunState::Partial,
            Self::Aborted => RunState::Aborted,
            Self::Failed { .. } => RunState::Failed,
        }
    }
    /// Missing parts, each with its node.
    pub fn reasons(&self) -> &[String] {
        if let Self::Partial { reasons, .. } = self { reasons } else { &[] }
    }
    /// True if some nodes started and others did not, because the confirmation reached them too late.
    pub fn is_split_start(&self) -> bool {
        // Reasons are plain texts in reports and in messages of nodes, so a fixed word in the text marks this
        // reason.
        self.reasons().iter().any(|reason| reason.contains(SPLIT_START_MARK))
    }
    /// True if the start time reached some nodes too late, so that all nodes may start if the run is repeated.
    pub fn is_late_start(&self) -> bool {
        match self {
            // A run may be repeated without a change only if it sent nothing, or if it names its split start.
            Self::Failed { fault } => fault.is_late_start(),
            _ => self.is_split_start(),
        }
    }
    /// True if the user stopped or aborted the run before the end of its plan.
    pub const fn was_stopped(&self) -> bool {
        matches!(self, Self::Complete { stopped: true } | Self::Partial { stopped: true, .. } | Self::Aborted)
    }
}
