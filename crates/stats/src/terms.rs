//! Terms of a run: decisions of its user beside the plan, and values that are the same from the command line to the rig.

use crate::limit::RigLimit;
use crate::port::BackEnd;
use serde::{Deserialize, Serialize};

/// Options, messages and rigs contain it as one member, so that a term is not copied from one to the next by name. In messages
/// and files its members are flattened into the value that contains it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTerms {
    /// Key of the run's test tags, the same on all nodes.
    pub tag_key: u64,
    /// Seed for the values that the plan leaves random, the same on all nodes.
    pub seed: u64,
    /// Capture every receiving port as pcapng, whatever the plan says.
    pub capture_all: bool,
    /// The back end the user insists on.
    pub back_end: Option<BackEnd>,
    /// Measured limits of the back ends, used to choose one of them.
    #[serde(default)]
    pub limits: Vec<RigLimit>,
    /// True if streams do not begin at T: later orders start them, and the run continues until it is stopped.
    /// Captures wait for such an order, too.
    #[serde(default)]
    pub steered: bool,
}
