//! A UDP socket for small datagrams between a few hosts, by unicast or multicast.
//!
//! [`PeerSocket`] owns its socket.

use crate::packet::socket::call_error;
use crate::{Error, clock};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Debug)]
pub struct PeerSocket {
    socket: OwnedFd,
}

impl PeerSocket {
    /// Listens at an address, and to multicast groups if there are any.
    ///
    /// The interface for multicast is the named one, otherwise the one that has `address`, otherwise the kernel's choice. With
    /// groups, the socket is bound to the port on all addresses: on Linux, a socket of one host address gets no
    /// multicast.
    pub fn bind_and_join(
        address: SocketAddr,
        groups: &[IpAddr],
        interface: Option<&str>,
    ) -> Result<Self, Error> {
        let object = address.to_string();
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(call_error("socket", &object))?;
        let mut bound = address;
        if !groups.is_empty() {
            // Several programs of this host may listen to the same group.
            sockopt::set_socket_reuseaddr(&socket, true).map_err(call_error("setsockopt", &object))?;
            bound.set_ip(unspecified_like(address.ip()));
        }
        rustix::net::bind(&socket, &bound).map_err(|errno| {
            Error::from_call("bind", object.clone(), errno)
                .with_rights("ports below 1024 need CAP_NET_BIND_SERVICE")
        })?;
        let index = interface.map_or(Ok(0), |name| interface_index(&socket, name))?;
        for group in groups {
            join_group(&socket, *group, address.ip(), index)
                .map_err(call_error("setsockopt(IP_ADD_MEMBERSHIP)", &group.to_string()))?;
        }
        Ok(Self { socket })
    }

    /// Address to which the socket is bound.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        let address = rustix::net::getsockname(&self.socket).and_then(SocketAddr::try_from);
        address.map_err(call_error("getsockname", "a UDP socket"))
    }

    /// Waits for a datagram, or for an event on the other descriptor, for at most `within_ns`.
    pub fn wait_for_input(&self, other: Option<BorrowedFd<'_>>, within_ns: u64) -> Result<(), Error> {
        let other = other.unwrap_or_else(|| self.socket.as_fd());
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&other, PollFlags::IN)];
        match poll(&mut polled, Some(&clock::to_timespec(within_ns))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::from_call("poll", "a UDP socket", errno)),
        }
    }

    /// Receives a datagram that waits in the socket; a datagram longer than the buffer is truncated.
    /// `None`: no datagram waits.
    pub fn receive_datagram(&self, buffer: &mut [u8]) -> Result<Option<(usize, SocketAddr)>, Error> {
        loop {
            match rustix::net::recvfrom(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((length, _, from)) => {
                    if let Some(from) = from.and_then(|from| SocketAddr::try_from(from).ok()) {
                        return Ok(Some((length, from)));
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                // A signal, or an ICMP error about an earlier datagram: a peer does not run, or cannot be reached.
                Err(
                    rustix::io::Errno::INTR
                    | rustix::io::Errno::CONNREFUSED
                    | rustix::io::Errno::HOSTUNREACH
                    | rustix::io::Errno::NETUNREACH,
                ) => {}
                Err(errno) => return Err(Error::from_call("recvfrom", "a UDP socket", errno)),
            }
        }
    }

    /// Sends a datagram without waiting.
    pub fn send_datagram(&self, bytes: &[u8], to: SocketAddr) -> Result<(), Error> {
        let sent = rustix::net::sendto(&self.socket, bytes, SendFlags::DONTWAIT, &to);
        sent.map(drop).map_err(|errno| Error::from_call("sendto", to.to_string(), errno))
    }
}

fn unspecified_like(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn interface_index(socket: &OwnedFd, name: &str) -> Result<u32, Error> {
    rustix::net::netdevice::name_to_index(socket, name).map_err(|_| Error::Missing {
        what: "interface",
        name: name.to_owned(),
        remedy: "`ip link` lists the interfaces",
    })
}

/// Joins a multicast group, and makes the socket send multicast through the same interface.
fn join_group(socket: &OwnedFd, group: IpAddr, local: IpAddr, index: u32) -> rustix::io::Result<()> {
    match (group, local) {
        (IpAddr::V4(group), IpAddr::V4(local)) => {
            sockopt::set_ip_add_membership_with_ifindex(socket, &group, &local, index)?;
            sockopt::set_ip_multicast_if_with_ifindex(socket, &group, &local, index)
        }
        (IpAddr::V6(group), IpAddr::V6(_)) => {
            sockopt::set_ipv6_add_membership(socket, &group, index)?;
            sockopt::set_ipv6_multicast_if(socket, index)
        }
        _ => Err(rustix::io::Errno::AFNOSUPPORT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(address: &str, groups: &[IpAddr], interface: Option<&str>) {
        let one = PeerSocket::bind_and_join(address.parse().unwrap(), groups, interface).unwrap();
        let bound = one.address().unwrap();
        let mut to = bound;
        if let [group] = groups {
            to.set_ip(*group);
        }
        let other = PeerSocket::bind_and_join(address.parse().unwrap(), &[], None).unwrap();
        let sender = if groups.is_empty() { &other } else { &one };
        assert_eq!(one.receive_datagram(&mut [0; 9]).unwrap(), None);
        sender.send_datagram(b"abc", to).unwrap();
        one.wait_for_input(None, 5_000_000_000).unwrap();
        let (length, from) = one.receive_datagram(&mut [0; 9]).unwrap().unwrap();
        assert_eq!((length, from.port()), (3, sender.address().unwrap().port()));
    }

    #[test]
    fn datagrams_come_by_unicast_and_multicast() {
        exchange("127.0.0.1:0", &[], None);
        exchange("[::1]:0", &[], None);
        exchange("127.0.0.1:0", &["239.255.77.1".parse().unwrap()], None);
        exchange("127.0.0.1:0", &["239.255.77.1".parse().unwrap()], Some("lo"));
        // Linux has no route for IPv6 multicast on `lo`, so there it can only be joined.
        let group = ["ff01::7701".parse().unwrap()];
        PeerSocket::bind_and_join("[::1]:0".parse().unwrap(), &group, Some("lo")).unwrap();
    }

    #[test]
    fn an_interface_that_does_not_exist_is_named() {
        let opened = PeerSocket::bind_and_join("127.0.0.1:0".parse().unwrap(), &[], Some("no-such-if"));
        assert!(opened.unwrap_err().to_string().contains("no-such-if"));
    }
}
