//! Impairments of frames on a link: decided from a seed, with an exact record of every action on every frame.
//!
//! ```text
//!  spec (text or YAML) -> FaultPlan -> FrameImpairer: frames and time in, frames out --> FrameWitness: what was done to each
//!                                         ^  |                                    KeyTruths (tests), a chronicle (product)
//!                    link-io: on the threads of a tap      reference device: on those of the test kit
//! ```
//! Pure: it reads no clock and opens nothing; `link-io` is its working half. A frame is identified by its *key*, which a
//! [`FrameClassifier`] reads from its bytes, and its *position*, the number of frames with that key that arrived before it. The fate
//! of the frame at a position depends on seed, rule and position only, except for the queue of a limited rate, which depends on time.
//!
//! It knows no streams, tags or sequence numbers: the truth must not come from the code that it is used to judge.
//!
//! Invariant: arrived + copies = left + dropped + did not fit into the queue + still inside.
#![forbid(unsafe_code)]

mod draw;
mod edit;
mod impairer;
pub mod merge;
mod plan;
mod queue;
mod spec;
mod treatment;
mod truth;

pub use edit::HeaderEdit;
pub use impairer::{FrameActions, FrameImpairer, FramePosition, FrameWitness};
pub use plan::{
    DelayDistribution, DelayJitter, FaultPlan, FaultRule, FrameClassifier, FrameFault, GilbertElliott,
    KeyFrameRules, RulePositions,
};
pub use queue::{QueueLimit, RateQueue};
pub use spec::{DirectionSpec, ImpairSpecs, InvalidImpairmentSpec};
pub use treatment::{DepartureLateness, FrameTreatment};
pub use truth::{ExpectedCounts, KeyFrameTruth, KeyTruths};

/// Names of the two directions of a line, as messages and the truth log write them.
pub const DIRECTION_NAMES: [&str; 2] = ["a->b", "b->a"];
