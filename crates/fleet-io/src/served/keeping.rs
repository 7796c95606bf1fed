//! Stores the results of served runs in the catalogue.

use super::lock_unpoisoned;
use crate::operator::SharedOperator;
use packetrig_report::RunReport;
use packetrig_store::{RunCatalogue, RunDraft};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Writes results to the catalogue one at a time, each on a thread of its own, so that the next configuration need not
/// wait for the disk.
///
/// Invariant: [`Self::wait_until_stored`] returns only when the last result is on the disk, or a remark says that it
/// could not be saved.
pub(super) struct BackgroundResultWriter {
    /// A separate connection, so that requests do not wait for a commit.
    catalogue: Arc<Mutex<RunCatalogue>>,
    current: Mutex<Option<JoinHandle<()>>>,
    operator: SharedOperator,
}

impl BackgroundResultWriter {
    pub(super) fn new(catalogue: RunCatalogue, operator: SharedOperator) -> Self {
        Self { catalogue: Arc::new(Mutex::new(catalogue)), current: Mutex::default(), operator }
    }

    pub(super) fn begin_storing(&self, draft: RunDraft, mut report: RunReport, document: String) {
        // Waits for the previous result first: even with a slow disk, at most one report waits in memory.
        self.wait_until_stored();
        let catalogue = Arc::clone(&self.catalogue);
        let operator = Arc::clone(&self.operator);
        let thread = std::thread::Builder::new().name("keeping".to_owned());
        let started = thread.spawn(move || {
            if let Err(error) = draft.commit_run(&lock_unpoisoned(&catalogue), &mut report, &document) {
                operator.remark(format_args!("cannot save the result of a run: {error}"));
            }
        });
        match started {
            Ok(thread) => *lock_unpoisoned(&self.current) = Some(thread),
            Err(error) => self.operator.remark(format_args!("cannot save the result of a run: {error}")),
        }
    }

    /// Waits for the result that is being written.
    pub(super) fn wait_until_stored(&self) {
        let current = lock_unpoisoned(&self.current).take();
        if current.is_some_and(|thread| thread.join().is_err()) {
            self.operator.remark(format_args!(
                "cannot save the result of a run: the thread panicked; this is a bug in packetrig"
            ));
        }
    }
}
