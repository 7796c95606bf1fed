//! The report of a run: one value from which tables, files and the catalogue are made.
//!
//! [`assemble_report`] is a pure function of the plan, the node results and the outcome of the run. It measures nothing and
//! invents nothing: figures that no node reported are absent.
//!
//! A stream has one row, even with several receivers, so that a sum over rows never counts a frame twice; the split by
//! receiving port is inside the row.
//!
//! This crate also defines the [`event`]s that a run emits before its report, and its [`outcome`].
#![forbid(unsafe_code)]

mod assemble;
mod claims;
mod clocks;
pub mod columns;
mod comparable;
mod doubt;
pub mod event;
mod figures;
mod frame_loss;
mod histogram;
mod judgement;
mod limits;
mod load;
mod lookup;
mod losses;
mod names;
mod nodes;
mod out_of_order;
mod outages;
pub mod outcome;
mod ports;
mod probes;
mod sent_ahead;
mod stream_criteria;
mod streams;
#[cfg(test)]
mod tests;
mod times;
mod verdict;

pub use assemble::assemble_report;
pub use comparable::run_figures;
pub use doubt::PortEventReport;
pub use figures::{ErrorDistribution, LatencyBounds, LatencyError, LatencyReport, MeanRate};
pub use frame_loss::FrameLoss;
pub use histogram::LatencyBucket;
pub use judgement::{CriterionLine, CriterionResult, SubjectJudgement};
pub use load::LoadFactor;
pub use losses::{ContentReport, MisdeliveryReport};
pub use names::{NodeName, PlanHash, PortPlace, RunId};
pub use nodes::{NodeClock, NodeReport, NodeStart, SkewReport, SkewVerdict};
pub use outages::{OutageReport, OutageRow};
pub use packetrig_plan::criteria::{AcceptanceCriteria, CarrierLossCause, LatencyFigure, LatencyLimit};
pub use ports::{LossPlaces, PortReport};
pub use probes::{ClockRelationSource, ProbeFindings, ProbeLineReport, ProbesReport};
pub use streams::{ArrivedFrames, PortShare, SentFrames, StreamReport};
pub use times::{RunStateTime, RunTimes};
pub use verdict::RunVerdict;

use crate::outcome::RunOutcome;
use packetrig_stats::caveat::Caveat;
use packetrig_stats::ledger::{FrameLedger, LedgerImbalance};
use packetrig_stats::limit::RigLimit;
use packetrig_stats::result::CaptureResult;
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};

/// Version of the report's format. A reader refuses a report with a higher version.
pub const SCHEMA_VERSION: u32 = 1;

/// Facts about a run before it begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFacts {
    pub run: RunId,
    /// Name of the run from the user.
    pub name: String,
    /// Hash of the plan's text.
    pub plan: PlanHash,
    /// Time of the request, nanoseconds since 1970 (UTC).
    pub started_wall_ns: u64,
    /// Seed for the values that the plan leaves random: the same seed sends the same frames.
    pub seed: u64,
    /// Nodes of the run.
    pub nodes: Vec<NodeName>,
    /// Node and interface of each port of the plan; empty on one machine.
    pub places: Vec<PortPlace>,
    /// Acceptance criteria of the user.
    pub criteria: AcceptanceCriteria,
    /// Measured limits of this rig; empty without a calibration.
    pub limits: Vec<RigLimit>,
    /// True if users started and stopped the streams during the run, so that no common schedule exists.
    pub steered: bool,
}

/// Number of nodes that reported, and number of nodes of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportCoverage {
    /// Number of nodes with a received result.
    pub reported: usize,
    /// Number of nodes of the run.
    pub expected: usize,
}

impl ReportCoverage {
    /// True if no node is missing.
    pub const fn is_full(self) -> bool {
        self.reported == self.expected
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// Version of this report's format.
    pub schema_version: u32,
    pub packetrig_version: String,
    pub run: RunId,
    /// Name of the run from the user.
    pub name: String,
    /// Hash of the plan's text.
    pub plan_sha256: PlanHash,
    /// Time of the request, nanoseconds since 1970 (UTC).
    pub started_wall_ns: u64,
    /// Seed for the values that the plan leaves random: the same seed sends the same frames.
    pub seed: u64,
    /// Time from the start of the run until the last sender was done; absent if no node reported.
    pub sending: Option<Nanos>,
    /// Time at which the run entered each state, on the controller's clock; absent if the times were not recorded.
    #[serde(default)]
    pub times: Option<RunTimes>,
    pub outcome: RunOutcome,
    /// Verdict on the run, according to its criteria.
    pub verdict: RunVerdict,
    /// Criteria of the verdict.
    pub criteria: AcceptanceCriteria,
    /// The verdict on each criterion.
    #[serde(default)]
    pub judged: Vec<CriterionLine>,
    pub coverage: ReportCoverage,
    /// One row per node of the run.
    #[serde(default)]
    pub nodes: Vec<NodeReport>,
    /// Difference between the starts of senders on different nodes; absent unless several nodes sent or may have sent.
    #[serde(default)]
    pub skew: Option<SkewReport>,
    /// Part of the load of several senders that arrived; absent if only one port sent, or if a rate is unknown.
    #[serde(default)]
    pub load: Option<LoadFactor>,
    /// One row per stream, in plan order.
    pub streams: Vec<StreamReport>,
    /// One row per port that reported, in plan order.
    pub ports: Vec<PortReport>,
    /// The probes of the run; absent if its plan has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<ProbesReport>,
    /// Frame counts of the whole run, by account.
    pub ledger: FrameLedger,
    /// Rules of the ledger that do not hold.
    pub imbalances: Vec<LedgerImbalance>,
    /// Rules that could not be checked.
    pub unchecked: Vec<String>,
    /// Places at which frames were lost.
    pub lost: LossPlaces,
    pub captures: Vec<CaptureResult>,
    pub caveats: Vec<Caveat>,
    /// Limits of this rig with the drivers and back ends of the run's ports, as measured before the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rig_limits: Vec<RigLimit>,
}
