//! Blocks of whole messages on their way from sockets and files to the decoding thread, and the listeners' counters.

use crossbeam_channel::Sender;
use packetrig_flow::collect::MessageSource;
use packetrig_sys::clock;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Maximum number of items that wait for the decoding thread. When the queue is full, listeners wait: the kernel then
/// drops datagrams and counts them, and TCP slows the connections down.
pub(super) const MAX_QUEUED_BATCHES: usize = 32;

/// Items of the queue to the decoding thread.
#[derive(Debug)]
pub(super) enum DecoderQueueItem {
    /// A block of messages, with their time of arrival.
    Messages(MessageBlock),
    /// A connection or a file has ended.
    Closed(MessageSource),
}

/// A block of datagrams is sent once it has this many bytes. So with its last datagram it has less than
/// 128 KiB. Blocks of connections and files have at most 128 KiB, the size of the read buffer.
const BATCH_BYTES: usize = 64 << 10;

/// Reads the clock for all ages and timeouts of the collector. It is the monotonic clock: a wall clock that jumps
/// forward would expire the state of all exporters at once.
pub(super) fn collector_clock_ns() -> u64 {
    clock::monotonic_ns()
}

/// Several messages, one after the other in one buffer.
#[derive(Debug, Default)]
pub(super) struct MessageBlock {
    /// Time of arrival, on the clock of [`collector_clock_ns`].
    pub(super) at_ns: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) parts: Vec<(MessageSource, usize)>,
    /// Counter of the connection that delivered the messages; the decoding thread adds their records to it. `None`
    /// for datagrams and files.
    pub(super) delivered: Option<Arc<DeliveredRecords>>,
}

/// Count of the records and loss reports that were decoded from a connection's messages.
#[derive(Debug, Default)]
pub(super) struct DeliveredRecords {
    count: AtomicU64,
    /// Time at which records were last added, on the clock of [`collector_clock_ns`]; 0 before that.
    last_ns: AtomicU64,
}

impl DeliveredRecords {
    pub(super) fn add_records(&self, count: u64) {
        // Messages without records must not end the idle time of a connection: they cost a hostile peer nothing.
        if count > 0 {
            self.last_ns.store(collector_clock_ns(), Ordering::Relaxed);
            self.count.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn last_ns(&self) -> u64 {
        self.last_ns.load(Ordering::Relaxed)
    }
}

/// A listener's thread, and the address to which the listener is bound.
#[derive(Debug)]
pub(super) struct ListenerThread {
    /// Local address, with the port that the kernel chose if port 0 was requested.
    pub(super) bound: SocketAddr,
    pub(super) thread: JoinHandle<()>,
}

impl MessageBlock {
    /// Makes an empty block for messages that arrive now.
    pub(super) fn new() -> Self {
        Self { at_ns: collector_clock_ns(), ..Self::default() }
    }

    /// Makes an empty block for messages of a connection; their records are counted in `delivered`.
    pub(super) fn new_for_connection(delivered: &Arc<DeliveredRecords>) -> Self {
        Self { delivered: Some(Arc::clone(delivered)), ..Self::new() }
    }

    pub(super) fn push_message(&mut self, source: MessageSource, message: &[u8]) {
        self.bytes.extend_from_slice(message);
        self.parts.push((source, message.len()));
    }

    /// Reports whether the block is large enough to be sent.
    pub(super) const fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH_BYTES
    }

    /// Sends the messages to the decoding thread; waits while the queue is full. Returns false if
    /// that thread has ended.
    pub(super) fn send_to_decoder(self, queue: &Sender<DecoderQueueItem>) -> bool {
        // An empty block would take one of the few places in the queue.
        self.parts.is_empty() || queue.send(DecoderQueueItem::Messages(self)).is_ok()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (MessageSource, &[u8])> {
        let mut rest = &self.bytes[..];
        self.parts.iter().map(move |(source, length)| {
            let (message, remaining) = rest.split_at(*length);
            rest = remaining;
            (*source, message)
        })
    }
}

/// Live counters of one listener or file.
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
    pub(super) handshakes_failed: AtomicU64,
    /// Reason of the last failed handshake.
    pub(super) handshake_failure: Mutex<Option<String>>,
    pub(super) broken: AtomicU64,
    pub(super) slow: AtomicU64,
    pub(super) address_full: AtomicU64,
    pub(super) silent: AtomicU64,
    pub(super) cut: AtomicU64,
    pub(super) made_room: AtomicU64,
    pub(super) failed: AtomicBool,
    pub(super) stopped: AtomicBool,
}

/// Counts of one listener or file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntakeCounts {
    /// Listen address with its scheme, or the file's name.
    pub place: String,
    /// Datagrams, or messages of connections and files.
    pub messages: u64,
    /// Bytes of the messages, without headers of UDP, TCP or TLS.
    pub bytes: u64,
    /// Datagrams that the kernel dropped because the receive buffer was full.
    pub dropped: u64,
    /// Datagrams and connections from addresses that are not on the list of allowed exporters.
    pub not_allowed: u64,
    /// Datagrams that were still in the socket 5 s after the collector was told to end: they were not decoded.
    pub unread: u64,
    pub connections: u64,
    pub open: u64,
    /// Connections refused: too many at a time, no thread could be started, or the exporter did not
    /// complete the TLS handshake.
    pub refused: u64,
    /// Connections with a TLS error in the handshake: for example, one side rejected the other's certificate.
    pub handshakes_failed: u64,
    /// The last failed handshake: the address of the exporter, the error, and the certificate if it was the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshake_failure: Option<String>,
    /// Connections and files that ended within a message, or contained something that is not a message.
    pub broken: u64,
    /// Connections closed because a message was not complete in time.
    pub slow: u64,
    /// Connections refused because their address (for IPv6: its /64) already has a quarter
    /// of all permitted connections.
    pub address_full: u64,
    /// Connections closed because their first message did not arrive in time.
    pub silent: u64,
    /// Connections with unread bytes when the collector ended.
    pub cut: u64,
    /// Connections closed to make room for new ones.
    pub made_room: u64,
    /// True if the listener has failed and receives no more data, or if the remaining part of the
    /// file cannot be read.
    pub failed: bool,
    /// True if the collector ended before it had read the whole file.
    pub stopped: bool,
}

