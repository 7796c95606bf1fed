//! Keeps data that arrived before its template, until the template arrives or for a bounded time.
//!
//! The module does not read the data and counts nothing for the exporter: it returns the number of bytes that it
//! discarded. An empty set is not stored. The time to store or remove one set grows only with the logarithm of the
//! number of waiting sets.
//!
//! Invariant: `bytes` is the total length of the stored sets, `blocks` the memory of their blocks, and every message in
//! `messages` has at least one set in `sets`.

use super::draft::MessageTime;
use super::memory::{block_bytes, map_memory_bytes};
use std::collections::{BTreeMap, BTreeSet};

/// A message with waiting sets.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingMessage {
    /// Number of the message in its session.
    pub(super) number: u64,
    pub(super) moment: MessageTime,
    pub(super) at_ns: u64,
    /// Sequence number after the units of the message that could be read.
    pub(super) end: u32,
}

#[derive(Clone, Debug)]
struct WaitingSet {
    template: u16,
    bytes: Box<[u8]>,
    message: u64,
}

/// A set for which the template has come.
#[derive(Clone, Debug)]
pub(super) struct ReadySet {
    pub(super) bytes: Box<[u8]>,
    pub(super) message: WaitingMessage,
    /// True if no other set of its message waits.
    pub(super) is_last: bool,
}

/// A message, and how many of its sets wait.
#[derive(Clone, Debug)]
struct MessageWithSets {
    message: WaitingMessage,
    sets: u32,
}

/// Sets of a session that wait for their templates.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingSets {
    /// Sets in the order of arrival.
    sets: BTreeMap<u64, WaitingSet>,
    /// The same sets, by template.
    by_template: BTreeSet<(u16, u64)>,
    messages: BTreeMap<u64, MessageWithSets>,
    came: u64,
    bytes: usize,
    blocks: usize,
}

