//! Undoes the changes of a tap: restores its interfaces, then removes the files that describe how to restore them.

use super::TapRefusal;
use super::hold::PreparedTapInterfaces;
use super::place::{TapFiles, TapState};
use crate::Error;
use packetrig_sys::lock::LockFile;
use packetrig_sys::xdp::tap::PinnedForwarding;

/// The interfaces of a tap and its files. Dropping it restores the interfaces and removes the files, in this order.
#[derive(Debug)]
pub(super) struct TapGuard {
    pub(super) files: TapFiles,
    pub(super) held: PreparedTapInterfaces,
    /// True if drop has nothing left to do.
    is_over: bool,
    /// Shows other processes that this process is alive.
    _lock: LockFile,
}

impl TapGuard {
    /// Takes the tap's lock. Fails if another process runs a tap with that name.
    pub(super) fn new(files: TapFiles, held: PreparedTapInterfaces) -> Result<Self, Error> {
        let lock = files.acquire_process_lock()?.ok_or_else(|| TapRefusal::Taken(files.name().to_owned()))?;
        Ok(Self { files, held, is_over: false, _lock: lock })
    }

    /// Saves the tap's state, with all changes to its interfaces so far.
    pub(super) fn save_state(&self, state: &mut TapState) -> Result<(), Error> {
        state.record_interface_changes(&self.held);
        self.files.save_state(state)
    }

    /// Restores the interfaces and removes the files. If an interface cannot be restored, the files stay: `tap stop` needs
    /// them to try again.
    pub(super) fn restore_interfaces(&mut self) -> Result<(), Error> {
        self.is_over = true;
        // The pins are removed first, because pinned programs would continue to forward between restored
        // interfaces.
        PinnedForwarding::remove_pins(self.files.pins())?;
        let restored = self.held.restore_interfaces()?;
        self.files.remove_files(restored)
    }

    /// Leaves interfaces and files as they are: the tap continues without this process.
    pub(super) fn leave_interfaces(&mut self) {
        self.is_over = true;
        self.held.leave_interfaces();
    }
}

impl Drop for TapGuard {
    fn drop(&mut self) {
        if !self.is_over {
            // An error is ignored: a destructor cannot return one, and a later `stop` tries again.
            drop(self.restore_interfaces());
        }
    }
}
