//! Outcome of redirected frames in the drivers. Only the kernel's tracepoints report it for a program that forwards in the kernel.
//!
//! If the tracepoints cannot be used, the reason is kept, and these counts are unknown.

use super::books::{self, TapCounts};
use super::{TAP, TapOrders};
use crate::Error;
use crate::bpf::{AttachPoint, BpfAttachment, BpfMap, BpfProgram, KernelTypes, MapKind};
use crate::netns::NetNs;
use std::ffi::CStr;
use std::path::Path;

const HANDED: &CStr = c"xdp_devmap_xmit";
const REFUSED: &CStr = c"xdp_redirect_err";
/// Size of `struct places`.
const PLACES: usize = 64;
const NAMES: [&str; 2] = ["handed", "refused"];

#[derive(Debug)]
pub(super) struct RedirectWatch(Result<[BpfAttachment; 2], Error>);

impl RedirectWatch {
    pub(super) fn begin(netns: &NetNs, orders: &TapOrders, books: &TapCounts) -> Self {
        Self(begin(netns, orders, books))
    }

    pub(super) fn blindness(&self) -> Option<&Error> {
        self.0.as_ref().err()
    }

    pub(super) fn pin(&self, directory: &Path) -> Result<(), Error> {
        let attachments = self.0.iter().flatten();
        attachments.zip(NAMES).try_for_each(|(attachment, name)| attachment.pin(&directory.join(name)))
    }
}

fn begin(netns: &NetNs, orders: &TapOrders, books: &TapCounts) -> Result<[BpfAttachment; 2], Error> {
    let places = BpfMap::create("places", MapKind::Array, PLACES, 1)?;
    places.set(0, &encode(netns, orders)?)?;
    let maps = [&places, books.map()];
    Ok([trace("handed", HANDED, &maps)?, trace("refused", REFUSED, &maps)?])
}

fn trace(section: &'static str, tracepoint: &CStr, maps: &[&BpfMap]) -> Result<BpfAttachment, Error> {
    let code = TAP.program(section, maps)?;
    BpfProgram::load_for(AttachPoint::Tracepoint, section, &code, false)?.trace(tracepoint)
}

/// `struct places`.
fn encode(netns: &NetNs, orders: &TapOrders) -> Result<Vec<u8>, Error> {
    let types = KernelTypes::read()?;
    let space = types.offset("net", "ns")? + types.offset("ns_common", "inum")?;
    // The kernel's numbers of namespaces have 32 bits.
    let number = u32::try_from(netns.inode()?);
    let number = number.map_err(|_| Error::call("stat", netns.label(), rustix::io::Errno::OVERFLOW))?;
    let head = [types.offset("net_device", "ifindex")?, types.offset("net_device", "nd_net")?, space, number];
    let places = books::places(orders);
    let all = head.into_iter().chain(places).chain([books::HANDED, books::FAILURES]);
    Ok(all.flat_map(u32::to_ne_bytes).collect())
}
