//! Collects doubts about the result that arise while a back end sends. The open port reports them as caveats.

use std::sync::{Arc, Mutex, PoisonError};

/// List of doubts in words. Clones share the same list.
#[derive(Clone, Debug, Default)]
pub(crate) struct SendDoubts(Arc<Mutex<Vec<String>>>);

impl SendDoubts {
    pub(crate) fn add_doubt(&self, doubt: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(doubt);
    }

    pub(crate) fn list_doubts(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
