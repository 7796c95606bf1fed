//! Two guards of everything that sends. The lab guard ([`lab`]) decides whether an interface may carry test
//! traffic. The gate of a lease ([`gate`]) holds the deadline of a sender. Both are separate from the data
//! plane, because probes need them without it.
#![forbid(unsafe_code)]

mod error;
pub mod gate;
pub mod lab;
mod stack;

pub use error::Error;
