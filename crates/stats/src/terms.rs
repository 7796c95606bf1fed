//! The terms of a run: what its user decides beside the plan, and what is the same from the command line to the rig.

use crate::limit::RigLimit;
use crate::port::BackEnd;
use serde::{Deserialize, Serialize};

/// Options, messages and rigs have it as one member, so that a term is not copied from one to the next by name. In messages and files its
/// members stand among those of what contains it.
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
    /// What the back ends can do, as measured before: by it they are chosen.
    #[serde(default)]
    pub limits: Vec<RigLimit>,
    /// Streams do not begin at T: each does what later orders say, and the run goes on until it is stopped. Captures wait for such an
    /// order, too.
    #[serde(default)]
    pub steered: bool,
}
