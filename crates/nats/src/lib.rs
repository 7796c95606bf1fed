//! The fabric between machines: NATS for messages, JetStream for records and results.
//!
//! [`NatsFabric`] implements the traits of `fleet::fabric`. It has its own async runtime, but callers use it
//! through synchronous functions. [`broker`] runs nats-server as a child process; [`authority`] has the fleet's
//! keys; [`enrol`] adds nodes.
//!
//! No type of the engine is used here. [`subject`] contains all subject names. This crate does not know the semantics
//! of a run: leases, barriers and retries of commands are in the state machines of `fleet`.
//!
//! Invariant: a segment that [`packetrig_fleet::fabric::ResultSender::append_segment`] accepted is on the server's
//! disk. A message that was lost, refused or dropped is counted or reported, except messages that were on the network
//! when a connection was lost: the state machines repeat those.
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
pub use endpoint::{ConnectionWatch, NatsEndpoint};
pub use fabric::NatsFabric;
pub use incoming::{ConfirmToken, NatsIncoming};
pub use observer::{FleetObserver, ReceivedHello};
pub use records::NatsRecords;
pub use results::NatsOutgoing;
pub use seal::{MAC_KEY_BYTES, MacKeys, SealKeys};
