//! Compares an interface with the settings that packetrig gave it, for a port that stays open between runs.

use super::{FRAME_CHANGING_OFFLOADS, InterfaceChange, QuietInterface};
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::kernel;
use packetrig_sys::netns::NetNs;

/// Snapshot of the settings that make an interface quiet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct QuietSettings {
    /// Offloads that are on.
    on: Vec<Offload>,
    /// Value of the IPv6 switch; `None` for a kernel without IPv6.
    ipv6_off: Option<String>,
}

impl QuietSettings {
    pub(super) fn read_settings(
        netns: &NetNs,
        name: &str,
        ipv6_key: &str,
    ) -> Result<Self, packetrig_sys::Error> {
        let ethtool = EthtoolCalls::open_in(netns)?;
        let on = FRAME_CHANGING_OFFLOADS
            .into_iter()
            .filter(|loud| ethtool.is_offload_on(name, *loud).unwrap_or(false));
        // An unreadable setting compares equal only to an unreadable one.
        Ok(Self { on: on.collect(), ipv6_off: kernel::read_setting(netns, ipv6_key).ok() })
    }
}

impl QuietInterface {
    /// Returns whether the interface has the settings that [`Self::quieten_interface`] made, and its link
    /// was not switched down.
    pub(in crate::packet) fn is_unchanged(&self) -> Result<bool, packetrig_sys::Error> {
        let now = QuietSettings::read_settings(&self.netns, &self.link.name, &self.ipv6_key())?;
        Ok(!self.changes.contains(&InterfaceChange::Down) && now == self.quiet)
    }

    /// Removes the caveats that an earlier run added about the carrier.
    pub(in crate::packet) fn forget_carrier_caveats(&mut self) {
        self.caveats.truncate(self.caveats_of_settings);
    }
}
