//! Run lifecycle: state machines of controller and agent, events, messages and the final report.
//!
//! [`controller`] and [`agent`] are pure machines: an event and the time go in, actions come out. They talk in
//! [`message`]s over a [`fabric`] (in one process: [`local`]). What happens is one stream of [`event`]s; what came
//! out is a [`report`], made from the node results by a pure function.
//!
//! It reads no clock, starts no thread and knows no data plane: `fleet-io` performs what the agent asks.
//!
//! Invariant: whatever is lost, repeated or late between the machines, every run ends; nothing is sent before every
//! receiver is armed; receivers stop only when every sender has; a result that is missing is never counted as zero.
#![forbid(unsafe_code)]

pub mod agent;
mod blame;
mod bounded;
pub mod captures;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod controller;
pub mod event;
pub mod fabric;
#[cfg(feature = "conformance")]
pub mod faulty;
pub mod hello;
pub mod history;
pub mod known;
pub mod labels;
pub mod lead;
pub mod lease;
pub mod local;
pub mod members;
pub mod message;
pub mod outcome;
pub mod packed;
pub mod permit;
pub mod places;
pub mod report;
pub mod served;
pub mod term;

pub use message::{NodeName, PlanHash, RunId};
