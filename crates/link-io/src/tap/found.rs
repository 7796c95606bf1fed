//! Taps of this machine, found by what they left, whether their process lives or not.

use super::account::TapAccounts;
use super::place::{TapInterface, TapPlace, TapState, names};
use super::{TapEnd, TapMethod, TapRefusal, hold, kernel};
use crate::Error;
use packetrig_engine::packet::lock_name;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::lock::NameLock;
use packetrig_sys::xdp::tap::PinnedForwarding;
use packetrig_sys::{clock, process};
use packetrig_units::Nanos;

/// How long a process that was asked to end may take.
const PATIENCE_NS: u64 = 20_000_000_000;
const LOOK_NS: u64 = 10_000_000;

/// A tap that was found.
#[derive(Debug)]
pub struct FoundTap {
    pub state: TapState,
    place: TapPlace,
    pinned: Option<PinnedForwarding>,
}

/// All taps, or the one of that name.
pub fn found(name: Option<&str>) -> Result<Vec<FoundTap>, Error> {
    match name {
        None => Ok(names().iter().filter_map(|name| FoundTap::of(name)).collect()),
        Some(name) => Ok(vec![FoundTap::of(name).ok_or_else(|| TapRefusal::Unknown(name.to_owned()))?]),
    }
}

impl FoundTap {
    fn of(name: &str) -> Option<Self> {
        let mut place = TapPlace::of(name);
        place.leave();
        let state = place.recall()?;
        let pinned = PinnedForwarding::find(&place.pins()).ok();
        Some(Self { state, place, pinned })
    }

    /// Whether its process lives: it holds the locks of the interfaces.
    pub fn has_process(&self) -> bool {
        let side = &self.state.sides[0];
        let Some(netns) = side.netns(self.state.process) else { return false };
        // A process number alone proves nothing, because the kernel uses numbers again. The process that holds the
        // lock is alive.
        let holder = match NameLock::take(&netns, &lock_name(side.index), &side.location) {
            Err(packetrig_sys::Error::Busy { holder, .. }) => holder,
            _ => None,
        };
        holder.and_then(|pid| u32::try_from(pid).ok()) == Some(self.state.process)
    }

    /// Whether frames are being forwarded.
    pub fn is_forwarding(&self) -> bool {
        match self.state.way {
            TapMethod::Packet => self.has_process(),
            // Of an interface that is gone the names of its programs are still there.
            TapMethod::Xdp => {
                let is_attached = self.pinned.as_ref().is_some_and(PinnedForwarding::is_attached);
                self.has_process()
                    || (is_attached && self.state.sides.iter().all(|side| self.has_interface(side)))
            }
        }
    }

    /// Its interfaces that no longer exist.
    pub fn gone(&self) -> Vec<String> {
        let parts = self.state.sides.iter().chain(&self.state.mirrors);
        parts.filter(|part| !self.has_interface(part)).map(|part| part.location.clone()).collect()
    }

    fn has_interface(&self, part: &TapInterface) -> bool {
        let netns = part.netns(self.state.process);
        netns.and_then(|netns| NamespaceLinks::open(&netns).ok()?.by_index(part.index).ok()).is_some()
    }

    /// Its accounts: now, where the kernel has them; else as its process left them last.
    pub fn accounts(&self) -> Result<Option<TapAccounts>, Error> {
        let published = self.place.published();
        let Some(pinned) = &self.pinned else { return Ok(published) };
        let mut accounts = kernel::accounts(pinned.books(), &self.state, false)?;
        accounts.elapsed = self.elapsed();
        accounts.recording = published.and_then(|accounts| accounts.recording);
        Ok(Some(accounts))
    }

    fn elapsed(&self) -> Nanos {
        Nanos::new(clock::wall_clock_ns().saturating_sub(self.state.since_ns))
    }

    /// Ends it and restores its interfaces. A tap whose process lives does that itself, and reports the rest there (`None`).
    pub fn end(mut self) -> Result<Option<TapEnd>, Error> {
        if self.has_process() {
            process::ask_to_end(self.state.process)?;
            let until_ns = clock::monotonic_ns() + PATIENCE_NS;
            while self.is_there() {
                if clock::monotonic_ns() >= until_ns {
                    let object = format!("tap `{}`, which was asked to end,", self.state.name);
                    let holder = i32::try_from(self.state.process).ok();
                    return Err(packetrig_sys::Error::Busy { object, holder }.into());
                }
                clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
            }
            return Ok(None);
        }
        let accounts = self.take_off()?;
        let parts = self.state.sides.iter().chain(&self.state.mirrors);
        for part in parts {
            // An interface or a namespace that has gone needs nothing any more.
            if let Some(netns) = part.netns(self.state.process) {
                drop(hold::restore(part, &netns));
            }
        }
        self.place.forget()?;
        let imbalances = accounts.imbalances();
        Ok(Some(TapEnd { accounts, imbalances, recorded: None }))
    }

    /// Whether its file is there still, or there again for another tap.
    fn is_there(&self) -> bool {
        self.place.recall().is_some_and(|state| state.since_ns == self.state.since_ns)
    }

    /// Takes its programs off; what the accounts are then.
    fn take_off(&self) -> Result<TapAccounts, Error> {
        let published = self.place.published().unwrap_or_default();
        let Some(pinned) = &self.pinned else { return Ok(published) };
        // Counters are read after the programs are off and the frames under way have been counted, else the rules of
        // the accounts would not hold.
        pinned.end()?;
        kernel::settle();
        let mut accounts = kernel::accounts(pinned.books(), &self.state, true)?;
        accounts.elapsed = self.elapsed();
        accounts.recording = published.recording;
        Ok(accounts)
    }
}
