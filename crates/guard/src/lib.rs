//! Two guards that all senders use. The lab guard ([`lab`]) decides whether an interface may carry test
//! traffic. The send gate of a lease ([`gate`]) contains the deadline after which a sender must stop. Both are
//! in a crate apart from the data plane, because probes need the guards without the data plane.
#![forbid(unsafe_code)]

mod error;
pub mod gate;
pub mod lab;
mod stack;

pub use error::Error;
