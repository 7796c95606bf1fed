//! The terms of a run: the user's decisions that are not part of the plan, and values that do not change
//! between the command line and the rig.

use crate::limit::RigLimit;
use crate::port::BackEnd;
use serde::{Deserialize, Serialize};

/// The terms of a run. Options, messages and rigs contain them as one member, so that single terms need not
/// be copied from one to the next. In messages and files, the members of the terms are flattened into the
/// value that contains them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedRunOptions {
    /// Key of the run's test tags, the same on all nodes.
    pub tag_key: u64,
    /// Seed of the values that the plan leaves random, the same on all nodes.
    pub seed: u64,
    /// Whether every receiving port is captured as pcapng, whatever the plan says.
    pub capture_all: bool,
    /// The back end that the user demands; `None` if packetrig chooses one.
    pub back_end: Option<BackEnd>,
    /// Measured limits of the back ends, from which one of them is chosen.
    #[serde(default)]
    pub limits: Vec<RigLimit>,
    /// True if the streams do not begin at the start of the run: later orders start them, and the run
    /// continues until it is stopped. Captures also wait for such an order.
    #[serde(default)]
    pub steered: bool,
}
