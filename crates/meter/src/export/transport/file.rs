//! A file of messages, one after the other (RFC 5655): readable at any time up to its last whole message.

use super::super::Error;
use super::UntakenMessage;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

/// A file that is written.
#[derive(Debug)]
pub(crate) struct FileSink {
    file: File,
    length: u64,
}

impl FileSink {
    pub(super) fn create(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Target { target: format!("file:{}", path.display()), source };
        Ok(Self { file: packetrig_sys::private_files::create(path).map_err(failed)?, length: 0 })
    }

    /// What a full disk took of a message is cut off again, so that the next one can be read.
    pub(super) fn append(&mut self, message: &[u8]) -> Result<(), UntakenMessage> {
        if self.file.write_all(message).is_ok() {
            self.length += message.len() as u64;
            return Ok(());
        }
        let back = self.file.set_len(self.length).and_then(|()| self.file.seek(SeekFrom::Start(self.length)));
        // Where a file cannot be cut (a device), there is nothing behind its end either.
        drop(back);
        Err(UntakenMessage::Refused)
    }
}