impl WaitingSets {
    /// Returns the memory of all sets, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.blocks
            + map_memory_bytes::<u64, WaitingSet>(self.sets.len())
            + map_memory_bytes::<(u16, u64), ()>(self.by_template.len())
            + map_memory_bytes::<u64, MessageWithSets>(self.messages.len())
    }

    /// Stores a set, and discards the oldest sets while all sets take more than `room` bytes of memory. Returns how
    /// many bytes were discarded. If the new set is too large, this includes its own bytes.
    pub(super) fn store_waiting_set(
        &mut self,
        template: u16,
        bytes: &[u8],
        message: WaitingMessage,
        room: usize,
    ) -> usize {
        self.came += 1;
        self.bytes += bytes.len();
        self.blocks += block_bytes(bytes.len());
        self.sets.insert(self.came, WaitingSet { template, bytes: bytes.into(), message: message.number });
        self.by_template.insert((template, self.came));
        self.messages.entry(message.number).or_insert(MessageWithSets { message, sets: 0 }).sets += 1;
        // The new set is stored first and may be discarded at once, so a set larger than the whole room is
        // counted like any other.
        let mut given_up = 0;
        while self.memory_bytes() > room
            && let Some(bytes) = self.discard_oldest_waiting_set()
        {
            given_up += bytes;
        }
        given_up
    }

    /// Discards the sets that came before `oldest_ns`. Returns how many bytes they had.
    pub(super) fn expire_waiting_sets(&mut self, oldest_ns: u64) -> usize {
        let mut given_up = 0;
        // Messages are numbered in order of arrival, so the first is the oldest.
        while self.messages.first_key_value().is_some_and(|(_, of)| of.message.at_ns < oldest_ns)
            && let Some(bytes) = self.discard_oldest_waiting_set()
        {
            given_up += bytes;
        }
        given_up
    }

    /// Discards all waiting sets. Returns how many bytes they had.
    pub(super) fn discard_all_waiting_sets(&mut self) -> usize {
        let given_up = self.bytes;
        // The numbers continue, so that no set gets the number of an earlier one.
        *self = Self { came: self.came, ..Self::default() };
        given_up
    }

    /// Discards the set that waits longest. Returns how many bytes it had; `None` if no set waits.
    pub(super) fn discard_oldest_waiting_set(&mut self) -> Option<usize> {
        let came = *self.sets.keys().next()?;
        self.remove_waiting_set(came).map(|set| set.bytes.len())
    }

    /// Removes and returns the first set that waits for a template; `None` if no set waits for it.
    pub(super) fn take_ready_set(&mut self, template: u16) -> Option<ReadySet> {
        let first = self.by_template.range((template, 0)..=(template, u64::MAX)).next();
        self.remove_waiting_set(first.map(|(_, came)| *came)?)
    }

    fn remove_waiting_set(&mut self, came: u64) -> Option<ReadySet> {
        let set = self.sets.remove(&came)?;
        self.by_template.remove(&(set.template, came));
        self.bytes -= set.bytes.len();
        self.blocks -= block_bytes(set.bytes.len());
        let of = self.messages.get_mut(&set.message)?;
        of.sets -= 1;
        let ready = ReadySet { bytes: set.bytes, message: of.message, is_last: of.sets == 0 };
        // A message without waiting sets is removed, so the first message is always the oldest that waits.
        if ready.is_last {
            self.messages.remove(&set.message);
        }
        Some(ready)
    }

    /// Sets the sequence number after the units of a message that could be read. Does nothing if no set
    /// of the message waits.
    pub(super) fn set_message_end(&mut self, message: u64, end: u32) {
        if let Some(of) = self.messages.get_mut(&message) {
            of.message.end = end;
        }
    }

    /// Moves the end of a message after one of its sets was read. The sets of the message that still wait
    /// begin after these units.
    pub(super) fn advance_message_end(&mut self, message: u64, units: u32) {
        if let Some(of) = self.messages.get_mut(&message) {
            of.message.end = of.message.end.wrapping_add(units);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u64) -> WaitingMessage {
        WaitingMessage { number, moment: MessageTime::default(), at_ns: number, end: 5 }
    }

    #[test]
    fn waiting_sets_are_returned_by_template_in_order() {
        let mut waiting = WaitingSets::default();
        for (template, bytes, number) in [(256, [1; 3], 1), (257, [2; 3], 1), (256, [3; 3], 2)] {
            assert_eq!(waiting.store_waiting_set(template, &bytes, message(number), usize::MAX), 0);
        }
        let first = waiting.take_ready_set(256).unwrap();
        assert_eq!((&first.bytes[..], first.message.number, first.is_last), (&[1; 3][..], 1, false));
        waiting.advance_message_end(1, 7);
        let second = waiting.take_ready_set(256).unwrap();
        assert_eq!((&second.bytes[..], second.message.number, second.is_last), (&[3; 3][..], 2, true));
        assert!(waiting.take_ready_set(256).is_none());
        let third = waiting.take_ready_set(257).unwrap();
        assert_eq!((third.message.end, third.is_last), (12, true));
        assert_eq!((waiting.bytes, waiting.memory_bytes()), (0, 0));
    }

    #[test]
    fn small_sets_cost_what_is_around_them() {
        let mut waiting = WaitingSets::default();
        let given_up: usize =
            (0..10_000).map(|n| waiting.store_waiting_set(256, &[1], message(n), 100_000)).sum();
        assert!(waiting.memory_bytes() <= 100_000 && given_up > 9_000, "{given_up}");
        assert_eq!(waiting.bytes + given_up, 10_000);
        assert_eq!(
            waiting.store_waiting_set(256, &vec![0; 100_001], message(10_000), 100_000),
            10_001 + 100_000 - given_up
        );
        assert_eq!((waiting.bytes, waiting.memory_bytes()), (0, 0));
    }

    #[test]
    fn expired_waiting_sets_are_given_up() {
        let mut waiting = WaitingSets::default();
        for number in 0..9 {
            waiting.store_waiting_set(256, &[1], message(number), usize::MAX);
        }
        assert_eq!(
            (waiting.expire_waiting_sets(4), waiting.bytes, waiting.discard_all_waiting_sets()),
            (4, 5, 5)
        );
    }
}
