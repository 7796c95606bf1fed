//! The open connections of a listener, and which of them is closed to make room for a new one.

use crate::collect::CollectorState;
use packetrig_sys::clock;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// State of a connection, shared by its own thread and the listener's.
#[derive(Debug)]
pub(super) struct PeerState {
    pub(super) address: IpAddr,
    pub(super) stream: TcpStream,
    /// Arrival of the last whole message, or of the connection itself until there was one.
    heard_ns: AtomicU64,
    has_sent: AtomicBool,
    is_evicted: AtomicBool,
}

impl PeerState {
    pub(super) fn new(address: IpAddr, stream: TcpStream) -> Self {
        Self {
            address,
            stream,
            heard_ns: AtomicU64::new(clock::monotonic_ns()),
            has_sent: AtomicBool::new(false),
            is_evicted: AtomicBool::new(false),
        }
    }

    pub(super) fn note_messages(&self) {
        self.heard_ns.store(clock::monotonic_ns(), Ordering::Relaxed);
        self.has_sent.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_sent(&self) -> bool {
        self.has_sent.load(Ordering::Relaxed)
    }

    pub(super) fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Relaxed)
    }

    /// Whether bytes are waiting to be read.
    pub(super) fn has_more(&self) -> bool {
        let ready = self.stream.set_nonblocking(true);
        ready.is_ok() && self.stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0)
    }

    fn evict(&self) {
        self.is_evicted.store(true, Ordering::Relaxed);
        // Wakes the connection's thread, which sees the end of the stream. Fails only if the peer has closed already.
        drop(self.stream.shutdown(Shutdown::Both));
    }
}

/// A connection and its thread.
#[derive(Debug)]
pub(super) struct ExporterPeer {
    pub(super) state: Arc<PeerState>,
    pub(super) thread: JoinHandle<()>,
}

/// Why a connection is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerDenial {
    /// Its address has as many connections as it may have, and all are in use.
    AddressFull,
    /// All connections are in use.
    Full,
}

/// Makes room for a connection from `address`, if necessary by closing another one.
pub(super) fn make_room(
    peers: &[ExporterPeer],
    address: IpAddr,
    shared: &CollectorState,
) -> Result<(), PeerDenial> {
    // Evicted connections do not count below, but their threads take a moment to end: this bounds the threads.
    if peers.len() >= shared.connections.saturating_mul(2) {
        return Err(PeerDenial::Full);
    }
    let held: Vec<&PeerState> =
        peers.iter().map(|peer| &*peer.state).filter(|peer| !peer.is_evicted()).collect();
    let has_share = count_of(&held, address) < shared.connections_per_address();
    if has_share && held.len() < shared.connections {
        return Ok(());
    }
    let silent_since = clock::monotonic_ns().saturating_sub(shared.patience_ns);
    // An exporter that sends messages is never evicted. An address beyond its share can only replace its own connections,
    // so it cannot push out others.
    let candidates = held.iter().filter(|peer| {
        let heard_ns = peer.heard_ns.load(Ordering::Relaxed);
        (has_share || peer.address == address) && (!peer.has_sent() || heard_ns < silent_since)
    });
    // The address with most connections loses one: first one that never sent a message, then the longest silent.
    let victim = candidates.min_by_key(|peer| {
        let count = std::cmp::Reverse(count_of(&held, peer.address));
        (count, peer.has_sent(), peer.heard_ns.load(Ordering::Relaxed))
    });
    match victim {
        Some(peer) => peer.evict(),
        None => return Err(if has_share { PeerDenial::Full } else { PeerDenial::AddressFull }),
    }
    Ok(())
}

fn count_of(held: &[&PeerState], address: IpAddr) -> usize {
    held.iter().filter(|peer| peer.address == address).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_flow::collect::ExporterList;
    use std::net::TcpListener;

    fn shared() -> CollectorState {
        CollectorState {
            over: AtomicBool::new(false),
            allowed: ExporterList::default(),
            connections: 8,
            patience_ns: 3_600_000_000_000,
            first_message_ns: 1,
        }
    }

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn peer(last: u8, has_sent: bool) -> ExporterPeer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let state = Arc::new(PeerState::new(address(last), stream));
        if has_sent {
            state.note_messages();
        }
        ExporterPeer { state, thread: std::thread::spawn(|| ()) }
    }

    fn evicted(peers: &[ExporterPeer]) -> Vec<usize> {
        (0..peers.len()).filter(|at| peers[*at].state.is_evicted()).collect()
    }

    #[test]
    fn an_address_beyond_its_share_loses_its_own_silent_connection() {
        let peers = [peer(1, false), peer(2, false), peer(2, true)];
        assert_eq!(make_room(&peers, address(1), &shared()), Ok(()));
        assert!(evicted(&peers).is_empty());
        assert_eq!(make_room(&peers, address(2), &shared()), Ok(()));
        assert_eq!(evicted(&peers), [1]);
        let busy = [peer(2, true), peer(2, true), peer(1, false)];
        assert_eq!(make_room(&busy, address(2), &shared()), Err(PeerDenial::AddressFull));
    }

    #[test]
    fn the_address_with_most_connections_and_the_longest_silence_makes_room() {
        let senders =
            [(1, true), (2, false), (3, true), (4, false), (4, false), (5, false), (6, true), (7, true)];
        let mut peers: Vec<ExporterPeer> = senders.map(|(last, has_sent)| peer(last, has_sent)).into();
        for expected in [&[3][..], &[1, 3], &[1, 3, 4]] {
            assert_eq!(make_room(&peers, address(9), &shared()), Ok(()));
            assert_eq!(evicted(&peers), expected);
            peers.push(peer(10 + u8::try_from(peers.len()).unwrap(), true));
        }
        // Of the silent one is left.
        assert_eq!(make_room(&peers, address(9), &shared()), Ok(()));
        peers.push(peer(30, true));
        assert_eq!(make_room(&peers, address(9), &shared()), Err(PeerDenial::Full), "those that send stay");
        let patient = CollectorState { patience_ns: 0, ..shared() };
        assert_eq!(make_room(&peers, address(9), &patient), Ok(()));
        assert!(peers[0].state.is_evicted(), "the longest silent of those that sent");
    }
}
