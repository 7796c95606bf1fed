//! Writes the record of a run to the message server and to the controller's own catalogue.
//!
//! A disk or a server may take seconds for a write. So a separate thread writes, and the controller answers its nodes
//! in the meantime, because their leases last for only two seconds.

use super::RunRecordCallback;
use packetrig_fleet::controller::RunRecord;
use packetrig_fleet::fabric::{self, RecordStore};
use packetrig_units::Nanos;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Scope;
use std::time::Duration;

/// Handle of the writing thread: records go in, outcomes come back. The thread ends when this handle is dropped.
pub(super) struct RecordWriter {
    records: Sender<RunRecord>,
    outcomes: Receiver<Result<WrittenRecord, fabric::Error>>,
}

/// A record that was written to the message server.
pub(super) struct WrittenRecord {
    /// Reason why the record could not be saved in the catalogue; `None` if it was saved.
    pub(super) not_noted: Option<String>,
}

/// The message server and the catalogue, to which the record of a run is written.
struct RecordDestinations<'a, R> {
    records: &'a mut R,
    note: &'a mut RunRecordCallback,
    /// Revision of the record in the message server; `None` until this controller has written the record.
    revision: Option<u64>,
}

impl RecordWriter {
    pub(super) fn start_writing<'scope, R: RecordStore>(
        scope: &'scope Scope<'scope, '_>,
        records: &'scope mut R,
        note: &'scope mut RunRecordCallback,
    ) -> Self {
        let (orders, to_write) = channel();
        let (written, outcomes) = channel();
        scope.spawn(move || {
            let mut places = RecordDestinations { records, note, revision: None };
            // The loop ends when the controller's handle is dropped, because that closes both channels.
            to_write.iter().try_for_each(|record| written.send(places.write_record(&record)))
        });
        Self { records: orders, outcomes }
    }

    pub(super) fn queue_record(&self, record: RunRecord) {
        // This fails only if the thread has panicked. Then `next_outcome` reports an error.
        drop(self.records.send(record));
    }

    /// Waits for the outcome of the oldest queued record whose outcome was not returned yet; `None` if it is not
    /// written in this time.
    pub(super) fn next_outcome(&self, within: Nanos) -> Option<Result<WrittenRecord, fabric::Error>> {
        match self.outcomes.recv_timeout(Duration::from_nanos(within.as_u64())) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            // The thread has panicked; the scope passes the panic on.
            Err(RecvTimeoutError::Disconnected) => {
                Some(Err(fabric::Error::Down("the thread that writes records has ended".to_owned())))
            }
        }
    }
}

impl<R: RecordStore> RecordDestinations<'_, R> {
    fn write_record(&mut self, record: &RunRecord) -> Result<WrittenRecord, fabric::Error> {
        self.revision = Some(self.write_to_server(record)?);
        // The server comes first: the copy in the catalogue counts only for runs that the server does not have.
        let not_noted = (self.note)(record).err();
        Ok(WrittenRecord { not_noted })
    }

    fn write_to_server(&mut self, record: &RunRecord) -> Result<u64, fabric::Error> {
        let key = RunRecord::record_key(&record.head.run);
        let value = serde_json::to_vec(record).unwrap_or_default();
        let written = match self.revision {
            Some(revision) => self.records.replace_record(&key, revision, &value),
            // A run that an earlier controller left has a record already.
            None => match self.records.get_record(&key)? {
                Some(found) => self.records.replace_record(&key, found.revision, &value),
                None => self.records.create_record(&key, &value),
            },
        };
        let Err(fabric::Error::Stale(_) | fabric::Error::Exists(_)) = &written else { return written };
        // An earlier write without an answer may have succeeded. In that case the newer revision is this
        // controller's own. A controller that has taken over has a higher epoch, and its record stays.
        let Some(found) = self.records.get_record(&key)? else { return written };
        let before = serde_json::from_slice::<RunRecord>(&found.value).ok();
        if before.is_some_and(|before| before.head.epoch <= record.head.epoch) {
            return self.records.replace_record(&key, found.revision, &value);
        }
        written
    }
}
