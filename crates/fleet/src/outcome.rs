//! The states of a run, and how it can end.

use packetrig_units::Blame;
use packetrig_units::text::deserialize_line;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// Nothing has been asked of anyone.
    Draft,
    /// Nodes read the plan, open ports and begin to receive.
    Preparing,
    Armed,
    /// The start instant is given out.
    Committed,
    /// All accepted it; it holds.
    Confirmed,
    Running,
    /// Senders are done; what is under way still arrives.
    Draining,
    /// Receivers stop; results come in.
    Collecting,
    /// Ended: all results are here.
    Complete,
    /// Ended: something is missing.
    Partial,
    /// Ended: given up before anything was sent, or by force.
    Aborted,
    /// Ended: it could not start.
    Failed,
}

impl RunState {
    /// Whether nothing comes after it.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Complete | Self::Partial | Self::Aborted | Self::Failed)
    }
}

impl RunState {
    /// What happens in this state, for a person who watches the run.
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

/// What went wrong on a node, as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFault {
    pub blame: Blame,
    /// What and where; a lower-case fragment. One that was read is one line.
    #[serde(deserialize_with = "deserialize_line::<LONGEST_FAULT, _>")]
    pub text: String,
}

/// Longest text of a fault, in characters: a refusal may name many streams.
const LONGEST_FAULT: usize = 16_384;

impl fmt::Display for NodeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl NodeFault {
    /// No start time suited all nodes of a run. Nothing was sent.
    pub(crate) fn no_common_start(attempts: u32, late: &str) -> Self {
        Self { blame: Blame::Peer, text: format!("{NO_START} in {attempts} attempts{late}") }
    }

    /// Whether the same run may well start at the next try.
    pub fn is_late_start(&self) -> bool {
        self.text.starts_with(NO_START) || self.text.contains(SPLIT_START)
    }
}

const NO_START: &str = "no start time was accepted by all nodes";
/// In each reason that a node did not start with the others.
pub(crate) const SPLIT_START: &str = "(split_start)";

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum RunOutcome {
    /// All results are here.
    Complete {
        /// The user stopped it.
        stopped: bool,
    },
    Partial {
        /// What, each with its node.
        reasons: Vec<String>,
        /// The user stopped it.
        stopped: bool,
    },
    /// The user gave it up.
    Aborted,
    /// It could not start.
    Failed { fault: NodeFault },
}

impl RunOutcome {
    /// The final state it belongs to.
    pub const fn state(&self) -> RunState {
        match self {
            Self::Complete { .. } => RunState::Complete,
            Self::Partial { .. } => RunState::Partial,
            Self::Aborted => RunState::Aborted,
            Self::Failed { .. } => RunState::Failed,
        }
    }
    /// What is missing, each with its node.
    pub fn reasons(&self) -> &[String] {
        if let Self::Partial { reasons, .. } = self { reasons } else { &[] }
    }
    /// Whether some of its nodes started and others did not, because the start was confirmed too late to them.
    pub fn is_split_start(&self) -> bool {
        self.reasons().iter().any(|reason| reason.contains(SPLIT_START))
    }
    /// Whether the user stopped it before its plan ended or asked to give it up.
    pub const fn was_stopped(&self) -> bool {
        matches!(self, Self::Complete { stopped: true } | Self::Partial { stopped: true, .. } | Self::Aborted)
    }
}
