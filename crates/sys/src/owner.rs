//! Finds the user at the other end of a TCP connection over the loopback interface.
//!
//! A [`ConnectionOwners`] owns one netlink socket, which stays in the network namespace it was opened in. The
//! kernel finds the client's socket by its addresses (`SOCK_DIAG`, what `ss -e` uses); if that module is
//! missing, this code reads `/proc/net/tcp`.
//!
//! Invariant: a user is returned only for a socket that a process still holds. The kernel reports user 0, root, for a
//! socket whose process has closed it, so the user counts only if the same answer has an inode: a closed socket has
//! none, and it never gets one again. User numbers are those of this process's user namespace. All users that are not
//! mapped into it appear as one number ([`read_overflow_user`]), which therefore identifies nobody.

use crate::{Error, netlink::NetlinkConversation, netns::NetNs};
use netlink_packet_core::{DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NETLINK_SOCK_DIAG: isize = 4;
/// Bytes of `struct inet_diag_req_v2` and of `struct inet_diag_msg`.
const REQUEST_BYTES: usize = 56;
const ANSWER_BYTES: usize = 72;
/// All states but two: in SYN_RECV no program has the connection yet, and a socket in LISTEN has no other end.
const WANTED_TCP_STATES: u32 = !(1 << tcp_state::SYN_RECV | 1 << tcp_state::TCP_LISTEN_STATE);

/// TCP states as the kernel numbers them (`include/net/tcp_states.h`).
mod tcp_state {
    pub(super) const SYN_RECV: u32 = 3;
    pub(super) const TCP_LISTEN_STATE: u32 = 10;
}

#[derive(Debug)]
pub struct ConnectionOwners {
    lookup: OwnerLookup,
    overflow: u32,
}

#[derive(Debug)]
enum OwnerLookup {
    Netlink(Mutex<NetlinkConversation>),
    Proc,
}

impl ConnectionOwners {
    /// Prepares lookups for connections in the calling thread's network namespace. Makes one connection to itself to
    /// find the method that works on this kernel. Returns an error if no method works.
    pub fn open_for_this_thread() -> Result<Self, Error> {
        let overflow = read_overflow_user();
        let netlink = NetlinkConversation::open_in(&NetNs::current()?, NETLINK_SOCK_DIAG);
        let ways = netlink.ok().map(|netlink| OwnerLookup::Netlink(Mutex::new(netlink)));
        let trial = SelfConnection::new()
            .map_err(|error| Error::from_call("connect", "the loopback interface", error))?;
        for lookup in ways.into_iter().chain([OwnerLookup::Proc]) {
            let owners = Self { lookup, overflow };
            if owners.look_up_user(trial.client, trial.server).is_some() {
                return Ok(owners);
            }
        }
        Err(Error::UnknownOwner { source: std::io::ErrorKind::Unsupported.into() })
    }

    /// Finds the user that holds the socket at `client`, which is connected to `server`, an address of this process.
    /// `None`: the socket is not on this machine, its process has closed it, its user is not mapped into this user
    /// namespace, or the kernel does not report the socket.
    pub fn find_connection_user(&self, client: SocketAddr, server: SocketAddr) -> Option<u32> {
        self.look_up_user(client, server).filter(|user| *user != self.overflow)
    }

    fn look_up_user(&self, client: SocketAddr, server: SocketAddr) -> Option<u32> {
        let pair = SocketPair { near: canonical_address(client), far: canonical_address(server) };
        match &self.lookup {
            OwnerLookup::Netlink(netlink) => query_owner(netlink, pair),
            OwnerLookup::Proc => find_owner_in_proc(pair),
        }
    }
}

/// Reads the number that stands for all users that are not mapped into this process's user namespace (`overflowuid`).
pub fn read_overflow_user() -> u32 {
    let text = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(65534)
}

/// The effective user of this process.
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A connection of this process to itself.
struct SelfConnection {
    client: SocketAddr,
    server: SocketAddr,
    _ends: (TcpListener, TcpStream),
}

impl SelfConnection {
    fn new() -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let server = listener.local_addr()?;
        let stream = TcpStream::connect(server)?;
        Ok(Self { client: stream.local_addr()?, server, _ends: (listener, stream) })
    }
}

