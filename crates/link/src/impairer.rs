//! Applies a fault plan to frames: frames and times go in, frames come out. It reads no clock and opens no device. An
//! observer is notified of every action on a frame.
//!
//! Order of the actions on a frame: it is dropped, or else damaged and rewritten. Then it is copied, enters the queue
//! of a limited rate (each copy separately), is delayed, and is held back for later frames.

use super::draw::draw_integer_up_to;
use super::queue::RateQueueState;
use super::{FaultPlan, FrameFault, KeyFrameRules};
use packetrig_units::{clamp_to_u32, remainder_as_usize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// Length of the Ethernet header in bytes. [`FrameFault::CorruptAnywhere`] does not change it, so the frame
/// still reaches its destination.
const ETHERNET: usize = 14;
/// Maximum number of free buffers that are kept for later frames.
const MAX_SPARE_BUFFERS: usize = 4096;

/// Identifies a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrameIdentity {
    /// What the classifier has read from the frame.
    pub key: u32,
    /// Number of frames with that key that arrived before this frame.
    pub position: u64,
}

/// What the impairer does with a frame, decided when the frame arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameActions {
    pub at_ns: u64,
    /// True if the frame is dropped.
    pub dropped: bool,
    /// How many of this frame and its copies did not fit into the queue.
    pub overflowed: u32,
    pub copies: u32,
    /// Number of later frames that this one waits for.
    pub held_for: u32,
    /// True if the plan delays this frame.
    pub is_delayed: bool,
    /// Due time of the departure; for a held frame, the time at which it begins to wait. With a queue: the due time of
    /// the first copy that the queue admitted.
    pub due_ns: u64,
    /// The last damage to the frame: index of the byte from the beginning, and the flipped bits.
    pub corrupted: Option<(u32, u8)>,
    pub rewritten: bool,
}

/// Observer that is notified of every frame.
pub trait FrameObserver {
    /// Called when a frame arrives, with the actions applied to it. `bytes` are the bytes that arrived.
    fn on_arrival(&mut self, place: FrameIdentity, deeds: &FrameActions, bytes: &[u8]);
    /// Called when the frame or a copy of it leaves.
    fn on_departure(&mut self, place: FrameIdentity);
}

/// A frame inside the impairer, with the copies that leave together with it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FrameInImpairer {
    place: FrameIdentity,
    copies: u32,
    held_for: u32,
    /// True if this is a copy that leaves separately after its frame. Held frames do not count it as a later frame.
    is_copy: bool,
    bytes: Vec<u8>,
}

/// A frame that waits for later frames of its key.
#[derive(Debug)]
struct ReorderedFrame {
    frame: FrameInImpairer,
    waits_for: u32,
    /// Time at which the wait ends at the latest.
    until_ns: u64,
}

/// A frame that waits for its due time. `order` keeps frames with the same due time in their order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DelayedFrame {
    due_ns: u64,
    order: u64,
    frame: FrameInImpairer,
}

#[derive(Debug)]
struct KeyState {
    course: KeyFrameRules,
    received: u64,
    held: VecDeque<ReorderedFrame>,
}

/// Applies a plan to the frames that arrive on one port.
#[derive(Debug)]
pub struct FrameImpairer<W> {
    plan: FaultPlan,
    port: usize,
    lanes: BTreeMap<u32, KeyState>,
    queue: Option<RateQueueState>,
    delayed: BinaryHeap<Reverse<DelayedFrame>>,
    order: u64,
    /// Due time of the frame that was scheduled last.
    last_due_ns: u64,
    spare: Vec<Vec<u8>>,
    /// Number of frames and copies inside the impairer.
    inside: u64,
    observer: W,
}

impl<W: FrameObserver> FrameImpairer<W> {
    /// Creates an impairer for frames that arrive on `port`.
    pub fn new(plan: FaultPlan, port: usize, observer: W) -> Self {
        let queue = plan.queue.map(RateQueueState::new);
        Self {
            plan,
            port,
            lanes: BTreeMap::new(),
            queue,
            delayed: BinaryHeap::new(),
            order: 0,
            last_due_ns: 0,
            spare: Vec::new(),
            inside: 0,
            observer,
        }
    }

