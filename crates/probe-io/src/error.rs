//! Errors of probing. The module `blame` says whether the user, the machine or packetrig itself is at fault.

use packetrig_probe::{BudgetExceeded, PermitRefusal};
use std::net::IpAddr;

/// Reason why probes cannot be sent or their answers cannot be received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a request, or does not support it.
    #[error(transparent)]
    Kernel(#[from] packetrig_sys::Error),
    /// The interface looks like part of a real network.
    #[error(transparent)]
    Guard(#[from] packetrig_guard::Error),
    /// The permit does not allow the target.
    #[error(transparent)]
    Target(#[from] PermitRefusal),
    #[error("mechanism {mechanism} cannot be used on {interface}: {source}")]
    Mechanism {
        mechanism: packetrig_probe::ReleaseMechanism,
        interface: String,
        source: Box<packetrig_sys::UnsupportedFeature>,
    },
    /// A train has more frames than the mechanism holds at once, or a frame that is too long for the mechanism.
    #[error(
        "mechanism {mechanism} holds at most {most} frames of up to {longest} bytes at once; frames of this \
            train: {frames}, longest frame: {length} bytes"
    )]
    Train {
        mechanism: packetrig_probe::ReleaseMechanism,
        most: usize,
        /// Bytes of the longest frame.
        longest: usize,
        frames: usize,
        length: usize,
    },
    /// The thread that sends has ended without reporting an error, usually by a panic.
    #[error("the thread that releases probes ended unexpectedly")]
    Gone,
    /// The kernel has no route to the target, or none with a source address of the outgoing interface.
    #[error("no route to {0}{place}", place = .1.as_deref().map(|name| format!(" through {name}")).unwrap_or_default())]
    NoRoute(IpAddr, Option<String>),
    /// The hardware address of the next hop is unknown.
    #[error("{0} does not answer ARP or neighbour discovery on {1}")]
    NobodyThere(IpAddr, String),
    /// The probes exceed a limit of the target.
    #[error(transparent)]
    Limits(#[from] BudgetExceeded),
}

impl From<packetrig_sys::UnsupportedFeature> for Error {
    fn from(lacking: packetrig_sys::UnsupportedFeature) -> Self {
        Self::Kernel(lacking.into())
    }
}
