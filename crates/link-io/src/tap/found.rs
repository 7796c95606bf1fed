//! Finds the taps of this machine by the files that they left, whether their processes live or not.

use super::account::TapAccounts;
use super::place::{TapFiles, TapInterface, TapState, list_names};
use super::{EndedTapResult, TapMethod, TapRefusal, hold, kernel};
use crate::Error;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::xdp::tap::PinnedForwarding;
use packetrig_sys::{clock, process};
use packetrig_units::Nanos;

/// Time limit for a process to end after a request.
const END_TIMEOUT_NS: u64 = 20_000_000_000;
const POLL_INTERVAL_NS: u64 = 10_000_000;

/// A tap that was found by its files, with its pinned programs if it has any.
#[derive(Debug)]
pub struct FoundTap {
    pub state: TapState,
    files: TapFiles,
    pinned: Option<PinnedForwarding>,
}

/// A tap as its process last described it. Reading this requires no rights on the interfaces, and it may
/// be out of date.
#[derive(Debug)]
pub struct DescribedTap {
    pub state: TapState,
    /// True if the tap's process runs.
    pub process_runs: bool,
    /// The tap's accounts and their time, nanoseconds since 1970.
    pub counted: Option<(u64, TapAccounts)>,
}

/// Describes all taps of this user.
pub fn describe_taps() -> Vec<DescribedTap> {
    list_names().iter().filter_map(|name| DescribedTap::from_name(name)).collect()
}

impl DescribedTap {
    fn from_name(name: &str) -> Option<Self> {
        Self::from_files(&TapFiles::for_tap(name))
    }

    fn from_files(files: &TapFiles) -> Option<Self> {
        let state = files.read_state()?;
        Some(Self { state, process_runs: files.is_process_alive(), counted: files.read_dated_accounts() })
    }
}

/// Finds all taps, or the tap with that name; fails if no tap has it.
pub fn find_taps(name: Option<&str>) -> Result<Vec<FoundTap>, Error> {
    match name {
        None => Ok(list_names().iter().filter_map(|name| FoundTap::from_name(name)).collect()),
        Some(name) => {
            Ok(vec![FoundTap::from_name(name).ok_or_else(|| TapRefusal::Unknown(name.to_owned()))?])
        }
    }
}

impl FoundTap {
    fn from_name(name: &str) -> Option<Self> {
        Self::from_files(TapFiles::for_tap(name))
    }

    fn from_files(files: TapFiles) -> Option<Self> {
        let state = files.read_state()?;
        // A tap that forwards in its process has no pins, so an error here is the usual case.
        let pinned = PinnedForwarding::find_in(files.pins()).ok();
        Some(Self { state, files, pinned })
    }

    /// True if the tap's process lives.
    pub fn has_process(&self) -> bool {
        self.files.is_process_alive()
    }

    /// True if frames are being forwarded.
    pub fn is_forwarding(&self) -> bool {
        match self.state.way {
            TapMethod::Packet => self.has_process(),
            // The pinned programs outlive an interface that has disappeared, so the interfaces are checked, too.
            TapMethod::Xdp => {
                let is_attached = self.pinned.as_ref().is_some_and(PinnedForwarding::is_attached);
                self.has_process()
                    || (is_attached && self.state.sides.iter().all(|side| self.has_interface(side)))
            }
        }
    }

    /// Returns the locations of the tap's interfaces that no longer exist.
    pub fn gone_interfaces(&self) -> Vec<String> {
        let parts = self.state.sides.iter().chain(&self.state.mirrors);
        parts.filter(|part| !self.has_interface(part)).map(|part| part.location.clone()).collect()
    }

    fn has_interface(&self, part: &TapInterface) -> bool {
        let netns = part.open_netns(self.state.process);
        netns
            .and_then(|netns| NamespaceLinks::open_in(&netns).ok()?.find_link_by_index(part.index).ok())
            .is_some()
    }

    /// Reads the tap's accounts from the kernel, or else the last ones that its process published.
    pub fn read_accounts(&self) -> Result<Option<TapAccounts>, Error> {
        let published = self.files.read_accounts();
        let Some(pinned) = &self.pinned else { return Ok(published) };
        let mut accounts = kernel::read_accounts(pinned.counts(), &self.state, false)?;
        accounts.elapsed = self.elapsed_time();
        // The kernel's counters do not count the frames in the file.
        accounts.recording = published.and_then(|accounts| accounts.recording);
        Ok(Some(accounts))
    }

