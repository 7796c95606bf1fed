//! Two guards of everything that sends: the lab guard ([`lab`]: whether an interface may carry test traffic) and the gate of a
//! lease ([`gate`]: until when a sender may send). They are apart from the data plane, because probes need them without it.
#![forbid(unsafe_code)]

mod error;
pub mod gate;
pub mod lab;
mod stack;

pub use error::Error;
