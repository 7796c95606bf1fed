//! Errors of a meter.

use packetrig_wire::pcap::CaptureDamage;
use std::io;
use std::path::PathBuf;

/// Reasons why a meter cannot start, or has stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A capture file cannot be read.
    #[error("cannot read the capture file {}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// The file is not a capture file.
    #[error("{} is not a capture file: {damage}", path.display())]
    NoCapture { path: PathBuf, damage: CaptureDamage },
    /// The file is empty. A capture without packets still has a header.
    #[error("{} is not a capture file: it is empty", path.display())]
    EmptyCapture { path: PathBuf },
    /// There are more capture files than the 16 bits in a record can number.
    #[error(
        "{count} capture files are too many: one meter reads at most {most}; start a second meter for the others"
    )]
    TooManyInputs { count: usize, most: usize },
    /// The kernel's interface index does not fit the 16 bits that records have.
    #[error(
        "{name} has interface index {index}, and flow records have room only for indexes up to 65535; create \
         the interface in a new network namespace, where it gets a small index"
    )]
    IndexTooLarge { name: String, index: u32 },
    /// The rings of XDP programs cannot be shared by several workers.
    #[error(
        "--source {way} has one worker per interface, not {workers}; use --source packet for more workers"
    )]
    OneWorker {
        way: &'static str,
        /// Number of workers that the user asked for.
        workers: usize,
    },
    /// A system call failed, or an interface or namespace does not exist.
    #[error(transparent)]
    Kernel(#[from] packetrig_sys::Error),
    /// An error of the engine, which carries its own cause.
    #[error(transparent)]
    Engine(#[from] packetrig_engine::Error),
    /// The system refused to start another thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// A thread of the meter panicked, which is a bug.
    #[error("{0} panicked; this is a bug in packetrig")]
    Panicked(&'static str),
}
