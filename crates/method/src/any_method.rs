//! All methods as one type, from serialised options to a serialised result.
//!
//! Options, results and reports are published JSON. Their names do not change within a schema version.

use crate::bisection::{BisectionMethod, BisectionPlanError, BisectionResult};
use crate::comparison::{ComparisonMethod, ComparisonOptions, ComparisonResult};
use crate::convergence::{ConvergenceMethod, ConvergenceOptions, ConvergenceResult};
use crate::loss_share::{LossShareMethod, LossShareOptions, LossShareResult};
use crate::mlrsearch::{MlrOptionsError, MlrSearch};
use crate::rfc2544::{Rfc2544Method, Rfc2544Options, Rfc2544Result};
use crate::search_options::{
    BisectOptions, MlrsearchOptions, MlrsearchResult, judge_bisection, judge_mlrsearch,
};
use crate::{Load, MethodJudgement, TestMethod, TrialRequest, TrialResult, TrialWaits};
use serde::{Deserialize, Serialize};

/// The schema version of [`MethodReport`] and of everything in it.
pub const SCHEMA_VERSION: u32 = 1;

/// The options of a method; the JSON field `method` names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "method", rename_all = "kebab-case")]
pub enum MethodOptions {
    Rfc2544(Box<Rfc2544Options>),
    Convergence(ConvergenceOptions),
    Compare(ComparisonOptions),
    LossShare(LossShareOptions),
    Mlrsearch(MlrsearchOptions),
    Bisect(BisectOptions),
}

/// A running method of any kind, for callers that get it from options.
#[derive(Clone, Debug)]
pub enum StartedMethod {
    Rfc2544(Box<Rfc2544Method>),
    Convergence(ConvergenceMethod),
    Compare(ComparisonMethod),
    LossShare(LossShareMethod),
    Mlrsearch { search: Box<MlrSearch>, minimum: Option<Load> },
    Bisect { search: BisectionMethod, minimum: Option<Load> },
}

/// Error: the options do not define a valid test.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MethodOptionsError {
    #[error("{method}: {option} {problem}")]
    Option {
        /// Name of the method on the command line.
        method: &'static str,
        /// The field of the options.
        option: &'static str,
        problem: &'static str,
    },
    #[error("the method `mlrsearch` cannot start")]
    Mlrsearch(#[from] MlrOptionsError),
    #[error("the method `bisect` cannot start")]
    Bisect(#[from] BisectionPlanError),
}

/// The result of a method so far; the JSON field `method` names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "method", rename_all = "kebab-case")]
pub enum MethodResult {
    Rfc2544(Rfc2544Result),
    Convergence(ConvergenceResult),
    Compare(ComparisonResult),
    LossShare(LossShareResult),
    Mlrsearch(MlrsearchResult),
    Bisect(BisectionResult),
}

/// The published report of a method.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodReport {
    pub schema_version: u32,
    pub options: MethodOptions,
    /// True if all trials were made.
    pub is_complete: bool,
    pub result: MethodResult,
    pub judgement: MethodJudgement,
    /// The ports that send, if there are several. Loads are sums over all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub senders: Vec<LoadedSender>,
}

/// A port that sends, and its share of every load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadedSender {
    pub name: String,
    /// The share, from 0 to 1.
    pub share: f64,
}

impl MethodReport {
    /// Returns the report with these sending ports.
    #[must_use]
    pub fn with_senders(self, senders: Vec<LoadedSender>) -> Self {
        // With one sender, the other tables already show its loads.
        let are_several = senders.len() > 1;
        Self { senders: if are_several { senders } else { Vec::new() }, ..self }
    }
}

