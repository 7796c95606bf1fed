//! Counts what the drivers did with redirected frames. Only the kernel's tracepoints report this for a program that
//! forwards in the kernel.
//!
//! If the tracepoints cannot be used, there are no such counts, and [`RedirectWatch::watch_error`] returns the reason.

use super::counters::{self, TapCounts};
use super::{TAP_PROGRAM, TapForwardingRules};
use crate::Error;
use crate::bpf::{AttachPoint, BpfAttachment, BpfMap, BpfProgram, KernelTypes, MapKind};
use crate::netns::NetNs;
use std::ffi::CStr;
use std::path::Path;

const DEVMAP_XMIT_TRACEPOINT: &CStr = c"xdp_devmap_xmit";
const REDIRECT_ERR_TRACEPOINT: &CStr = c"xdp_redirect_err";
/// Size of `struct places`, in bytes.
const PLACES_BYTES: usize = 64;
const TRACEPOINT_NAMES: [&str; 2] = ["handed", "refused"];

#[derive(Debug)]
pub(super) struct RedirectWatch(Result<[BpfAttachment; 2], Error>);

impl RedirectWatch {
    pub(super) fn begin_watch(netns: &NetNs, orders: &TapForwardingRules, counts: &TapCounts) -> Self {
        Self(attach_tracepoints(netns, orders, counts))
    }

    pub(super) fn watch_error(&self) -> Option<&Error> {
        self.0.as_ref().err()
    }

    pub(super) fn pin_in(&self, directory: &Path) -> Result<(), Error> {
        let attachments = self.0.iter().flatten();
        attachments
            .zip(TRACEPOINT_NAMES)
            .try_for_each(|(attachment, name)| attachment.pin_at(&directory.join(name)))
    }
}

fn attach_tracepoints(
    netns: &NetNs,
    orders: &TapForwardingRules,
    counts: &TapCounts,
) -> Result<[BpfAttachment; 2], Error> {
    let places = BpfMap::create_zeroed("places", MapKind::Array, PLACES_BYTES, 1)?;
    places.set_value(0, &encode_places(netns, orders)?)?;
    let maps = [&places, counts.map()];
    Ok([
        attach_program("handed", DEVMAP_XMIT_TRACEPOINT, &maps)?,
        attach_program("refused", REDIRECT_ERR_TRACEPOINT, &maps)?,
    ])
}

fn attach_program(
    section: &'static str,
    tracepoint: &CStr,
    maps: &[&BpfMap],
) -> Result<BpfAttachment, Error> {
    let code = TAP_PROGRAM.link_program(section, maps)?;
    BpfProgram::load_program_for(AttachPoint::Tracepoint, section, &code, false)?
        .attach_tracepoint(tracepoint)
}

/// Encodes `struct places` for the programs at the tracepoints.
fn encode_places(netns: &NetNs, orders: &TapForwardingRules) -> Result<Vec<u8>, Error> {
    let types = KernelTypes::read_btf()?;
    let space = types.member_offset("net", "ns")? + types.member_offset("ns_common", "inum")?;
    // The kernel's numbers of namespaces have 32 bits.
    let number = u32::try_from(netns.inode()?);
    let number = number.map_err(|_| Error::from_call("stat", netns.label(), rustix::io::Errno::OVERFLOW))?;
    let head = [
        types.member_offset("net_device", "ifindex")?,
        types.member_offset("net_device", "nd_net")?,
        space,
        number,
    ];
    let places = counters::list_tap_interfaces(orders);
    let all =
        head.into_iter().chain(places).chain([counters::FIRST_HANDED_INDEX, counters::FIRST_FAILURE_INDEX]);
    Ok(all.flat_map(u32::to_ne_bytes).collect())
}
