//! The files with which other processes find a tap. A file below `/run` (for an ordinary user, below the
//! directory for temporary files) describes the tap and its changes to interfaces. The BPF programs and counters
//! are in the BPF file system.
//!
//! Invariant: the file exists before the first frame is forwarded and is removed after the interfaces have been restored.

use super::account::TapAccounts;
use super::choose::TapMethod;
use super::hold::{InterfacesRestored, PreparedTapInterface, PreparedTapInterfaces};
use super::{TapRefusal, TapSpec};
use crate::Error;
use packetrig_engine::packet::quiet::InterfaceChange;
use packetrig_plan::PortLocation;
use packetrig_sys::bpf;
use packetrig_sys::lock::{self, LockFile};
use packetrig_sys::netns::NetNs;
use packetrig_sys::runtime_directory;
use packetrig_sys::xdp::tap::PinnedForwarding;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// Subdirectory of the runtime directory.
const TAP_DIRECTORY: &str = "tap";
const LONGEST_NAME: usize = 64;

/// Description of a tap, as it is saved for other processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapState {
    pub name: String,
    pub way: TapMethod,
    pub why: String,
    /// Process id of the tap. It is valid for as long as the tap's lock is held.
    pub process: u32,
    /// Start time, nanoseconds since 1970.
    pub since_ns: u64,
    /// True if forwarding ends with the tap's process.
    pub fail_closed: bool,
    /// True if drops in the drivers are counted.
    pub knows_drivers: bool,
    pub sides: [TapInterface; 2],
    pub mirrors: Vec<TapInterface>,
    /// Filter of the copies; all frames if absent.
    pub filter: Option<String>,
    /// Maximum length of copies, in bytes, without the trailer.
    pub snap_len: Option<u32>,
    /// True if copies carry a trailer.
    pub trailer: bool,
    /// Limitations of this tap.
    pub caveats: Vec<String>,
}

/// An interface of a tap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapInterface {
    /// Location as the user named it, relative to the namespace in which the tap was started.
    pub location: String,
    /// Inode of the interface's namespace, which may differ from the reader's. Absent in files of older versions.
    #[serde(default)]
    pub netns_inode: Option<u64>,
    pub index: u32,
    /// Changes that the tap made to the interface.
    pub changes: Vec<InterfaceChange>,
    /// True if the tap made the interface promiscuous.
    pub promiscuous: bool,
}

impl TapInterface {
    pub(super) fn from_held(held: &PreparedTapInterface) -> Self {
        Self {
            location: held.location.to_string(),
            netns_inode: held.netns.inode().ok(),
            index: held.link.index,
            changes: held.changes(),
            promiscuous: held.is_promiscuous(),
        }
    }

    /// Opens the interface's namespace, from whatever namespace this process is in. `process` is that of the tap: while
    /// it lives, its namespace can be found even without a name. `None` if the namespace cannot be found.
    pub(super) fn open_netns(&self, process: u32) -> Option<NetNs> {
        if let Some(inode) = self.netns_inode {
            return NetNs::find_namespace_by_inode(inode, Some(process));
        }
        let location: PortLocation = self.location.parse().ok()?;
        NetNs::open_named_or_current_namespace(location.namespace.as_deref()).ok()
    }
}

impl TapState {
    /// Records all changes to the interfaces so far.
    pub(super) fn record_interface_changes(&mut self, held: &PreparedTapInterfaces) {
        self.sides = [TapInterface::from_held(&held.sides[0]), TapInterface::from_held(&held.sides[1])];
        self.mirrors = held.mirrors.iter().map(TapInterface::from_held).collect();
    }
}

/// Returns the tap's name; makes one from the sides if the user gave none.
pub(super) fn tap_name_or_default(spec: &TapSpec) -> Result<String, Error> {
    if !spec.name.is_empty() {
        if !is_tap_name(&spec.name) {
            return Err(TapRefusal::Name(spec.name.clone()).into());
        }
        return Ok(spec.name.clone());
    }
    let [a, b] = [spec.sides[0].to_string(), spec.sides[1].to_string()];
    Ok(format!("{a}-{b}").chars().map(to_name_char).take(LONGEST_NAME).collect())
}

