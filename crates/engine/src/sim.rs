//! The `sim` back end: ports joined by links with exactly known rate, delay and faults. Needs no privileges.
//!
//! ```text
//!  SimTx -> transmit ring -> SimLink: queue, line, delay, faults -> SimRx, stamped by the receiver's clock
//! ```
//! The clock is an argument: with a [`VirtualClock`] a [`SimulationStage`] simulates hours in moments and every number
//! is exact; with the real clock the same links run under the rig's own threads ([`SimPorts`]). Several links may leave
//! or enter a port. The simulation covers links, not the processor time of senders and receivers.
//!
//! Invariant: frames handed over = frames that entered each link; the same seed gives the same faults.

mod chance;
mod clock;
mod link;
mod ports;
mod stage;

pub use chance::FaultChance;
pub(crate) use chance::SeededDice;
pub use clock::VirtualClock;
pub use link::{LinkSpec, LinkTruth, MAX_HOLD_AT};
pub use ports::SimPorts;
pub use stage::SimulationStage;

use crate::Error;
use crate::port::{FrameRx, FrameTx, RxFrame, WorkerClock};
use link::SimulatedLink;
use packetrig_stats::port::{RxCounters, StampKind, TxCounters};
use packetrig_units::{MonoTime, Nanos, clamp_to_u64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Slots of a transmit ring.
const TX_RING_SLOTS: usize = 256;
/// Longest frame without FCS.
const MAX_SIM_FRAME_BYTES: usize = 16_384;

/// A link in one direction, shared by its two ends.
#[derive(Clone, Debug)]
pub struct SimLink(Arc<Mutex<SimulatedLink>>);

impl SimLink {
    /// Creates a link with these properties.
    pub fn new(spec: LinkSpec) -> Self {
        Self(Arc::new(Mutex::new(SimulatedLink::new(spec))))
    }

    /// Returns the exact history of the simulated link so far.
    pub fn truth(&self) -> LinkTruth {
        self.lock_link().truth().clone()
    }

    fn lock_link(&self) -> MutexGuard<'_, SimulatedLink> {
        // The link stays usable after another thread has panicked while it held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct FrameSlot {
    bytes: Box<[u8]>,
    len: usize,
}

impl FrameSlot {
    fn new() -> Self {
        Self { bytes: vec![0; MAX_SIM_FRAME_BYTES].into(), len: 0 }
    }
}

/// The transmit half of a simulated port: every frame enters all links that leave the port.
#[derive(Debug)]
pub struct SimTx<C> {
    links: Vec<SimLink>,
    clock: C,
    slots: Vec<FrameSlot>,
    first: usize,
    filled: usize,
    refuse: FaultChance,
    dice: SeededDice,
    counters: TxCounters,
}

impl<C: WorkerClock> SimTx<C> {
    /// Creates the transmit half of a port that `links` leave.
    pub fn new(links: Vec<SimLink>, clock: C) -> Self {
        Self {
            links,
            clock,
            slots: std::iter::repeat_with(FrameSlot::new).take(TX_RING_SLOTS).collect(),
            first: 0,
            filled: 0,
            refuse: FaultChance::NEVER,
            dice: SeededDice::new(0),
            // A simulated interface always knows its counters.
            counters: TxCounters { on_wire: Some(0), dropped: Some(0), ..TxCounters::default() },
        }
    }

    /// Makes the half refuse some frames, as a kernel might; the same seed refuses the same frames.
    #[must_use]
    pub fn with_refusals(mut self, refuse: FaultChance, seed: u64) -> Self {
        self.refuse = refuse;
        self.dice = SeededDice::new(seed);
        self
    }

    /// Moves the oldest frame from the ring into all links, or refuses it.
    fn launch_oldest_frame(&mut self, now: MonoTime) {
        let slot = &self.slots[self.first];
        // Positions count every frame that leaves the ring, refused ones included.
        let position = self.counters.handed_over + self.counters.refused;
        if self.refuse.is_faulty_at(position, &mut self.dice) {
            self.counters.refused += 1;
        } else {
            for link in &self.links {
                link.lock_link().transmit_frame(&slot.bytes[..slot.len], now);
            }
            self.counters.handed_over += 1;
        }
        self.first = (self.first + 1) % TX_RING_SLOTS;
        self.filled -= 1;
    }
}

impl<C: WorkerClock> FrameTx for SimTx<C> {
    fn fill_slots(&mut self, want: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> usize {
        for done in 0..want {
            if self.filled == TX_RING_SLOTS {
                return done;
            }
            let slot = &mut self.slots[(self.first + self.filled) % TX_RING_SLOTS];
            let Some(len) = fill(&mut slot.bytes) else { return done };
            slot.len = len;
            self.filled += 1;
        }
        want
    }

    fn flush_frames(&mut self) -> Result<(), Error> {
        let now = self.clock.now();
        // A frame enters all links at once, so the slowest link holds back the ring.
        while self.filled > 0 && self.links.iter().all(|link| link.lock_link().has_room(now)) {
            self.launch_oldest_frame(now);
        }
        Ok(())
    }

    fn pending_frames(&self) -> usize {
        self.filled
    }

    fn read_tx_counters(&mut self) -> Result<TxCounters, Error> {
        Ok(TxCounters { on_wire: Some(self.counters.handed_over), ..self.counters })
    }
}

/// Difference between a receiver's clock and the clock of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockSkew {
    /// Nanoseconds by which the receiver's clock is ahead at time 0 of the simulation.
    pub offset_ns: i64,
    /// Nanoseconds that the receiver's clock gains in each second.
    pub drift_ns_per_s: i64,
}

impl ClockSkew {
    /// Returns the time that the receiver's clock shows at time `at` of the simulation; never negative.
    pub fn receiver_time_at(self, at: MonoTime) -> MonoTime {
        // The product uses 128 bits: nanoseconds times drift may exceed 64 bits.
        let drift = i128::from(at.as_nanos()) * i128::from(self.drift_ns_per_s) / 1_000_000_000;
        let shown = i128::from(at.as_nanos()) + i128::from(self.offset_ns) + drift;
        MonoTime::from_nanos(clamp_to_u64(shown.max(0)))
    }
}

/// The receive half of a simulated port: receives from all links that enter the port.
#[derive(Debug)]
pub struct SimRx<C> {
    links: Vec<SimLink>,
    clock: C,
    skew: ClockSkew,
    seen: u64,
}

impl<C: WorkerClock> SimRx<C> {
    /// Creates the receive half of a port that `links` enter.
    pub fn new(links: Vec<SimLink>, clock: C) -> Self {
        Self { links, clock, skew: ClockSkew::default(), seen: 0 }
    }

    /// Makes this half read a clock that is skewed against the simulation's clock.
    #[must_use]
    pub fn with_skew(self, skew: ClockSkew) -> Self {
        Self { skew, ..self }
    }
}

impl<C: WorkerClock> FrameRx for SimRx<C> {
    fn receive_frames(&mut self, most: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> Result<usize, Error> {
        let now = self.clock.now();
        let mut taken = 0;
        for link in &self.links {
            let mut link = link.lock_link();
            while taken < most
                && link.deliver_frame(now, |bytes, at| {
                    let at = self.skew.receiver_time_at(at);
                    sink(RxFrame::single_packet(bytes, bytes.len(), at, StampKind::Software));
                })
            {
                taken += 1;
            }
        }
        self.seen += taken as u64;
        Ok(taken)
    }

    fn wait_for_frames(&mut self, within: Nanos) -> Result<(), Error> {
        let now = self.clock.now();
        let next = self.links.iter().filter_map(|link| link.lock_link().next_event(now)).min();
        // Frames arrive at known times, so the wait ends exactly at the next one.
        self.clock.wait_until(next.unwrap_or(now + within).min(now + within));
        Ok(())
    }

    fn read_rx_counters(&mut self) -> Result<RxCounters, Error> {
        Ok(RxCounters {
            arrived: Some(self.seen),
            dropped: Some(0),
            seen: self.seen,
            ..RxCounters::default()
        })
    }

    fn clock_bound(&self) -> Nanos {
        Nanos::ZERO
    }
}
