//! Doing things to frames on purpose, from a seed, and saying exactly what was done to which.
//!
//! ```text
//!  Spec (text or YAML) -> FaultPlan -> Impairer: frames and time in, frames out --> Witness: what befell each frame
//!                                         ^  |                                      Truths (tests), Chronicle (product)
//!                                     Treated: on the threads of a tap      reference device: on those of the test kit
//! ```
//! [`Impairer`] is pure: it reads no clock and opens nothing. A frame is known by its *key*, which a [`Classifier`] reads
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

pub use chronicle::{Chronicle, Counts, TruthFile};
pub use edit::Edit;
pub use impairer::{Deeds, Impairer, Place, Witness};
pub use plan::{Classifier, Course, Fault, FaultPlan, GilbertElliott, Jitter, Rule, Select, Shape};
pub use queue::{Queue, Room};
pub use spec::{BadSpec, Spec, Specs};
pub use treated::{Books, Treated, Watch};
pub use truth::{Accounts, Truth, Truths};

/// Names of the two directions of a line, as messages and the truth log write them.
pub const DIRECTIONS: [&str; 2] = ["a->b", "b->a"];
