//! How interfaces stand on each other, beyond what every interface says.

use super::{Links, missing};
use crate::Error;
use crate::netns::NetNs;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoData, InfoVxlan, LinkInfo};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use std::os::fd::{AsFd, AsRawFd};

impl Links {
    /// The number that this namespace has for another one; `None` if it has none.
    pub fn netns_id(&mut self, other: &NetNs) -> Result<Option<i32>, Error> {
        let descriptor = u32::try_from(other.as_fd().as_raw_fd()).map_err(|_| missing(other.label()))?;
        let mut request = NsidMessage::default();
        request.attributes = vec![NsidAttribute::Fd(descriptor)];
        let mut found = None;
        let mut note = |answer| {
            if let RouteNetlinkMessage::NewNsId(message) = answer {
                let of = |attribute: &NsidAttribute| match attribute {
                    NsidAttribute::Id(id) => Some(*id).filter(|id| *id >= 0),
                    _ => None,
                };
                found = message.attributes.iter().find_map(of);
            }
        };
        let asked = self.netlink.ask(RouteNetlinkMessage::GetNsId(request), 0, &mut note);
        asked.map_err(|error| Error::call("RTM_GETNSID", other.label(), error))?;
        Ok(found)
    }
}

/// The interface that a tunnel is bound to.
pub(super) fn carrier_of(infos: &[LinkInfo]) -> Option<u32> {
    let data = infos.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vxlan(data)) => Some(data),
        _ => None,
    });
    data?.iter().find_map(|of| match of {
        InfoVxlan::Link(index) => Some(*index).filter(|index| *index > 0),
        _ => None,
    })
}
