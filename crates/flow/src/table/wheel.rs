//! The timers of flows, from which the table learns when it must check a flow.
//!
//! The wheel consists of ticks with rings of slots, in the order in which their timers were set. A timer is set once
//! and stays while packets move the end of its flow; when it expires, the end is computed again. So a packet causes no
//! work here, and a flow causes one check per timeout. A timer beyond the end of the wheel expires at its end.
//!
//! Every tick has two rings: one of flows that may have been silent for long enough by then, and one of continuing
//! flows that reach the end of a part. So a table that needs room does not search among busy flows.
//!
//! Invariant: a set slot is in exactly one ring, of a tick that has not been passed.

use super::hints::MemoryHints;
use super::index::NONE;
use super::memory;

/// A tick is 2^26 ns, 67 ms: a flow ends at most that long after its time.
const TICK_BITS: u32 = 26;
/// The longest wheel, 73 minutes.
const MAX_WHEEL_TICKS: u64 = 1 << 16;

/// Event that a timer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimerReason {
    /// The flow has been silent long enough.
    Silence,
    /// The part of the flow ends.
    Part,
}

/// The slot of a timer, and the tick at which it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DueTimer {
    pub(super) slot: u32,
    pub(super) tick: u64,
}

/// Tick for which a timer is set, and the event that it waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimerSetting {
    pub(super) tick: u64,
    pub(super) wait: TimerReason,
}

/// Bit in a timer's tick: the timer waits for [`TimerReason::Part`].
const PART_TIMER_BIT: u64 = 1 << 63;

#[derive(Clone, Copy, Debug)]
struct FlowTimer {
    /// The tick, with [`PART_TIMER_BIT`] if the timer waits for [`TimerReason::Part`].
    tick: u64,
    next: u32,
    previous: u32,
}

#[derive(Debug)]
pub(super) struct TimerWheel {
    timers: Vec<FlowTimer>,
    /// The first slot of each ring: first the rings of silence, then the rings of parts.
    rings: Vec<u32>,
    /// A bit for every ring that is not empty.
    busy: Vec<u64>,
    /// Ticks ahead that have rings; a power of two.
    ticks: u64,
    /// Every tick up to this one has been passed.
    passed: u64,
}

/// Returns the tick of a time.
pub(super) const fn tick_at(at_ns: u64) -> u64 {
    at_ns >> TICK_BITS
}

/// Returns the first tick at which a time has certainly passed.
pub(super) const fn first_tick_after(at_ns: u64) -> u64 {
    tick_at(at_ns) + 1
}

impl TimerWheel {
    /// Creates a wheel for up to `capacity` slots, and for times up to `furthest_ns` ahead.
    /// [`resize_slots`](Self::resize_slots) makes the timers.
    #[expect(clippy::cast_possible_truncation, reason = "at most `MAX_WHEEL_TICKS` ticks")]
    pub(super) fn new<H: MemoryHints>(capacity: usize, furthest_ns: u64) -> Self {
        // A power of two, so that a tick finds its ring by a mask; at least 64, so that a word of `busy`
        // holds rings of one kind only.
        let ticks = (tick_at(furthest_ns) + 3).clamp(64, MAX_WHEEL_TICKS).next_power_of_two();
        let size = 2 * ticks as usize;
        Self {
            timers: memory::reserve_values::<H, _>(capacity),
            rings: vec![NONE; size],
            busy: vec![0; size / 64],
            ticks,
            passed: 0,
        }
    }

    /// Makes timers for this many slots.
    pub(super) fn resize_slots(&mut self, slots: usize) {
        self.timers.resize(slots, FlowTimer { tick: 0, next: NONE, previous: NONE });
    }

    /// Returns the memory of a wheel with this many slots, in bytes.
    pub(super) fn memory_bytes(&self, slots: usize) -> usize {
        slots * size_of::<FlowTimer>() + size_of_val(self.rings.as_slice())
    }

    /// Prefetches a slot's timer.
    pub(super) fn prefetch_timer<H: MemoryHints>(&self, slot: u32) {
        H::prefetch(&self.timers[slot as usize]);
    }

    /// Sets the current tick. No timer may be set at that moment.
    pub(super) const fn start_wheel_at(&mut self, tick: u64) {
        self.passed = tick;
    }

