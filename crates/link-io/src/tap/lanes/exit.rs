//! A ring towards an interface, which may be full, down or gone: what it does not take is counted and forgotten.

use super::super::hold::TapHold;
use crate::Error;
use packetrig_engine::packet::StallWatch;
use packetrig_sys::clock;
use packetrig_sys::packet::{TxCounts, TxOptions, TxRing};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Slots of a ring.
const SLOTS: usize = 1024;
/// Times a full ring is kicked before the frame is dropped.
const CHANCES: u32 = 64;
/// Looks at a ring that is to become empty, and the time between two: longer in all than patience lasts.
const DRAINS: u32 = 1500;
const DRAIN_NS: u64 = 1_000_000;

/// Why a frame did not get into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    Full,
    TooLong,
}

/// The MTU of an interface as it was seen last.
pub(super) struct SeenMtu {
    /// Those of all interfaces of the tap.
    pub(super) all: Arc<[AtomicU32]>,
    pub(super) interface: usize,
}

/// What became of the frames that were put into a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExitCounts {
    /// Taken by the kernel.
    pub(super) taken: u64,
    /// Refused for their length.
    pub(super) refused: u64,
    /// Dropped because the interface was down.
    pub(super) down: u64,
}

pub(super) struct LaneExit {
    ring: TxRing,
    patience: StallWatch,
    mtu: SeenMtu,
    /// Frames given up because the interface was down or gone.
    down: u64,
}

impl LaneExit {
    pub(super) fn open(held: &TapHold, longest: u32, mtu: SeenMtu) -> Result<Self, Error> {
        let options = TxOptions { slots: SLOTS, longest: longest as usize, ..TxOptions::default() };
        let ring = TxRing::open(&held.netns, held.link.index, &held.location.to_string(), options)?;
        Ok(Self { ring, patience: StallWatch::default(), mtu, down: 0 })
    }

    /// Minds the interface's MTU of this moment: the kernel does not, on the way that frames take here.
    fn follow_mtu(&mut self) {
        if let Some(mtu) = self.mtu.all.get(self.mtu.interface) {
            self.ring.set_mtu(mtu.load(Ordering::Relaxed));
        }
    }

    /// Puts a frame into the ring. With `waits`, a full ring is kicked a few times before the frame is dropped.
    pub(super) fn put(
        &mut self,
        waits: bool,
        write: &mut dyn FnMut(&mut [u8]) -> Option<usize>,
    ) -> Result<(), NotTaken> {
        let mut chances = if waits { CHANCES } else { 0 };
        while self.ring.next_slot().is_none() {
            if chances == 0 {
                return Err(NotTaken::Full);
            }
            chances -= 1;
            self.kick();
        }
        let slot = self.ring.next_slot().ok_or(NotTaken::Full)?;
        let len = write(slot).ok_or(NotTaken::TooLong)?;
        self.ring.commit(len);
        Ok(())
    }

    /// Has the kernel send the frames in the ring. Those that it cannot send, because the interface is down or gone, are dropped.
    pub(super) fn kick(&mut self) {
        self.follow_mtu();
        if self.ring.pending() == 0 {
            return;
        }
        // A frame for an interface that is down is given up, as a cable does with it. Kept, it would leave minutes
        // later.
        let is_down = self.ring.kick().is_err();
        let finished = self.ring.handed_over() + self.ring.counts().refused;
        if is_down || self.patience.is_over(self.ring.untaken(), finished) {
            self.down += self.ring.withdraw() as u64;
        }
    }

    /// Kicks until all is taken, refused or given up, or the far end has had time enough.
    pub(super) fn drain(&mut self) {
        for _ in 0..DRAINS {
            self.kick();
            if self.ring.pending() == 0 {
                break;
            }
            clock::sleep_until_ns(clock::monotonic_ns() + DRAIN_NS);
        }
    }

    pub(super) fn counts(&self) -> ExitCounts {
        let TxCounts { taken, refused } = self.ring.counts();
        ExitCounts {
            // Those on their way are taken: nothing takes them back.
            taken: taken + self.ring.pending() as u64,
            refused: refused.saturating_sub(self.down),
            down: self.down,
        }
    }
}
