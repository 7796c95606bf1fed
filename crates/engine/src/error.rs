//! What can go wrong in the data plane.

/// By whose fault: see each variant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// World: the kernel refused.
    #[error(transparent)]
    Kernel(#[from] packetrig_sys::Error),
    /// User: the interface looks like part of a network that people use.
    #[error(transparent)]
    Guard(#[from] crate::packet::guard::Refusal),
    /// User: the plan does not fit these ports.
    #[error(transparent)]
    Plan(#[from] packetrig_plan::Problems),
}
