//! Limits the connections that are served at the same time, and chooses which one is closed for a new one.
//!
//! Only connections that have sent no question yet are closed, the oldest first. Each address has a limit, so no
//! address can take the slots of all others.

use packetrig_sys::clock::monotonic_ns;
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of connections that are served at the same time.
const MAX_ENROL_CONNECTIONS: usize = 64;
/// Maximum number of connections from one address (IPv6: one /64 network). Nodes behind one address share this limit.
const MAX_CONNECTIONS_PER_ADDRESS: usize = 32;

/// The slots of the enrolment server. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionSlots(Arc<Mutex<HeldConnections>>);

#[derive(Debug, Default)]
struct HeldConnections {
    held: Vec<HeldConnection>,
    next: u64,
}

#[derive(Debug)]
struct HeldConnection {
    number: u64,
    network: IpAddr,
    stream: TcpStream,
    since_ns: u64,
    has_asked: bool,
    is_evicted: bool,
}

/// The slot of one connection; dropping it frees the slot.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: ConnectionSlots,
    number: u64,
}

impl ConnectionSlots {
    fn lock_connections(&self) -> MutexGuard<'_, HeldConnections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a slot for a new connection, and closes a silent connection for it if necessary; `None` if no slot
    /// can be made free.
    pub(super) fn claim_slot(&self, address: IpAddr, stream: &TcpStream) -> Option<ConnectionSlot> {
        // A second handle, which can shut down the connection while its thread reads from it.
        let stream = stream.try_clone().ok()?;
        let network = client_network(address);
        let mut own = self.lock_connections();
        if !own.make_room_for_connection(network) {
            return None;
        }
        let number = own.next;
        own.next += 1;
        let since_ns = monotonic_ns();
        own.held.push(HeldConnection {
            number,
            network,
            stream,
            since_ns,
            has_asked: false,
            is_evicted: false,
        });
        Some(ConnectionSlot { slots: self.clone(), number })
    }
}

impl ConnectionSlot {
    /// Marks that the question is complete: from now on the connection is not evicted.
    pub(super) fn mark_question_received(&self) {
        let mut own = self.slots.lock_connections();
        if let Some(held) = own.held.iter_mut().find(|held| held.number == self.number) {
            held.has_asked = true;
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.lock_connections().held.retain(|held| held.number != self.number);
    }
}

impl HeldConnections {
    /// Makes sure that there is a slot for a connection of this network: closes a silent connection if necessary.
    /// Returns false if none can be closed.
    fn make_room_for_connection(&mut self, network: IpAddr) -> bool {
        // An evicted connection stays in the list until its thread has ended, so the list may be longer than the limit.
        if self.held.len() >= 2 * MAX_ENROL_CONNECTIONS {
            return false;
        }
        self.find_full_network(network).is_none_or(|full| self.evict_oldest_silent_connection(full))
    }

    /// Finds the network that must lose a connection before `network` gets another one; `None` if there is a free slot.
    fn find_full_network(&self, network: IpAddr) -> Option<IpAddr> {
        if self.count_connections_of(network) >= MAX_CONNECTIONS_PER_ADDRESS {
            return Some(network);
        }
        if self.live_connections().count() < MAX_ENROL_CONNECTIONS {
            return None;
        }
        // The network with most connections loses one.
        let networks = self.live_connections().map(|held| held.network);
        networks.max_by_key(|network| self.count_connections_of(*network))
    }

    /// Closes the oldest connection of the network that has sent no question. Returns false if there is none.
    fn evict_oldest_silent_connection(&mut self, network: IpAddr) -> bool {
        let evictable = self.held.iter_mut().filter(|held| !held.has_asked && !held.is_evicted);
        let oldest = evictable.filter(|held| held.network == network).min_by_key(|held| held.since_ns);
        let Some(oldest) = oldest else { return false };
        oldest.is_evicted = true;
        // The peer may have closed the connection already.
        drop(oldest.stream.shutdown(Shutdown::Both));
        true
    }

    fn count_connections_of(&self, network: IpAddr) -> usize {
        self.live_connections().filter(|held| held.network == network).count()
    }

    fn live_connections(&self) -> impl Iterator<Item = &HeldConnection> {
        self.held.iter().filter(|held| !held.is_evicted)
    }
}

fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        // With IPv6, one machine can have all addresses of a /64 network.
        IpAddr::V6(six) => IpAddr::V6(Ipv6Addr::from_bits(six.to_bits() & (u128::MAX << 64))),
        four @ IpAddr::V4(_) => four,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn connection(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        (near, listener.accept().expect("it came").0)
    }

    #[test]
    fn oldest_silent_connection_is_evicted_first() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let room = ConnectionSlots::default();
        let here: IpAddr = [192, 0, 2, 1].into();
        let enter = |address| {
            let (near, far) = connection(&listener);
            (room.claim_slot(address, &far), near, far)
        };
        let held: Vec<_> = (0..MAX_CONNECTIONS_PER_ADDRESS).map(|_| enter(here)).collect();
        held[0].0.as_ref().expect("there is room").mark_question_received();
        let next = enter(here);
        assert!(next.0.is_some(), "a silent one makes room");
        let evicted: Vec<u64> = room
            .lock_connections()
            .held
            .iter()
            .filter(|held| held.is_evicted)
            .map(|held| held.number)
            .collect();
        assert_eq!(evicted, [1], "the oldest that has not asked");
        for (place, ..) in held.iter().chain([&next]) {
            place.as_ref().expect("it was let in").mark_question_received();
        }
        assert!(enter(here).0.is_none(), "all of them are being served");
        assert!(enter([192, 0, 2, 2].into()).0.is_some(), "another address has its own share");
        drop(held);
        assert!(enter(here).0.is_some(), "places are given back");
    }

    #[test]
    fn largest_holder_is_evicted_for_new_address() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let room = ConnectionSlots::default();
        let enter = |last: u8| {
            let (near, far) = connection(&listener);
            (room.claim_slot([192, 0, 2, last].into(), &far), near, far)
        };
        let few = enter(1);
        let many: Vec<_> =
            (0..MAX_ENROL_CONNECTIONS - 1).map(|at| enter(if at % 2 == 0 { 2 } else { 3 })).collect();
        assert!(enter(4).0.is_some());
        let evicted =
            room.lock_connections().held.iter().find(|held| held.is_evicted).map(|held| held.network);
        assert!(evicted.is_some_and(|network| network != IpAddr::from([192, 0, 2, 1])), "{evicted:?}");
        drop((few, many));
    }

    #[test]
    fn ipv6_addresses_count_by_network_or_mapped_ipv4() {
        let network = |text: &str| client_network(text.parse().expect("an address"));
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1:2"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
    }
}
