//! Facts about the machine and its interfaces, which other code shows or evaluates.
//!
//! This module owns nothing, changes nothing and judges nothing. Facts that a driver or kernel does
//! not report are absent.

use crate::caps::ThreadRights;
use crate::ethtool::{DriverName, EthtoolCalls, LinkSpeed, Offload, QueueCounts, StampAbilities};
use crate::link::{Link, LinkAddress, NamespaceLinks};
use crate::machine_setting::{self, SettingChange};
use crate::netdev::{self, XdpFeatures};
use crate::pktgen::Pktgen;
use crate::sandbox::OfferedProtections;
use crate::{Error, UnsupportedFeature, kernel, netns::NetNs, sched, userns, xdp, xsk};
use serde::Serialize;
use std::net::IpAddr;

/// The machine, and the permitted actions of this process on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineFacts {
    /// Release of the kernel.
    pub kernel: String,
    /// Major and minor number of the kernel's version.
    pub version: (u32, u32),
    /// Rights of this process.
    pub rights: ThreadRights,
    /// Processors this process may use.
    pub processors: usize,
    /// Reason why an ordinary user cannot make a private lab, with the remedy; `None` if it is possible.
    pub lab_obstacle: Option<String>,
    /// Reason why BPF programs cannot be loaded; `None` if they can.
    pub bpf_obstacle: Option<String>,
    /// Reason why AF_XDP sockets cannot be used; `None` if they can.
    pub af_xdp_obstacle: Option<String>,
    /// Reason why the kernel's packet generator cannot be used; `None` if it can.
    pub pktgen_obstacle: Option<String>,
    /// Protections of this kernel (Landlock, seccomp) with which a program can give up rights.
    pub walls: OfferedProtections,
    /// Settings of the machine that hinder packetrig, each with a better value.
    pub hindering_settings: Vec<SettingChange>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InterfaceFacts {
    /// Name, hardware address and state.
    pub link: Link,
    pub driver: Option<DriverName>,
    /// Speed and duplex; `None` while there is no link.
    pub speed: Option<LinkSpeed>,
    pub channels: Option<QueueCounts>,
    /// Offloads that are on.
    pub offloads: Vec<Offload>,
    /// Stamping abilities of the interface.
    pub timestamping: Option<StampAbilities>,
    /// XDP abilities; absent if the kernel does not report them.
    pub xdp: Option<XdpFeatures>,
    pub addresses: Vec<IpAddr>,
    /// A default route leaves through the interface.
    pub default_route: bool,
}

/// Calls `tried` with the current namespace. Returns the error as text if it fails.
fn error_text_if_failing(tried: impl Fn(&NetNs) -> Result<(), Error>) -> Option<String> {
    NetNs::current().and_then(|netns| tried(&netns)).err().map(|error| error.to_string())
}

/// Reads the facts of the machine.
pub fn read_machine_facts() -> MachineFacts {
    MachineFacts {
        kernel: kernel::kernel_release_name(),
        version: kernel::version_numbers(),
        rights: ThreadRights::current(),
        processors: sched::read_allowed_cpus().map_or(1, |cpus| cpus.len()),
        lab_obstacle: userns::lab_obstacle().as_ref().map(UnsupportedFeature::to_string),
        bpf_obstacle: xdp::bpf_obstacle().map(|error| error.to_string()),
        af_xdp_obstacle: error_text_if_failing(|netns| xsk::af_xdp_obstacle(netns).map_or(Ok(()), Err)),
        pktgen_obstacle: error_text_if_failing(|netns| Pktgen::open_in(netns).map(drop)),
        walls: OfferedProtections::read_offered_protections(),
        hindering_settings: machine_setting::hindering_settings(),
    }
}

/// Reads the facts of all interfaces of `netns`, in order of their number.
pub fn read_interface_facts(netns: &NetNs) -> Result<Vec<InterfaceFacts>, Error> {
    let mut links = NamespaceLinks::open_in(netns)?;
    let ethtool = EthtoolCalls::open_in(netns)?;
    let addresses = links.list_addresses()?;
    let routes = links.list_default_route_interfaces()?;
    let found = links.list_links()?.into_iter();
    Ok(found.map(|link| describe_interface(netns, &ethtool, link, &addresses, &routes)).collect())
}

fn describe_interface(
    netns: &NetNs,
    ethtool: &EthtoolCalls,
    link: Link,
    addresses: &[LinkAddress],
    routes: &std::collections::BTreeSet<u32>,
) -> InterfaceFacts {
    let name = &link.name;
    InterfaceFacts {
        driver: ethtool.read_driver_name(name).ok(),
        speed: ethtool.read_link_speed(name).ok().flatten(),
        channels: ethtool.read_queue_counts(name).ok(),
        offloads: Offload::ALL
            .into_iter()
            .filter(|o| ethtool.is_offload_on(name, *o).unwrap_or(false))
            .collect(),
        timestamping: ethtool.read_stamp_abilities(name).ok(),
        xdp: netdev::read_xdp_features(netns, link.index).ok(),
        addresses: addresses.iter().filter(|a| a.index == link.index).map(|a| a.ip).collect(),
        default_route: routes.contains(&link.index),
        link,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_interfaces_are_described_without_privileges() {
        let netns = NetNs::current().unwrap();
        let described = read_interface_facts(&netns).unwrap();
        let listed = NamespaceLinks::open_in(&netns).unwrap().list_links().unwrap();
        assert_eq!(described.len(), listed.len());
        let loopback = described.iter().find(|interface| interface.link.loopback).unwrap();
        assert!(loopback.timestamping.is_some_and(|stamps| stamps.rx_software && !stamps.rx_hardware));
    }

    #[test]
    fn the_machine_has_a_kernel_and_a_processor() {
        let machine = read_machine_facts();
        assert!(machine.processors >= 1 && machine.kernel.starts_with(&machine.version.0.to_string()));
    }
}
