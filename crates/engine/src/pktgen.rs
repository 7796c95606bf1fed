//! The `pktgen` back end: the kernel's own packet generator sends, AF_PACKET rings receive.
//!
//! This back end is a reference for sending rates only: its frames carry no test tag, so receivers can only count
//! them. A receiver counts a frame as an unnumbered frame of a flow if the headers match, otherwise as a foreign frame.
//! Settings that the generator does not support are refused, with their path in the plan, before anything is sent.
//!
//! Differences from the plan, which become a caveat of the port: the generator begins up to 100 ms late, sends frames a
//! whole number of nanoseconds apart, writes a hop limit of 32 where the plan leaves it open, and begins ranges of
//! addresses and ports with their second value.
//!
//! Invariant: while the port is open, no other packetrig process uses its interface or the generator. After the port is
//! closed, the generator has no devices.

mod headers;
mod options;
mod tx;

pub use tx::PktgenTx;

use crate::Error;
use crate::packet::facts::InterfaceMeter;
use crate::packet::{self, OpenOptions, PortHold};
use crate::receiver::TestReceiver;
use crate::rig::{HeldPort, OpenPort};
use crate::send_doubts::SendDoubts;
use crate::stream::StreamSpec;
use packetrig_plan::{PlanProblems, Port};
use packetrig_stats::port::{BackEnd, PortInfo};
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::pktgen::Pktgen;
use std::sync::Arc;

/// Opens a port that sends with the kernel's generator and receives through AF_PACKET rings.
pub fn open_port(port: &Port, options: OpenOptions) -> Result<OpenPort, Error> {
    let netns = NetNs::open_named_or_current_namespace(port.location.namespace.as_deref())?;
    // The generator is opened first: on a machine without it, opening fails before an interface is changed.
    let generator = Pktgen::open_in(&netns)?;
    let opened = packet::open_port(port, options)?;
    let interface = &port.location.interface;
    let index = NamespaceLinks::open_in(&netns)?.find_link_by_name(interface)?.index;
    // This comes after `packet::open_port`, which has locked the interface.
    let checksums = ChecksumOffload::disable_checksum_offload(&netns, interface);
    let doubts = SendDoubts::default();
    // This comes after the rings are open, so that earlier frames do not count.
    let meter = InterfaceMeter::start(&netns, index)?;
    Ok(OpenPort {
        info: PortInfo {
            back_end: BackEnd::Pktgen,
            why: "requested: the kernel's packet generator".into(),
            ..opened.info
        },
        tx: Box::new(PktgenTx::new(generator, interface, meter, doubts.clone())),
        rx: Box::new(TestReceiver::new(opened.rx)),
        hold: Box::new(PktgenHold { _checksums: checksums, packet: opened.hold, doubts }),
    })
}

/// Checks whether the generator can send these streams: all problems at once, each with its path in the plan. Needs no
/// rights; arming a port runs the same check.
pub fn check_streams(streams: &[Arc<StreamSpec>]) -> Result<(), PlanProblems> {
    options::convert_streams(streams).map(drop)
}

/// Reserves a port for this process until dropped. The checksum offload is restored first, while the interface is still
/// locked: fields drop in this order.
#[derive(Debug)]
struct PktgenHold {
    _checksums: ChecksumOffload,
    packet: PortHold,
    doubts: SendDoubts,
}

impl HeldPort for PktgenHold {
    fn await_ready(&mut self) -> Result<(), Error> {
        self.packet.await_carrier()
    }

    fn caveats(&self) -> Vec<String> {
        self.packet.caveats().iter().cloned().chain(self.doubts.list_doubts()).collect()
    }

    fn switch_link(&mut self, up: bool) -> Result<(), Error> {
        self.packet.switch_link(up)
    }
}

/// Keeps the checksum offload of an interface off until dropped, so that the generator writes complete checksums. With
/// the offload on, it leaves them to the card, and a veth interface never completes them.
#[derive(Debug)]
struct ChecksumOffload {
    netns: Option<NetNs>,
    interface: String,
}

impl ChecksumOffload {
    fn disable_checksum_offload(netns: &NetNs, interface: &str) -> Self {
        let changed = set_checksum_offload(netns, interface, false);
        Self {
            netns: changed.then(|| NetNs::duplicate(netns).ok()).flatten(),
            interface: interface.to_owned(),
        }
    }
}

impl Drop for ChecksumOffload {
    fn drop(&mut self) {
        if let Some(netns) = &self.netns {
            set_checksum_offload(netns, &self.interface, true);
        }
    }
}

/// Sets the offload; returns whether it changed. For a driver without this offload, the generator writes the checksums.
fn set_checksum_offload(netns: &NetNs, interface: &str, on: bool) -> bool {
    let set =
        EthtoolCalls::open_in(netns).and_then(|ethtool| ethtool.set_offload(interface, Offload::TxCsum, on));
    set.unwrap_or(false)
}

#[cfg(test)]
mod tests;
