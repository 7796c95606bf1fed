//! The interface through which frames are released.

use packetrig_plan::PortLocation;
use packetrig_sys::Error;
use packetrig_sys::ethtool::{EthtoolCalls, StampAbilities};
use packetrig_sys::link::{Link, NamespaceLinks};
use packetrig_sys::netns::NetNs;
use packetrig_sys::stamping::WantedStamps;

#[derive(Debug)]
pub(super) struct ReleaseInterface {
    pub(super) netns: NetNs,
    pub(super) link: Link,
    /// `ns/ifname`, as the user writes it.
    pub(super) name: String,
    pub(super) stamps: StampAbilities,
}

impl ReleaseInterface {
    pub(super) fn look_up_interface(location: &PortLocation) -> Result<Self, Error> {
        let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref())?;
        let link = NamespaceLinks::open_in(&netns)?.find_link_by_name(&location.interface)?;
        // A driver that cannot report its stamp features counts as a driver without stamps.
        let stamps = EthtoolCalls::open_in(&netns)?.read_stamp_abilities(&link.name).unwrap_or_default();
        let name = match &location.namespace {
            Some(namespace) => format!("{namespace}/{}", link.name),
            None => link.name.clone(),
        };
        Ok(Self { netns, link, name, stamps })
    }

    /// Returns the departure stamps to request: those that the interface supports and, if `queued`, that of the
    /// queueing discipline. `queued` tells whether the mechanism's frames pass one.
    pub(super) const fn wanted_stamps(&self, queued: bool) -> WantedStamps {
        WantedStamps {
            queued,
            sent: self.stamps.tx_software,
            wire: self.stamps.tx_hardware,
            arrival: false,
            arrival_by_device: false,
        }
    }
}
