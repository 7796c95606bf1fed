//! Directories for temporary files, which are removed at the end of the process that made them.
//!
//! A [`ScratchDirectory`] owns its directory, and a lock on it that the kernel frees when the process ends, however it ends. A killed
//! process leaves its directory behind: the next process that makes a directory of this kind removes it.
//!
//! Invariant: a directory is removed only by its owner, or after its owner is gone.

use crate::{private_files, process};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum number of attempts to make a directory: another process may remove a new directory as a leftover
/// before it is locked.
const MAX_TRIES: usize = 16;

#[derive(Debug)]
pub struct ScratchDirectory {
    path: PathBuf,
    _lock: File,
}

impl ScratchDirectory {
    /// Makes a directory that only this user can enter, `KIND-PROCESS-NUMBER` in `base`, and removes leftovers of this kind and
    /// user if their processes are gone.
    pub fn create_in(base: &Path, kind: &str) -> io::Result<Self> {
        static NEXT_SCRATCH_NUMBER: AtomicU32 = AtomicU32::new(0);
        remove_leftovers(base, kind);
        for _ in 0..MAX_TRIES {
            let number = NEXT_SCRATCH_NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = base.join(format!("{kind}-{}-{number}", process::current_process_id()));
            match private_files::create_directory(&path) {
                // The directory of a process that had the same number in another container.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            if let Some(lock) = lock_directory(&path)? {
                return Ok(Self { path, _lock: lock });
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        // An error is ignored: the next process removes the leftovers.
        drop(fs::remove_dir_all(&self.path));
    }
}

/// Locks a directory; `None` if another process has locked it, or the directory is not at its path any more.
fn lock_directory(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(directory) => File::from(directory),
        // Another process mistook the new directory for a leftover.
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    // Between opening and locking, the owner may have removed the directory, and another process may have
    // made one with that name.
    let own = directory.metadata()?;
    let is_there =
        fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino()));
    Ok(is_there.then_some(directory))
}

/// Removes leftovers of processes that were killed. Directories that cannot be removed stay.
fn remove_leftovers(base: &Path, kind: &str) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if is_leftover(&path, kind)
            && let Ok(Some(_lock)) = lock_directory(&path)
        {
            drop(fs::remove_dir_all(&path));
        }
    }
}

/// Returns true if `path` is a scratch directory of this kind and user. Only the directory's lock shows whether its
/// process is gone: another process may have the number by now.
fn is_leftover(path: &Path, kind: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some((process, number)) =
        name.strip_prefix(kind).and_then(|rest| rest.strip_prefix('-')?.split_once('-'))
    else {
        return false;
    };
    let own = rustix::process::geteuid().as_raw();
    let is_own = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == own);
    [process, number].iter().all(|part| part.parse::<u32>().is_ok()) && is_own
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "packetrig-test";

    #[test]
    fn scratch_directory_of_killed_process_is_removed() {
        let base = tempfile::tempdir().unwrap();
        // Another process has its number.
        let left = base.path().join(format!("{KIND}-1-0"));
        fs::create_dir(&left).unwrap();
        fs::write(left.join("0.pcap"), "frames").unwrap();
        let made = ScratchDirectory::create_in(base.path(), KIND).unwrap();
        assert!(!left.exists() && made.path().is_dir());
        let path = made.path().to_owned();
        drop(made);
        assert!(!path.exists());
    }

    #[test]
    fn locked_or_foreign_scratch_directories_are_kept() {
        let base = tempfile::tempdir().unwrap();
        let locked = base.path().join(format!("{KIND}-1-1"));
        let others = [format!("{KIND}-1"), format!("{KIND}-x-1"), "other-1-1".to_owned()];
        for path in [locked.clone()].into_iter().chain(others.iter().map(|name| base.path().join(name))) {
            fs::create_dir(path).unwrap();
        }
        fs::write(base.path().join(format!("{KIND}-1-7")), "a file").unwrap();
        let owner = lock_directory(&locked).unwrap();
        assert!(owner.is_some());
        let before = fs::read_dir(base.path()).unwrap().count();
        drop(ScratchDirectory::create_in(base.path(), KIND).unwrap());
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), before);
    }

    #[test]
    fn directories_of_one_process_are_apart() {
        let base = tempfile::tempdir().unwrap();
        let one = ScratchDirectory::create_in(base.path(), KIND).unwrap();
        let other = ScratchDirectory::create_in(base.path(), KIND).unwrap();
        assert!(one.path() != other.path() && one.path().exists() && other.path().exists());
    }
}
