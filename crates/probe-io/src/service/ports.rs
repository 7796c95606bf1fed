//! Source ports of clients: a free port is reserved for the first client that sends from it.
//!
//! The reservation is a socket at the packet's source address, so no other program of this machine can use
//! the port. The socket accepts no datagrams, and the kernel does not answer them. The kernel answers TCP
//! segments with a reset, as at any closed port; otherwise connections would stay half open at targets. A
//! port that another program already has stays with that program: users may send from the ports of their own
//! sockets, root and the user of the service from all ports.
//!
//! Invariant: no two clients send at the same time from a port that was free when the first of them used it.

use super::connection::ClientConnection;
use super::flows::ANSWER_TIMEOUT;
use packetrig_probe::service::{ClientId, PacketEndpoints, PacketFlow, work};
use packetrig_sys::netns::NetNs;
use packetrig_sys::ports::{self, HeldPort, PortProtocol, ReservedPort};
use packetrig_units::{MonoTime, Nanos};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Time for which the service remembers whether a user may send from a port of another program.
const PORT_CACHE_TIME: Nanos = Nanos::from_secs(1);
/// Maximum number of ports of other programs that are cached for one user.
const MAX_CACHED_PORTS_PER_USER: usize = 4_096;
/// Number of ports that the service may hold with sockets. It is divided equally among the users, so a user
/// does not lose ports to the requests of others. [`HELD_PORTS_PER_USER_RANGE`] limits the result.
const MAX_PORT_SOCKETS: usize = 512;
/// Smallest and largest limit for the ports that are held with sockets for one user.
const HELD_PORTS_PER_USER_RANGE: std::ops::RangeInclusive<usize> = 8..=128;
/// Maximum number of reserved ports of one user, with or without a socket.
const MAX_RESERVED_PORTS_PER_USER: usize = 16_384;
/// Ports below this number are reserved for programs of root.
const FIRST_ORDINARY_PORT: u16 = 1_024;
/// Minimum time between two searches for ports that can be freed.
const FREE_PORT_CHECK_INTERVAL: Nanos = Nanos::from_secs(1);

/// A port from which packets are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SourcePort {
    is_tcp: bool,
    port: u16,
    address: IpAddr,
}

impl SourcePort {
    /// Returns the source port of a packet; `None` if packets of this kind have no ports.
    const fn source_port_of_packet(ends: &PacketEndpoints) -> Option<Self> {
        let (is_tcp, port) = match ends.flow {
            PacketFlow::Icmp { .. } => return None,
            PacketFlow::Tcp { own_port, .. } => (true, own_port),
            PacketFlow::Udp { own_port, .. } => (false, own_port),
        };
        Some(Self { is_tcp, port, address: ends.source })
    }

    const fn protocol(self) -> PortProtocol {
        if self.is_tcp { PortProtocol::Tcp } else { PortProtocol::Udp }
    }
}

/// Reservation of a source port that was free, for one client.
#[derive(Debug)]
struct PortReservation {
    client: ClientId,
    user: u32,
    /// Time until which packets from the port are queued or may be answered.
    until: MonoTime,
    /// Socket that holds the port. Without one, other clients of the service cannot use the port,
    /// but other programs can.
    held: Option<PortSocket>,
}

/// Socket that keeps other programs from using a port.
#[derive(Debug)]
enum PortSocket {
    Tcp { _reserved: ReservedPort },
    Udp { _held: HeldPort },
}

/// A port that a program outside the service uses.
#[derive(Clone, Copy, Debug)]
struct CachedPortPermission {
    /// True if the user of the client may send from the port.
    is_allowed: bool,
    until: MonoTime,
}

/// Number of ports that are reserved for a user, and how many of them a socket holds.
#[derive(Clone, Copy, Debug, Default)]
struct PortsOfUser {
    reserved: usize,
    held: usize,
}

#[derive(Debug, Default)]
struct KnownPorts {
    reserved: BTreeMap<SourcePort, PortReservation>,
    /// Ports that other programs use, for each user whose clients wanted to send from them. There are few
    /// users, so no user is removed.
    taken: BTreeMap<u32, BTreeMap<SourcePort, CachedPortPermission>>,
    /// Numbers of ports of each user.
    of_users: BTreeMap<u32, PortsOfUser>,
    freed_at: MonoTime,
}

#[derive(Debug)]
pub(super) struct ClientPorts {
    netns: NetNs,
    /// Maximum number of ports that are held with sockets for one user at a time.
    most_held: usize,
    known: Mutex<KnownPorts>,
}

impl ClientPorts {
    /// Creates an empty table of ports. `netns` is the namespace in which packets are sent, `users` the number
    /// of users who may use the service.
    pub(super) fn new(netns: NetNs, users: usize) -> Self {
        let most_held = (MAX_PORT_SOCKETS / users.max(1))
            .clamp(*HELD_PORTS_PER_USER_RANGE.start(), *HELD_PORTS_PER_USER_RANGE.end());
        Self { netns, most_held, known: Mutex::default() }
    }

