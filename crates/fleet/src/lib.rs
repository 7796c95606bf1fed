//! Run lifecycle: state machines of controller and agent, their messages and the fabric.
//!
//! [`controller`] and [`agent`] are state machines: the caller passes in an event and the time, and performs the
//! actions that they return. They exchange [`message`]s over a [`fabric`] (in one process: [`local`]). The events of a
//! run and its report are in the crate `report`.
//!
//! This crate reads no clock, starts no thread and has no data plane. The crate `fleet-io` performs the actions.
//!
//! Invariant: every run ends, even if messages between the machines are lost, repeated or late; nothing is sent before
//! every receiver is armed; receivers stop only after every sender has; a missing result is never counted as zero.
#![forbid(unsafe_code)]

pub mod agent;
mod blame;
mod bounded;
pub mod captures;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod controller;
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
pub mod packed;
pub mod permit;
pub mod places;
pub mod served;
pub mod term;
