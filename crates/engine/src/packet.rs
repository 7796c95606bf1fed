//! The `packet` back end: AF_PACKET rings, which work on every kernel and every card.
//!
//! Opening a port checks that its interface may carry test traffic (RFC 6815), locks the interface against a second
//! run, makes it quiet and opens a ring for each direction. [`PortHold`] keeps the lock and the interface's former
//! settings: dropping it restores them, also when a worker panics. This module measures nothing and has no streams.
//!
//! Invariant: the interface is changed only while the lock is held.

pub(crate) mod facts;
mod filter;
mod kept;
pub mod quiet;
mod rx;
pub mod saved_settings;
mod tap;
mod tx;

pub use facts::InterfaceMeter;
pub use kept::ReusablePorts;
pub use rx::PacketRx;
pub use tap::{PacketTap, TAP_RING_BLOCKS, TapOptions};
pub(crate) use tx::ENETDOWN_ERRNO;
pub use tx::PacketTx;
pub use tx::{StandstillTimer, frames_lost_on_transmit};

pub use packetrig_guard::lab as guard;

use crate::Error;
use crate::device::PortInterfaceHandle;
use packetrig_plan::{Port, PortLocation};
use packetrig_stats::port::{BackEnd, PortInfo, StampKind};
use packetrig_sys::ethtool::EthtoolCalls;
use packetrig_sys::link::{Link, NamespaceLinks};
use packetrig_sys::lock::NameLock;
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::{RxOptions, RxRing, TxOptions, TxRing};
use packetrig_units::{BitRate, FrameSize};
use quiet::QuietInterface;
use std::sync::Arc;

/// Bytes of an Ethernet header and FCS, which the MTU does not include.
const FRAME_BYTES_BEYOND_MTU: u32 = 18;
const VLAN_TAG_BYTES: u32 = 4;

/// Options that are not part of the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// The user confirmed that this interface may carry test traffic.
    pub confirmed: bool,
    /// Largest frame that will be sent; smaller slots are faster. `None` means the largest that the interface accepts,
    /// or with XDP that the port sends nothing.
    pub largest: Option<FrameSize>,
    /// The port will have emulated interfaces, which must receive their neighbours' frames.
    pub has_devices: bool,
}

#[derive(Debug)]
pub struct OpenedPort {
    /// Description of the opened port.
    pub info: PortInfo,
    pub tx: PacketTx,
    pub rx: PacketRx,
    /// Lock and original settings of the interface; must be dropped last.
    pub hold: PortHold,
}

/// Keeps an interface locked and quiet. Dropping it restores the interface, then releases the lock.
#[derive(Debug)]
pub struct PortHold {
    // Fields drop in this order: the interface is restored before the lock is released.
    site: PortInterfaceHandle,
    quieted: QuietInterface,
    _lock: NameLock,
}

impl PortHold {
    /// Waits up to 3 s for the link's carrier; if there is none, it adds a caveat. To be called when all ports are
    /// open, because the other end of the link may be another port of the run.
    pub fn await_carrier(&mut self) -> Result<(), Error> {
        Ok(self.quieted.await_carrier()?)
    }

    /// Switches the link up or down. Dropping the hold restores its former state.
    pub fn switch_link(&mut self, up: bool) -> Result<(), Error> {
        self.quieted.switch_link(up)
    }

    /// Returns the network namespace and index of the interface, for programs and sockets besides the rings.
    pub fn interface_site(&self) -> Result<PortInterfaceHandle, Error> {
        self.site.duplicate()
    }

    /// Returns texts for caveats: settings that could not be made quiet or read, and a missing carrier.
    pub fn caveats(&self) -> &[String] {
        self.quieted.caveats()
    }
}

/// An interface that is reserved for test traffic: checked by the guard, locked and quiet. It has no ring yet.
#[derive(Debug)]
pub(crate) struct ReservedInterface {
    pub(crate) netns: NetNs,
    pub(crate) link: Link,
    /// `ns/ifname`, as the user writes it.
    pub(crate) location: String,
    hold: PortHold,
}

/// Returns the name under which an interface is locked in its namespace.
pub fn interface_lock_name(index: u32) -> String {
    format!("packetrig/interface/{index}")
}

