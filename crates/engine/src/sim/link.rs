//! Behaviour of a simulated link. Pure: time is an argument.

use super::chance::{FaultChance, SeededDice};
use packetrig_units::{BitRate, FrameSize, MonoTime, Nanos};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Longest additional delay of a held frame, even if no other frames pass it.
pub const MAX_HOLD_AT: Nanos = Nanos::from_millis(100);
/// Frames for which the lists of a link have room from the start. The buffers themselves are allocated on first use.
const RESERVED_BUFFERS: usize = 1024;

/// Properties of a link in one direction. Faults apply in the order of the fields: a lost frame is not also duplicated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Speed of the line, including preamble and gap; `None` is infinitely fast.
    pub rate: Option<BitRate>,
    /// Length of the queue in front of the line, as transmission time.
    pub queue: Nanos,
    pub delay: Nanos,
    /// Upper bound of a random additional delay, evenly distributed. The additional delay never reorders frames.
    pub jitter: Nanos,
    pub loss: FaultChance,
    /// Frames with a flipped bit in byte `corrupt_byte`.
    pub corrupt: FaultChance,
    /// Index of the damaged byte, from 0; in a shorter frame, this index modulo the frame's length.
    pub corrupt_byte: usize,
    /// Frames that are held until `hold_for` other frames have passed, at most [`MAX_HOLD_AT`].
    pub hold: FaultChance,
    /// Number of frames that pass a held one; see `hold`.
    pub hold_for: u32,
    /// Frames that arrive twice, unless held.
    pub duplicate: FaultChance,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for LinkSpec {
    /// A link without faults and without delay.
    fn default() -> Self {
        Self {
            rate: None,
            queue: Nanos::from_micros(100),
            delay: Nanos::ZERO,
            jitter: Nanos::ZERO,
            loss: FaultChance::NEVER,
            corrupt: FaultChance::NEVER,
            corrupt_byte: 0,
            hold: FaultChance::NEVER,
            hold_for: 1,
            duplicate: FaultChance::NEVER,
            seed: 0,
        }
    }
}

/// History of a link. Lists hold positions: the first frame that enters is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkTruth {
    pub entered: u64,
    /// Frames that left the link, copies included.
    pub delivered: u64,
    pub lost: Vec<u64>,
    pub corrupted: Vec<u64>,
    pub held: Vec<u64>,
    /// Positions of the frames that left the link twice.
    pub duplicated: Vec<u64>,
}

/// A frame in flight: arrival time, a number that keeps frames with equal arrival in order, and index of the buffer.
type FrameFlight = (MonoTime, u64, usize);

#[derive(Debug)]
struct HeldFrame {
    buffer: usize,
    remaining: u32,
    deadline: MonoTime,
}

#[derive(Debug)]
pub(super) struct SimulatedLink {
    spec: LinkSpec,
    dice: SeededDice,
    /// Time at which the line has sent all frames that entered it.
    line_free: MonoTime,
    last_arrival: MonoTime,
    flights: BinaryHeap<Reverse<FrameFlight>>,
    launched: u64,
    held: Vec<HeldFrame>,
    buffers: Vec<Vec<u8>>,
    spare: Vec<usize>,
    truth: LinkTruth,
}

impl SimulatedLink {
    pub(super) fn new(spec: LinkSpec) -> Self {
        Self {
            dice: SeededDice::new(spec.seed),
            spec,
            line_free: MonoTime::default(),
            last_arrival: MonoTime::default(),
            flights: BinaryHeap::with_capacity(RESERVED_BUFFERS),
            launched: 0,
            held: Vec::with_capacity(RESERVED_BUFFERS),
            buffers: Vec::with_capacity(RESERVED_BUFFERS),
            spare: Vec::with_capacity(RESERVED_BUFFERS),
            truth: LinkTruth::default(),
        }
    }

    pub(super) fn truth(&self) -> &LinkTruth {
        &self.truth
    }

    /// Returns whether a frame may enter now, that is, whether the queue has room.
    pub(super) fn has_room(&self, now: MonoTime) -> bool {
        self.line_free <= now + self.spec.queue
    }

