//! A disk that can really be full.

use crate::skip;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CStr;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A file system in memory; gone with the value.
#[derive(Debug)]
pub struct SmallDisk {
    place: PathBuf,
    _directory: Option<TempDir>,
}

impl SmallDisk {
    /// One with `options`, such as its size; `None` where this may not be mounted, which is said.
    pub fn mount(options: &CStr) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let place = directory.path().to_owned();
        Self::mount_tmpfs(&place, options).then_some(Self { place, _directory: Some(directory) })
    }

    /// The same over a directory that is there.
    pub fn mount_over(place: &Path, options: &CStr) -> Option<Self> {
        Self::mount_tmpfs(place, options).then(|| Self { place: place.to_owned(), _directory: None })
    }

    fn mount_tmpfs(place: &Path, options: &CStr) -> bool {
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        skip::may_mount(mount("tmpfs", place, "tmpfs", flags, Some(options)))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.place
    }

    /// Writes until there is not a byte left.
    pub fn fill(&self) {
        let mut file = File::create(self.place.join("filler")).expect("a file for the filler");
        let mut piece = vec![1; 1 << 20];
        while !piece.is_empty() {
            if file.write_all(&piece).is_err() {
                // What is left is less than that.
                piece.truncate(piece.len() / 2);
            }
        }
    }

    /// Makes files until there is no room for another name.
    pub fn fill_names(&self) {
        let directory = self.place.join("names");
        std::fs::create_dir_all(&directory).expect("a directory for the names");
        let made = (0_u32..1_000_000).take_while(|n| File::create(directory.join(n.to_string())).is_ok());
        assert!(made.count() < 1_000_000, "this file system has no limit for names");
    }

    /// Takes what filled it away.
    pub fn empty(&self) {
        // Only one of them is there, usually.
        std::fs::remove_file(self.place.join("filler")).unwrap_or(());
        std::fs::remove_dir_all(self.place.join("names")).unwrap_or(());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(&self.place, UnmountFlags::DETACH).ok();
    }
}
