//! Room on the disk for a node's final results, set aside before a run begins. Whatever fills the disk meanwhile, the run's counters
//! can be written. If the disk has no such room, the run is refused before anything is sent.

use super::error::Error;
use packetrig_sys::disk;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Bytes that are wanted: compressed results of ten thousand streams.
const WANTED: u64 = 4 << 20;
/// Bytes that are enough for a few streams.
const LEAST: u64 = 64 << 10;

/// A file that sets room aside. It is removed on drop.
#[derive(Debug)]
pub(super) struct DiskReserve {
    path: PathBuf,
    is_held: bool,
}

impl DiskReserve {
    pub(super) fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join("reserve"), is_held: false }
    }

    /// Sets the room aside, or less if the disk has less.
    pub(super) fn hold(&mut self) -> Result<(), Error> {
        // A smaller reserve is better than none: it still has room for the counters of a few streams.
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

    /// Frees the room; `false` if none was set aside.
    pub(super) fn give_up(&mut self) -> bool {
        // Fails only if it is gone already, and so takes no room.
        drop(std::fs::remove_file(&self.path));
        std::mem::replace(&mut self.is_held, false)
    }
}

impl Drop for DiskReserve {
    fn drop(&mut self) {
        self.give_up();
    }
}

pub(crate) const fn is_full(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}
