//! A connection whose reads return regularly, even if bytes arrive all the time.
//!
//! TLS keeps reading until it has a whole record or handshake. So a peer that sends a byte now and then would keep the
//! thread from ever checking its deadlines.

use super::peers::PeerState;
use packetrig_sys::clock;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

/// Longest time that one turn of reading may take.
const MAX_READING_TURN_NS: u64 = 200_000_000;

/// A stream whose reads fail with [`ErrorKind::TimedOut`] when a turn is over, and with
/// [`ErrorKind::WouldBlock`] when nothing arrived.
#[derive(Debug)]
pub(super) struct TimeLimitedStream {
    peer: Arc<PeerState>,
    until_ns: Option<u64>,
}

impl TimeLimitedStream {
    pub(super) const fn new(peer: Arc<PeerState>) -> Self {
        Self { peer, until_ns: None }
    }
}

impl Read for TimeLimitedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let now_ns = clock::monotonic_ns();
        if now_ns > *self.until_ns.get_or_insert(now_ns + MAX_READING_TURN_NS) {
            self.until_ns = None;
            return Err(ErrorKind::TimedOut.into());
        }
        let read = (&self.peer.stream).read(buffer);
        // After an error, the caller checks its deadlines, too. So the next read begins a new turn.
        if read.is_err() {
            self.until_ns = None;
        }
        read
    }
}

impl Write for TimeLimitedStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        (&self.peer.stream).write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&self.peer.stream).flush()
    }
}
