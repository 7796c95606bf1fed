//! MLRsearch (RFC 9971): a search for several goals at once that tolerates occasional losses.
//!
//! [`MlrSearch`] decides exactly as the reference library MLRsearch 1.2.1 does: the same loads, to the last bit, in the
//! same order, and the same bounds. `make eval-methods` compares both.
//!
//! A load is a lower bound for a [`SearchGoal`] if enough of its trial time is good, and an upper bound if too much is
//! bad (`bounds`). Each goal is a chain of targets from coarse to fine (`targets`). For each goal, a selector nominates
//! the load to try next for its present target (`selector`); the smallest nominated load is tried next (`search`).

mod bounds;
mod estimate;
mod goal;
mod result;
mod scale;
mod search;
mod selector;
mod start;
mod targets;

pub use bounds::{BoundClass, LoadTrials};
pub use goal::{GoalError, SearchGoal};
pub use result::{GoalIrregularity, GoalResult};
pub use search::{MlrOptions, MlrOptionsError, MlrSearch};

#[cfg(test)]
mod tests;
