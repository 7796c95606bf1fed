//! What carries messages between controller and agents.
//!
//! Synchronous and message-shaped: post one, wait for the next with a deadline. Retries, barriers and timeouts live
//! in the machines; a networked fabric keeps its runtime inside itself. Commands and replies arrive in order and are
//! not lost while both ends live (a network may repeat them); telemetry may be dropped when the reader is slow.

use crate::message::{Envelope, NodeName};
use packetrig_units::Nanos;

/// Why a fabric did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Peer: no such endpoint.
    #[error("nobody called {0} has joined the fabric")]
    Unknown(NodeName),
    /// Peer: it was there and is gone.
    #[error("{0} has left the fabric")]
    Gone(NodeName),
    /// User: the name is in use.
    #[error("{0} has already joined; two nodes need two names")]
    Taken(NodeName),
}

/// A place on the fabric: it has a name, posts and receives.
pub trait Endpoint: Send {
    /// Its name.
    fn name(&self) -> &NodeName;
    /// Sends `envelope` to `to`, without waiting for it to arrive.
    fn post(&mut self, to: &NodeName, envelope: Envelope) -> Result<(), Error>;
    /// The next message, commands and replies before telemetry; `None` if there is none within that time.
    fn receive(&mut self, within: Nanos) -> Option<Envelope>;
    /// Telemetry that was dropped on the way here.
    fn dropped(&self) -> u64;
}

/// A fabric.
pub trait Fabric {
    /// Its kind of place.
    type Endpoint: Endpoint;
    /// Takes a place. Messages to it are kept from now on.
    fn join(&self, name: NodeName) -> Result<Self::Endpoint, Error>;
}
