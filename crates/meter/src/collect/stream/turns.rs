//! A connection whose reader comes back now and then, also when bytes come all the time.
//!
//! TLS reads on until it has a whole record or handshake: a byte now and then would keep it from ever looking at deadlines.

use super::peers::PeerState;
use packetrig_sys::clock;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

/// Longest time until a reader comes back.
const TURN_NS: u64 = 200_000_000;

/// Says [`ErrorKind::TimedOut`] when a turn is over, and [`ErrorKind::WouldBlock`] when nothing came.
#[derive(Debug)]
pub(super) struct TurnStream {
    peer: Arc<PeerState>,
    until_ns: Option<u64>,
}

impl TurnStream {
    pub(super) const fn new(peer: Arc<PeerState>) -> Self {
        Self { peer, until_ns: None }
    }
}

impl Read for TurnStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let now_ns = clock::monotonic_ns();
        if now_ns > *self.until_ns.get_or_insert(now_ns + TURN_NS) {
            self.until_ns = None;
            return Err(ErrorKind::TimedOut.into());
        }
        let read = (&self.peer.stream).read(buffer);
        if read.is_err() {
            self.until_ns = None;
        }
        read
    }
}

impl Write for TurnStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        (&self.peer.stream).write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&self.peer.stream).flush()
    }
}
