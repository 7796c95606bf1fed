//! Shows the controllers of one machine to each other: each controller locks its own file in the fleet's directory as
//! long as it is running. The kernel frees the lock when the process ends, however that happens.

use packetrig_fleet::term::ControllerIdentity;
use packetrig_sys::lock::{self, LockFile};
use packetrig_sys::{clock, runtime_directory};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of attempts to lock the own file: another controller that removes old files locks each
/// file for a moment.
const MAX_LOCK_ATTEMPTS: u32 = 50;
const LOCK_RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Directory in which the controllers of a fleet show that they are running.
#[derive(Clone, Debug)]
pub struct PresenceDirectory {
    path: PathBuf,
    /// Identifies this boot of the host and this directory; see [`ControllerIdentity::place`].
    place: String,
}

/// Shows that a controller is running, until this value is dropped.
#[derive(Debug)]
pub struct ControllerPresence {
    directory: PresenceDirectory,
    _lock: LockFile,
}

impl PresenceDirectory {
    /// Opens the directory, or creates it. Fails if it belongs to another user.
    pub fn open_directory(path: &Path) -> io::Result<Self> {
        let (device, number) = runtime_directory::create_and_identify_directory(path)?;
        let boot = clock::state::boot_id().map_err(io::Error::other)?;
        // Other hosts can have equal device numbers. The boot ID tells hosts apart, and a host before and
        // after a restart.
        let place = format!("{boot} {device}:{number}");
        Ok(Self { path: path.to_owned(), place })
    }

    /// Shows that a controller is running, and removes the files of controllers that were killed.
    pub fn announce_controller(&self, controller: &str) -> io::Result<ControllerPresence> {
        for name in runtime_directory::list_names(&self.path) {
            // A locked file belongs to a running controller. A free one is removed by locking and dropping it.
            drop(LockFile::try_lock_at(&self.path.join(name)));
        }
        let path = self.controller_file(controller);
        for _ in 0..MAX_LOCK_ATTEMPTS {
            if let Some(lock) = LockFile::try_lock_at(&path)? {
                return Ok(ControllerPresence { directory: self.clone(), _lock: lock });
            }
            std::thread::sleep(LOCK_RETRY_PAUSE);
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Returns whether this controller runs; `None` if its lock file is on another host or in another directory, or
    /// cannot be checked.
    pub(super) fn is_controller_present(&self, controller: &ControllerIdentity) -> Option<bool> {
        // The name comes from a record of the fleet, and must not lead to a file elsewhere.
        let is_name = controller.controller.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_name || controller.place != self.place {
            return None;
        }
        lock::is_file_locked(&self.controller_file(&controller.controller)).ok()
    }

    fn controller_file(&self, controller: &str) -> PathBuf {
        self.path.join(controller)
    }
}

impl ControllerPresence {
    /// Returns the value for [`ControllerIdentity::place`] of a controller with this presence.
    pub fn place(&self) -> &str {
        &self.directory.place
    }

    pub(super) const fn directory(&self) -> &PresenceDirectory {
        &self.directory
    }

    /// Returns a function that tells whether a controller is running, from the files in the directory of `own`. If
    /// `own` is `None`, the function always returns `None`.
    pub(super) fn build_presence_lookup(own: Option<&Self>) -> impl Fn(&ControllerIdentity) -> Option<bool> {
        move |controller| own?.directory.is_controller_present(controller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controller_presence_lasts_until_drop() {
        let made = tempfile::tempdir().unwrap();
        let directory = PresenceDirectory::open_directory(&made.path().join("controllers")).unwrap();
        let identity = |name: &str, place: &str| ControllerIdentity {
            controller: name.into(),
            user: String::new(),
            host: String::new(),
            place: place.into(),
            // Some process has every number.
            pid: 1,
        };
        let has = |name: &str| directory.is_controller_present(&identity(name, &directory.place));
        assert_eq!(has("ab12"), Some(false));
        let presence = directory.announce_controller("ab12").unwrap();
        assert_eq!((has("ab12"), has("cd34")), (Some(true), Some(false)));
        assert_eq!(directory.is_controller_present(&identity("ab12", "another boot")), None);
        assert_eq!(has("../ab12"), None, "no name of a controller");
        std::fs::write(directory.controller_file("killed"), "7").unwrap();
        let other = directory.announce_controller("cd34").unwrap();
        assert!(!directory.controller_file("killed").exists() && directory.controller_file("ab12").exists());
        drop(presence);
        assert_eq!((has("ab12"), has("cd34")), (Some(false), Some(true)));
        drop(other);
        assert_eq!(std::fs::read_dir(&directory.path).unwrap().count(), 0);
    }
}