    pub fn observer_mut(&mut self) -> &mut W {
        &mut self.observer
    }

    /// Returns the observer.
    pub fn observer(&self) -> &W {
        &self.observer
    }

    /// Accepts a frame that arrived at `now_ns`. Passes the frames that leave now to `out`, each with its due time.
    pub fn accept_frame(&mut self, now_ns: u64, frame: &[u8], out: &mut dyn FnMut(&[u8], u64)) {
        let key = self.plan.classifier.read_key(frame);
        let lane = self.lanes.entry(key).or_insert_with(|| KeyState {
            course: self.plan.start_key_rules(self.port, key),
            received: 0,
            held: VecDeque::new(),
        });
        let place = FrameIdentity { key, position: lane.received };
        lane.received += 1;
        // In the common case without faults, the frame is not even copied.
        if self.plan.is_faultless() {
            self.observer.on_arrival(
                place,
                &FrameActions { at_ns: now_ns, due_ns: now_ns, ..FrameActions::default() },
                frame,
            );
            self.observer.on_departure(place);
            return out(frame, now_ns);
        }
        // This comes before a drop, because rules with a state (bursts, Gilbert-Elliott) must see every position.
        lane.course.advance_to_next_frame(&self.plan);
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame);
        let fate = apply_rules_to_frame(&self.plan, &lane.course, place, &mut bytes);
        let mut deeds = FrameActions { at_ns: now_ns, due_ns: now_ns, ..fate.deeds };
        if deeds.dropped {
            self.observer.on_arrival(place, &deeds, frame);
            return self.recycle_buffer(bytes);
        }
        let (copies, held_for) = (1 + deeds.copies, deeds.held_for);
        let whole = FrameInImpairer { place, copies, held_for, is_copy: false, bytes };
        self.queue_copies(fate.delay_ns, whole, &mut deeds, frame, out);
    }

    /// Passes a frame and its copies through the queue, if there is one, and then delays or sends them.
    fn queue_copies(
        &mut self,
        delay_ns: u64,
        whole: FrameInImpairer,
        deeds: &mut FrameActions,
        arrived: &[u8],
        out: &mut dyn FnMut(&[u8], u64),
    ) {
        let place = whole.place;
        let now_ns = deeds.at_ns;
        if self.queue.is_none() {
            deeds.due_ns = self.schedule_departure(now_ns.saturating_add(delay_ns));
            self.observer.on_arrival(place, deeds, arrived);
            return self.delay_or_send_frame(now_ns, deeds.due_ns, whole, out);
        }
        let mut is_copy = false;
        for _ in 0..whole.copies {
            // Each copy takes its own time on the line, so each copy needs its own place in the queue.
            let Some(left) =
                self.queue.as_mut().and_then(|queue| queue.admit_frame(now_ns, whole.bytes.len()))
            else {
                deeds.overflowed += 1;
                continue;
            };
            let due_ns = self.schedule_departure(left.saturating_add(delay_ns));
            // The observer gets the due time of the first copy that the queue admitted.
            deeds.due_ns = if deeds.due_ns == now_ns { due_ns } else { deeds.due_ns };
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clone_from(&whole.bytes);
            self.delay_frame(due_ns, FrameInImpairer { copies: 1, is_copy, bytes, ..whole });
            is_copy = true;
        }
        self.observer.on_arrival(place, deeds, arrived);
        self.recycle_buffer(whole.bytes);
    }

    /// Returns the departure time of a frame with the due time `due_ns`: in a plan that keeps the order, it is not
    /// before that of the previous frame.
    fn schedule_departure(&mut self, due_ns: u64) -> u64 {
        // With varying delays, a frame could overtake the one before it. In order, it leaves together with that frame.
        let due_ns = if self.plan.in_order { due_ns.max(self.last_due_ns) } else { due_ns };
        self.last_due_ns = due_ns;
        due_ns
    }

    fn delay_or_send_frame(
        &mut self,
        now_ns: u64,
        due_ns: u64,
        frame: FrameInImpairer,
        out: &mut dyn FnMut(&[u8], u64),
    ) {
        if due_ns > now_ns {
            self.delay_frame(due_ns, frame);
        } else {
            self.inside += u64::from(frame.copies);
            self.send_or_hold_frame(now_ns, due_ns, frame, out);
        }
    }

    fn delay_frame(&mut self, due_ns: u64, frame: FrameInImpairer) {
        self.inside += u64::from(frame.copies);
        self.order += 1;
        self.delayed.push(Reverse(DelayedFrame { due_ns, order: self.order, frame }));
    }

    /// Passes the frames that are due now to `out`.
    pub fn release_due_frames(&mut self, now_ns: u64, out: &mut dyn FnMut(&[u8], u64)) {
        while self.delayed.peek().is_some_and(|Reverse(delayed)| delayed.due_ns <= now_ns) {
            self.release_next_delayed_frame(now_ns, out);
        }
        if self.plan.held_at_most.is_some() {
            for lane in self.lanes.values_mut() {
                // The longest wait is the same for all frames, so the wait of the first frame in the list ends first.
                while lane.held.front().is_some_and(|held| held.until_ns <= now_ns) {
                    if let Some(held) = lane.held.pop_front() {
                        self.inside -= u64::from(held.frame.copies);
                        // The end of the wait counts as the due time, so that a late call is measured as lateness.
                        emit_copies(&mut self.observer, &held.frame, held.until_ns, out);
                        store_spare_buffer(&mut self.spare, held.frame.bytes);
                    }
                }
            }
        }
    }

    /// Returns the earliest time at which a waiting frame becomes due or the longest wait of a held frame ends, if any.
    pub fn next_due_time(&self) -> Option<u64> {
        let delayed = self.delayed.peek().map(|Reverse(delayed)| delayed.due_ns);
        if self.plan.held_at_most.is_none() {
            return delayed;
        }
        let held = self.lanes.values().filter_map(|lane| lane.held.front()).map(|held| held.until_ns);
        held.chain(delayed).min()
    }

    /// Number of frames and copies inside the impairer.
    pub fn frames_inside(&self) -> u64 {
        self.inside
    }

    /// Passes all waiting frames to `out`, and returns the observer.
    pub fn into_observer(mut self, now_ns: u64, out: &mut dyn FnMut(&[u8], u64)) -> W {
        self.flush_frames(now_ns, out);
        self.observer
    }

    /// Passes all waiting frames to `out`.
    pub fn flush_frames(&mut self, now_ns: u64, out: &mut dyn FnMut(&[u8], u64)) {
        while !self.delayed.is_empty() {
            self.release_next_delayed_frame(now_ns, out);
        }
        for lane in self.lanes.values_mut() {
            for held in lane.held.drain(..) {
                self.inside -= u64::from(held.frame.copies);
                // The frames for which this frame waits have not come. It leaves only because the impairer ends.
                emit_copies(&mut self.observer, &held.frame, now_ns, out);
            }
        }
    }

    fn release_next_delayed_frame(&mut self, now_ns: u64, out: &mut dyn FnMut(&[u8], u64)) {
        if let Some(Reverse(DelayedFrame { frame, due_ns, .. })) = self.delayed.pop() {
            self.send_or_hold_frame(now_ns, due_ns, frame, out);
        }
    }

    /// Handles a frame that is due: it leaves together with the frames that waited for it, or begins to
    /// wait for later frames.
    fn send_or_hold_frame(
        &mut self,
        now_ns: u64,
        due_ns: u64,
        frame: FrameInImpairer,
        out: &mut dyn FnMut(&[u8], u64),
    ) {
        let Some(lane) = self.lanes.get_mut(&frame.place.key) else { return };
        if frame.held_for > 0 {
            let most = self.plan.held_at_most.map_or(u64::MAX, packetrig_units::Nanos::as_u64);
            let until_ns = now_ns.saturating_add(most);
            let waits_for = frame.held_for;
            return lane.held.push_back(ReorderedFrame { frame, waits_for, until_ns });
        }
        self.inside -= u64::from(frame.copies);
        emit_copies(&mut self.observer, &frame, due_ns, out);
        // A frame that is freed here does not count for the other held frames. Only frames that leave by themselves
        // count: otherwise one departure could free the whole list.
        let mut index = 0;
        while let Some(held) = lane.held.get_mut(index) {
            // A held frame waits only for later frames, not for earlier frames or copies.
            let is_later = !frame.is_copy && frame.place.position > held.frame.place.position;
            held.waits_for -= u32::from(is_later);
            if held.waits_for > 0 {
                index += 1;
            } else if let Some(freed) = lane.held.remove(index) {
                self.inside -= u64::from(freed.frame.copies);
                // This frame leaves together with the frame that it waited for, so it has the same due time.
                emit_copies(&mut self.observer, &freed.frame, due_ns, out);
                store_spare_buffer(&mut self.spare, freed.frame.bytes);
            }
        }
        self.recycle_buffer(frame.bytes);
    }

    fn recycle_buffer(&mut self, bytes: Vec<u8>) {
        store_spare_buffer(&mut self.spare, bytes);
    }
}

