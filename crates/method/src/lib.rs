//! Test methods: how many frames per second a device carries, how long it takes to recover, whether two devices differ.
//!
//! A method is a state machine ([`TestMethod`]). It orders a trial, gets the result of that trial, and orders the next
//! one. It uses no interface and reads no clock. So a method works in the same way with the rig, a simulated device
//! ([`sim`]) and a recorded [`journal`], and a method that was interrupted resumes from its journal.
//!
//! A trial that the rig could not sustain says nothing about the device. [`MethodSession`] repeats such a
//! trial. If the rig fails again, the method receives the result, and a bound from that trial is marked as set
//! by the rig ([`BoundCause::Rig`]).
#![forbid(unsafe_code)]

mod any_method;
pub mod bisection;
pub mod comparison;
pub mod confidence;
pub mod convergence;
mod cost;
mod figures;
pub mod journal;
pub mod line_rate;
mod load;
pub mod loss_share;
pub mod mlrsearch;
pub mod rfc2544;
mod rounding;
mod sample_statistics;
mod search_options;
mod session;
pub mod sim;
pub mod tables;
mod trial;
mod verdict;
mod waits;

pub use any_method::{
    LoadedSender, MethodOptions, MethodOptionsError, MethodReport, MethodResult, SCHEMA_VERSION,
    StartedMethod,
};
pub use cost::{CostRange, RehearsedCost};
pub use load::Load;
pub use sample_statistics::SampleStatistics;
pub use search_options::{BisectOptions, MlrsearchOptions, MlrsearchResult};
pub use session::{MethodSession, SessionError};
pub use trial::{
    LoadStep, LostFrames, StreamTrial, TimeRange, TrialEvent, TrialLatency, TrialLength, TrialPurpose,
    TrialRequest, TrialResult,
};
pub use verdict::{JudgedCriterion, MethodJudgement, MethodVerdict};
pub use waits::TrialWaits;

use serde::{Deserialize, Serialize};

/// A test method: a state machine that orders trials.
pub trait TestMethod {
    /// Returns the trial to make next, or `None` if the method is over. Calling it again without
    /// [`on_result`](Self::on_result) returns the same trial.
    fn next_trial_request(&self) -> Option<TrialRequest>;

    /// Processes the result of the trial that [`next_trial_request`](Self::next_trial_request) returned.
    fn on_result(&mut self, result: &TrialResult);

    /// Describes the result so far in one line for a terminal: `64 B throughput: 512 000 to 540 000 frames/s`.
    fn describe_progress(&self) -> String;
}

/// Reason why a searched load is not higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BoundCause {
    /// The device lost frames above the bound.
    Device,
    /// The rig could not sustain the trials above the bound: the device may carry more.
    Rig,
    /// The device carries the highest requested load.
    Range,
}
