//! Promiscuous mode: an interface receives frames for every address as long as a socket of this process requests it.
//!
//! [`PromiscuousMode`] owns such a socket, which receives nothing itself. The mode ends when the socket is closed, at
//! the latest when the process ends or is killed.

use super::socket;
use crate::{Error, netns::NetNs};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Keeps an interface promiscuous as long as the value lives.
#[derive(Debug)]
pub struct PromiscuousMode {
    _socket: OwnedFd,
}

impl PromiscuousMode {
    /// Makes the interface promiscuous from now on; `name` is for messages.
    pub fn enable_on(netns: &NetNs, index: u32, name: &str) -> Result<Self, Error> {
        let socket = socket::open_packet_socket(netns, name)?;
        make_interface_promiscuous(&socket, index)
            .map_err(|e| Error::from_call("setsockopt(PACKET_ADD_MEMBERSHIP)", name, e))?;
        Ok(Self { _socket: socket })
    }
}

/// Makes the interface promiscuous as long as `socket` is open.
pub(super) fn make_interface_promiscuous(socket: &OwnedFd, index: u32) -> Result<(), Errno> {
    let request = libc::packet_mreq {
        mr_ifindex: i32::try_from(index).map_err(|_| Errno::INVAL)?,
        mr_type: u16::try_from(libc::PACKET_MR_PROMISC).map_err(|_| Errno::INVAL)?,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    socket::set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}
