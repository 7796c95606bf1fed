//! Source ports of clients: a free port is reserved for the client that sends from it first.
//!
//! The reservation is a socket at the packet's source address. So no program of this machine gets the port meanwhile. The socket lets no
//! datagram in, and the kernel does not answer them. It answers TCP segments with a reset, as at any closed port: otherwise connections
//! stayed half open at targets. A port that a program has already is left to that program: users may send from the ports of their own
//! sockets, root and the user of the service from all.
//!
//! Invariant: no two clients send from a port that was free when the first of them asked for it.

use super::connection::ClientConnection;
use super::flows::ANSWERED_WITHIN;
use packetrig_probe::service::{ClientId, PacketEnds, PacketFlow, work};
use packetrig_sys::netns::NetNs;
use packetrig_sys::ports::{self, HeldPort, PortProtocol, ReservedPort};
use packetrig_units::{MonoTime, Nanos};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long the user of a port is taken for known.
const PORT_HOLDS: Nanos = Nanos::from_secs(1);
const MOST_KNOWN: usize = 4_096;
/// Ports of one client, and of all, that are held by a socket.
const MOST_HELD_OF_CLIENT: usize = 64;
const MOST_HELD: usize = 512;
/// Ports that are reserved, with a socket or without one.
const MOST_RESERVED: usize = 65_536;
/// Ports below are for programs of root.
const FIRST_ORDINARY_PORT: u16 = 1_024;
/// Ports that are free again are looked for at most this often.
const FREED_EVERY: Nanos = Nanos::from_secs(1);

/// A port from which packets are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SourcePort {
    is_tcp: bool,
    port: u16,
    address: IpAddr,
}