    fn elapsed_time(&self) -> Nanos {
        Nanos::new(clock::wall_clock_ns().saturating_sub(self.state.since_ns))
    }

    /// Ends the tap and restores its interfaces. If the tap's process is alive, that process ends the tap and
    /// reports the results (`None`).
    ///
    /// Returns an error if an interface cannot be restored. The tap's files stay then, so that it can be ended again.
    pub fn end_tap(self) -> Result<Option<EndedTapResult>, Error> {
        if self.has_process() {
            // The living process holds the interfaces and the last counts, so it has to end the tap itself.
            process::send_sigterm_to_process(self.state.process)?;
            let until_ns = clock::monotonic_ns() + END_TIMEOUT_NS;
            while self.has_own_state_file() {
                if clock::monotonic_ns() >= until_ns {
                    let object = format!("tap `{}` has not ended within 20 s; it", self.state.name);
                    let holder = i32::try_from(self.state.process).ok();
                    return Err(packetrig_sys::Error::Busy { object, holder }.into());
                }
                clock::sleep_until_ns(clock::monotonic_ns() + POLL_INTERVAL_NS);
            }
            return Ok(None);
        }
        let accounts = self.detach_programs()?;
        self.files.remove_files(hold::restore_abandoned_tap(&self.state)?)?;
        let imbalances = accounts.find_imbalances();
        Ok(Some(EndedTapResult { accounts, imbalances, recorded: None }))
    }

    /// True if the tap's state file still exists and does not belong to a newer tap.
    fn has_own_state_file(&self) -> bool {
        self.files.read_state().is_some_and(|state| state.since_ns == self.state.since_ns)
    }

    /// Detaches the tap's programs; returns the final accounts.
    fn detach_programs(&self) -> Result<TapAccounts, Error> {
        let published = self.files.read_accounts().unwrap_or_default();
        let Some(pinned) = &self.pinned else { return Ok(published) };
        // Counters are read after the programs are removed and the frames in transit have been counted;
        // otherwise the rules of the accounts would not hold.
        pinned.end_forwarding()?;
        kernel::wait_until_counted();
        let mut accounts = kernel::read_accounts(pinned.counts(), &self.state, true)?;
        accounts.elapsed = self.elapsed_time();
        accounts.recording = published.recording;
        Ok(accounts)
    }
}

#[cfg(test)]
mod tests {
    use super::super::guard::TapGuard;
    use super::super::hold::{PreparedTapInterface, PreparedTapInterfaces};
    use super::*;
    use packetrig_engine::packet::quiet::InterfaceChange;
    use packetrig_plan::PortLocation;
    use packetrig_sys::link::{Link, VethEnd};
    use packetrig_sys::netns::{self, NetNs};
    use std::path::Path;

    /// A cable between `a` and `b` in a separate namespace.
    struct CableLab(String);

    impl CableLab {
        /// Creates the cable; `None` if rights are missing.
        fn new(test: &str) -> Option<Self> {
            let name = format!("link-io-{test}-{}", process::current_process_id());
            let netns = match NetNs::create_named_namespace(&name) {
                Ok(netns) => netns,
                Err(error) => {
                    assert!(error.is_permission_error(), "{error}");
                    println!("skipped: {error}");
                    return None;
                }
            };
            let lab = Self(name);
            let end = |name| VethEnd { name, netns: None, mac: None };
            NamespaceLinks::open_in(&netns).unwrap().create_veth(end("a"), end("b")).unwrap();
            Some(lab)
        }

        fn link(&self, name: &str) -> Link {
            NamespaceLinks::open_in(&NetNs::open_named_namespace(&self.0).unwrap())
                .unwrap()
                .find_link_by_name(name)
                .unwrap()
        }

        /// Settings that a tap changes. The kernel chooses a queueing discipline when an interface comes up,
        /// which no process undoes.
        fn settings(&self, name: &str) -> (bool, bool, u32) {
            let link = self.link(name);
            (link.up, link.promiscuous, link.mtu)
        }

        fn hold(&self, name: &str) -> PreparedTapInterface {
            let location = PortLocation { namespace: Some(self.0.clone()), interface: name.into() };
            PreparedTapInterface::prepare_interface(&location, true, true).unwrap()
        }

