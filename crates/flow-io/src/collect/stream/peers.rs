//! The open connections of a listener, and which of them is closed to make room for a new one.

use crate::collect::CollectorState;
use crate::collect::intake::DeliveredRecords;
use packetrig_flow::collect::sender_network;
use packetrig_sys::clock;
use std::cmp::Reverse;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// State of a connection, shared by the connection's thread, the listener's thread and the decoding thread.
#[derive(Debug)]
pub(super) struct PeerState {
    pub(super) address: IpAddr,
    pub(super) stream: TcpStream,
    /// Number of records that were decoded from the connection's messages.
    pub(super) delivered: Arc<DeliveredRecords>,
    opened_ns: u64,
    has_sent: AtomicBool,
    is_evicted: AtomicBool,
}

impl PeerState {
    pub(super) fn new(address: IpAddr, stream: TcpStream) -> Self {
        Self {
            address,
            stream,
            delivered: Arc::default(),
            opened_ns: clock::monotonic_ns(),
            has_sent: AtomicBool::new(false),
            is_evicted: AtomicBool::new(false),
        }
    }

    pub(super) fn mark_message_received(&self) {
        self.has_sent.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_sent_message(&self) -> bool {
        self.has_sent.load(Ordering::Relaxed)
    }

    /// Start of the connection's idle time: its last record, or its opening.
    fn idle_since_ns(&self) -> u64 {
        self.delivered.last_ns().max(self.opened_ns)
    }

    pub(super) fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Relaxed)
    }

    /// Reports whether bytes are waiting to be read.
    pub(super) fn has_unread_bytes(&self) -> bool {
        // In blocking mode, a peek would wait for the read timeout. The connection ends after this call, so the
        // mode is not restored.
        let ready = self.stream.set_nonblocking(true);
        ready.is_ok() && self.stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0)
    }

    fn evict_connection(&self) {
        // The reason is set before the shutdown, so that the woken thread finds it.
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

/// Reasons why a connection is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionDenial {
    /// The address has its maximum number of connections, and all are in use.
    AddressFull,
    /// The listener has its maximum number of connections, and all are in use.
    Full,
}

/// Makes room for a connection from `address`, if necessary by closing another one.
pub(super) fn evict_connection_if_full(
    peers: &[ExporterPeer],
    address: IpAddr,
    shared: &CollectorState,
) -> Result<(), ConnectionDenial> {
    // Evicted connections do not count below, but their threads take a moment to end: this limits their number.
    if peers.len() >= shared.connections.saturating_mul(2) {
        return Err(ConnectionDenial::Full);
    }
    let held: Vec<&PeerState> =
        peers.iter().map(|peer| &*peer.state).filter(|peer| !peer.is_evicted()).collect();
    let has_share = count_connections_in_network(&held, address) < shared.connections_per_address();
    if has_share && held.len() < shared.connections {
        return Ok(());
    }
    // Connections without records are closed first. A connection that delivers records is closed only for
    // a network that has fewer connections.
    let victim = find_idle_peer(&held, address, has_share, shared.message_timeout_ns)
        .or_else(|| if has_share { find_peer_of_crowded_network(&held, address) } else { None });
    match victim {
        Some(peer) => peer.evict_connection(),
        None => return Err(if has_share { ConnectionDenial::Full } else { ConnectionDenial::AddressFull }),
    }
    Ok(())
}

/// Finds a connection that has delivered no records yet, or none within the message timeout. Messages without records
/// do not protect a connection: they cost nothing to send.
fn find_idle_peer<'a>(
    held: &[&'a PeerState],
    address: IpAddr,
    has_share: bool,
    message_timeout_ns: u64,
) -> Option<&'a PeerState> {
    let idle_since_ns = clock::monotonic_ns().saturating_sub(message_timeout_ns);
    // An address with its maximum number of connections can only replace one of its own connections.
    let candidates = held.iter().copied().filter(|peer| {
        let may_go = has_share || sender_network(peer.address) == sender_network(address);
        may_go && (peer.delivered.count() == 0 || peer.idle_since_ns() < idle_since_ns)
    });
    candidates.min_by_key(|peer| eviction_order(held, peer))
}

/// Finds a connection of a network that has more connections than the newcomer's network will have. Used when all
/// connections deliver records. Every network gets at least one connection this way, and exporters of different
/// networks do not displace each other.
fn find_peer_of_crowded_network<'a>(held: &[&'a PeerState], address: IpAddr) -> Option<&'a PeerState> {
    let own = count_connections_in_network(held, address) + 1;
    let candidates =
        held.iter().copied().filter(|peer| count_connections_in_network(held, peer.address) > own);
    candidates.min_by_key(|peer| eviction_order(held, peer))
}

