//! Errors of a tap and its impairments. A log has its own errors: [`crate::log::Error`].

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the engine's rings, guards or recorder.
    #[error(transparent)]
    Engine(#[from] packetrig_engine::Error),
    /// The kernel refused an operation.
    #[error(transparent)]
    Kernel(#[from] packetrig_sys::Error),
    /// The tap that the user asked for is not possible.
    #[error(transparent)]
    Tap(#[from] crate::tap::TapRefusal),
    /// The kernel allows no more threads, or has no memory for one.
    #[error("cannot start thread `{name}`: {source}")]
    Thread { name: String, source: std::io::Error },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    File { path: std::path::PathBuf, source: std::io::Error },
    /// A thread panicked. The tap still restores its interfaces when it is dropped.
    #[error("worker `{0}` panicked; this is a bug in packetrig")]
    Panicked(String),
    /// Two parts of this crate disagree about the state of a tap.
    #[error("internal error: {0}; this is a bug in packetrig")]
    Bug(&'static str),
}
