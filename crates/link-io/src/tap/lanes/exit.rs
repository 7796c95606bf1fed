//! The transmit ring of an interface. If the ring is full, or the interface is down or gone, frames
//! are dropped and counted.

use super::super::hold::PreparedTapInterface;
use crate::Error;
use packetrig_engine::packet::StandstillTimer;
use packetrig_link::DepartureLateness;
use packetrig_sys::clock;
use packetrig_sys::packet::{TxCounts, TxOptions, TxRing};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of slots of a transmit ring.
const EXIT_RING_SLOTS: usize = 1024;
/// Maximum number of attempts to empty a full ring before the frame is dropped.
const MAX_FULL_RING_ATTEMPTS: u32 = 64;
/// Maximum number of polls of a ring that must become empty, and the time between two polls. Together they
/// take longer than the stall timeout.
const MAX_DRAIN_POLLS: u32 = 1500;
const DRAIN_POLL_INTERVAL_NS: u64 = 1_000_000;

/// Reason why a frame did not get into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingRefusal {
    Full,
    TooLong,
}

/// The last known MTU of an interface.
pub(super) struct LastKnownMtu {
    /// MTUs of all interfaces of the tap.
    pub(super) all: Arc<[AtomicU32]>,
    pub(super) interface: usize,
}

/// Counts of the frames that were put into a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExitCounts {
    /// Frames that the kernel accepted.
    pub(super) taken: u64,
    /// Frames that were refused because of their length.
    pub(super) refused: u64,
    /// Frames that were dropped because the interface was down or gone, or its ring had stalled.
    pub(super) down: u64,
}

pub(super) struct TapTransmitRing {
    ring: TxRing,
    stall_watch: StandstillTimer,
    mtu: LastKnownMtu,
    /// Frames that were dropped because the interface was down or gone, or its ring had stalled.
    down: u64,
    departures: Option<TapDepartureLog>,
}

/// Due times of the frames in the ring, and the lateness of earlier frames.
#[derive(Debug)]
struct TapDepartureLog {
    /// Due times of frames that the kernel has not taken yet, in order.
    due_ns: VecDeque<u64>,
    lateness: DepartureLateness,
}

impl TapTransmitRing {
    pub(super) fn open_ring(
        held: &PreparedTapInterface,
        longest: u32,
        mtu: LastKnownMtu,
    ) -> Result<Self, Error> {
        let options = TxOptions { slots: EXIT_RING_SLOTS, longest: longest as usize, ..TxOptions::default() };
        let ring =
            TxRing::open_on_interface(&held.netns, held.link.index, &held.location.to_string(), options)?;
        Ok(Self { ring, stall_watch: StandstillTimer::default(), mtu, down: 0, departures: None })
    }

    /// Starts to measure how late frames depart.
    pub(super) fn start_measuring_lateness(&mut self) {
        // The vector has space for all slots, so that nothing is allocated while frames pass.
        let due_ns = VecDeque::with_capacity(self.ring.capacity());
        self.departures = Some(TapDepartureLog { due_ns, lateness: DepartureLateness::default() });
    }

    /// Returns the lateness of all frames that have departed so far.
    pub(super) fn lateness(&self) -> DepartureLateness {
        self.departures.as_ref().map(|departures| departures.lateness).unwrap_or_default()
    }

    /// Records the departure of frames that the kernel has taken since the last call. Call it after the call that
    /// sent them, so that the time in that call, and any wait for a processor, counts as lateness.
    fn record_departures(&mut self) {
        let Some(TapDepartureLog { due_ns, lateness }) = &mut self.departures else { return };
        let departed = due_ns.len().saturating_sub(self.ring.untaken_frames());
        if departed == 0 {
            return;
        }
        let now_ns = clock::monotonic_ns();
        due_ns.drain(..departed).for_each(|due_ns| lateness.add_departure(due_ns, now_ns));
    }

