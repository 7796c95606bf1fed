//! What the kernel refused, of what, and what to do about it.

/// A failed request to the kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{call} on {object}: {source}{}", remedy.map(|r| format!(" ({r})")).unwrap_or_default())]
    Call {
        /// Which call.
        call: &'static str,
        /// On what: interface, namespace, file.
        object: String,
        /// Why.
        source: std::io::Error,
        /// Known cure.
        remedy: Option<&'static str>,
    },
    /// The kernel or driver lacks it.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

/// Something this machine cannot do; the only reason for which a test may be skipped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{feature} needs {needs}; found {found}")]
pub struct Unsupported {
    /// What was wanted.
    pub feature: &'static str,
    /// What it takes.
    pub needs: String,
    /// What is there.
    pub found: String,
}
