//! Finds the free space of disks, reserves space before it is needed, and makes directories that survive a power cut.

use crate::error::ignore_failure;
use crate::{Error, private_files};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Bytes that an ordinary process may still write on the file system of `path`.
pub fn free_bytes(path: &Path) -> Result<u64, Error> {
    let facts = rustix::fs::statvfs(path)
        .map_err(|errno| Error::from_call("statvfs", path.display().to_string(), errno))?;
    Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
}

/// Writes created, renamed and removed entries of `directory` to the disk.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Creates `directory` and its missing parents below `top`, which must exist. Calls `sync` for every directory that may
/// have got a new entry.
pub fn create_directories_below(
    top: &Path,
    directory: &Path,
    sync: fn(&Path) -> io::Result<()>,
) -> io::Result<()> {
    if directory == top || directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().unwrap_or(top);
    create_directories_below(top, parent, sync)?;
    match private_files::create_directory(directory) {
        // Another process may have created the directory in the meantime, and may not have synced it yet.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => sync(parent),
    }
}

/// Creates a file and reserves `bytes` bytes of disk space for it. Removing the file frees the space. If not all of the
/// space can be reserved, the file is removed.
pub fn create_file_with_reserved_space(path: &Path, bytes: u64) -> io::Result<()> {
    let made = private_files::create_file(path).and_then(|mut file| {
        // `fallocate` refuses a length of zero.
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes.max(1)) {
            // Some file systems reserve space only for written data.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(&mut file, bytes),
            Err(errno) => Err(errno.into()),
            Ok(()) => Ok(()),
        }
    });
    if made.is_err() {
        // The incomplete file takes space from other files. If its removal fails, too, the caller gets the first error.
        ignore_failure(std::fs::remove_file(path));
    }
    made
}

/// Reserves space for this many bytes from offset `from` on, which may be beyond the end of the file. The length of the
/// file does not change. Truncating the file frees the space. If the file system cannot reserve space, nothing happens.
pub fn reserve_space_beyond(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, from, bytes.max(1)) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn write_zeros(file: &mut File, bytes: u64) -> io::Result<()> {
    io::copy(&mut io::repeat(0).take(bytes), file)?;
    // Because of delayed allocation, a full disk may show only when the data is synced.
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preallocated_file_uses_space_and_failure_leaves_none() {
        use std::os::unix::fs::MetadataExt as _;
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("room");
        create_file_with_reserved_space(&path, 1 << 20).unwrap();
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= 1 << 20);
        create_file_with_reserved_space(&path, 1 << 60).unwrap_err();
        assert!(!path.exists());
        let mut written = private_files::create_file(&path).unwrap();
        write_zeros(&mut written, 100_000).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 100_000);
    }

    #[test]
    fn preallocation_beyond_file_end_lasts_until_truncation() {
        use std::os::unix::fs::MetadataExt as _;
        let base = tempfile::tempdir().unwrap();
        let file = private_files::create_file(&base.path().join("file")).unwrap();
        reserve_space_beyond(&file, 0, 1 << 20).unwrap();
        let facts = file.metadata().unwrap();
        assert_eq!(facts.len(), 0);
        assert!(facts.blocks() * 512 >= 1 << 20);
        file.set_len(0).unwrap();
        assert_eq!(file.metadata().unwrap().blocks(), 0);
        reserve_space_beyond(&file, 0, 1 << 60).unwrap_err();
    }

    #[test]
    fn a_disk_has_some_room() {
        assert!(free_bytes(Path::new("/")).unwrap() > 0);
        assert!(free_bytes(Path::new("/no/such/place")).is_err());
    }
}
