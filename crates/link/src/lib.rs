//! Impairments of frames on a link. They are decided from a seed, and every action on every frame is recorded exactly.
//!
//! ```text
//!  spec (text or YAML) -> FaultPlan -> FrameImpairer: frames and time in, frames out --> FrameObserver: all actions
//!                                         ^  |                                    KeyTruths (tests), truth log
//! (product)                    link-io: on the threads of a tap      reference device: on those of the test kit
//! ```
//! This crate reads no clock and opens nothing; `link-io` runs it on real interfaces. A frame is identified by its
//! *key*, which a [`FrameClassifier`] reads from its bytes, and its *position*, the number of frames with that key
//! that arrived before it. Which faults a frame gets depends only on seed, rule, port, key and position. Only the
//! queue of a limited rate, and the longest wait of a frame that is held back, depend on time.
//!
//! The crate knows no streams, tags or sequence numbers: the record of what happened on a link must not come from the
//! code that is checked against it.
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
pub use impairer::{FrameActions, FrameIdentity, FrameImpairer, FrameObserver};
pub use plan::{
    DelayDistribution, DelayJitter, FaultPlan, FaultRule, FrameClassifier, FrameFault, GilbertElliott,
    KeyFrameRules, RulePositions,
};
pub use queue::{QueueLimit, RateQueue};
pub use spec::{DirectionSpec, ImpairSpecs, InvalidImpairmentSpec};
pub use treatment::{DepartureLateness, FrameTreatment};
pub use truth::{ExpectedCounts, KeyFrameTruth, KeyTruths};

/// Names of the two directions of a link, as messages and the truth log write them.
pub const DIRECTION_NAMES: [&str; 2] = ["a->b", "b->a"];
