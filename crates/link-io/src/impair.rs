//! Impairments on the threads of a tap: runs a [`packetrig_link::FrameImpairer`] for each direction and counts its actions.

mod chronicle;
mod treated;

pub use chronicle::{ImpairCounts, ImpairmentObserver, ImpairmentTruthLog};
pub use treated::{ImpairAccount, ImpairAccountsReader, ImpairTreatment};
