//! Making, changing and removing interfaces.

use super::{Mac, NamespaceLinks, VethEnd};
use crate::{Error, netns::NetNs};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoBridge, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

const MISSING_RIGHTS_TEXT: &str = "needs CAP_NET_ADMIN: run as root, or grant the capabilities once, as root: setcap cap_net_raw,cap_net_admin+ep \"$(command -v packetrig)\"";

impl NamespaceLinks {
    /// Makes a veth pair (a virtual cable) with these two ends.
    pub fn create_veth(&mut self, near: VethEnd<'_>, far: VethEnd<'_>) -> Result<(), Error> {
        let peer = InfoData::Veth(InfoVeth::Peer(veth_end_message(far)));
        let mut message = veth_end_message(near);
        message
            .attributes
            .push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(peer)]));
        self.create_link(message, near.name)
    }

    /// Makes a bridge without ports. Multicast snooping is off, and so is spanning tree (the kernel's default).
    pub fn create_bridge(&mut self, name: &str) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Bridge),
                // With multicast snooping, a bridge also sends frames of its own: it reports its
                // memberships on every port.
                LinkInfo::Data(InfoData::Bridge(vec![InfoBridge::MulticastSnooping(false)])),
            ]),
        ];
        self.create_link(message, name)
    }

    /// Brings an interface up or down.
    pub fn switch_interface(&mut self, index: u32, up: bool) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
        message.header.change_mask = LinkFlags::Up;
        self.change_link(index, message)
    }

    /// Switches the interface's own promiscuous mode, which lasts until it is switched back. Promiscuous mode that
    /// sockets request is separate. Returns whether this has changed anything.
    pub fn set_promiscuous(&mut self, index: u32, on: bool) -> Result<bool, Error> {
        // The flag does not show promiscuous mode that sockets request: they are counted separately.
        if self.read_flags(index)?.contains(LinkFlags::Promisc) == on {
            return Ok(false);
        }
        let mut message = LinkMessage::default();
        message.header.flags = if on { LinkFlags::Promisc } else { LinkFlags::empty() };
        message.header.change_mask = LinkFlags::Promisc;
        self.change_link(index, message)?;
        Ok(true)
    }

    pub fn set_mtu(&mut self, index: u32, mtu: u32) -> Result<(), Error> {
        self.change_attribute(index, LinkAttribute::Mtu(mtu))
    }

    /// Sets the hardware address.
    pub fn set_mac(&mut self, index: u32, mac: Mac) -> Result<(), Error> {
        self.change_attribute(index, LinkAttribute::Address(mac.to_vec()))
    }

    /// Makes an interface a port of the bridge `master`; `None` removes the interface from its bridge.
    pub fn set_master(&mut self, index: u32, master: Option<u32>) -> Result<(), Error> {
        self.change_attribute(index, LinkAttribute::Controller(master.unwrap_or(0)))
    }

    /// Moves an interface to another namespace, where it may get another number.
    pub fn move_interface_to(&mut self, index: u32, netns: &NetNs) -> Result<(), Error> {
        self.change_attribute(index, LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd()))
    }

    /// Removes a virtual interface. If it is one end of a veth pair, the kernel removes the other end, too.
    pub fn delete_link(&mut self, index: u32) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.send_request(
            RouteNetlinkMessage::DelLink(message),
            0,
            "RTM_DELLINK",
            &format!("interface {index}"),
        )
    }

    /// Adds an address to an interface; an error if the interface has it already.
    pub fn add_address(&mut self, index: u32, ip: IpAddr, prefix: u8) -> Result<(), Error> {
        let mut message = AddressMessage::default();
        message.header.family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        message.header.prefix_len = prefix;
        message.header.index = index;
        message.attributes = vec![AddressAttribute::Local(ip), AddressAttribute::Address(ip)];
        // EXCL: an existing address is an error.
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        self.send_request(
            RouteNetlinkMessage::NewAddress(message),
            flags,
            "RTM_NEWADDR",
            &format!("interface {index}"),
        )
    }

    fn create_link(&mut self, message: LinkMessage, name: &str) -> Result<(), Error> {
        // EXCL: an existing interface of that name is an error, and is not changed.
        self.send_request(
            RouteNetlinkMessage::NewLink(message),
            NLM_F_CREATE | NLM_F_EXCL,
            "RTM_NEWLINK",
            name,
        )
    }

    fn change_attribute(&mut self, index: u32, attribute: LinkAttribute) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.attributes = vec![attribute];
        self.change_link(index, message)
    }

    fn change_link(&mut self, index: u32, mut message: LinkMessage) -> Result<(), Error> {
        message.header.index = index;
        self.send_request(
            RouteNetlinkMessage::SetLink(message),
            0,
            "RTM_SETLINK",
            &format!("interface {index}"),
        )
    }

    fn send_request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        call: &'static str,
        object: &str,
    ) -> Result<(), Error> {
        let asked = self.netlink.request_answers(message, flags, &mut |_| {});
        asked
            .map(drop)
            .map_err(|error| Error::from_call(call, object, error).with_rights(MISSING_RIGHTS_TEXT))
    }
}

fn veth_end_message(end: VethEnd<'_>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(end.name.to_owned()));
    message.attributes.extend(end.mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
    message.attributes.extend(end.netns.map(|netns| LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd())));
    message
}
