//! Room on the disk for what a node has to say at the end of a run, taken before it begins: whatever else fills the disk meanwhile,
//! the counts of the run find a place. A disk that has no such room is told before anything is sent.

use super::error::Error;
use packetrig_sys::disk;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What is wanted: results of ten thousand streams, compressed.
const WANTED: u64 = 4 << 20;
/// What is enough for a few streams.
const LEAST: u64 = 64 << 10;

/// See the module. The file goes with this value.
#[derive(Debug)]
pub(super) struct DiskReserve {
    path: PathBuf,
    is_held: bool,
}

impl DiskReserve {
    pub(super) fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join("reserve"), is_held: false }
    }

    /// Takes the room, less of it where the disk has less.
    pub(super) fn hold(&mut self) -> Result<(), Error> {
        let mut bytes = WANTED;
        while !self.is_held {
            match disk::set_aside(&self.path, bytes) {
                Ok(()) => self.is_held = true,
                Err(error) if is_full(error.kind()) && bytes > LEAST => bytes /= 4,
                Err(error) if is_full(error.kind()) => return Err(Error::NoRoom(self.path.clone())),
                Err(error) => return Err(Error::file("set room aside in", &self.path)(error)),
            }
        }
        Ok(())
    }

    /// Gives the room back to the disk; false if there was none.
    pub(super) fn give_up(&mut self) -> bool {
        // One that is gone takes no room.
        std::fs::remove_file(&self.path).unwrap_or(());
        std::mem::replace(&mut self.is_held, false)
    }
}

impl Drop for DiskReserve {
    fn drop(&mut self) {
        self.give_up();
    }
}

pub(super) const fn is_full(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}