impl MethodOptions {
    /// Name of the method on the command line.
    pub const fn name(&self) -> &'static str {
        // The same words as the JSON field `method`, so a method has one name in commands and in files.
        match self {
            Self::Rfc2544(_) => "rfc2544",
            Self::Convergence(_) => "convergence",
            Self::Compare(_) => "compare",
            Self::LossShare(_) => "loss-share",
            Self::Mlrsearch(_) => "mlrsearch",
            Self::Bisect(_) => "bisect",
        }
    }

    /// Returns the waits before and after a trial. The caller that makes the trial must observe them.
    pub fn trial_waits(&self, order: &TrialRequest) -> TrialWaits {
        match self {
            Self::Rfc2544(options) => options.trial_waits(order),
            Self::Convergence(options) => options.waits,
            Self::Compare(options) => options.waits,
            Self::LossShare(options) => options.waits,
            Self::Mlrsearch(options) => options.waits,
            Self::Bisect(options) => options.waits,
        }
    }

    /// Starts the method, before its first trial.
    pub fn start_method(&self) -> Result<StartedMethod, MethodOptionsError> {
        self.check_options()?;
        Ok(match self.clone() {
            Self::Rfc2544(options) => StartedMethod::Rfc2544(Box::new(Rfc2544Method::new(*options))),
            Self::Convergence(options) => StartedMethod::Convergence(ConvergenceMethod::new(options)),
            Self::Compare(options) => StartedMethod::Compare(ComparisonMethod::new(options)),
            Self::LossShare(options) => StartedMethod::LossShare(LossShareMethod::new(options)),
            Self::Mlrsearch(options) => StartedMethod::Mlrsearch {
                search: Box::new(MlrSearch::new(options.search)?),
                minimum: options.required_frames_per_second,
            },
            Self::Bisect(options) => StartedMethod::Bisect {
                search: BisectionMethod::new(options.search)?,
                minimum: options.required_frames_per_second,
            },
        })
    }

    fn check_options(&self) -> Result<(), MethodOptionsError> {
        let problem = match self {
            Self::Rfc2544(options) => options.find_problem(),
            Self::Convergence(options) => options.find_problem(),
            Self::Compare(options) => options.find_problem(),
            Self::LossShare(options) => options.find_problem(),
            // The constructors of these searches check their options.
            Self::Mlrsearch(_) | Self::Bisect(_) => None,
        };
        match problem {
            None => Ok(()),
            Some(OptionProblem { option, problem }) => {
                Err(MethodOptionsError::Option { method: self.name(), option, problem })
            }
        }
    }
}

/// Problem of an option: its value makes the test impossible or its result meaningless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OptionProblem {
    pub option: &'static str,
    pub problem: &'static str,
}

/// Returns the first check that found a problem.
pub(crate) fn find_first_problem(checks: &[(bool, &'static str, &'static str)]) -> Option<OptionProblem> {
    let found = checks.iter().find(|(is_problem, ..)| *is_problem);
    found.map(|(_, option, problem)| OptionProblem { option, problem })
}

impl StartedMethod {
    /// Returns the result so far.
    pub fn current_result(&self) -> MethodResult {
        match self {
            Self::Rfc2544(method) => MethodResult::Rfc2544(method.current_result().clone()),
            Self::Convergence(method) => MethodResult::Convergence(method.current_result()),
            Self::Compare(method) => MethodResult::Compare(method.current_result()),
            Self::LossShare(method) => MethodResult::LossShare(method.current_result()),
            Self::Mlrsearch { search, .. } => {
                MethodResult::Mlrsearch(MlrsearchResult { goals: search.current_results() })
            }
            Self::Bisect { search, .. } => MethodResult::Bisect(search.current_result()),
        }
    }

    /// Returns the verdict on the result so far.
    pub fn judge_result(&self) -> MethodJudgement {
        match self {
            Self::Rfc2544(method) => method.judge_result(),
            Self::Convergence(method) => method.judge_result(),
            Self::Compare(method) => method.judge_result(),
            Self::LossShare(method) => method.judge_result(),
            Self::Mlrsearch { search, minimum } => judge_mlrsearch(search, *minimum),
            Self::Bisect { search, minimum } => judge_bisection(search, *minimum),
        }
    }

    /// Builds the report that is published, with the result so far.
    pub fn build_report(&self, options: &MethodOptions) -> MethodReport {
        MethodReport {
            schema_version: SCHEMA_VERSION,
            options: options.clone(),
            is_complete: self.next_trial_request().is_none(),
            result: self.current_result(),
            // The method does not know the rig's senders; the caller adds them with `with_senders`.
            judgement: self.judge_result(),
            senders: Vec::new(),
        }
    }

    fn as_test_method(&self) -> &dyn TestMethod {
        match self {
            Self::Rfc2544(method) => method.as_ref(),
            Self::Convergence(method) => method,
            Self::Compare(method) => method,
            Self::LossShare(method) => method,
            Self::Mlrsearch { search, .. } => search.as_ref(),
            Self::Bisect { search, .. } => search,
        }
    }
}

impl TestMethod for StartedMethod {
    fn next_trial_request(&self) -> Option<TrialRequest> {
        self.as_test_method().next_trial_request()
    }

    fn on_result(&mut self, result: &TrialResult) {
        match self {
            Self::Rfc2544(method) => method.on_result(result),
            Self::Convergence(method) => method.on_result(result),
            Self::Compare(method) => method.on_result(result),
            Self::LossShare(method) => method.on_result(result),
            Self::Mlrsearch { search, .. } => search.on_result(result),
            Self::Bisect { search, .. } => search.on_result(result),
        }
    }

    fn describe_progress(&self) -> String {
        self.as_test_method().describe_progress()
    }
}