    /// Sets the timer of a slot that has none.
    pub(super) fn set_timer(&mut self, slot: u32, tick: u64, wait: TimerReason) {
        // A tick that has been passed must not be used: its ring is checked again only after a whole turn of the wheel.
        // A tick a whole turn ahead must not be used either: it has the ring of the tick just passed.
        let tick = tick.clamp(self.passed + 1, self.passed + self.ticks - 1);
        let tick = if wait == TimerReason::Part { tick | PART_TIMER_BIT } else { tick };
        let ring = self.ring_index(tick);
        let first = self.rings[ring];
        let mut timer = FlowTimer { tick, next: slot, previous: slot };
        if first == NONE {
            self.rings[ring] = slot;
            self.busy[ring / 64] |= 1 << (ring % 64);
        } else {
            // The end of the ring is before its first slot: timers of a tick expire in the order in
            // which they were set.
            let last = self.timers[first as usize].previous;
            self.timers[first as usize].previous = slot;
            self.timers[last as usize].next = slot;
            timer.next = first;
            timer.previous = last;
        }
        self.timers[slot as usize] = timer;
    }

    /// Moves the timer of a slot to a tick, if it is set to a later one.
    pub(super) fn move_timer_earlier(&mut self, slot: u32, tick: u64, wait: TimerReason) {
        if tick < self.timers[slot as usize].tick & !PART_TIMER_BIT {
            // The ring depends on the tick, so a timer cannot move without leaving its ring first.
            self.clear_timer(slot);
            self.set_timer(slot, tick, wait);
        }
    }

    /// Removes the timer of a slot.
    pub(super) fn clear_timer(&mut self, slot: u32) {
        let FlowTimer { tick, next, previous } = self.timers[slot as usize];
        let ring = self.ring_index(tick);
        if next == slot {
            self.rings[ring] = NONE;
            self.busy[ring / 64] &= !(1 << (ring % 64));
            return;
        }
        self.timers[next as usize].previous = previous;
        self.timers[previous as usize].next = next;
        if self.rings[ring] == slot {
            self.rings[ring] = next;
        }
    }

    /// Removes and returns the next timer that is due at `tick` or earlier. If there is none, the
    /// wheel advances to `tick`.
    pub(super) fn take_due_timer(&mut self, tick: u64) -> Option<u32> {
        // Only the words up to the present time are searched: an idle table would otherwise search its
        // whole wheel every time.
        let words = (tick.saturating_sub(self.passed) / 64).min(self.ticks / 64) as usize + 1;
        let both = [TimerReason::Silence, TimerReason::Part]
            .into_iter()
            .filter_map(|wait| self.search_earliest_timer(wait, words));
        match both.min_by_key(|due| due.tick) {
            Some(due) if due.tick <= tick => {
                // The tick itself is not passed yet: further timers of it may follow.
                self.passed = due.tick - 1;
                self.clear_timer(due.slot);
                Some(due.slot)
            }
            _ => {
                // The time may go back a little; a passed tick stays passed.
                self.passed = self.passed.max(tick);
                None
            }
        }
    }

    /// Returns the timer of this kind that expires first; `None` if there is none.
    pub(super) fn earliest_timer(&self, wait: TimerReason) -> Option<DueTimer> {
        self.search_earliest_timer(wait, usize::MAX)
    }

    /// Searches the next `most_words` times 64 ticks for the earliest timer of a kind; somewhat later timers
    /// may be found, too.
    fn search_earliest_timer(&self, wait: TimerReason, most_words: usize) -> Option<DueTimer> {
        let start = self.ring_index(self.passed + 1);
        let words = self.busy.len() / 2;
        let first = if wait == TimerReason::Part { words } else { 0 };
        let ring = (0..=words.min(most_words))
            .find_map(|word| self.find_busy_ring(&self.busy[first..], start, word))?;
        let slot = self.rings[first * 64 + ring];
        Some(DueTimer { slot, tick: self.timers[slot as usize].tick & !PART_TIMER_BIT })
    }

