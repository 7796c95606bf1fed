//! Pins maps and attachments: a name in the BPF file system keeps them alive after the end of the process.
//!
//! Like a descriptor, a pin is a reference to the object. It lasts until its file is removed. The kernel allows no
//! dot in the name.

use super::call::{self, BpfCommand, attr};
use super::{BpfAttachment, BpfMap};
use crate::Error;
use rustix::mount::MountFlags;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Mount point of the BPF file system.
pub const BPF_MOUNT_POINT: &str = "/sys/fs/bpf";
/// Type number of the BPF file system (`linux/magic.h`).
// On 32-bit processors it is a negative number.
const BPF_FS_MAGIC: rustix::fs::FsWord = 0xcafe_4a11_u32 as _;
const MISSING_RIGHTS_TEXT: &str = "needs CAP_SYS_ADMIN outside of user namespaces: run as root";

/// Mounts the BPF file system at [`BPF_MOUNT_POINT`], unless it is mounted there already.
pub fn mount_bpffs() -> Result<(), Error> {
    if rustix::fs::statfs(BPF_MOUNT_POINT).is_ok_and(|fs| fs.f_type == BPF_FS_MAGIC) {
        return Ok(());
    }
    rustix::mount::mount(
        "bpf",
        BPF_MOUNT_POINT,
        "bpf",
        MountFlags::NOSUID | MountFlags::NODEV,
        Some(c"mode=0700"),
    )
    .map_err(|errno| Error::from_call("mount(bpf)", BPF_MOUNT_POINT, errno).with_rights(MISSING_RIGHTS_TEXT))
}

impl BpfMap {
    /// Pins the map: the name in the file system keeps it alive.
    pub fn pin_at(&self, path: &Path) -> Result<(), Error> {
        pin_object(self.fd.as_fd(), path)
    }

    /// Opens the map that is pinned at `path`. It must have been created with `entries` values of `value` bytes.
    pub fn open_pinned(path: &Path, name: &'static str, value: usize, entries: u32) -> Result<Self, Error> {
        Ok(Self { fd: open_pinned_object(path)?, name, value, entries })
    }
}

impl BpfAttachment {
    /// Pins the attachment: the name in the file system keeps it alive.
    pub fn pin_at(&self, path: &Path) -> Result<(), Error> {
        pin_object(self.fd.as_fd(), path)
    }

    /// Opens the attachment that is pinned at `path`.
    pub fn open_pinned(path: &Path) -> Result<Self, Error> {
        Ok(Self { fd: open_pinned_object(path)? })
    }
}

fn pin_object(object: BorrowedFd<'_>, path: &Path) -> Result<(), Error> {
    let text = c_string_from_path(path)?;
    let mut attr = attr::PinAttributes {
        path: text.as_ptr().addr() as u64,
        object: call::raw_descriptor(object),
        flags: 0,
    };
    call::invoke_bpf(BpfCommand::Pin, &mut attr).map(drop).map_err(|error| {
        Error::from_call("bpf(OBJ_PIN)", path.display().to_string(), error).with_rights(MISSING_RIGHTS_TEXT)
    })
}

fn open_pinned_object(path: &Path) -> Result<OwnedFd, Error> {
    let text = c_string_from_path(path)?;
    let mut attr =
        attr::PinAttributes { path: text.as_ptr().addr() as u64, ..attr::PinAttributes::default() };
    call::invoke_for_descriptor(BpfCommand::OpenPinned, &mut attr).map_err(|error| {
        Error::from_call("bpf(OBJ_GET)", path.display().to_string(), error).with_rights(MISSING_RIGHTS_TEXT)
    })
}

fn c_string_from_path(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::from_call("open", path.display().to_string(), rustix::io::Errno::INVAL))
}
