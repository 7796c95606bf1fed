//! Receiving: the program copies each frame with its arrival time into a ring per processor, which
//! is mapped here (`ring`).

use super::ring::{self, InterfaceRings, VALUE};
use super::{RECEIVE_PROGRAM, XDP_SECTION};
use crate::bpf::{BpfAttachment, BpfInstruction, BpfMap, BpfObject, BpfProgram, MapKind};
use crate::layout::rings::{self as layout, settings};
use crate::netns::NetNs;
use crate::{Error, clock, sched};

pub use super::ring::{MAX_WHOLE_FRAME_BYTES, MIN_FRAME_AGE_NS, XdpFrame};

// enum xdp_action
const XDP_DROP_ACTION: u32 = 1;
const XDP_PASS_ACTION: u32 = 2;
const FRAMES_BY_KIND: u32 = layout::BY_KIND;

#[derive(Clone, Copy, Debug)]
pub struct XdpRxOptions {
    /// Run the program in the driver; otherwise in the kernel's generic path, after it has made an skb.
    pub native: bool,
    /// Maximum number of bytes of a frame to keep.
    pub snap: u32,
    /// Frames that continue to the kernel's stack afterwards; all other frames are dropped after they were recorded.
    pub pass: FramesPassedToStack,
}

/// Frames that continue to the kernel's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramesPassedToStack {
    Nothing,
    /// ARP, ICMP and ICMPv6, also behind VLAN tags.
    Neighbours,
    Everything,
}

/// Builds the filter program that runs first: it continues with the first slice of instructions for wanted
/// frames, and with the second for all others. Both use R6 as the context.
pub type FilterProgramBuilder<'a> = &'a dyn Fn(&[BpfInstruction], &[BpfInstruction]) -> Vec<BpfInstruction>;

/// A receive program that is attached to an interface, with its rings.
#[derive(Debug)]
pub struct XdpRx {
    // The first field is dropped first: the program is detached before its maps go.
    attachment: BpfAttachment,
    program: BpfProgram,
    /// Table with the program that a filter calls. The kernel empties a table of programs when no process holds it.
    behind: Option<BpfMap>,
    /// Replaces the running program when the intake stops. It is loaded before, because loading takes rights that may have been
    /// given up by then.
    shut: BpfProgram,
    rings: InterfaceRings,
}

impl XdpRx {
    /// Receives on an interface from now on. [`XdpRxOptions::pass`] says which received frames also reach the kernel's
    /// stack; frames that do not pass the filter always do.
    pub fn open_on_interface(
        netns: &NetNs,
        index: u32,
        object: &str,
        options: XdpRxOptions,
        filter: Option<FilterProgramBuilder<'_>>,
    ) -> Result<Self, Error> {
        Self::open_with_program(&RECEIVE_PROGRAM, netns, index, object, options, filter)
    }

    /// Opens with another program that fills the same rings.
    pub(super) fn open_with_program(
        code: &BpfObject<'_>,
        netns: &NetNs,
        index: u32,
        object: &str,
        options: XdpRxOptions,
        filter: Option<FilterProgramBuilder<'_>>,
    ) -> Result<Self, Error> {
        let LoadedProgram { program, rings } = load_program_with_rings(code, options)?;
        let in_front =
            filter.map(|filter| FrontFilterProgram::load_filter_in_front(&program, filter)).transpose()?;
        let first = in_front.as_ref().map_or(&program, |in_front| &in_front.filter);
        let shut = BpfProgram::load_xdp("shut", &super::PASS_PROGRAM, true)?;
        let attachment = first.attach_xdp(netns, index, options.native, object)?;
        Ok(Self { attachment, program, behind: in_front.map(|in_front| in_front.table), shut, rings })
    }

    /// From now on, receives only frames that pass `filter`; other frames continue to the kernel's stack.
    pub fn narrow_to_filter(&mut self, filter: FilterProgramBuilder<'_>) -> Result<(), Error> {
        let in_front = FrontFilterProgram::load_filter_in_front(&self.program, filter)?;
        self.attachment.replace_program(&in_front.filter)?;
        self.behind = Some(in_front.table);
        Ok(())
    }