/// Addresses of a connection, from the view of the socket that is searched for: its own address, and its peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SocketPair {
    near: SocketAddr,
    far: SocketAddr,
}

/// Converts IPv4 addresses in IPv6 notation to IPv4: the two ends may use different families.
fn canonical_address(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn query_owner(netlink: &Mutex<NetlinkConversation>, pair: SocketPair) -> Option<u32> {
    let mut found = None;
    let mut netlink = netlink.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = netlink.request_answers(DiagMessage::Request(pair), 0, &mut |message| {
        if let DiagMessage::Answer(answer) = message {
            found = Some(answer);
        }
    });
    // If no connection matches, the kernel may answer with the listener at that port: the addresses in the answer differ then.
    let answer = asked.ok().and(found).filter(|answer| answer.pair == pair)?;
    (answer.inode != 0).then_some(answer.user)
}

/// Facts that the kernel reports about a socket.
#[derive(Clone, Copy, Debug)]
struct SocketFacts {
    pair: SocketPair,
    user: u32,
    inode: u32,
}

/// The messages of `SOCK_DIAG` for one TCP socket.
#[derive(Clone, Copy, Debug)]
enum DiagMessage {
    Request(SocketPair),
    Answer(SocketFacts),
}

impl NetlinkSerializable for DiagMessage {
    fn message_type(&self) -> u16 {
        SOCK_DIAG_BY_FAMILY
    }

    fn buffer_len(&self) -> usize {
        REQUEST_BYTES
    }

    /// `struct inet_diag_req_v2`: family, protocol, extensions, states, then the addresses in network order.
    fn serialize(&self, buffer: &mut [u8]) {
        let Self::Request(pair) = self else { return };
        let mut bytes = Vec::with_capacity(REQUEST_BYTES);
        bytes.extend_from_slice(&[address_family_of(pair.near.ip()), PROTOCOL_TCP, 0, 0]);
        bytes.extend_from_slice(&WANTED_TCP_STATES.to_ne_bytes());
        bytes.extend_from_slice(&pair.near.port().to_be_bytes());
        bytes.extend_from_slice(&pair.far.port().to_be_bytes());
        bytes.extend_from_slice(&padded_octets(pair.near.ip()));
        bytes.extend_from_slice(&padded_octets(pair.far.ip()));
        bytes.extend_from_slice(&0_u32.to_ne_bytes());
        // No cookie: any socket with these addresses.
        bytes.extend_from_slice(&[0xff; 8]);
        buffer.copy_from_slice(&bytes);
    }
}

const PROTOCOL_TCP: u8 = 6;
const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;

fn address_family_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { FAMILY_IPV4 } else { FAMILY_IPV6 }
}

fn padded_octets(address: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match address {
        IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes = address.octets(),
    }
    bytes
}

impl NetlinkDeserializable for DiagMessage {
    type Error = DecodeError;

    /// `struct inet_diag_msg`: family, state, two bytes, the addresses at 4, and user and inode in the last eight bytes.
    fn deserialize(_: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let answer = payload.get(..ANSWER_BYTES).and_then(|bytes| {
            let family = bytes[0];
            let near = SocketAddr::new(read_address(family, &bytes[8..24])?, read_port(&bytes[4..6])?);
            let far = SocketAddr::new(read_address(family, &bytes[24..40])?, read_port(&bytes[6..8])?);
            let pair = SocketPair { near: canonical_address(near), far: canonical_address(far) };
            Some(SocketFacts {
                pair,
                user: read_number(&bytes[64..68])?,
                inode: read_number(&bytes[68..72])?,
            })
        });
        answer.map(Self::Answer).ok_or_else(|| DecodeError::from("not a message of inet_diag"))
    }
}

fn read_address(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        FAMILY_IPV4 => <[u8; 4]>::try_from(bytes.get(..4)?).ok().map(|four| Ipv4Addr::from(four).into()),
        FAMILY_IPV6 => <[u8; 16]>::try_from(bytes).ok().map(|sixteen| Ipv6Addr::from(sixteen).into()),
        _ => None,
    }
}

fn read_port(bytes: &[u8]) -> Option<u16> {
    bytes.try_into().ok().map(u16::from_be_bytes)
}

