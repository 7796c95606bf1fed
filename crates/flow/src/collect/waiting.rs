//! Data that came before its template, kept until that comes, or a bounded while.
//!
//! Does not read it and counts nothing for the exporter: it says how many bytes it had to leave.
//!
//! Invariant: `bytes` is the sum of what is kept.

use super::draft::Moment;
use std::collections::VecDeque;

/// A set of data without a template.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) set: u16,
    pub(super) bytes: Box<[u8]>,
    pub(super) moment: Moment,
    /// Which of the session's messages it came in.
    pub(super) message: u64,
    /// Number behind the units of its message that could be read.
    pub(super) end: u32,
    pub(super) at_ns: u64,
}

/// All that waits in a session, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting {
    sets: VecDeque<Held>,
    bytes: usize,
}

impl Waiting {
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a set in `room` bytes. Says how many bytes had to go for it, its own if it is too large.
    pub(super) fn keep(&mut self, held: Held, room: usize) -> usize {
        let size = held.bytes.len();
        if size > room {
            return size;
        }
        let mut left = 0;
        while self.bytes + size > room {
            left += self.drop_oldest();
        }
        self.bytes += size;
        self.sets.push_back(held);
        left
    }

    /// Leaves what came before `oldest_ns`. Says how many bytes that were.
    pub(super) fn expire(&mut self, oldest_ns: u64) -> usize {
        let mut left = 0;
        while self.sets.front().is_some_and(|held| held.at_ns < oldest_ns) {
            left += self.drop_oldest();
        }
        left
    }

    /// Leaves everything. Says how many bytes that were.
    pub(super) fn clear(&mut self) -> usize {
        self.sets.clear();
        std::mem::take(&mut self.bytes)
    }

    fn drop_oldest(&mut self) -> usize {
        let size = self.sets.pop_front().map_or(0, |held| held.bytes.len());
        self.bytes -= size;
        size
    }

    /// Gives out what waited for a template.
    pub(super) fn take(&mut self, set: u16) -> VecDeque<Held> {
        if self.sets.iter().all(|held| held.set != set) {
            return VecDeque::new();
        }
        let (ready, others) = std::mem::take(&mut self.sets).into_iter().partition(|held| held.set == set);
        self.sets = others;
        self.bytes = self.sets.iter().map(|held| held.bytes.len()).sum();
        ready
    }

    /// The message is read up to number `end`.
    pub(super) fn settle(&mut self, message: u64, end: u32) {
        for held in self.sets.iter_mut().rev().take_while(|held| held.message == message) {
            held.end = end;
        }
    }

    /// Sets of one message; they change places in its numbers when one of them is read.
    pub(super) fn of_message(&mut self, message: u64) -> impl Iterator<Item = &mut Held> {
        self.sets.iter_mut().filter(move |held| held.message == message)
    }
}