/// Replaces characters that a tap name must not have; the BPF file system allows no dots.
fn to_name_char(c: char) -> char {
    if c.is_ascii() && is_tap_name_byte(c as u8) { c } else { '_' }
}

fn is_tap_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= LONGEST_NAME && name.bytes().all(is_tap_name_byte)
}

fn is_tap_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

/// The paths of the files of one tap, which may exist or not.
#[derive(Debug)]
pub(super) struct TapFiles {
    directory: PathBuf,
    name: String,
    pins: PathBuf,
}

/// Lists the names of the taps that left a file.
pub(super) fn list_names() -> Vec<String> {
    let files = runtime_directory::list_names(&runtime_directory::runtime_path_for(TAP_DIRECTORY));
    let texts = files.iter().filter_map(|file| file.to_str()?.strip_suffix(STATE_FILE_SUFFIX));
    // A file with another name does not belong to a tap.
    let mut names: Vec<String> = texts.filter(|name| is_tap_name(name)).map(str::to_owned).collect();
    names.sort();
    names
}

const STATE_FILE_SUFFIX: &str = ".state.json";
const ACCOUNTS_FILE_SUFFIX: &str = ".accounts.json";
/// File that the tap's process locks for as long as it lives.
const LOCK_FILE_SUFFIX: &str = ".lock";

impl TapFiles {
    /// Returns the paths for a tap of that name, whether it exists or not.
    pub(super) fn for_tap(name: &str) -> Self {
        let pins = Path::new(bpf::pin::BPF_MOUNT_POINT).join("packetrig/tap");
        Self::below_directory(runtime_directory::runtime_path_for(TAP_DIRECTORY), &pins, name)
    }

