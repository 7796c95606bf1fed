//! Which connections are held, and which of them makes room for a new one.

use crate::collect::CollectorState;
use packetrig_sys::clock;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// What a connection's thread and the listener's thread know of it.
#[derive(Debug)]
pub(super) struct PeerState {
    pub(super) address: IpAddr,
    pub(super) stream: TcpStream,
    /// When the last whole message came; of the connection itself, until one has.
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

    /// Whole messages have come.
    pub(super) fn hear(&self) {
        self.heard_ns.store(clock::monotonic_ns(), Ordering::Relaxed);
        self.has_sent.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_sent(&self) -> bool {
        self.has_sent.load(Ordering::Relaxed)
    }

    pub(super) fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Relaxed)
    }

    /// Whether there is something to read at once.
    pub(super) fn has_more(&self) -> bool {
        let ready = self.stream.set_nonblocking(true);
        ready.is_ok() && self.stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0)
    }

    fn evict(&self) {
        self.is_evicted.store(true, Ordering::Relaxed);
        // The other side may have closed it already.
        self.stream.shutdown(Shutdown::Both).unwrap_or(());
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
    /// Its address has its share, and all of it is in use.
    AddressFull,
    /// All connections are in use.
    Full,
}

/// Makes room for a connection from `address`, if need be at the expense of another one.
pub(super) fn make_room(
    peers: &[ExporterPeer],
    address: IpAddr,
    shared: &CollectorState,
) -> Result<(), PeerDenial> {
    // Threads of those that made room may take a moment to end.
    if peers.len() >= shared.connections.saturating_mul(2) {
        return Err(PeerDenial::Full);
    }
    let held: Vec<&PeerState> =
        peers.iter().map(|peer| &*peer.state).filter(|peer| !peer.is_evicted()).collect();
    let of_address = |address| held.iter().filter(|peer| peer.address == address).count();
    let has_share = of_address(address) < shared.connections_per_address();
    if has_share && held.len() < shared.connections {
        return Ok(());
    }
    let silent_since = clock::monotonic_ns().saturating_sub(shared.patience_ns);
    let candidates = held.iter().filter(|peer| {
        let heard_ns = peer.heard_ns.load(Ordering::Relaxed);
        (has_share || peer.address == address) && (!peer.has_sent() || heard_ns < silent_since)
    });
    // The address with most connections gives one: first one that never sent a message, then the longest silent.
    let victim = candidates.min_by_key(|peer| {
        let count = std::cmp::Reverse(of_address(peer.address));
        (count, peer.has_sent(), peer.heard_ns.load(Ordering::Relaxed))
    });
    match victim {
        Some(peer) => peer.evict(),
        None => return Err(if has_share { PeerDenial::Full } else { PeerDenial::AddressFull }),
    }
    Ok(())
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
            state.hear();
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
