//! Frames through XDP: received into shared rings ([`rx`]), reduced to their headers ([`meter`]), sent as
//! live frames ([`tx`]), forwarded between two interfaces with copies to further ones ([`tap`]).
//!
//! The BPF programs are `bpf/{receive,meter,send,tap}.bpf.c`. The programs and this code use the layouts in
//! `bpf/layout/`. Tests run the programs.

pub mod buckets;
pub mod meter;
mod ring;
pub mod rx;
pub mod tap;
pub mod tx;

use crate::bpf::{BpfAttachment, BpfObject, BpfProgram};
use crate::{Error, netns::NetNs};

static RECEIVE_PROGRAM: BpfObject<'static> =
    BpfObject::new(include_bytes!(concat!(env!("OUT_DIR"), "/receive.o")));
static METER_PROGRAM: BpfObject<'static> =
    BpfObject::new(include_bytes!(concat!(env!("OUT_DIR"), "/meter.o")));
static TAP_PROGRAM: BpfObject<'static> = BpfObject::new(include_bytes!(concat!(env!("OUT_DIR"), "/tap.o")));
static SEND_PROGRAM: BpfObject<'static> = BpfObject::new(include_bytes!(concat!(env!("OUT_DIR"), "/send.o")));

/// `return XDP_DROP`.
const DISCARD_PROGRAM: [u64; 2] = [0x0000_0001_0000_00b7, 0x0000_0000_0000_0095];

/// Attaches a program that drops every arriving frame in the driver. No receiver of frames can cost less, so the
/// program serves as the baseline of measurements.
pub fn attach_discard_program(netns: &NetNs, index: u32, object: &str) -> Result<BpfAttachment, Error> {
    BpfProgram::load_xdp("discard", &DISCARD_PROGRAM, true)?.attach_xdp(netns, index, true, object)
}

/// `return XDP_PASS`.
const PASS_PROGRAM: [u64; 2] = [0x0000_0002_0000_00b7, 0x0000_0000_0000_0095];

/// Makes one end of a veth pair receive live frames from the other end. A veth receives such frames only while it has
/// an XDP program or GRO is on; this program passes every frame unchanged.
pub fn attach_xdp_pass_program(netns: &NetNs, index: u32, object: &str) -> Result<BpfAttachment, Error> {
    BpfProgram::load_xdp("pass", &PASS_PROGRAM, true)?.attach_xdp(netns, index, true, object)
}

/// Returns the reason why BPF programs cannot be loaded here, if they cannot.
pub fn bpf_obstacle() -> Option<Error> {
    BpfProgram::load_xdp("probe", &PASS_PROGRAM, true).err()
}

/// Bytes of a ring in `bpf/rings.h`.
const RING_BYTES: usize = crate::layout::rings::RING_BYTES;

/// Section of the programs in their objects.
const XDP_SECTION: &str = "xdp";

#[cfg(test)]
#[path = "xdp/ring/tests.rs"]
mod ring_tests;
