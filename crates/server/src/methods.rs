//! The interface between the API and the test methods (such as RFC 2544). The caller of [`serve_rig`](crate::serve_rig)
//! implements it, as it implements [`Tester`](crate::Tester).

use serde_json::Value;

/// Starts test methods and reports their progress. The server sends every returned [`Value`] to the client unchanged.
///
/// # For implementers
///
/// The functions of this trait are called on threads that may block. `start_method` may take the time to read the plan;
/// no function may wait for a trial.
pub trait MethodService: Send + Sync + 'static {
    /// Starts a test and returns its state.
    fn start_method(&self, request: Value) -> Result<Value, MethodRefusal>;
    /// The states of all tests that this server has started.
    fn list_methods(&self) -> Vec<Value>;
    /// The state of a test; `None` if this server has not started it.
    fn method_state(&self, id: &str) -> Option<Value>;
    /// Stops a test and returns its state; `None` if this server has not started it. If the test has
    /// ended already, nothing changes.
    fn stop_method(&self, id: &str) -> Option<Value>;
}

/// Reason why a test is not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MethodRefusal {
    /// The request is wrong.
    #[error("{0}")]
    Invalid(String),
    /// Another test is in progress.
    #[error("{0}")]
    Busy(String),
    /// The catalogue cannot be written, or something else on this machine failed.
    #[error("{0}")]
    Failed(String),
}
