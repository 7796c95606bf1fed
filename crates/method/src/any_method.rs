//! Any method: from serialised options to a result that is serialised.
//!
//! Options, results and reports are published JSON. Their names do not change within a schema version.

use crate::comparison::{ComparisonOptions, ComparisonResult};
use crate::convergence::{ConvergenceOptions, ConvergenceResult};
use crate::loss_share::{LossShareOptions, LossShareResult};
use crate::rfc2544::{Rfc2544Options, Rfc2544Result};
use crate::{MethodJudgement, TrialOrder, TrialWaits};
use serde::{Deserialize, Serialize};

/// The version of [`MethodReport`] and of all that it holds.
pub const SCHEMA_VERSION: u32 = 1;

/// The options of a method; `method` says which one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "method", rename_all = "kebab-case")]
pub enum MethodOptions {
    Rfc2544(Box<Rfc2544Options>),
    Convergence(ConvergenceOptions),
    Compare(ComparisonOptions),
    LossShare(LossShareOptions),
}

/// The result of a method, as far as it has come; `method` says which one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "method", rename_all = "kebab-case")]
pub enum MethodResult {
    Rfc2544(Rfc2544Result),
    Convergence(ConvergenceResult),
    Compare(ComparisonResult),
    LossShare(LossShareResult),
}

/// What is published of a method.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodReport {
    pub schema_version: u32,
    pub options: MethodOptions,
    /// Whether all trials were made.
    pub is_complete: bool,
    pub result: MethodResult,
    pub judgement: MethodJudgement,
}

impl MethodOptions {
    /// As the command line names the method.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Rfc2544(_) => "rfc2544",
            Self::Convergence(_) => "convergence",
            Self::Compare(_) => "compare",
            Self::LossShare(_) => "loss-share",
        }
    }

    /// The waits around a trial. The shell keeps them.
    pub fn waits(&self, order: &TrialOrder) -> TrialWaits {
        match self {
            Self::Rfc2544(options) => options.waits(order),
            Self::Convergence(options) => options.waits,
            Self::Compare(options) => options.waits,
            Self::LossShare(options) => options.waits,
        }
    }
}
