//! Listens on an interface through XDP, for captures at rates that the kernel's own receive path does not reach.
//!
//! The filter runs before the rings, so an unwanted frame costs next to nothing and goes on to the kernel's
//! stack. Captured frames do not reach the stack, unless the user requests it. This tap neither locks the
//! interface nor makes it quiet.
//!
//! Invariant: a frame is delivered if and only if the filter accepts it.

use super::XdpFrameReceiver;
use crate::Error;
use crate::packet::InterfaceMeter;
use crate::port::{FrameRx, RxFrame};
use packetrig_plan::PortLocation;
use packetrig_stats::port::RxCounters;
use packetrig_sys::bpf::BpfInstruction;
use packetrig_sys::clock::{self, RealtimeOffset};
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netdev;
use packetrig_sys::netns::NetNs;
use packetrig_sys::xdp::rx::{FramesPassedToStack, MAX_WHOLE_FRAME_BYTES, XdpRx, XdpRxOptions};
use packetrig_units::Nanos;
use packetrig_wire::bpf::{EbpfInsn, FilterEndings, FilterProgram, ProgramRefusal};

#[derive(Clone, Debug)]
pub struct XdpTapOptions {
    /// Filter of the frames to deliver; `None` delivers all.
    pub filter: Option<FilterProgram>,
    /// Number of bytes that the caller needs of each frame; `None` means whole frames.
    pub snap_len: Option<u32>,
    /// Whether captured frames also go to the kernel's stack.
    pub pass: bool,
}

/// An open XDP tap on an interface.
#[derive(Debug)]
pub struct XdpTap {
    frames: XdpFrameReceiver,
    offset: RealtimeOffset,
    is_up: bool,
}

impl XdpTap {
    /// Starts to listen on the interface at this location.
    pub fn open_interface(location: &PortLocation, options: &XdpTapOptions) -> Result<Self, Error> {
        let name = location.to_string();
        let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref())?;
        let link = NamespaceLinks::open_in(&netns)?.find_link_by_name(&location.interface)?;
        // Without native XDP the program runs in the kernel's generic path, with the same result.
        let features = netdev::read_xdp_features(&netns, link.index).unwrap_or_default();
        let snap = options.snap_len.unwrap_or(MAX_WHOLE_FRAME_BYTES);
        let rx = XdpRxOptions {
            native: features.native,
            snap,
            pass: if options.pass { FramesPassedToStack::Everything } else { FramesPassedToStack::Nothing },
        };
        let rings = match &options.filter {
            None => XdpRx::open_on_interface(&netns, link.index, &name, rx, None)?,
            Some(program) => {
                let filter = make_filter_translator(&name, program)?;
                XdpRx::open_on_interface(&netns, link.index, &name, rx, Some(&filter))?
            }
        };
        let frames = XdpFrameReceiver::new(
            rings,
            InterfaceMeter::start(&netns, link.index)?,
            super::stamp_kind_for(features),
        );
        Ok(Self { frames, offset: clock::measure_realtime_offset(), is_up: link.up })
    }

    /// Returns the offset of the wall clock from the monotonic one when listening began.
    pub fn offset(&self) -> RealtimeOffset {
        self.offset
    }

    /// Returns whether the interface was up when listening began.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// Stops receiving: later frames go to the kernel's stack uncounted. Frames in the rings are delivered immediately,
    /// or [`packetrig_sys::xdp::rx::MIN_FRAME_AGE_NS`] later if several processors receive.
    pub fn stop_receiving(&mut self) -> Result<(), Error> {
        self.frames.stop_receiving()
    }

    /// Returns how many frames were dropped so far because their ring was full.
    pub fn ring_dropped(&self) -> u64 {
        self.frames.ring_dropped()
    }
}

/// Returns a function that translates a filter into the kernel's instructions. Fails if the
/// filter cannot be translated.
pub fn make_filter_translator<'a>(
    name: &str,
    program: &'a FilterProgram,
) -> Result<impl Fn(&[BpfInstruction], &[BpfInstruction]) -> Vec<BpfInstruction> + use<'a>, Error> {
    // Whether the filter can be translated does not depend on the code that follows it.
    translate_filter(program, &[], &[]).map_err(|reason| untranslatable_filter_error(name, reason))?;
    Ok(|wanted: &[BpfInstruction], others: &[BpfInstruction]| {
        translate_filter(program, wanted, others).unwrap_or_default()
    })
}

fn untranslatable_filter_error(name: &str, reason: ProgramRefusal) -> Error {
    Error::Filter { filter: format!("the filter for {name}"), reason }
}

/// Translates the filter into the kernel's instructions. They end with `on_match` for accepted frames, and
/// with `on_mismatch` for others.
pub(super) fn translate_filter(
    program: &FilterProgram,
    on_match: &[BpfInstruction],
    on_mismatch: &[BpfInstruction],
) -> Result<Vec<BpfInstruction>, ProgramRefusal> {
    let on_match = decode_instructions(on_match);
    let on_mismatch = decode_instructions(on_mismatch);
    let code = program.translate_to_ebpf(FilterEndings { on_match: &on_match, on_mismatch: &on_mismatch })?;
    // The kernel reads instructions in its own byte order.
    Ok(code.into_iter().map(|insn| u64::from_ne_bytes(insn.to_bytes())).collect())
}

fn decode_instructions(code: &[BpfInstruction]) -> Vec<EbpfInsn> {
    code.iter().copied().map(EbpfInsn::from_word).collect()
}

impl FrameRx for XdpTap {
    fn receive_frames(&mut self, most: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> Result<usize, Error> {
        self.frames.receive_frames(most, sink)
    }

    fn wait_for_frames(&mut self, within: Nanos) -> Result<(), Error> {
        self.frames.wait_for_frames(within)
    }

    fn read_rx_counters(&mut self) -> Result<RxCounters, Error> {
        self.frames.read_rx_counters()
    }

    fn clock_bound(&self) -> Nanos {
        Nanos::new(self.offset.bound_ns)
    }
}