fn read_number(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

/// Reads the owner from `/proc`. Both tables are searched, because an IPv6 socket may have an IPv4 connection.
fn find_owner_in_proc(pair: SocketPair) -> Option<u32> {
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    tables.iter().find_map(|path| find_uid_in_tcp_table(&fs::read_to_string(path).ok()?, pair))
}

/// Finds the user number of a connection in the text of /proc/net/tcp; `None` if no row matches. Columns: number, local
/// address, remote address, state, queues, timer, retransmissions, user, timeout, inode.
fn find_uid_in_tcp_table(table: &str, pair: SocketPair) -> Option<u32> {
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        let row = SocketPair {
            near: parse_table_address(columns.get(1)?)?,
            far: parse_table_address(columns.get(2)?)?,
        };
        let user = columns.get(7)?.parse().ok()?;
        let has_inode = *columns.get(9)? != "0";
        (row == pair && has_inode).then_some(user)
    })
}

/// Parses an address like `0100007F:1F90`: 32-bit words in this machine's byte order, and the port.
fn parse_table_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let words: Option<Vec<u8>> = (0..address.len() / 8)
        .map(|word| u32::from_str_radix(address.get(8 * word..8 * word + 8)?, 16).ok())
        .map(|word| word.map(|word| word.to_ne_bytes().to_vec()))
        .collect::<Option<Vec<_>>>()
        .map(|words| words.concat());
    let bytes = words?;
    let family = if bytes.len() == 4 { FAMILY_IPV4 } else { FAMILY_IPV6 };
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(canonical_address(SocketAddr::new(read_address(family, &bytes)?, port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Owners of a connection between these ends, by both methods.
    fn owners(client: SocketAddr, server: SocketAddr) -> [Option<u32>; 2] {
        let netlink = NetlinkConversation::open_in(&NetNs::current().unwrap(), NETLINK_SOCK_DIAG).unwrap();
        let pair = SocketPair { near: canonical_address(client), far: canonical_address(server) };
        [query_owner(&Mutex::new(netlink), pair), find_owner_in_proc(pair)]
    }

    #[test]
    fn connection_owner_lookups_agree_until_socket_closes() {
        let own = Some(own_user());
        for listen in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(listen) else { continue };
            let bound = listener.local_addr().unwrap();
            let target = if bound.ip().is_unspecified() {
                SocketAddr::from(([127, 0, 0, 1], bound.port()))
            } else {
                bound
            };
            let stream = TcpStream::connect(target).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            let server = accepted.local_addr().unwrap();
            assert_eq!(owners(peer, server), [own, own], "{listen}");
            assert_eq!(
                ConnectionOwners::open_for_this_thread().unwrap().find_connection_user(peer, server),
                own
            );
            let elsewhere = SocketAddr::new(server.ip(), bound.port().wrapping_add(1));
            assert_eq!(owners(peer, elsewhere), [None, None], "{listen}");
            assert_eq!(owners(server, SocketAddr::new(peer.ip(), 9)), [None, None], "a listener is no owner");
            // Its last state is FIN_WAIT2: nobody holds it, and the kernel says that root does.
            drop(stream);
            assert_eq!(owners(peer, server), [None, None], "{listen}");
        }
    }

    #[test]
    fn tables_are_read_by_their_columns() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:B3D8 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 3728445 1 x\n\
            1: 0100007F:B3D9 0100007F:1F90 05 00000000:00000000 00:00000000 00000000     0        0 0 1 x\n";
        let pair = |port| SocketPair {
            near: SocketAddr::from(([127, 0, 0, 1], port)),
            far: SocketAddr::from(([127, 0, 0, 1], 8080)),
        };
        if cfg!(target_endian = "little") {
            assert_eq!(find_uid_in_tcp_table(table, pair(0xb3d8)), Some(1000));
            assert_eq!(find_uid_in_tcp_table(table, pair(0xb3d9)), None, "a closed socket is nobody's");
            assert_eq!(find_uid_in_tcp_table(table, pair(1)), None);
        }
        assert_eq!(parse_table_address("zz"), None);
        assert_eq!(parse_table_address("é100007F:B3D8"), None);
    }
}
