//! Relations between interfaces: those in other namespaces, and those below tunnels.

use super::{Link, LinkAddress, NamespaceLinks, missing_interface};
use crate::Error;
use crate::netns::NetNs;
use netlink_packet_core::DefaultNla;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoData, InfoVxlan, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::os::fd::{AsFd, AsRawFd};

/// Attribute that selects the namespace of the addresses (`linux/if_addr.h`).
const IFA_TARGET_NETNSID: u16 = 10;

impl NamespaceLinks {
    /// Lists the interfaces and addresses of the namespace that has the number `id` in `netns`, without
    /// entering it. This needs CAP_NET_ADMIN in that namespace, and Linux 4.20. Numbers of namespaces in the
    /// result are those of `netns`.
    pub fn list_in_numbered_namespace(
        netns: &NetNs,
        id: i32,
    ) -> Result<(Vec<Link>, Vec<LinkAddress>), Error> {
        let mut links = Self::open_in(netns)?;
        // Without strict checks, a kernel that does not know the attribute would list `netns` itself.
        links
            .netlink
            .request_strict_checks()
            .map_err(|error| Error::from_call("NETLINK_GET_STRICT_CHK", netns.label(), error))?;
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::IfNetnsId(id)];
        let found = links.request_links(message)?;
        let mut addresses = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = AddressMessage::default();
            message.header.family = family;
            let number = DefaultNla::new(IFA_TARGET_NETNSID, id.to_ne_bytes().to_vec());
            message.attributes = vec![AddressAttribute::Other(number)];
            addresses.extend(links.request_addresses(message)?);
        }
        Ok((found, addresses))
    }

    /// Returns the number that this namespace has for the namespace `other`; `None` if it has no number for it.
    pub fn find_netns_id(&mut self, other: &NetNs) -> Result<Option<i32>, Error> {
        let descriptor =
            u32::try_from(other.as_fd().as_raw_fd()).map_err(|_| missing_interface(other.label()))?;
        let mut request = NsidMessage::default();
        request.attributes = vec![NsidAttribute::Fd(descriptor)];
        let mut found = None;
        let asked = self.netlink.request_answers(RouteNetlinkMessage::GetNsId(request), 0, &mut |answer| {
            if let RouteNetlinkMessage::NewNsId(message) = answer {
                found = namespace_number(&message);
            }
        });
        asked.map_err(|error| Error::from_call("RTM_GETNSID", other.label(), error))?;
        Ok(found)
    }
}

/// Reads the number in an answer. `None` for -1, which means that the namespace has no number here.
fn namespace_number(message: &NsidMessage) -> Option<i32> {
    message.attributes.iter().find_map(|attribute| match attribute {
        NsidAttribute::Id(id) => Some(*id).filter(|id| *id >= 0),
        _ => None,
    })
}

/// Returns the number of the interface to which a VXLAN tunnel is bound; `None` for other links and for
/// a tunnel without one.
pub(super) fn vxlan_lower_interface(infos: &[LinkInfo]) -> Option<u32> {
    let data = infos.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vxlan(data)) => Some(data),
        _ => None,
    });
    data?.iter().find_map(|of| match of {
        InfoVxlan::Link(index) => Some(*index).filter(|index| *index > 0),
        _ => None,
    })
}