/// Orders connections for eviction: first the connections of the network that has most of them, then those that have
/// sent no whole message, then those with the fewest records, then the longest idle.
fn eviction_order(held: &[&PeerState], peer: &PeerState) -> (Reverse<usize>, bool, u64, u64) {
    let count = Reverse(count_connections_in_network(held, peer.address));
    (count, peer.has_sent_message(), peer.delivered.count(), peer.idle_since_ns())
}

fn count_connections_in_network(held: &[&PeerState], address: IpAddr) -> usize {
    let network = sender_network(address);
    held.iter().filter(|peer| sender_network(peer.address) == network).count()
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
            message_timeout_ns: 3_600_000_000_000,
            first_message_ns: 1,
        }
    }

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn peer(last: u8, has_sent: bool) -> ExporterPeer {
        peer_at(address(last), has_sent)
    }

    fn peer_at(address: IpAddr, has_sent: bool) -> ExporterPeer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let state = Arc::new(PeerState::new(address, stream));
        if has_sent {
            state.mark_message_received();
            state.delivered.add_records(1);
        }
        ExporterPeer { state, thread: std::thread::spawn(|| ()) }
    }

    fn evicted(peers: &[ExporterPeer]) -> Vec<usize> {
        (0..peers.len()).filter(|at| peers[*at].state.is_evicted()).collect()
    }

    #[test]
    fn address_over_share_evicts_its_silent_connection() {
        let peers = [peer(1, false), peer(2, false), peer(2, true)];
        assert_eq!(evict_connection_if_full(&peers, address(1), &shared()), Ok(()));
        assert!(evicted(&peers).is_empty());
        assert_eq!(evict_connection_if_full(&peers, address(2), &shared()), Ok(()));
        assert_eq!(evicted(&peers), [1]);
        let busy = [peer(2, true), peer(2, true), peer(1, false)];
        assert_eq!(
            evict_connection_if_full(&busy, address(2), &shared()),
            Err(ConnectionDenial::AddressFull)
        );
    }

    #[test]
    fn eviction_prefers_busiest_address_then_longest_silence() {
        let senders =
            [(1, true), (2, false), (3, true), (4, false), (4, false), (5, false), (6, true), (7, true)];
        let mut peers: Vec<ExporterPeer> = senders.map(|(last, has_sent)| peer(last, has_sent)).into();
        for expected in [&[3][..], &[1, 3], &[1, 3, 4]] {
            assert_eq!(evict_connection_if_full(&peers, address(9), &shared()), Ok(()));
            assert_eq!(evicted(&peers), expected);
            peers.push(peer(10 + u8::try_from(peers.len()).unwrap(), true));
        }
        // One of the silent connections is left.
        assert_eq!(evict_connection_if_full(&peers, address(9), &shared()), Ok(()));
        peers.push(peer(30, true));
        assert_eq!(
            evict_connection_if_full(&peers, address(9), &shared()),
            Err(ConnectionDenial::Full),
            "those that send stay"
        );
        let patient = CollectorState { message_timeout_ns: 0, ..shared() };
        assert_eq!(evict_connection_if_full(&peers, address(9), &patient), Ok(()));
        assert!(peers[0].state.is_evicted(), "the longest silent of those that sent");
    }

    #[test]
    fn messages_without_records_keep_no_place() {
        let peers: Vec<ExporterPeer> = (0..8).map(|number| peer(number / 2, false)).collect();
        for peer in &peers {
            peer.state.mark_message_received();
        }
        peers[0].state.delivered.add_records(1);
        assert_eq!(evict_connection_if_full(&peers, address(9), &shared()), Ok(()));
        assert_eq!(
            evicted(&peers),
            [1],
            "the first without a record, although others of its address deliver"
        );
    }

    #[test]
    fn few_addresses_that_deliver_keep_nobody_out() {
        // Four addresses with two connections each, all of which deliver.
        let mut peers: Vec<ExporterPeer> = (0..8).map(|number| peer(number / 2, true)).collect();
        peers[5].state.delivered.add_records(9);
        peers[6].state.delivered.add_records(9);
        for peer in &peers[..4] {
            peer.state.delivered.add_records(20);
        }
        assert_eq!(evict_connection_if_full(&peers, address(9), &shared()), Ok(()));
        assert_eq!(evicted(&peers), [4], "the one with the fewest records");
        peers.push(peer(9, true));
        assert_eq!(
            evict_connection_if_full(&peers, address(9), &shared()),
            Err(ConnectionDenial::Full),
            "it has one as others have"
        );
    }

    #[test]
    fn a_64_of_ipv6_is_one_address() {
        let of = |number: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, number, 0, 0, number]);
        let peers = [peer_at(of(1), true), peer_at(of(2), true)];
        assert_eq!(evict_connection_if_full(&peers, of(3), &shared()), Err(ConnectionDenial::AddressFull));
        let elsewhere = IpAddr::from([0x2001, 0xdb8, 0, 2, 0, 0, 0, 1]);
        assert_eq!(evict_connection_if_full(&peers, elsewhere, &shared()), Ok(()));
    }
}
