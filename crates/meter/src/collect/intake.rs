//! From sockets and files to the decoding thread: whole messages, several at a time.

use crossbeam_channel::Sender;
use packetrig_flow::collect::MessageSource;
use packetrig_sys::clock;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Batches that may wait for the decoding thread. Who is in front of it waits: then the kernel drops datagrams, and counts
/// them, and connections are held up.
pub(super) const QUEUE: usize = 32;

/// What reaches the decoding thread.
#[derive(Debug)]
pub(super) enum IntakeItem {
    /// Messages, and when they came.
    Messages(MessageBlock),
    /// A connection or a file has ended.
    Closed(MessageSource),
}

/// A batch goes on its way when it has so many bytes, so the queue holds that much, and a message, for each of its places.
const BATCH_BYTES: usize = 64 << 10;

/// The clock by which everything here grows old. It is never set: a wall clock that is put forward would make all that is known of
/// exporters too old at once.
pub(super) fn now_ns() -> u64 {
    clock::monotonic_ns()
}

/// Messages behind each other in one piece of memory.
#[derive(Debug, Default)]
pub(super) struct MessageBlock {
    /// When they came, by the clock that [`now_ns`] shows.
    pub(super) at_ns: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) parts: Vec<(MessageSource, usize)>,
}

impl MessageBlock {
    /// None yet, of those that come now.
    pub(super) fn new() -> Self {
        Self { at_ns: now_ns(), ..Self::default() }
    }

    pub(super) fn push(&mut self, source: MessageSource, message: &[u8]) {
        self.bytes.extend_from_slice(message);
        self.parts.push((source, message.len()));
    }

    /// Whether no more should be added.
    pub(super) const fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH_BYTES
    }

    /// Hands them over; waits for room. Says whether anybody takes them.
    pub(super) fn send(self, queue: &Sender<IntakeItem>) -> bool {
        self.parts.is_empty() || queue.send(IntakeItem::Messages(self)).is_ok()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (MessageSource, &[u8])> {
        let mut rest = &self.bytes[..];
        self.parts.iter().map(move |(source, length)| {
            let (message, behind) = rest.split_at(*length);
            rest = behind;
            (*source, message)
        })
    }
}

/// What one listener has seen.
#[derive(Debug, Default)]
pub(super) struct ListenerCounters {
    pub(super) messages: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) not_allowed: AtomicU64,
    pub(super) unread: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) open: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) broken: AtomicU64,
    pub(super) slow: AtomicU64,
    pub(super) address_full: AtomicU64,
    pub(super) silent: AtomicU64,
    pub(super) cut: AtomicU64,
    pub(super) made_room: AtomicU64,
    pub(super) failed: AtomicBool,
    pub(super) stopped: AtomicBool,
}

/// What one listener or file has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntakeCounts {
    /// Where it listens, or the file's name.
    pub place: String,
    /// Datagrams, or messages of connections.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Datagrams that the socket had no room for.
    pub dropped: u64,
    /// Datagrams and connections of addresses that are not on the list of exporters.
    pub not_allowed: u64,
    /// Datagrams that were left in the socket when the collector ended, since there were too many.
    pub unread: u64,
    pub connections: u64,
    pub open: u64,
    /// Connections refused: too many, or not encrypted as they should be.
    pub refused: u64,
    /// Connections and files that broke off within a message, or held something else.
    pub broken: u64,
    /// Connections closed because a message did not come to its end in time.
    pub slow: u64,
    /// Connections refused because their address has its share.
    pub address_full: u64,
    /// Connections closed because no message came in time.
    pub silent: u64,
    /// Connections that had more to read when the collector ended.
    pub cut: u64,
    /// Connections closed so that others find room.
    pub made_room: u64,
    /// Whether the listener has failed and hears nothing any more, or the file cannot be read on.
    pub failed: bool,
    /// Whether the file was not read to its end because the collector ended before.
    pub stopped: bool,
}

impl IntakeCounts {
    /// Connections that were refused or closed, by cause.
    pub const fn closed_by_cause(&self) -> [(&'static str, u64); 7] {
        [
            ("refused", self.refused),
            ("address_full", self.address_full),
            ("broken", self.broken),
            ("slow", self.slow),
            ("silent", self.silent),
            ("cut", self.cut),
            ("made_room", self.made_room),
        ]
    }

    /// Of what was not allowed, datagrams: a connection is none of the messages.
    pub fn datagrams_not_allowed(&self) -> u64 {
        if self.place.starts_with("udp://") { self.not_allowed } else { 0 }
    }
}

pub(super) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

impl ListenerCounters {
    pub(super) fn read(&self, place: String) -> IntakeCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IntakeCounts {
            place,
            messages: of(&self.messages),
            bytes: of(&self.bytes),
            dropped: of(&self.dropped),
            not_allowed: of(&self.not_allowed),
            unread: of(&self.unread),
            connections: of(&self.connections),
            open: of(&self.open),
            refused: of(&self.refused),
            broken: of(&self.broken),
            slow: of(&self.slow),
            address_full: of(&self.address_full),
            silent: of(&self.silent),
            cut: of(&self.cut),
            made_room: of(&self.made_room),
            failed: self.failed.load(Ordering::Relaxed),
            stopped: self.stopped.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_that_is_set_makes_nothing_old() {
        let before = clock::monotonic_ns();
        let came = MessageBlock::new().at_ns;
        assert!(before <= came && came <= clock::monotonic_ns(), "{came} is of another clock");
    }
}
