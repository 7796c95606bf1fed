//! What can go wrong in a meter, and by whose fault.

use packetrig_wire::pcap::CaptureDamage;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a meter cannot work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// User or world: a capture file cannot be read.
    #[error("cannot read {}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// User: it is none.
    #[error("{} is not a capture file: {damage}", path.display())]
    NoCapture { path: PathBuf, damage: CaptureDamage },
    /// User: more than a meter tells apart.
    #[error("{count} inputs are more than the {most} a meter tells apart: start a second one")]
    TooManyInputs {
        count: usize,
        /// How many it can be.
        most: usize,
    },
    /// World: the kernel has counted that far.
    #[error(
        "{name} has number {index}, and records have room for numbers up to 65535: interfaces of a new network namespace have \
         small ones"
    )]
    IndexTooLarge { name: String, index: u32 },
    /// User: one ring cannot be shared by several workers.
    #[error("source {way} has one worker for each interface, not {workers}: use --source packet for more")]
    OneWorker {
        way: &'static str,
        /// How many were asked for.
        workers: usize,
    },
    /// User or world: metrics cannot be served there.
    #[error("cannot serve metrics at {address}")]
    Metrics { address: SocketAddr, source: io::Error },
    /// World, mostly: see [`packetrig_sys::Error`].
    #[error(transparent)]
    Kernel(#[from] packetrig_sys::Error),
    /// By whose fault, the error below says.
    #[error(transparent)]
    Engine(#[from] packetrig_engine::Error),
    /// World: no thread can be made.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// Bug: a worker panicked.
    #[error("{0} panicked")]
    Panicked(&'static str),
}