impl SourcePort {
    /// `None`: packets of this kind have no ports.
    const fn of(ends: &PacketEnds) -> Option<Self> {
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

/// A port that was free, and whose it is now.
#[derive(Debug)]
struct PortReservation {
    client: ClientId,
    /// Until when its packets are queued or may be answered.
    until: MonoTime,
    /// `None`: other clients of the service cannot have it, programs beside the service can.
    held: Option<PortSocket>,
}

/// The socket that keeps a port from others.
#[derive(Debug)]
enum PortSocket {
    Tcp { _reserved: ReservedPort },
    Udp { _held: HeldPort },
}

/// A port that some program has.
#[derive(Clone, Copy, Debug)]
struct TakenPort {
    /// Whether the user of the client may send from it.
    is_allowed: bool,
    until: MonoTime,
}

#[derive(Debug, Default)]
struct KnownPorts {
    reserved: BTreeMap<SourcePort, PortReservation>,
    taken: BTreeMap<(u32, SourcePort), TakenPort>,
    /// How many ports of each client are held by a socket.
    held: BTreeMap<ClientId, usize>,
    freed_at: MonoTime,
}

#[derive(Debug)]
pub(super) struct ClientPorts {
    netns: NetNs,
    known: Mutex<KnownPorts>,
}

impl ClientPorts {
    /// Ports of the namespace in which packets are sent.
    pub(super) fn new(netns: NetNs) -> Self {
        Self { netns, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, KnownPorts> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a client may send a packet that is due then. A free port is the client's from here on.
    pub(super) fn reserve(
        &self,
        client: &ClientConnection,
        ends: &PacketEnds,
        due: MonoTime,
        now: MonoTime,
    ) -> bool {
        let Some(port) = SourcePort::of(ends) else { return true };
        let until = due.max(now) + ANSWERED_WITHIN;
        let mut known = self.known();
        known.free_idle(now);
        if let Some(reserved) = known.reserved.get_mut(&port) {
            if reserved.client == client.id {
                reserved.until = reserved.until.max(until);
            }
            return reserved.client == client.id;
        }
        let user = client.peer.user;
        if let Some(taken) = known.taken.get(&(user, port)).filter(|taken| now < taken.until) {
            return taken.is_allowed;
        }
        client.spend(work::LOOK_UP);
        // With the lock: of two clients that ask at once, one gets the port.
        match self.hold(port, known.has_room_to_hold(client.id)) {
            HoldOutcome::Held(held) => known.add(port, client.id, until, Some(held)),
            // No program of an ordinary user can have a port that this service cannot hold, so only root's programs may send from it.
            HoldOutcome::NotHeld => client.rights.is_trusted && known.add(port, client.id, until, None),
            HoldOutcome::Taken => {
                drop(known);
                let is_allowed = client.rights.is_trusted || is_port_of_user(port, user);
                self.known().note_taken((user, port), TakenPort { is_allowed, until: now + PORT_HOLDS });
                is_allowed
            }
        }
    }

    /// Opens a socket at a port, unless somebody has it.
    fn hold(&self, port: SourcePort, has_room: bool) -> HoldOutcome {
        // In place of 0 the kernel would choose another port.
        if port.port < FIRST_ORDINARY_PORT || !has_room {
            return HoldOutcome::NotHeld;
        }
        let address = SocketAddr::new(port.address, port.port);
        let opened = match port.protocol() {
            PortProtocol::Tcp => ReservedPort::tcp_at(&self.netns, address)
                .map(|reserved| PortSocket::Tcp { _reserved: reserved }),
            PortProtocol::Udp => HeldPort::hold(&self.netns, PortProtocol::Udp, address)
                .map(|held| PortSocket::Udp { _held: held }),
        };
        match opened {
            Ok(socket) => HoldOutcome::Held(socket),
            Err(packetrig_sys::Error::Busy { .. }) => HoldOutcome::Taken,
            Err(_) => HoldOutcome::NotHeld,
        }
    }

    /// Frees the ports of a client.
    pub(super) fn remove_client(&self, client: ClientId) {
        self.known().free(|reserved| reserved.client == client);
    }

    /// Frees ports whose packets can no longer be answered.
    pub(super) fn free_idle(&self, now: MonoTime) {
        self.known().free_idle(now);
    }
}

/// Whether all sockets with a port are of a user. Without an answer of the kernel they could be anybody's.
fn is_port_of_user(port: SourcePort, user: u32) -> bool {
    let users = ports::users_of_port(port.protocol(), port.port).unwrap_or_default();
    !users.is_empty() && users.iter().all(|of| *of == user)
}

enum HoldOutcome {
    Held(PortSocket),
    /// A program has it.
    Taken,
    NotHeld,
}

impl KnownPorts {
    /// `false`: there is no room for it.
    fn add(&mut self, port: SourcePort, client: ClientId, until: MonoTime, held: Option<PortSocket>) -> bool {
        if self.reserved.len() >= MOST_RESERVED {
            return false;
        }
        *self.held.entry(client).or_default() += usize::from(held.is_some());
        self.reserved.insert(port, PortReservation { client, until, held });
        true
    }

    fn note_taken(&mut self, of: (u32, SourcePort), taken: TakenPort) {
        if self.taken.len() >= MOST_KNOWN {
            self.taken.clear();
        }
        self.taken.insert(of, taken);
    }

    fn free_idle(&mut self, now: MonoTime) {
        if now.since(self.freed_at) >= FREED_EVERY {
            self.freed_at = now;
            self.free(|reserved| reserved.until <= now);
        }
    }

    fn free(&mut self, is_over: impl Fn(&PortReservation) -> bool) {
        let held = &mut self.held;
        self.reserved.retain(|_, reserved| {
            let is_over = is_over(reserved);
            if is_over && reserved.held.is_some() {
                held.entry(reserved.client).and_modify(|count| *count -= 1);
            }
            !is_over
        });
        held.retain(|_, count| *count > 0);
    }

    fn has_room_to_hold(&self, client: ClientId) -> bool {
        let of_client = self.held.get(&client).copied().unwrap_or_default();
        of_client < MOST_HELD_OF_CLIENT && self.held.values().sum::<usize>() < MOST_HELD
    }
}
