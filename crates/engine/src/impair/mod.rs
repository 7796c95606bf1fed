//! Impairs frames on purpose, from a seed, and reports exactly what was done to which frame.
//!
//! ```text
//!  Spec (text or YAML) -> FaultPlan -> Impairer: frames and time in, frames out --> Witness: what was done to each
//!                                         ^  |                                      Truths (tests), Chronicle (product)
//!                                     Treated: on the threads of a tap      reference device: on those of the test kit
//! ```
//! [`FrameImpairer`] is pure: it reads no clock and opens nothing. A frame is known by its *key*, which a [`FrameClassifier`] reads
//! from its bytes, and its *position*, the number of frames with that key that arrived before it. What happens to the
//! frame at a position hangs on seed, rule and position only, but for the queue of a limited rate, which hangs on time.
//!
//! It knows nothing of streams, tags or sequence numbers: the truth must not come from the code that it is to judge.
//!
//! Invariant: arrived + copies = left + dropped + did not fit into the queue + still inside.

mod chronicle;
mod draw;
mod edit;
mod impairer;
mod plan;
mod queue;
mod spec;
mod treated;
mod truth;

pub use chronicle::{ImpairChronicle, ImpairCounts, TruthFile};
pub use edit::HeaderEdit;
pub use impairer::{FrameDeeds, FrameImpairer, FramePosition, FrameWitness};
pub use plan::{
    DelayDistribution, DelayJitter, FaultPlan, FaultRule, FrameClassifier, FrameFault, GilbertElliott,
    KeyCourse, RulePositions,
};
pub use queue::{QueueLimit, RateQueue};
pub use spec::{BadSpec, DirectionSpec, ImpairSpecs};
pub use treated::{ImpairAccount, ImpairTreatment, ImpairWatch};
pub use truth::{ExpectedCounts, KeyTruth, KeyTruths};

/// Names of the two directions of a line, as messages and the truth log write them.
pub const DIRECTIONS: [&str; 2] = ["a->b", "b->a"];
