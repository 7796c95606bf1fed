//! The worker that runs the emulated interfaces of one port, on sockets separate from the sockets
//! of the test traffic.

use super::filter;
use super::machine::{DeviceMachine, PingState};
use crate::Error;
use crate::gate::SendGate;
use crate::port::WorkerClock;
use crate::stream::{NextStep, StreamControl};
use crate::worker::WorkerTask;
use packetrig_plan::device::{DeviceNeighbour, Mac};
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::{RxOptions, RxRing, TxOptions, TxRing};
use packetrig_units::{MonoTime, Nanos};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of frames received in one step.
const MAX_FRAMES_PER_STEP: usize = 64;
/// Longest wait between two steps.
const MAX_IDLE_WAIT: Nanos = Nanos::from_millis(5);
/// Longest frame that is sent, bytes without FCS; longer answers are dropped.
const MAX_ANSWERED_FRAME_BYTES: usize = 1518;
/// Pending frames are dropped when the kernel has taken none of them for this long.
const STUCK_TIMEOUT: Nanos = Nanos::from_millis(1_000);

/// Network namespace and index of a port's interface. The emulated hosts open their own sockets there, separate from
/// those of the test traffic.
#[derive(Debug)]
pub struct PortInterfaceHandle {
    pub netns: NetNs,
    pub index: u32,
    /// Location as text, for messages.
    pub location: String,
    /// Number of frames that the emulated hosts sent. Code that reads the interface's counters subtracts it.
    pub aside: Arc<AtomicU64>,
}

impl PortInterfaceHandle {
    /// Returns a second handle for the same interface, with its own handle of the namespace.
    pub fn duplicate(&self) -> Result<Self, Error> {
        let netns = self.netns.duplicate()?;
        Ok(Self { netns, index: self.index, location: self.location.clone(), aside: Arc::clone(&self.aside) })
    }
}

pub(crate) struct DeviceHost {
    machine: DeviceMachine,
    rx: RxRing,
    tx: TxRing,
    aside: Arc<AtomicU64>,
    out: Vec<Vec<u8>>,
    stuck_since: Option<MonoTime>,
    clock: crate::clock::RealClock,
    /// The send gate of the lease: limits how long this host may send.
    gate: SendGate,
    /// Time until which this host may send regardless of the gate.
    allowed_until: MonoTime,
    /// Whether the interfaces shall answer and send requests, as long as the lease permits it.
    is_wanted: bool,
}

/// State that a host publishes: the requested neighbours and the MAC addresses found so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct PublishedHostCounters {
    pub(crate) neighbours: Vec<(DeviceNeighbour, Option<Mac>)>,
}

impl DeviceHost {
    pub(crate) fn open_sockets(
        site: PortInterfaceHandle,
        machine: DeviceMachine,
        gate: SendGate,
    ) -> Result<Self, Error> {
        // Few frames pass the filter. A block is handed over after a millisecond, so that an answer is not late.
        let options = RxOptions { blocks: 16, retire_ms: 1, ..RxOptions::default() };
        let rx = RxRing::open_filtered(
            &site.netns,
            site.index,
            &site.location,
            options,
            &filter::build_protocol_filter(),
        )?;
        let options = TxOptions { slots: 64, longest: MAX_ANSWERED_FRAME_BYTES, bypass_queue: true };
        Ok(Self {
            machine,
            rx,
            tx: TxRing::open_on_interface(&site.netns, site.index, &site.location, options)?,
            aside: site.aside,
            out: Vec::new(),
            stuck_since: None,
            clock: crate::clock::RealClock::new(),
            gate,
            allowed_until: MonoTime::default(),
            is_wanted: false,
        })
    }

    pub(crate) fn set_interfaces_enabled(&mut self, on: bool) {
        self.is_wanted = on;
        self.apply_send_gate(self.clock.now());
    }

    /// Permits sending for the time `within` from now on, because the first lease arrives later.
    pub(crate) fn permit_sending_for(&mut self, within: Nanos) {
        let now = self.clock.now();
        self.allowed_until = now + within;
        self.apply_send_gate(now);
    }

    /// Returns whether this host may send now. Without a lease it always may.
    fn is_allowed(&self, now: MonoTime) -> bool {
        now < self.allowed_until || self.gate.remaining_time().is_none_or(|left| left > Nanos::ZERO)
    }

    /// Stops sending when the lease ends, as senders do. Unlike a sender it resumes with the next lease,
    /// because a pause makes none of its counters wrong.
    fn apply_send_gate(&mut self, now: MonoTime) {
        let is_allowed = self.is_allowed(now);
        // This is called in every step; the machine does nothing while the state stays the same.
        self.machine.set_interfaces_enabled(self.is_wanted && is_allowed, now, &mut self.out);
        // Frames that were built before the lease expired must not leave afterwards.
        if !is_allowed {
            self.out.clear();
            // Frames that the interface did not take while it was down shall not leave later.
            if self.tx.untaken_frames() > 0 {
                self.tx.withdraw_untaken();
                self.stuck_since = None;
            }
        }
    }

