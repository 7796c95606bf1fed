//! A directory that a thread can use even if it has no access to the directories above it.
//!
//! A [`HeldDirectory`] owns one descriptor. Its [`path`](HeldDirectory::path) leads through the descriptor. Every
//! thread of this process can use the path, whatever user the thread [acts](crate::sandbox::act_as_user) as; a child
//! process can use it until `exec`. Invariant: the path leads to the opened directory, even if another directory has
//! replaced it in the file system.

use crate::Error;
use crate::sandbox::ProcessUser;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, Uid};
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Path of the working directory of the process that uses the path. The path works even without access
/// to the directories above.
pub const WORKING_DIRECTORY: &str = "/proc/self/cwd";

#[derive(Debug)]
pub struct HeldDirectory(OwnedFd);

impl HeldDirectory {
    /// Opens the directory; `path` may be a symbolic link to it. This needs no right to read or
    /// enter the directory itself.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_with_extra_flags(path, OFlags::empty())
    }

    /// Opens the directory; an error if `path` is a symbolic link.
    pub fn open_directory_itself(path: &Path) -> Result<Self, Error> {
        Self::open_with_extra_flags(path, OFlags::NOFOLLOW)
    }

    fn open_with_extra_flags(path: &Path, more: OFlags) -> Result<Self, Error> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | more;
        let opened = rustix::fs::openat(CWD, path, flags, Mode::empty());
        opened.map(Self).map_err(|errno| Error::from_call("open", path.display().to_string(), errno))
    }

    /// Path of the directory (`/proc/self/fd/N`), which is valid only in this process.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    /// Makes `user` the owner of the directory and of everything in it. Symbolic links are not followed. A file with
    /// several hard links keeps its owner, because another link may be in a directory of another user. No other process
    /// may change the directory in the meantime.
    pub fn change_owner_to(&self, user: &ProcessUser) -> Result<(), Error> {
        let owner = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        let failed = |errno| Error::from_call("chown", format!("a file or directory for user {user}"), errno);
        // The held descriptor is an O_PATH one: the directory can be neither read nor given to another user through it.
        let readable = open_subdirectory(self.0.as_fd(), c".").map_err(failed)?;
        rustix::fs::fchown(&readable, Some(owner.0), Some(owner.1)).map_err(failed)?;
        change_owner_of_entries(readable.as_fd(), owner).map_err(failed)
    }
}

fn open_subdirectory(directory: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

fn change_owner_of_entries(directory: BorrowedFd<'_>, owner: (Uid, Gid)) -> rustix::io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        let facts = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(facts.st_mode);
        if kind.is_dir() {
            let below = open_subdirectory(directory, name)?;
            rustix::fs::fchown(&below, Some(owner.0), Some(owner.1))?;
            change_owner_of_entries(below.as_fd(), owner)?;
        } else if !is_owned_by(&facts, owner) && (facts.st_nlink <= 1 || !kind.is_file()) {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(directory, name, Some(owner.0), Some(owner.1), flags)?;
        }
    }
    Ok(())
}

fn is_owned_by(facts: &Stat, owner: (Uid, Gid)) -> bool {
    (facts.st_uid, facts.st_gid) == (owner.0.as_raw(), owner.1.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_files;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    const UID: u32 = 61_300;

    fn owner_of(path: &Path) -> (u32, u32) {
        fs::symlink_metadata(path).map(|facts| (facts.uid(), facts.gid())).unwrap()
    }

    #[test]
    fn private_files_are_made_below_a_held_directory() {
        let base = tempfile::tempdir().unwrap();
        let held = HeldDirectory::open(base.path()).unwrap();
        let inside = held.path();
        private_files::create_directories(&inside.join("deep/er")).unwrap();
        for text in ["old", "new"] {
            private_files::write_file(&inside.join("a"), text).unwrap();
            private_files::replace_file(&inside.join("deep/er/b"), text).unwrap();
        }
        for name in ["a", "deep/er/b"] {
            let path = base.path().join(name);
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        }
    }

    #[test]
    fn held_directory_stays_the_same_behind_its_name() {
        let base = tempfile::tempdir().unwrap();
        let [own, other, link] = ["own", "other", "link"].map(|name| base.path().join(name));
        fs::create_dir(&own).unwrap();
        let held = HeldDirectory::open_directory_itself(&own).unwrap();
        fs::rename(&own, &other).unwrap();
        symlink("/etc", &own).unwrap();
        fs::write(held.path().join("f"), "x").unwrap();
        assert!(other.join("f").exists());
        symlink(&other, &link).unwrap();
        HeldDirectory::open_directory_itself(&link).unwrap_err();
        HeldDirectory::open(&link).unwrap();
    }

    #[test]
    fn giving_away_follows_no_link_and_spares_files_with_other_names() {
        let base = tempfile::tempdir().unwrap();
        let path = |name: &str| base.path().join(name);
        fs::create_dir_all(path("given/below")).unwrap();
        for name in ["key", "given/f", "given/below/g"] {
            fs::write(path(name), name).unwrap();
        }
        symlink(path("key"), path("given/link")).unwrap();
        symlink(base.path(), path("given/below/up")).unwrap();
        fs::hard_link(path("key"), path("given/another-name")).unwrap();
        let user = ProcessUser { uid: UID, gid: UID, name: UID.to_string() };
        if let Err(error) = HeldDirectory::open(&path("given")).unwrap().change_owner_to(&user) {
            println!("skipped: files cannot be given away: {error}");
            return;
        }
        for name in ["given", "given/f", "given/link", "given/below", "given/below/g", "given/below/up"] {
            assert_eq!(owner_of(&path(name)), (UID, UID), "{name}");
        }
        let own = owner_of(base.path());
        assert_ne!(own.0, UID);
        assert_eq!([owner_of(&path("key")), owner_of(&path("given/another-name"))], [own, own]);
    }
}