    pub(super) fn transmit_frame(&mut self, bytes: &[u8], now: MonoTime) {
        let position = self.truth.entered;
        self.truth.entered += 1;
        let l1_bytes = FrameSize::from_kernel_len(bytes.len()).l1_bytes();
        let on_line = self.spec.rate.map_or(Nanos::ZERO, |rate| rate.time_to_send(l1_bytes.into()));
        // A frame that is lost takes its time on the line, too.
        self.line_free = self.line_free.max(now) + on_line;
        if self.spec.loss.is_faulty_at(position, &mut self.dice) {
            self.truth.lost.push(position);
            return;
        }
        // The random value is drawn even without jitter: enabling jitter must not move the other faults of
        // the same seed.
        let jitter = Nanos::new(self.dice.draw_number_below(self.spec.jitter.as_u64().saturating_add(1)));
        // Frames on one line do not overtake each other; only `hold` reorders, so that a test can predict it.
        let arrival = self.last_arrival.max(self.line_free + self.spec.delay + jitter);
        self.last_arrival = arrival;
        let buffer = self.copy_frame(bytes);
        if self.spec.corrupt.is_faulty_at(position, &mut self.dice) {
            let at = self.spec.corrupt_byte % bytes.len().max(1);
            self.buffers[buffer][at] ^= 1 << self.dice.draw_number_below(8);
            self.truth.corrupted.push(position);
        }
        if self.spec.hold.is_faulty_at(position, &mut self.dice) {
            self.truth.held.push(position);
            // A held frame also has a deadline: at the end of a run, there may be no further frame that releases it.
            let deadline = arrival + MAX_HOLD_AT;
            self.held.push(HeldFrame { buffer, remaining: self.spec.hold_for, deadline });
            return;
        }
        self.schedule_arrival(buffer, arrival);
        if self.spec.duplicate.is_faulty_at(position, &mut self.dice) {
            self.truth.duplicated.push(position);
            let copy = self.duplicate_buffer(buffer);
            self.schedule_arrival(copy, arrival);
        }
        self.count_overtaking_frame_and_release(arrival);
    }

    /// Counts a frame that passes the held frames, and releases the frames that are due.
    fn count_overtaking_frame_and_release(&mut self, arrival: MonoTime) {
        for held in &mut self.held {
            held.remaining = held.remaining.saturating_sub(1);
        }
        while let Some(first) = self.held.iter().position(|held| held.remaining == 0) {
            let buffer = self.held.remove(first).buffer;
            self.schedule_arrival(buffer, arrival);
        }
    }

    fn schedule_arrival(&mut self, buffer: usize, arrival: MonoTime) {
        // The number breaks ties: the heap alone would not keep equal arrivals in order.
        self.flights.push(Reverse((arrival, self.launched, buffer)));
        self.launched += 1;
    }

    /// Gives the next frame that has arrived by `now` to `sink`, with its arrival time. Returns false if there is none.
    pub(super) fn deliver_frame(&mut self, now: MonoTime, sink: impl FnOnce(&[u8], MonoTime)) -> bool {
        // Held frames come first: their deadline may lie before the next regular arrival.
        while let Some(first) = self.held.iter().position(|held| held.deadline <= now) {
            let held = self.held.remove(first);
            self.schedule_arrival(held.buffer, held.deadline);
        }
        if self.flights.peek().is_none_or(|Reverse((arrival, ..))| *arrival > now) {
            return false;
        }
        let Some(Reverse((arrival, _, buffer))) = self.flights.pop() else { return false };
        sink(&self.buffers[buffer], arrival);
        self.spare.push(buffer);
        self.truth.delivered += 1;
        true
    }

    /// Returns when the next frame arrives, is released, or makes room in the queue; `None` if nothing is pending. If a
    /// frame has arrived and waits for the receiver, this time is not later than `now`.
    pub(super) fn next_event(&self, now: MonoTime) -> Option<MonoTime> {
        let arrival = self.flights.peek().map(|Reverse((arrival, ..))| *arrival);
        let deadlines = self.held.iter().map(|held| held.deadline);
        let queue_moves = (!self.has_room(now)).then(|| self.line_free - self.spec.queue);
        arrival.into_iter().chain(deadlines).chain(queue_moves).min()
    }

