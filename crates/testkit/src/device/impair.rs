//! The pure half of the device: frames and time in, frames out, and the list of what was done.

use super::{Fault, FaultPlan, Truth};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// What becomes of one frame, all rules added up.
#[derive(Clone, Debug, Default)]
struct Fate {
    dropped: bool,
    copies: u32,
    hold: u32,
    delay_ns: u64,
}

/// A frame on its way out: its place in the truth and its bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Outgoing {
    key: u32,
    position: u64,
    copies: u32,
    bytes: Vec<u8>,
}

/// A frame that waits for others of its key.
#[derive(Debug)]
struct Held {
    frame: Outgoing,
    waits_for: u32,
}

/// A frame that waits for its time; `order` keeps frames of one instant in their order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Delayed {
    due_ns: u64,
    order: u64,
    frame: Outgoing,
}

#[derive(Debug, Default)]
struct Lane {
    truth: Truth,
    held: Vec<Held>,
}

/// Applies a plan to the frames that arrive on one port.
#[derive(Debug)]
pub struct Impairer {
    plan: FaultPlan,
    port: usize,
    lanes: BTreeMap<u32, Lane>,
    delayed: BinaryHeap<Reverse<Delayed>>,
    order: u64,
}

impl Impairer {
    /// For frames that arrive on `port`.
    pub fn new(plan: FaultPlan, port: usize) -> Self {
        Self { plan, port, lanes: BTreeMap::new(), delayed: BinaryHeap::new(), order: 0 }
    }

    /// Takes in a frame that arrived at `now_ns` and gives to `out` what leaves because of it.
    pub fn accept(&mut self, now_ns: u64, frame: &[u8], out: &mut dyn FnMut(&[u8])) {
        let key = self.plan.classifier.key(frame);
        let lane = self.lanes.entry(key).or_default();
        let position = lane.truth.received;
        lane.truth.received += 1;
        if self.plan.rules.is_empty() {
            lane.truth.departures.push(position);
            return out(frame);
        }
        let mut frame = Outgoing { key, position, copies: 1, bytes: frame.to_vec() };
        let fate = settle(&self.plan, self.port, &mut frame, &mut lane.truth);
        if fate.dropped {
            return;
        }
        frame.copies += fate.copies;
        if fate.delay_ns > 0 {
            self.order += 1;
            let due_ns = now_ns + fate.delay_ns;
            self.delayed.push(Reverse(Delayed { due_ns, order: self.order, frame }));
        } else if fate.hold > 0 {
            lane.held.push(Held { frame, waits_for: fate.hold });
        } else {
            lane.leave(frame, out);
        }
    }

    /// Gives to `out` the delayed frames whose time has come.
    pub fn release(&mut self, now_ns: u64, out: &mut dyn FnMut(&[u8])) {
        while self.next_due().is_some_and(|due| due <= now_ns) {
            self.release_next(out);
        }
    }

    /// When the next delayed frame leaves.
    pub fn next_due(&self) -> Option<u64> {
        self.delayed.peek().map(|Reverse(delayed)| delayed.due_ns)
    }

    /// Gives everything that waits to `out` and hands over the truth per key.
    pub fn finish(mut self, out: &mut dyn FnMut(&[u8])) -> BTreeMap<u32, Truth> {
        while !self.delayed.is_empty() {
            self.release_next(out);
        }
        let mut truths = BTreeMap::new();
        for (key, mut lane) in self.lanes {
            for held in std::mem::take(&mut lane.held) {
                emit(&mut lane.truth, &held.frame, out);
            }
            truths.insert(key, lane.truth);
        }
        truths
    }

    fn release_next(&mut self, out: &mut dyn FnMut(&[u8])) {
        if let Some(Reverse(Delayed { frame, .. })) = self.delayed.pop()
            && let Some(lane) = self.lanes.get_mut(&frame.key)
        {
            lane.leave(frame, out);
        }
    }
}

impl Lane {
    /// A frame leaves, and with it those that waited for it.
    fn leave(&mut self, frame: Outgoing, out: &mut dyn FnMut(&[u8])) {
        emit(&mut self.truth, &frame, out);
        let mut index = 0;
        while index < self.held.len() {
            let held = &mut self.held[index];
            // Earlier frames do not count: the rule speaks of later ones.
            held.waits_for -= u32::from(frame.position > held.frame.position);
            if held.waits_for == 0 {
                let freed = self.held.remove(index);
                emit(&mut self.truth, &freed.frame, out);
            } else {
                index += 1;
            }
        }
    }
}

fn emit(truth: &mut Truth, frame: &Outgoing, out: &mut dyn FnMut(&[u8])) {
    for _ in 0..frame.copies {
        truth.departures.push(frame.position);
        out(&frame.bytes);
    }
}

fn settle(plan: &FaultPlan, port: usize, frame: &mut Outgoing, truth: &mut Truth) -> Fate {
    let (key, position) = (frame.key, frame.position);
    let mut fate = Fate::default();
    if plan.faults(port, key, position).any(|fault| *fault == Fault::Drop) {
        truth.dropped.insert(position);
        return Fate { dropped: true, ..fate };
    }
    for fault in plan.faults(port, key, position) {
        match fault {
            Fault::Drop => {}
            Fault::Duplicate { copies } => {
                *truth.duplicated.entry(position).or_default() += copies;
                fate.copies += copies;
            }
            Fault::HoldBack { frames } => {
                truth.held.insert(position);
                fate.hold = fate.hold.max(*frames);
            }
            Fault::Delay(time) => {
                truth.delayed += 1;
                fate.delay_ns += time.as_u64();
            }
            Fault::Corrupt { from_end, mask } => {
                if let Some(at) = frame.bytes.len().checked_sub(*from_end).filter(|_| *from_end > 0) {
                    frame.bytes[at] ^= mask;
                    truth.corrupted.insert(position);
                }
            }
            Fault::Rewrite(edit) => {
                if edit.apply(&mut frame.bytes) {
                    truth.rewritten.insert(position);
                }
            }
        }
    }
    fate
}

#[cfg(test)]
mod tests;
