//! Files with the former settings of changed interfaces, in case packetrig is killed before it restores them.
//!
//! A file is written before the first change to an interface and removed when the interface is restored. Both happen
//! while the lock of the port is held, so a process that takes the lock and finds a file knows that its writer is dead.
//! [`find_unrestored_interfaces`] lists such interfaces. The files do not outlive a reboot, and neither do the settings.

use super::interface_lock_name;
use super::quiet::{InterfaceChange, QuietInterface};
use crate::Error;
use packetrig_sys::link::{Link, NamespaceLinks};
use packetrig_sys::lock::{self, NameLock};
use packetrig_sys::netns::NetNs;
use packetrig_sys::{clock, process, runtime_directory};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// Name of the directory of these files in packetrig's runtime directory.
const INTERFACES_DIRECTORY: &str = "interfaces";
/// Suffix for the name of an unreadable file.
const UNREADABLE_FILE_SUFFIX: &str = ".unreadable";

/// Identity of an interface until the next reboot. The index of an interface or the inode of a namespace can be reused;
/// the cookie of a namespace cannot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct InterfaceIdentity {
    boot_id: String,
    netns_inode: u64,
    netns_cookie: Option<u64>,
    index: u32,
    name: String,
}

impl InterfaceIdentity {
    fn from_link(netns: &NetNs, link: &Link) -> Result<Self, Error> {
        Ok(Self {
            boot_id: clock::boot_id()?,
            netns_inode: netns.inode()?,
            netns_cookie: netns.cookie()?,
            index: link.index,
            name: link.name.clone(),
        })
    }
}

/// Contents of a settings file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedSettings {
    interface: InterfaceIdentity,
    /// Id of the process that changed the settings.
    process: u32,
    /// The changes, each with the value before it.
    changes: Vec<InterfaceChange>,
}

/// The settings file of one interface.
#[derive(Debug)]
pub(super) struct SavedSettingsFile {
    path: PathBuf,
    interface: InterfaceIdentity,
}

impl SavedSettingsFile {
    /// Returns the file of this interface, whether it exists or not.
    pub(super) fn for_link(netns: &NetNs, link: &Link) -> Result<Self, Error> {
        let interface = InterfaceIdentity::from_link(netns, link)?;
        let name = format!("{}-{}.json", interface.netns_inode, interface.index);
        Ok(Self { path: runtime_directory::runtime_path_for(INTERFACES_DIRECTORY).join(name), interface })
    }

    /// Reads the changes that a process made and did not undo. `None` if there is no file, or if the file is about
    /// another interface or an earlier boot.
    pub(super) fn read_changes(&self) -> io::Result<Option<Vec<InterfaceChange>>> {
        match read_saved_settings(&self.path) {
            Ok(saved) => Ok((saved.interface == self.interface).then_some(saved.changes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Renames an unreadable file, so that the next one does not overwrite it. Returns its new path.
    pub(super) fn rename_unreadable_file(&self) -> io::Result<PathBuf> {
        let mut aside = self.path.clone().into_os_string();
        aside.push(UNREADABLE_FILE_SUFFIX);
        let aside = PathBuf::from(aside);
        runtime_directory::rename_file(&self.path, &aside)?;
        Ok(aside)
    }

    /// Writes the changes into the file, or removes the file if there are none.
    pub(super) fn write_changes(&self, changes: &[InterfaceChange]) -> Result<(), Error> {
        if changes.is_empty() {
            // Without a file there is nothing to restore.
            return self.remove_file();
        }
        let saved = SavedSettings {
            interface: self.interface.clone(),
            process: process::current_process_id(),
            changes: changes.to_vec(),
        };
        let bytes = serde_json::to_vec_pretty(&saved).map_err(io::Error::from);
        let written = bytes.and_then(|bytes| runtime_directory::write_file(&self.path, &bytes));
        written.map_err(|source| Error::File { path: self.path.clone(), source })
    }

    pub(super) fn remove_file(&self) -> Result<(), Error> {
        runtime_directory::remove_file(&self.path)
            .map_err(|source| Error::File { path: self.path.clone(), source })
    }
}

fn read_saved_settings(path: &Path) -> io::Result<SavedSettings> {
    Ok(serde_json::from_slice(&runtime_directory::read_file(path)?)?)
}

/// An interface that a packetrig process changed and did not restore before it died.
#[derive(Debug)]
pub struct UnrestoredInterface {
    netns: NetNs,
    link: Link,
    saved: SavedSettings,
}

/// Finds all interfaces of this machine that a dead packetrig process left changed, in the caller's namespace
/// and in named namespaces.
pub fn find_unrestored_interfaces() -> Vec<UnrestoredInterface> {
    let directory = runtime_directory::runtime_path_for(INTERFACES_DIRECTORY);
    let files = runtime_directory::list_names(&directory);
    let mut found: Vec<_> =
        files.iter().filter_map(|name| read_unrestored_interface(&directory.join(name))).collect();
    found.sort_by_key(UnrestoredInterface::location);
    found
}

fn read_unrestored_interface(path: &Path) -> Option<UnrestoredInterface> {
    let saved = read_saved_settings(path).ok()?;
    let netns = NetNs::find_namespace_by_inode(saved.interface.netns_inode, None)?;
    let link = NamespaceLinks::open_in(&netns).ok()?.find_link_by_index(saved.interface.index).ok()?;
    // The index may belong to another interface by now.
    let is_same =
        InterfaceIdentity::from_link(&netns, &link).is_ok_and(|identity| identity == saved.interface);
    // A living process restores its interfaces itself. If packetrig cannot tell whether the process lives,
    // the interface counts as in use and is not changed.
    let is_in_use = lock::is_name_held(&netns, &interface_lock_name(link.index)).unwrap_or(true);
    (is_same && !is_in_use).then_some(UnrestoredInterface { netns, link, saved })
}

impl UnrestoredInterface {
    /// Returns the location as the user writes it: `eth1`, or `ns/eth1`.
    pub fn location(&self) -> String {
        let interface = &self.link.name;
        self.netns
            .find_namespace_name()
            .map_or_else(|| interface.clone(), |netns| format!("{netns}/{interface}"))
    }

    /// Returns the id of the process that died.
    pub fn process(&self) -> u32 {
        self.saved.process
    }

    /// Returns the changes that the dead process made, each with the value before it.
    pub fn changes(&self) -> &[InterfaceChange] {
        &self.saved.changes
    }

    pub fn restore_interface(&self) -> Result<(), Error> {
        let object = format!("port {}", self.location());
        // The lock prevents a run from using the interface during the restore.
        let _lock = NameLock::acquire_name(&self.netns, &interface_lock_name(self.link.index), &object)?;
        QuietInterface::with_unrestored_changes(&self.netns, &self.link, self.saved.changes.clone())?
            .restore_all_settings()
    }
}
