//! A disk that can really be full.

use crate::skip;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CStr;
use std::path::Path;

/// A file system in memory; gone with the value.
#[derive(Debug)]
pub struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// One with `options`, such as its size; `None` where this may not be mounted, which is said.
    pub fn mount(options: &CStr) -> Option<Self> {
        let place = tempfile::tempdir().expect("a temporary directory");
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        skip::may_mount(mount("tmpfs", place.path(), "tmpfs", flags, Some(options))).then(|| Self(place))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(self.0.path(), UnmountFlags::DETACH).ok();
    }
}