        /// A tap that holds both ends, with its files below `directory`.
        fn tap(&self, directory: &Path) -> (TapGuard, TapState) {
            let sides = [self.hold("a"), self.hold("b")];
            let guard = TapGuard::new(files(directory), PreparedTapInterfaces { sides, mirrors: Vec::new() })
                .unwrap();
            let mut state = state([
                TapInterface::from_held(&guard.held.sides[0]),
                TapInterface::from_held(&guard.held.sides[1]),
            ]);
            guard.save_state(&mut state).unwrap();
            (guard, state)
        }
    }

    impl Drop for CableLab {
        fn drop(&mut self) {
            netns::delete_named_namespace(&self.0).unwrap();
        }
    }

    fn state(sides: [TapInterface; 2]) -> TapState {
        TapState {
            name: "t".into(),
            way: TapMethod::Packet,
            why: "asked for".into(),
            process: process::current_process_id(),
            since_ns: 1,
            fail_closed: true,
            knows_drivers: false,
            sides,
            mirrors: Vec::new(),
            filter: None,
            snap_len: None,
            trailer: false,
            caveats: Vec::new(),
        }
    }

    fn files(directory: &Path) -> TapFiles {
        TapFiles::below_directory(directory.join("run/tap"), &directory.join("pins"), "t")
    }

    #[test]
    fn tap_process_runs_while_lock_is_held() {
        let directory = tempfile::tempdir().unwrap();
        let files = || files(directory.path());
        let side = |index| TapInterface {
            location: "eth1".into(),
            // No namespace has this number.
            netns_inode: Some(1),
            index,
            changes: Vec::new(),
            promiscuous: false,
        };
        // Some process always has this number.
        let state = TapState { process: 1, ..state([side(1), side(2)]) };
        files().save_state(&state).unwrap();
        let has_process = || {
            let [described, found] = [
                DescribedTap::from_files(&files()).unwrap().process_runs,
                FoundTap::from_files(files()).unwrap().has_process(),
            ];
            assert_eq!(described, found);
            found
        };
        assert!(!has_process(), "it was killed, and another has its number");
        let lock = files().acquire_process_lock().unwrap();
        assert!(has_process() && files().acquire_process_lock().unwrap().is_none());
        drop(lock);
        assert!(!has_process());
        // No process gets a request to end.
        assert!(FoundTap::from_files(files()).unwrap().end_tap().unwrap().is_some());
        assert_eq!(std::fs::read_dir(directory.path().join("run/tap")).unwrap().count(), 0);
    }

    #[test]
    fn restoring_interfaces_removes_tap_state() {
        let Some(lab) = CableLab::new("forgotten") else { return };
        let directory = tempfile::tempdir().unwrap();
        let before = (lab.settings("a"), lab.settings("b"));
        let (guard, _) = lab.tap(directory.path());
        assert!(lab.link("a").promiscuous && lab.link("b").up);
        assert!(files(directory.path()).read_state().is_some());
        drop(guard);
        assert_eq!((lab.settings("a"), lab.settings("b")), before);
        assert!(files(directory.path()).read_state().is_none());
    }

    #[test]
    fn dead_tap_state_is_kept_until_restored() {
        let Some(lab) = CableLab::new("kept") else { return };
        let directory = tempfile::tempdir().unwrap();
        let before = (lab.settings("a"), lab.settings("b"));
        let (mut guard, mut state) = lab.tap(directory.path());
        guard.leave_interfaces();
        drop(guard);
        // One of the changes cannot be undone.
        let restorable = state.clone();
        state.sides[0].changes.push(InterfaceChange::Setting("net/no/such/setting".into(), "1".into()));
        files(directory.path()).save_state(&state).unwrap();
        assert!(FoundTap::from_files(files(directory.path())).unwrap().end_tap().is_err());
        assert_eq!(files(directory.path()).read_state(), Some(state), "it says what is left to restore");
        assert_eq!(lab.settings("b"), before.1, "the other interface is restored");
        files(directory.path()).save_state(&restorable).unwrap();
        FoundTap::from_files(files(directory.path())).unwrap().end_tap().unwrap();
        assert_eq!((lab.settings("a"), lab.settings("b")), before);
        assert!(files(directory.path()).read_state().is_none());
    }
}
