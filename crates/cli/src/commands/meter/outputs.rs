//! Where records go: export threads and files.

use crate::args::Meter as Arguments;
use crate::error::Error;
use packetrig_meter::MeterOptions;
use packetrig_meter::ledger::Books;
use std::sync::Arc;

/// Threads that take what the workers report.
pub(super) struct Outputs {}

impl Outputs {
    /// Opens all of them.
    pub(super) fn open(_arguments: &Arguments, _options: &MeterOptions, _books: &Arc<Books>) -> Result<Self, Error> {
        Ok(Self {})
    }

    /// Waits until they have sent what they have; gives why they failed.
    pub(super) fn join(self) -> Vec<String> {
        Vec::new()
    }
}
