//! Doubts that come up while a back end sends, for the port's hold to tell.

use std::sync::{Arc, Mutex, PoisonError};

/// Doubts in words. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SendDoubts(Arc<Mutex<Vec<String>>>);

impl SendDoubts {
    pub(crate) fn note(&self, doubt: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(doubt);
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