/// Reserves the interface of a port for test traffic: checks that it may be used, locks it and makes it quiet.
pub(crate) fn reserve_interface(port: &Port, confirmed: bool) -> Result<ReservedInterface, Error> {
    let name = &port.location.interface;
    let location = format_location(&port.location);
    let netns = NetNs::open_named_or_current_namespace(port.location.namespace.as_deref())?;
    let mut links = NamespaceLinks::open_in(&netns)?;
    let link = links.find_link_by_name(name)?;
    guard::permit_port(&netns, link.index, &location, confirmed)?;
    let lock = NameLock::acquire_name(&netns, &interface_lock_name(link.index), &format!("port {location}"))?;
    let request = quiet::InterfaceSettings { mtu: port.mtu };
    // This comes after guard and lock: the interface has not been changed yet, so a refusal leaves no trace.
    let quieted = QuietInterface::quieten_interface(&netns, &mut links, &link, request)?;
    // The link is read again, because making it quiet may have changed the MTU and the flags.
    let link = links.find_link_by_name(name)?;
    let site = PortInterfaceHandle {
        netns: netns.duplicate()?,
        index: link.index,
        location: location.clone(),
        aside: Arc::default(),
    };
    Ok(ReservedInterface { netns, link, location, hold: PortHold { site, quieted, _lock: lock } })
}

impl ReservedInterface {
    /// Starts a meter that reads the interface's counters as differences from their present values.
    pub(crate) fn start_meter(&self) -> Result<InterfaceMeter, Error> {
        Ok(InterfaceMeter::start(&self.netns, self.link.index)?.exclude_frames(&self.hold.site.aside))
    }

    /// Describes the port on AF_PACKET rings.
    pub(crate) fn port_info(&self, port: &Port) -> Result<PortInfo, Error> {
        describe_port(port, &self.location, &self.netns, &self.link)
    }

    /// Returns the value that keeps the interface reserved until it is dropped.
    pub(crate) fn into_hold(self) -> PortHold {
        self.hold
    }
}

/// Opens a port of a plan. Sends nothing; everything that arrives from now on is in the receive ring.
pub fn open_port(port: &Port, options: OpenOptions) -> Result<OpenedPort, Error> {
    let claim = reserve_interface(port, options.confirmed)?;
    let ReservedInterface { netns, link, location, .. } = &claim;
    let rx_options = RxOptions { promiscuous: port.promiscuous, ..RxOptions::default() };
    let mut rx_meter = claim.start_meter()?;
    // The rings open in parallel: for each ring the kernel waits for an RCU grace period.
    let (rx, tx) = std::thread::scope(|scope| {
        let tx = scope.spawn(|| {
            TxRing::open_on_interface(netns, link.index, location, tx_options(link, options.largest))
        });
        let rx = RxRing::open_on_interface(netns, link.index, location, rx_options);
        // The count restarts immediately after the ring is open: a frame that is in the ring and not in the
        // interface's count would make the counters of the port disagree.
        let restarted = rx_meter.restart_interface_counts();
        let tx = tx.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok::<_, Error>((restarted.and(rx)?, tx?))
    })?;
    Ok(OpenedPort {
        info: claim.port_info(port)?,
        tx: PacketTx::new(tx, claim.start_meter()?),
        rx: PacketRx::new(rx, rx_meter),
        hold: claim.into_hold(),
    })
}

fn tx_options(link: &Link, largest: Option<FrameSize>) -> TxOptions {
    TxOptions { longest: max_frame_len_without_fcs(link, largest), ..TxOptions::default() }
}

/// Returns the length of the longest frame that will be sent, without FCS.
pub(crate) fn max_frame_len_without_fcs(link: &Link, largest: Option<FrameSize>) -> usize {
    // The kernel lets a frame with one VLAN tag be four bytes longer than its MTU allows.
    let limit = link.mtu + FRAME_BYTES_BEYOND_MTU - FrameSize::FCS + VLAN_TAG_BYTES;
    let longest = largest.map_or(limit, |size| size.bytes().saturating_sub(FrameSize::FCS).min(limit));
    // The size is at least the minimum Ethernet frame, which has 60 bytes without FCS.
    longest.max(60) as usize
}

fn describe_port(port: &Port, location: &str, netns: &NetNs, link: &Link) -> Result<PortInfo, Error> {
    let ethtool = EthtoolCalls::open_in(netns)?;
    let speed = ethtool.read_link_speed(&link.name).ok().flatten();
    let speed = speed.map(|speed| BitRate::new(u64::from(speed.mbits) * 1_000_000));
    // Informative only: a port without a known driver works.
    let driver = ethtool.read_driver_name(&link.name).map(|driver| driver.name).unwrap_or_default();
    Ok(PortInfo {
        name: port.name.clone(),
        location: location.to_owned(),
        back_end: BackEnd::Packet,
        why: "the default: AF_PACKET rings work with every kernel and card".into(),
        driver: if driver.is_empty() { "unknown".into() } else { driver },
        speed: port.speed.or(speed),
        max_frame: link.mtu + FRAME_BYTES_BEYOND_MTU,
        tx_stamp: StampKind::User,
        rx_stamp: StampKind::Software,
    })
}

/// Formats a location as the user writes it: `ns/ifname`.
fn format_location(location: &PortLocation) -> String {
    match &location.namespace {
        Some(namespace) => format!("{namespace}/{}", location.interface),
        None => location.interface.clone(),
    }
}

#[cfg(test)]
mod tests;