    /// Stops receiving frames: they continue to the kernel's stack. Needs no rights.
    pub fn stop_intake(&mut self) -> Result<(), Error> {
        self.attachment.replace_program(&self.shut)
    }

    /// Measures the program's mean time for this frame, in ns, without an interface. The program runs as many times as
    /// there is space for frames in a ring.
    pub fn time_per_frame(frame: &[u8]) -> Result<u32, Error> {
        let options =
            XdpRxOptions { native: true, snap: MAX_WHOLE_FRAME_BYTES, pass: FramesPassedToStack::Nothing };
        load_program_with_rings(&RECEIVE_PROGRAM, options)?
            .program
            .measure_run_time_ns(frame, ring::frames_per_ring(frame.len()))
    }

    /// Calls `sink` with the frames that are ready, at most `most`. Returns their number. Does not wait.
    pub fn receive_frames(&mut self, most: usize, sink: &mut dyn FnMut(XdpFrame<'_>)) -> usize {
        self.rings.receive_frames(most, clock::monotonic_ns(), sink)
    }

    /// Number of frames that were dropped so far because their ring was full.
    pub fn dropped_frames(&self) -> u64 {
        self.rings.dropped_frames()
    }
}

/// A filter program that calls another program for the wanted frames, and the table with that program.
struct FrontFilterProgram {
    filter: BpfProgram,
    table: BpfMap,
}

impl FrontFilterProgram {
    fn load_filter_in_front(program: &BpfProgram, filter: FilterProgramBuilder<'_>) -> Result<Self, Error> {
        let table = BpfMap::create_zeroed("behind", MapKind::Programs, 4, 1)?;
        table.set_program(0, program)?;
        // r1 = context; r2 = table (two instructions); r3 = 0; call bpf_tail_call; then, if that failed, pass.
        let [load, rest] = table.load_map_instructions(2);
        let pass = [0xb7 | 2 << 32, 0x95];
        let wanted = [0x61bf, load, rest, 0x3b7, 0x85 | 12 << 32, pass[0], pass[1]];
        Ok(Self { filter: BpfProgram::load_xdp("filter", &filter(&wanted, &pass), true)?, table })
    }
}

/// A program with the rings that it fills.
pub(super) struct LoadedProgram {
    pub(super) program: BpfProgram,
    pub(super) rings: InterfaceRings,
}

/// Loads a program with new, empty rings.
pub(super) fn load_program_with_rings(
    code: &BpfObject<'_>,
    options: XdpRxOptions,
) -> Result<LoadedProgram, Error> {
    let processors = sched::read_possible_cpu_count();
    let rings = BpfMap::create_zeroed("rings", MapKind::SharedArray, VALUE, processors)?;
    let settings_map = BpfMap::create_zeroed("settings", MapKind::Array, settings::SIZE, 1)?;
    let answer = match options.pass {
        FramesPassedToStack::Nothing => XDP_DROP_ACTION,
        FramesPassedToStack::Neighbours => FRAMES_BY_KIND,
        FramesPassedToStack::Everything => XDP_PASS_ACTION,
    };
    let mut value = [0; settings::SIZE];
    value[settings::SNAP..settings::SNAP + 4]
        .copy_from_slice(&options.snap.min(MAX_WHOLE_FRAME_BYTES).to_ne_bytes());
    value[settings::ANSWER..settings::ANSWER + 4].copy_from_slice(&answer.to_ne_bytes());
    settings_map.set_value(0, &value)?;
    let code = code.link_program(XDP_SECTION, &[&rings, &settings_map])?;
    let program = BpfProgram::load_xdp("receive", &code, true)?;
    Ok(LoadedProgram { program, rings: InterfaceRings::new(rings.share_memory()?, processors as usize) })
}