    pub(crate) fn request_neighbours(&mut self, neighbours: &[DeviceNeighbour]) {
        let now = self.clock.now();
        for neighbour in neighbours {
            self.machine.request_neighbour(*neighbour, now);
        }
    }

    pub(crate) fn start_ping(&mut self, interface: usize, address: usize, to: IpAddr, within: Nanos) -> u64 {
        self.machine.start_ping(interface, address, to, self.clock.now(), within)
    }

    /// Returns the state of a ping; `None` if no ping has this number. Removes a finished ping.
    pub(crate) fn take_ping_state(&mut self, number: u64) -> Option<PingState> {
        let state = self.machine.ping_state(number)?;
        if state != PingState::Waiting {
            self.machine.remove_ping(number);
        }
        Some(state)
    }

    /// Returns the requested neighbours; found neighbours have their MAC address.
    pub(crate) fn neighbours(&self) -> Vec<(DeviceNeighbour, Option<Mac>)> {
        self.machine.neighbours().collect()
    }

    /// Switches the interfaces off. Frames that were built before still leave if the kernel takes them within a second.
    pub(crate) fn stop_and_drain(mut self) -> Result<(), Error> {
        self.set_interfaces_enabled(false);
        let give_up = self.clock.now() + STUCK_TIMEOUT;
        self.send_frames(self.clock.now())?;
        // An interface that is down keeps frames pending; without the deadline the run could not end.
        while self.tx.untaken_frames() > 0 && self.clock.now() < give_up {
            self.send_frames(self.clock.now())?;
        }
        Ok(())
    }

    /// Gives pending frames to the kernel; frames for which the ring has no free slot wait for the next call.
    fn send_frames(&mut self, now: MonoTime) -> Result<(), Error> {
        let mut sent = 0;
        for frame in &self.out {
            if frame.len() > MAX_ANSWERED_FRAME_BYTES {
                // The frame is too long for a slot. It is dropped, because no frame after it could ever leave.
                sent += 1;
                continue;
            }
            let Some(slot) = self.tx.next_slot() else { break };
            slot[..frame.len()].copy_from_slice(frame);
            self.tx.commit_frame(frame.len());
            sent += 1;
        }
        self.out.drain(..sent);
        let untaken = self.tx.untaken_frames();
        if untaken > 0 {
            match self.tx.kick_kernel() {
                // The interface is down: it may come up again.
                Err(error) if error.errno() == Some(ENETDOWN_ERRNO) => {}
                other => other?,
            }
            if self.tx.untaken_frames() < untaken {
                // The kernel takes frames, if only some of them.
                self.stuck_since = None;
            }
            let since = *self.stuck_since.get_or_insert(now);
            if self.tx.untaken_frames() == 0 {
                self.stuck_since = None;
            } else if now.since(since) > STUCK_TIMEOUT {
                self.tx.withdraw_untaken();
                self.stuck_since = None;
            }
        }
        // Readers of the interface's counters subtract this number, so it must be current after every send.
        self.aside.store(self.tx.handed_over_frames(), Ordering::Release);
        Ok(())
    }
}

/// `ENETDOWN`.
const ENETDOWN_ERRNO: i32 = 100;

impl WorkerTask for DeviceHost {
    type Counts = PublishedHostCounters;

    fn apply_control(&mut self, _: StreamControl) {}

    fn run_step(&mut self, now: MonoTime) -> Result<NextStep, Error> {
        self.apply_send_gate(now);
        let Self { machine, rx, out, .. } = self;
        // A bounded batch per step: a flood of ARP must not keep the worker from its commands.
        let taken =
            rx.receive_frames(MAX_FRAMES_PER_STEP, &mut |frame| machine.on_frame(frame.bytes, now, out));
        machine.handle_timeouts(now, out);
        self.send_frames(now)?;
        // A worker checks the lease and its commands once per step, so no step waits longer than `MAX_IDLE_WAIT`.
        let until =
            self.machine.next_deadline().map_or(now + MAX_IDLE_WAIT, |at| at.min(now + MAX_IDLE_WAIT));
        Ok(if taken == MAX_FRAMES_PER_STEP { NextStep::Busy } else { NextStep::IdleUntil(until) })
    }

    fn wait_for_work_until(&mut self, clock: &dyn WorkerClock, until: MonoTime) -> Result<(), Error> {
        Ok(self.rx.wait_for_frames(until.since(clock.now()).as_u64())?)
    }

    fn current_counts(&self) -> PublishedHostCounters {
        PublishedHostCounters { neighbours: self.neighbours() }
    }
}