    /// Returns the first ring that is not empty in the word of `busy` that is `word` words after that of ring `start`.
    #[inline]
    fn find_busy_ring(&self, busy: &[u64], start: usize, word: usize) -> Option<usize> {
        let words = self.busy.len() / 2;
        let at = (start / 64 + word) % words;
        let bits = busy[at];
        // Ring `start` lies within its word. The rings below it are a whole turn ahead, so that word is looked at
        // twice: its upper part first, its lower part last.
        let bits = match word {
            0 => bits & u64::MAX << (start % 64),
            _ if word == words => bits & !(u64::MAX << (start % 64)),
            _ => bits,
        };
        (bits != 0).then(|| at * 64 + bits.trailing_zeros() as usize)
    }

    /// Returns the slot with the timer that was set next in the same tick: the table reads it soon.
    pub(super) fn next_slot(&self, slot: u32) -> u32 {
        self.timers[slot as usize].next
    }

    /// Returns the ring of a timer's tick.
    #[expect(clippy::cast_possible_truncation, reason = "below the number of rings")]
    const fn ring_index(&self, tick: u64) -> usize {
        let behind = if tick & PART_TIMER_BIT == 0 { 0 } else { self.ticks };
        (behind + (tick & (self.ticks - 1))) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn due(wheel: &mut TimerWheel, tick: u64) -> Vec<u32> {
        std::iter::from_fn(|| wheel.take_due_timer(tick)).collect()
    }

    #[test]
    fn timers_ring_in_order_and_never_early() {
        let mut wheel = TimerWheel::new::<()>(8, 0);
        wheel.resize_slots(8);
        wheel.start_wheel_at(1000);
        for (slot, tick) in [(0, 1005), (1, 1003), (2, 1005), (3, 1062), (4, 900)] {
            wheel.set_timer(slot, tick, TimerReason::Silence);
        }
        wheel.set_timer(5, 1004, TimerReason::Part);
        assert_eq!(due(&mut wheel, 1002), [4]);
        assert_eq!(
            (wheel.earliest_timer(TimerReason::Silence), wheel.earliest_timer(TimerReason::Part)),
            (Some(DueTimer { slot: 1, tick: 1003 }), Some(DueTimer { slot: 5, tick: 1004 }))
        );
        assert_eq!(due(&mut wheel, 1004), [1, 5]);
        wheel.move_timer_earlier(3, 1006, TimerReason::Part);
        assert_eq!(due(&mut wheel, 1005), [0, 2]);
        assert_eq!(
            (wheel.earliest_timer(TimerReason::Silence), wheel.earliest_timer(TimerReason::Part)),
            (None, Some(DueTimer { slot: 3, tick: 1006 }))
        );
        assert_eq!(due(&mut wheel, 5000), [3]);
        assert_eq!(wheel.earliest_timer(TimerReason::Part), None);
    }

    proptest! {
        /// Against a list that is searched.
        #[test]
        fn as_a_list(steps in proptest::collection::vec((0..16_u32, 0..90_u64, 0..5_u8), 1..300)) {
            let mut wheel = TimerWheel::new::<()>(16, 0);
            wheel.resize_slots(16);
            let mut list: Vec<(u32, u64)> = Vec::new();
            let wait = |slot: u32| if slot.is_multiple_of(3) { TimerReason::Part } else { TimerReason::Silence };
            let mut now = 0;
            for (slot, ahead, kind) in steps {
                let known = list.iter().position(|&(there, _)| there == slot);
                match (kind, known) {
                    (0..=2, None) => {
                        wheel.set_timer(slot, now + ahead, wait(slot));
                        list.push((slot, (now + ahead).clamp(now + 1, now + 63)));
                    }
                    (3, Some(known)) => {
                        wheel.clear_timer(slot);
                        list.remove(known);
                    }
                    _ => {
                        now += ahead / 4;
                        let mut rung = due(&mut wheel, now);
                        let mut expected: Vec<u32> =
                            list.extract_if(.., |&mut (_, tick)| tick <= now).map(|(slot, _)| slot).collect();
                        rung.sort_unstable();
                        expected.sort_unstable();
                        prop_assert_eq!(rung, expected);
                    }
                }
                for of in [TimerReason::Silence, TimerReason::Part] {
                    let earliest = list.iter().filter(|&&(slot, _)| wait(slot) == of).map(|&(_, tick)| tick).min();
                    prop_assert_eq!(wheel.earliest_timer(of).map(|due| due.tick), earliest);
                }
            }
        }
    }
}