    pub(super) fn below_directory(directory: PathBuf, pins: &Path, name: &str) -> Self {
        Self { directory, name: name.to_owned(), pins: pins.join(name) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Directory of the tap's programs and counters.
    pub(super) fn pins(&self) -> &Path {
        &self.pins
    }

    fn file_path(&self, suffix: &str) -> PathBuf {
        self.directory.join(format!("{}{suffix}", self.name))
    }

    /// Reads the tap's state from its file; `None` if the file is absent or not valid.
    pub(super) fn read_state(&self) -> Option<TapState> {
        // Only a valid tap name may become part of a path.
        if !self.name.bytes().all(is_tap_name_byte) {
            return None;
        }
        serde_json::from_slice(&runtime_directory::read_file(&self.file_path(STATE_FILE_SUFFIX)).ok()?).ok()
    }

    /// Reads the accounts that were published last.
    pub(super) fn read_accounts(&self) -> Option<TapAccounts> {
        serde_json::from_slice(&runtime_directory::read_file(&self.file_path(ACCOUNTS_FILE_SUFFIX)).ok()?)
            .ok()
    }

    /// Reads the published accounts with their time, nanoseconds since 1970.
    pub(super) fn read_dated_accounts(&self) -> Option<(u64, TapAccounts)> {
        // The time is read before the accounts, so the accounts may be newer than this time but not older.
        let written = std::fs::metadata(self.file_path(ACCOUNTS_FILE_SUFFIX)).ok()?.modified().ok()?;
        let since = written.duration_since(std::time::UNIX_EPOCH).ok()?;
        Some((u64::try_from(since.as_nanos()).ok()?, self.read_accounts()?))
    }

    /// Takes the lock that shows that the tap's process lives, until it is dropped or the process dies.
    /// `None` if another process has it.
    pub(super) fn acquire_process_lock(&self) -> Result<Option<LockFile>, Error> {
        let path = self.file_path(LOCK_FILE_SUFFIX);
        LockFile::try_lock_at(&path).map_err(|source| Error::File { path, source })
    }

    /// True if the tap's process is alive, which its lock shows. The process id does not show it, because
    /// another process may have that id by now.
    pub(super) fn is_process_alive(&self) -> bool {
        lock::is_file_locked(&self.file_path(LOCK_FILE_SUFFIX)).unwrap_or(false)
    }

    /// Writes the tap's state.
    pub(super) fn save_state(&self, state: &TapState) -> Result<(), Error> {
        self.write_file(STATE_FILE_SUFFIX, &serde_json::to_vec_pretty(state).map_err(io::Error::from))
    }

    pub(super) fn save_accounts(&self, accounts: &TapAccounts) -> Result<(), Error> {
        self.write_file(ACCOUNTS_FILE_SUFFIX, &serde_json::to_vec_pretty(accounts).map_err(io::Error::from))
    }

    /// Replaces a file atomically, because other processes may read it at any time.
    fn write_file(&self, suffix: &str, bytes: &io::Result<Vec<u8>>) -> Result<(), Error> {
        let path = self.file_path(suffix);
        let written = match bytes {
            Ok(bytes) => runtime_directory::write_file(&path, bytes),
            Err(error) => Err(io::Error::other(error.to_string())),
        };
        written.map_err(|source| Error::File { path, source })
    }

    /// Removes all files of the tap.
    pub(super) fn remove_files(&self, _restored: InterfacesRestored) -> Result<(), Error> {
        // The programs are removed first, because other processes find them only through the state file.
        PinnedForwarding::remove_pins(&self.pins)?;
        for path in [self.file_path(STATE_FILE_SUFFIX), self.file_path(ACCOUNTS_FILE_SUFFIX)] {
            runtime_directory::remove_file(&path).map_err(|source| Error::File { path, source })?;
        }
        // Removes the lock file of a process that was killed. A living process removes its own later.
        self.acquire_process_lock().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::super::hold::restore_abandoned_tap;
    use super::*;

    fn spec(name: &str, a: &str, b: &str) -> TapSpec {
        TapSpec {
            name: name.into(),
            sides: [a.parse().unwrap(), b.parse().unwrap()],
            mirrors: Vec::new(),
            filter: None,
            snap_len: None,
            trailer: false,
            capture: None,
            way: None,
            fail_closed: false,
            link_state: true,
            confirmed: Vec::new(),
        }
    }

    #[test]
    fn tap_names_are_safe_for_files_or_refused() {
        let name = |name, a, b| tap_name_or_default(&spec(name, a, b)).map_err(|error| error.to_string());
        assert_eq!(name("", "eth1", "eth2").unwrap(), "eth1-eth2");
        assert_eq!(name("", "lab/eth1.7", "lab/eth2").unwrap(), "lab_eth1_7-lab_eth2");
        assert_eq!(name("my_tap-1", "eth1", "eth2").unwrap(), "my_tap-1");
        for wrong in ["a/b", "..", "a b", "ä", &"x".repeat(65)] {
            assert!(name(wrong, "eth1", "eth2").unwrap_err().contains(wrong));
        }
    }

    fn state(part: impl Fn(u32) -> TapInterface) -> TapState {
        TapState {
            name: "t".into(),
            way: TapMethod::Xdp,
            why: "asked for".into(),
            process: 7,
            since_ns: 1,
            fail_closed: false,
            knows_drivers: true,
            sides: [part(1), part(2)],
            mirrors: Vec::new(),
            filter: None,
            snap_len: None,
            trailer: false,
            caveats: Vec::new(),
        }
    }

    #[test]
    fn tap_files_are_found_until_removed() {
        let directory = tempfile::tempdir().unwrap();
        let files =
            || TapFiles::below_directory(directory.path().join("x/tap"), &directory.path().join("pins"), "t");
        assert!(files().read_state().is_none());
        std::fs::create_dir_all(files().pins()).unwrap();
        // No namespace has this number, so there is nothing to restore.
        let state = state(|index| TapInterface {
            location: "eth1".into(),
            netns_inode: Some(1),
            index,
            changes: vec![InterfaceChange::Up],
            promiscuous: true,
        });
        files().save_state(&state).unwrap();
        files().save_accounts(&TapAccounts::default()).unwrap();
        assert_eq!(
            (files().read_state(), files().read_accounts()),
            (Some(state.clone()), Some(TapAccounts::default()))
        );
        files().remove_files(restore_abandoned_tap(&state).unwrap()).unwrap();
        assert_eq!((files().read_state(), files().read_accounts()), (None, None));
        assert!(!files().pins().exists());
    }
}