impl IntakeCounts {
    /// Connections that were refused or closed, by cause.
    pub const fn closed_by_cause(&self) -> [(&'static str, u64); 8] {
        [
            ("refused", self.refused),
            ("handshake", self.handshakes_failed),
            ("address_full", self.address_full),
            ("broken", self.broken),
            ("slow", self.slow),
            ("silent", self.silent),
            ("cut", self.cut),
            ("made_room", self.made_room),
        ]
    }

    /// Reports whether this is a file that ended within a message, or contained something that is not a message.
    pub fn is_damaged_file(&self) -> bool {
        self.is_file() && self.broken > 0
    }

    /// Connections that ended within a message, or contained something that is not a message.
    pub fn broken_connections(&self) -> u64 {
        // Broken files are listed on their own (`is_damaged_file`) and must not count twice.
        if self.is_file() { 0 } else { self.broken }
    }

    /// Reports whether this is a file and not a listener: only the name of a listener has a scheme, such as `udp://`.
    fn is_file(&self) -> bool {
        !self.place.contains("://")
    }

    /// Datagrams from addresses that are not allowed; 0 for TCP, TLS and files. The balance counts messages, and a
    /// refused connection has brought no message.
    pub fn datagrams_not_allowed(&self) -> u64 {
        if self.place.starts_with("udp://") { self.not_allowed } else { 0 }
    }
}

pub(super) fn add_to_counter(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

impl ListenerCounters {
    fn lock_handshake_failure(&self) -> MutexGuard<'_, Option<String>> {
        self.handshake_failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record_handshake_failure(&self, why: String) {
        *self.lock_handshake_failure() = Some(why);
    }

    pub(super) fn read_counts(&self, place: String) -> IntakeCounts {
        // Relaxed is enough: no reader needs the numbers in order. Sums are compared only after the threads are joined.
        IntakeCounts {
            place,
            messages: self.messages.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            not_allowed: self.not_allowed.load(Ordering::Relaxed),
            unread: self.unread.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
            open: self.open.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            handshakes_failed: self.handshakes_failed.load(Ordering::Relaxed),
            handshake_failure: self.lock_handshake_failure().clone(),
            broken: self.broken.load(Ordering::Relaxed),
            slow: self.slow.load(Ordering::Relaxed),
            address_full: self.address_full.load(Ordering::Relaxed),
            silent: self.silent.load(Ordering::Relaxed),
            cut: self.cut.load(Ordering::Relaxed),
            made_room: self.made_room.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            stopped: self.stopped.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_block_time_uses_monotonic_clock() {
        let before = clock::monotonic_ns();
        let came = MessageBlock::new().at_ns;
        assert!(before <= came && came <= clock::monotonic_ns(), "{came} is of another clock");
    }
}
