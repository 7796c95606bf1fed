//! Holds ports of this machine's own addresses, so that the kernel does not answer packets to these ports.
//!
//! A [`HeldPort`] owns one socket. For a port without a socket, the kernel answers a TCP segment with a reset, and
//! a datagram with "port unreachable". A held port has a socket, and the socket's filter drops all packets before
//! the protocol sees them. Packet sockets still see them. The port is free again when the value is dropped, or when
//! the process is killed.

use crate::{Error, netns::NetNs, packet::socket, pcap::ClassicInsn};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// A filter that drops every packet.
pub(crate) const DROP_ALL_FILTER: [ClassicInsn; 1] = [ClassicInsn { code: 6, jt: 0, jf: 0, k: 0 }];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortProtocol {
    Tcp,
    Udp,
}

#[derive(Debug)]
pub struct HeldPort {
    _socket: OwnedFd,
    port: u16,
}

impl HeldPort {
    /// Holds a port of the address in `netns`; port 0 lets the kernel choose a free one.
    pub fn hold_port_at(netns: &NetNs, protocol: PortProtocol, address: SocketAddr) -> Result<Self, Error> {
        let family = match address.ip() {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        let kind = match protocol {
            PortProtocol::Tcp => SocketType::STREAM,
            PortProtocol::Udp => SocketType::DGRAM,
        };
        let opened =
            netns.run_in_namespace(|| rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None))?;
        let socket = opened.map_err(|errno| port_error("socket", address, errno))?;
        // The filter is attached before the socket is bound, so that no packet gets past it.
        socket::attach_filter(&socket, &DROP_ALL_FILTER)
            .map_err(|errno| port_error("setsockopt(SO_ATTACH_FILTER)", address, errno))?;
        rustix::net::bind(&socket, &address).map_err(|errno| port_error("bind", address, errno))?;
        if protocol == PortProtocol::Tcp {
            // For TCP the kernel only considers sockets that listen or are connected: a bound socket alone
            // would not prevent the kernel from answering.
            rustix::net::listen(&socket, 1).map_err(|errno| port_error("listen", address, errno))?;
        }
        let port = bound_port(&socket).map_err(|errno| port_error("getsockname", address, errno))?;
        Ok(Self { _socket: socket, port })
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

fn port_error(call: &'static str, address: SocketAddr, errno: Errno) -> Error {
    match errno {
        Errno::ADDRINUSE => {
            Error::Busy { object: format!("port {} of {}", address.port(), address.ip()), holder: None }
        }
        errno => Error::from_call(call, address.to_string(), errno),
    }
}

fn bound_port(socket: &OwnedFd) -> Result<u16, Errno> {
    SocketAddr::try_from(rustix::net::getsockname(socket)?).map(|bound| bound.port())
}

/// A TCP port that no other program can use, and at which no program listens: the kernel answers with a reset, as
/// for any closed port.
#[derive(Debug)]
pub struct ReservedPort {
    _socket: OwnedFd,
    port: u16,
}

impl ReservedPort {
    /// Reserves any free port of an address in `netns`.
    pub fn reserve_any_tcp(netns: &NetNs, ip: IpAddr) -> Result<Self, Error> {
        Self::reserve_tcp_at(netns, SocketAddr::new(ip, 0))
    }

    /// Reserves a port of an address in `netns`; [`Error::Busy`] if a socket has it.
    pub fn reserve_tcp_at(netns: &NetNs, address: SocketAddr) -> Result<Self, Error> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let opened = netns.run_in_namespace(|| {
            rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        })?;
        let socket = opened.map_err(|errno| port_error("socket", address, errno))?;
        rustix::net::bind(&socket, &address).map_err(|errno| port_error("bind", address, errno))?;
        let port = bound_port(&socket).map_err(|errno| port_error("getsockname", address, errno))?;
        Ok(Self { _socket: socket, port })
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Lists the numbers of the users that have a socket at this port, at any address, in the
/// calling thread's network namespace.
pub fn find_port_users(protocol: PortProtocol, port: u16) -> Result<Vec<u32>, Error> {
    let tables = match protocol {
        PortProtocol::Tcp => ["tcp", "tcp6"],
        PortProtocol::Udp => ["udp", "udp6"],
    };
    let mut users = Vec::new();
    for table in tables {
        let path = format!("/proc/thread-self/net/{table}");
        match std::fs::read_to_string(&path) {
            Ok(text) => users.extend(text.lines().skip(1).filter_map(|line| parse_row_user(line, port))),
            // A kernel without IPv6 has no sockets of it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::from_call("read", path, error)),
        }
    }
    users.sort_unstable();
    users.dedup();
    Ok(users)
}

/// Returns the user of a row of the table if the socket has the port: `sl local_address rem_address st tx:rx
/// tr:when retrnsmt uid …`.
fn parse_row_user(row: &str, port: u16) -> Option<u32> {
    let fields: Vec<&str> = row.split_whitespace().collect();
    let (_, local) = fields.get(1)?.rsplit_once(':')?;
    let is_at_port = u16::from_str_radix(local, 16).ok()? == port;
    is_at_port.then(|| fields.get(7)?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::{TcpStream, UdpSocket};
    use std::time::Duration;

    fn held(protocol: PortProtocol) -> (HeldPort, SocketAddr) {
        let any = "127.0.0.1:0".parse().unwrap();
        let held = HeldPort::hold_port_at(&NetNs::current().unwrap(), protocol, any).unwrap();
        let address = SocketAddr::new("127.0.0.1".parse().unwrap(), held.port());
        (held, address)
    }

    #[test]
    fn port_users_are_owners_of_its_sockets() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(find_port_users(PortProtocol::Udp, port).unwrap(), [own]);
        drop(socket);
        let listener = std::net::TcpListener::bind("[::1]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(find_port_users(PortProtocol::Tcp, port).unwrap(), [own]);
        let row = "  12: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000   101        0 9 2 0 0";
        assert_eq!(
            (parse_row_user(row, 53), parse_row_user(row, 54), parse_row_user("", 53)),
            (Some(101), None, None)
        );
    }

    #[test]
    fn held_tcp_port_answers_nothing() {
        let (held, address) = held(PortProtocol::Tcp);
        let refused = |wait| TcpStream::connect_timeout(&address, wait).unwrap_err().kind();
        assert_eq!(refused(Duration::from_millis(200)), ErrorKind::TimedOut);
        drop(held);
        assert_eq!(refused(Duration::from_secs(10)), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn held_udp_port_answers_nothing() {
        let (held, address) = held(PortProtocol::Udp);
        let ask = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(address).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            socket.send(b"?").unwrap();
            socket.recv(&mut [0; 9]).unwrap_err().kind()
        };
        assert_eq!(ask(), ErrorKind::WouldBlock);
        drop(held);
        assert_eq!(ask(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_reserved_port_is_closed_and_nobody_elses() {
        let here = "127.0.0.1".parse().unwrap();
        let reserved = ReservedPort::reserve_any_tcp(&NetNs::current().unwrap(), here).unwrap();
        let address = SocketAddr::new(here, reserved.port());
        let asked = TcpStream::connect_timeout(&address, Duration::from_secs(10));
        assert_eq!(asked.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(std::net::TcpListener::bind(address).unwrap_err().kind(), ErrorKind::AddrInUse);
        let again = ReservedPort::reserve_tcp_at(&NetNs::current().unwrap(), address);
        assert!(matches!(again, Err(Error::Busy { .. })), "{again:?}");
    }

    #[test]
    fn a_port_is_held_once() {
        let (_held, address) = held(PortProtocol::Udp);
        let again = HeldPort::hold_port_at(&NetNs::current().unwrap(), PortProtocol::Udp, address);
        assert!(matches!(again, Err(Error::Busy { .. })), "{again:?}");
    }
}