    /// Applies the interface's current MTU, because the kernel does not check the MTU on this path.
    fn apply_current_mtu(&mut self) {
        if let Some(mtu) = self.mtu.all.get(self.mtu.interface) {
            self.ring.set_mtu(mtu.load(Ordering::Relaxed));
        }
    }

    /// Puts a frame that was due at `due_ns` into the ring. If the ring is full, asks the kernel a few times to
    /// send, before it drops the frame.
    pub(super) fn write_due_frame(
        &mut self,
        due_ns: u64,
        write: &mut dyn FnMut(&mut [u8]) -> Option<usize>,
    ) -> Result<(), RingRefusal> {
        let is_in_slot = self.fill_slot(MAX_FULL_RING_ATTEMPTS, write)?;
        if let Some(departures) = self.departures.as_mut().filter(|_| is_in_slot) {
            departures.due_ns.push_back(due_ns);
        }
        Ok(())
    }

    /// Puts a copy into the ring if it has a free slot.
    pub(super) fn write_frame_copy(
        &mut self,
        write: &mut dyn FnMut(&mut [u8]) -> Option<usize>,
    ) -> Result<(), RingRefusal> {
        self.fill_slot(0, write).map(drop)
    }

    /// Fills the next slot. If the ring is full, asks the kernel up to `chances` times to send. Returns true if the
    /// frame is in the slot: a frame that is too long for the interface is counted as refused and takes no slot.
    fn fill_slot(
        &mut self,
        mut chances: u32,
        write: &mut dyn FnMut(&mut [u8]) -> Option<usize>,
    ) -> Result<bool, RingRefusal> {
        while self.ring.next_slot().is_none() {
            if chances == 0 {
                return Err(RingRefusal::Full);
            }
            chances -= 1;
            self.kick_ring();
        }
        // The number of pending frames is compared afterwards: the ring refuses a frame that is longer than the
        // interface can send.
        let pending = self.ring.pending_frames();
        let slot = self.ring.next_slot().ok_or(RingRefusal::Full)?;
        let len = write(slot).ok_or(RingRefusal::TooLong)?;
        self.ring.commit_frame(len);
        Ok(self.ring.pending_frames() > pending)
    }

    /// Asks the kernel to send the frames in the ring. Drops the frames that the kernel has not taken if the
    /// interface is down or gone, or the ring has stalled.
    pub(super) fn kick_ring(&mut self) {
        self.apply_current_mtu();
        if self.ring.pending_frames() == 0 {
            return;
        }
        // A frame for an interface that is down is dropped, as a cable would do. If it were kept, it could
        // leave minutes later.
        let is_down = self.ring.kick_kernel().is_err();
        self.record_departures();
        let finished = self.ring.handed_over_frames() + self.ring.counts().refused;
        if is_down || self.stall_watch.has_timed_out(self.ring.untaken_frames(), finished) {
            self.down += self.ring.withdraw_untaken() as u64;
            if let Some(departures) = &mut self.departures {
                // These frames never departed, so they have no lateness.
                departures.due_ns.clear();
            }
        }
    }

    /// Asks the kernel to send until the ring is empty, for at most 1.5 s. That is longer than the stall timeout,
    /// after which frames are dropped.
    pub(super) fn drain_ring(&mut self) {
        for _ in 0..MAX_DRAIN_POLLS {
            self.kick_ring();
            if self.ring.pending_frames() == 0 {
                break;
            }
            clock::sleep_until_ns(clock::monotonic_ns() + DRAIN_POLL_INTERVAL_NS);
        }
    }

    pub(super) fn counts(&self) -> ExitCounts {
        let TxCounts { taken, refused } = self.ring.counts();
        ExitCounts {
            // Frames in transit count as taken, because they cannot be withdrawn.
            taken: taken + self.ring.pending_frames() as u64,
            refused: refused.saturating_sub(self.down),
            down: self.down,
        }
    }
}
