//! Cables to send over: one as it is, whose far end stamps as the wire would, and one whose far end merges, which live frames need.

use crate::load::{FAR, NEAR};
use crate::referee::Referee;
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::hosts;

/// What an Ethernet has.
const MTU: u32 = 1500;

/// Two stations, a cable, and a referee at its far end.
#[derive(Debug)]
pub(crate) struct Cable {
    pub(crate) referee: Referee,
    pub(crate) lab: Lab,
}

impl Cable {
    /// With `merging` the far end takes live frames, and stamps later than the wire.
    pub(crate) fn new(merging: bool) -> anyhow::Result<Self> {
        let lab = Lab::cabled_pair()?;
        prepare(&lab)?;
        if merging {
            EthtoolCalls::open_in(lab.ports()[1].netns())?.set_offload(INTERFACE, Offload::Gro, true)?;
        }
        Ok(Self { referee: Referee::open(&lab.ports()[1])?, lab })
    }

    /// With a bridge in the middle, whose ports are `port0` and `port1`.
    pub(crate) fn through() -> anyhow::Result<Self> {
        let lab = Lab::with_bridge(2)?;
        prepare(&lab)?;
        Ok(Self { referee: Referee::open(&lab.ports()[1])?, lab })
    }
}

fn prepare(lab: &Lab) -> anyhow::Result<()> {
    for (port, address) in lab.ports().iter().zip([NEAR, FAR]) {
        let mut links = NamespaceLinks::open_in(port.netns())?;
        links.set_mtu(port.link.index, MTU)?;
        links.add_address(port.link.index, address.into(), 24)?;
        let ethtool = EthtoolCalls::open_in(port.netns())?;
        for offload in [Offload::Tso, Offload::Gso, Offload::Gro] {
            ethtool.set_offload(INTERFACE, offload, false)?;
        }
    }
    Ok(())
}

/// Runs `tc` inside a namespace.
pub(crate) fn tc(netns: &NetNs, arguments: &str) -> anyhow::Result<()> {
    hosts::tool(netns, "tc", arguments)
}
