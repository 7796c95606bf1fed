//! Collects doubts that arise while a back end sends; the port's hold reports them.

use std::sync::{Arc, Mutex, PoisonError};

/// Doubts in words. Clones share them.
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
