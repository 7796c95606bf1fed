//! A file of messages, one after the other (RFC 5655). At any time it is readable up to its last whole message.

use super::super::Error;
use super::UnsentMessageReason;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

#[derive(Debug)]
pub(crate) struct FileSink {
    file: File,
    length: u64,
}

impl FileSink {
    pub(super) fn create_file(path: &Path) -> Result<Self, Error> {
        let file = packetrig_sys::private_files::create_file(path)
            .map_err(|source| Error::Target { target: format!("file:{}", path.display()), source })?;
        Ok(Self { file, length: 0 })
    }

    /// Appends a message. If the disk becomes full within the message, its written part is cut off again, so that later
    /// messages can be read.
    pub(super) fn append_message(&mut self, message: &[u8]) -> Result<(), UnsentMessageReason> {
        let Err(error) = self.file.write_all(message) else {
            self.length += message.len() as u64;
            return Ok(());
        };
        // A device or a pipe cannot be truncated; what was written to it cannot be taken back.
        drop(self.file.set_len(self.length).and_then(|()| self.file.seek(SeekFrom::Start(self.length))));
        Err(UnsentMessageReason::Refused(error))
    }
}