    fn copy_frame(&mut self, bytes: &[u8]) -> usize {
        let buffer = self.spare.pop().unwrap_or_else(|| {
            self.buffers.push(Vec::with_capacity(2048));
            self.buffers.len() - 1
        });
        self.buffers[buffer].clear();
        self.buffers[buffer].extend_from_slice(bytes);
        buffer
    }

    fn duplicate_buffer(&mut self, of: usize) -> usize {
        // The buffer is moved out, because `copy_frame` may grow the list of buffers.
        let bytes = std::mem::take(&mut self.buffers[of]);
        let copy = self.copy_frame(&bytes);
        self.buffers[of] = bytes;
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> MonoTime {
        MonoTime::from_nanos(ns)
    }

    /// Carries frames 0, 1, 2 … one microsecond apart; returns (first byte, arrival) in order of arrival.
    fn carry(spec: LinkSpec, frames: u8) -> (Vec<(u8, u64)>, LinkTruth) {
        let mut link = SimulatedLink::new(spec);
        for n in 0..frames {
            link.transmit_frame(&[n; 60], at(u64::from(n) * 1000));
        }
        let mut out = Vec::new();
        while link.deliver_frame(at(1_000_000_000), |bytes, at| out.push((bytes[0], at.as_nanos()))) {}
        (out, link.truth().clone())
    }

    #[test]
    fn a_line_takes_preamble_and_gap_into_account() {
        let spec =
            LinkSpec { rate: Some(BitRate::new(1_000_000_000)), delay: Nanos::new(5), ..LinkSpec::default() };
        // 84 bytes at 1 Gbit/s are 672 ns.
        assert_eq!(carry(spec, 2).0, [(0, 677), (1, 1677)]);
    }

    #[test]
    fn full_link_queue_drains_at_line_rate() {
        let rate = Some(BitRate::new(1_000_000_000));
        let mut link = SimulatedLink::new(LinkSpec { rate, queue: Nanos::new(1000), ..LinkSpec::default() });
        let mut entered = 0;
        while link.has_room(at(0)) {
            link.transmit_frame(&[0; 60], at(0));
            entered += 1;
        }
        assert_eq!(entered, 2);
        assert!(link.has_room(at(344)) && !link.has_room(at(343)));
    }

    #[test]
    fn faults_strike_where_they_are_told_to() {
        let spec = LinkSpec {
            loss: FaultChance::at_positions([1]),
            duplicate: FaultChance::at_positions([3]),
            hold: FaultChance::at_positions([5]),
            hold_for: 2,
            corrupt: FaultChance::at_positions([9]),
            corrupt_byte: 0,
            ..LinkSpec::default()
        };
        let (out, truth) = carry(spec, 10);
        let order: Vec<u8> = out.iter().map(|(n, _)| *n).collect();
        assert_eq!(order[..10], [0, 2, 3, 3, 4, 6, 7, 5, 8, order[9]]);
        assert_eq!((order[9] ^ 9).count_ones(), 1);
        assert_eq!((truth.lost, truth.duplicated), (vec![1], vec![3]));
        assert_eq!((truth.held, truth.corrupted), (vec![5], vec![9]));
        assert_eq!((truth.entered, truth.delivered), (10, 10));
    }

    #[test]
    fn held_frame_without_follower_is_released() {
        let (out, _) = carry(LinkSpec { hold: FaultChance::at_positions([2]), ..LinkSpec::default() }, 3);
        assert_eq!(out.last(), Some(&(2, 2000 + MAX_HOLD_AT.as_u64())));
    }

    #[test]
    fn jitter_stays_in_its_bounds_and_keeps_order() {
        let spec = LinkSpec { jitter: Nanos::new(5000), ..LinkSpec::default() };
        let (out, _) = carry(spec, 200);
        let late = out.iter().map(|(n, at)| at - u64::from(*n) * 1000);
        assert!(late.clone().max() > Some(4000) && late.clone().all(|late| late <= 5000));
        assert!(out.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
