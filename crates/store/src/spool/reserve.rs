//! Disk space for a node's final results, reserved before a run begins. Even if the disk fills up during the run, the run's counters
//! can be written. If the disk has no such space, the run is refused before anything is sent.

use super::error::Error;
use packetrig_sys::disk;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Number of bytes that are reserved if possible: enough for the compressed results of ten thousand streams.
const WANTED_RESERVE_BYTES: u64 = 4 << 20;
/// Minimum number of bytes to reserve: enough for the results of a few streams.
const MIN_RESERVE_BYTES: u64 = 64 << 10;

/// A placeholder file that reserves disk space. It is removed on drop.
#[derive(Debug)]
pub(super) struct DiskReserve {
    path: PathBuf,
    is_held: bool,
}

impl DiskReserve {
    pub(super) fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join("reserve"), is_held: false }
    }

    /// Reserves the wanted space, or less if the disk has less; fails if even the minimum does not fit.
    pub(super) fn allocate_reserve(&mut self) -> Result<(), Error> {
        // A smaller reserve is better than none: it is still enough for the counters of a few streams.
        let mut bytes = WANTED_RESERVE_BYTES;
        while !self.is_held {
            match disk::create_file_with_reserved_space(&self.path, bytes) {
                Ok(()) => self.is_held = true,
                Err(error) if is_full_disk_kind(error.kind()) && bytes > MIN_RESERVE_BYTES => bytes /= 4,
                Err(error) if is_full_disk_kind(error.kind()) => {
                    return Err(Error::NoRoom(self.path.clone()));
                }
                Err(error) => return Err(Error::file("reserve space in", &self.path)(error)),
            }
        }
        Ok(())
    }

    /// Frees the reserved space. Returns `false` if no space was reserved.
    pub(super) fn release_disk_reserve(&mut self) -> bool {
        // This fails only if the file was removed already and so takes no space.
        drop(std::fs::remove_file(&self.path));
        std::mem::replace(&mut self.is_held, false)
    }
}

impl Drop for DiskReserve {
    fn drop(&mut self) {
        self.release_disk_reserve();
    }
}

pub(crate) const fn is_full_disk_kind(kind: ErrorKind) -> bool {
    // EFBIG comes from a limit on the size of files, which leaves as little room as a full disk.
    matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}
