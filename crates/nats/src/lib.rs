//! The fabric between machines: NATS for messages, JetStream for records and results.
//!
//! [`NatsFabric`] meets the traits of `fleet::fabric`; its runtime is inside it and its handles are synchronous.
//! [`broker`] runs a server of our own as a child; [`authority`] has the fleet's keys; by [`enrol`] nodes come in.
//!
//! No type of the engine crosses this line, and no word of it: [`subject`] has the names it is asked for. Nothing here
//! knows what a run is; leases, barriers and retries of commands live in the machines of `fleet`.
//!
//! Invariant: what [`packetrig_fleet::fabric::ResultOutlet::append`] accepted is with the server on disk; a message that
//! was lost, refused or dropped is counted or reported, except what was on the wire when a connection died: that is repeated.
#![forbid(unsafe_code)]

pub mod authority;
mod blame;
pub mod broker;
mod captures;
mod connection;
mod endpoint;
pub mod enrol;
mod fabric;
mod incoming;
mod letter;
pub mod letter_reader;
mod observer;
mod records;
mod results;
mod runtime;
mod seal;
pub mod subject;
mod user_key;

pub use captures::{NatsCaptureAnswers, NatsCaptureQuestions};
pub use connection::{FleetCredentials, RenewedCredentials, ServerAccess};
pub use endpoint::NatsEndpoint;
pub use fabric::NatsFabric;
pub use incoming::{ConfirmToken, NatsIncoming};
pub use observer::{FleetObserver, HeardHello};
pub use records::NatsRecords;
pub use results::NatsOutgoing;
pub use seal::{MAC_KEY, MacKeys, SealKeys};