    fn lock_ports(&self) -> MutexGuard<'_, KnownPorts> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a client may send a packet from its source port; `due` is the packet's due time. A
    /// free port is reserved for the client.
    pub(super) fn reserve_port(
        &self,
        client: &ClientConnection,
        ends: &PacketEndpoints,
        due: MonoTime,
        now: MonoTime,
    ) -> bool {
        let Some(port) = SourcePort::source_port_of_packet(ends) else { return true };
        let until = due.max(now) + ANSWER_TIMEOUT;
        let mut known = self.lock_ports();
        known.free_idle_ports(now);
        if let Some(reserved) = known.reserved.get_mut(&port) {
            if reserved.client == client.id {
                // The reservation lasts until no packet from the port can be answered any more.
                reserved.until = reserved.until.max(until);
            }
            return reserved.client == client.id;
        }
        let user = client.peer.user;
        let taken = known.taken.get(&user).and_then(|taken| taken.get(&port));
        if let Some(taken) = taken.filter(|taken| now < taken.until) {
            return taken.is_allowed;
        }
        // Opening sockets and looking up users takes system calls, so their cost is charged to the client.
        client.spend_units(work::LOOK_UP_COST);
        // The lock is held here, so that only one of two clients that ask at once gets the port.
        let of_user = known.of_users.get(&user).copied().unwrap_or_default();
        if of_user.reserved >= MAX_RESERVED_PORTS_PER_USER {
            return false;
        }
        let reservation = |held| PortReservation { client: client.id, user, until, held };
        match self.open_port_socket(port, of_user.held < self.most_held) {
            PortSocketResult::Held(held) => known.add_reservation(port, reservation(Some(held))),
            // The port is privileged, the user has used up its sockets, or the kernel refused one. Only trusted
            // clients may send from a port that no socket of this service holds.
            PortSocketResult::NotHeld => {
                client.rights.is_trusted && known.add_reservation(port, reservation(None))
            }
            PortSocketResult::Taken => {
                drop(known);
                // The lock is free here, because reading the kernel's tables of sockets takes time.
                let is_allowed = client.rights.is_trusted || is_port_of_user(port, user);
                self.lock_ports().cache_port_permission(
                    user,
                    port,
                    CachedPortPermission { is_allowed, until: now + PORT_CACHE_TIME },
                );
                is_allowed
            }
        }
    }

    /// Opens a socket at a port, unless a program already uses the port.
    fn open_port_socket(&self, port: SourcePort, has_room: bool) -> PortSocketResult {
        // This excludes port 0, too, for which the kernel would choose another port.
        if port.port < FIRST_ORDINARY_PORT || !has_room {
            return PortSocketResult::NotHeld;
        }
        let address = SocketAddr::new(port.address, port.port);
        let opened = match port.protocol() {
            PortProtocol::Tcp => ReservedPort::reserve_tcp_at(&self.netns, address)
                .map(|reserved| PortSocket::Tcp { _reserved: reserved }),
            PortProtocol::Udp => HeldPort::hold_port_at(&self.netns, PortProtocol::Udp, address)
                .map(|held| PortSocket::Udp { _held: held }),
        };
        match opened {
            Ok(socket) => PortSocketResult::Held(socket),
            Err(packetrig_sys::Error::Busy { .. }) => PortSocketResult::Taken,
            Err(_) => PortSocketResult::NotHeld,
        }
    }

    /// Frees the ports of a client.
    pub(super) fn remove_client(&self, client: ClientId) {
        self.lock_ports().free_ports(|reserved| reserved.client == client);
    }

    /// Frees ports whose packets can no longer be answered.
    pub(super) fn free_idle_ports(&self, now: MonoTime) {
        self.lock_ports().free_idle_ports(now);
    }
}

/// Returns whether all sockets with a port belong to a user; `false` if the kernel reports none.
fn is_port_of_user(port: SourcePort, user: u32) -> bool {
    let users = ports::find_port_users(port.protocol(), port.port).unwrap_or_default();
    !users.is_empty() && users.iter().all(|of| *of == user)
}

enum PortSocketResult {
    Held(PortSocket),
    /// A program already uses the port.
    Taken,
    NotHeld,
}

impl KnownPorts {
    /// Adds a reservation. Always returns `true`, because the caller has checked that there is room.
    fn add_reservation(&mut self, port: SourcePort, reservation: PortReservation) -> bool {
        let of_user = self.of_users.entry(reservation.user).or_default();
        of_user.reserved += 1;
        of_user.held += usize::from(reservation.held.is_some());
        self.reserved.insert(port, reservation);
        true
    }

    fn cache_port_permission(&mut self, user: u32, port: SourcePort, taken: CachedPortPermission) {
        let of_user = self.taken.entry(user).or_default();
        if of_user.len() >= MAX_CACHED_PORTS_PER_USER {
            // Removing all entries costs only new look-ups, which are charged to the client.
            of_user.clear();
        }
        of_user.insert(port, taken);
    }

    fn free_idle_ports(&mut self, now: MonoTime) {
        if now.since(self.freed_at) >= FREE_PORT_CHECK_INTERVAL {
            self.freed_at = now;
            self.free_ports(|reserved| reserved.until <= now);
        }
    }

    fn free_ports(&mut self, is_over: impl Fn(&PortReservation) -> bool) {
        let of_users = &mut self.of_users;
        self.reserved.retain(|_, reserved| {
            let is_over = is_over(reserved);
            if is_over {
                of_users.entry(reserved.user).and_modify(|ports| {
                    ports.reserved -= 1;
                    ports.held -= usize::from(reserved.held.is_some());
                });
            }
            !is_over
        });
        of_users.retain(|_, ports| ports.reserved > 0);
    }
}