fn store_spare_buffer(spare: &mut Vec<Vec<u8>>, bytes: Vec<u8>) {
    // Beyond this limit, the memory is released, so a burst does not occupy memory for ever.
    if spare.len() < MAX_SPARE_BUFFERS {
        spare.push(bytes);
    }
}

/// Passes a frame and its copies to `out`, and notifies the observer.
fn emit_copies(
    observer: &mut impl FrameObserver,
    frame: &FrameInImpairer,
    due_ns: u64,
    out: &mut dyn FnMut(&[u8], u64),
) {
    for _ in 0..frame.copies {
        observer.on_departure(frame.place);
        out(&frame.bytes, due_ns);
    }
}

/// Result of all rules for one frame: the actions on it and its delay.
#[derive(Debug, Default)]
struct FrameRuleResult {
    deeds: FrameActions,
    delay_ns: u64,
}

/// Applies the rules for one frame: decides its actions, and changes its bytes.
fn apply_rules_to_frame(
    plan: &FaultPlan,
    course: &KeyFrameRules,
    place: FrameIdentity,
    bytes: &mut Vec<u8>,
) -> FrameRuleResult {
    let mut fate = FrameRuleResult::default();
    let deeds = &mut fate.deeds;
    // Drops come first, whatever the order of the rules: a dropped frame must not also count as damaged or copied.
    if course.current_faults(plan).any(|(fault, _)| *fault == FrameFault::Drop) {
        deeds.dropped = true;
        return fate;
    }
    for (fault, seed) in course.current_faults(plan) {
        match fault {
            FrameFault::Drop => {}
            FrameFault::Duplicate { copies } => deeds.copies += copies,
            // If several rules hold the frame back, they count the same later frames, so the largest number decides.
            FrameFault::HoldBack { frames } => deeds.held_for = deeds.held_for.max(*frames),
            FrameFault::Delay(time) => {
                deeds.is_delayed = true;
                fate.delay_ns = fate.delay_ns.saturating_add(time.as_u64());
            }
            FrameFault::Jitter(jitter) => {
                deeds.is_delayed = true;
                fate.delay_ns = FrameFault::apply_jitter(fate.delay_ns, *jitter, seed, place.position);
            }
            FrameFault::Corrupt { from_end, mask } => {
                // A frame that is too short does not have this byte, and stays as it is.
                if let Some(at) = bytes.len().checked_sub(*from_end).filter(|_| *from_end > 0) {
                    flip_bits(bytes, at, *mask, deeds);
                }
            }
            FrameFault::CorruptAnywhere => {
                // The Ethernet header is left intact: a damaged address would show as a lost or misdelivered
                // frame instead of a corrupt one.
                let bits = bytes.len().saturating_sub(ETHERNET) * 8;
                if let Some(last) = bits.checked_sub(1) {
                    let bit = remainder_as_usize(draw_integer_up_to(seed, place.position, last as u64), bits);
                    flip_bits(bytes, ETHERNET + bit / 8, 1 << (bit % 8), deeds);
                }
            }
            FrameFault::Rewrite(edit) => deeds.rewritten |= edit.apply_to_frame(bytes),
        }
    }
    fate
}

fn flip_bits(bytes: &mut [u8], at: usize, mask: u8, deeds: &mut FrameActions) {
    bytes[at] ^= mask;
    deeds.corrupted = Some((clamp_to_u32(at), mask));
}

#[cfg(test)]
mod tests;
