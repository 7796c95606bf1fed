//! Delivers headers instead of frames. If the program can read the headers of a frame, it puts only the fields that
//! identify a flow into the rings; otherwise it puts the beginning of the frame there.
//!
//! `flow::parse::unified` interprets the records; for this module they are bytes.

use super::METER_PROGRAM;
use super::ring::{self, InterfaceRings, XdpFrame};
use super::rx::{self, FilterProgramBuilder, FramesPassedToStack, LoadedProgram, XdpRx, XdpRxOptions};
use crate::bpf::BpfProgram;
use crate::netns::NetNs;
use crate::{Error, clock};

/// Bytes of a frame that are kept if the program cannot read its headers: enough for several stacked headers.
pub const UNPARSED_FRAME_BYTES: u32 = 192;

/// The meter program on an interface, with rings that hold the headers of frames.
#[derive(Debug)]
pub struct XdpMeter {
    rx: XdpRx,
}

impl XdpMeter {
    /// Reads the headers of frames that arrive at an interface from now on; with a filter, only of
    /// frames that pass it.
    pub fn open_on_interface(
        netns: &NetNs,
        index: u32,
        object: &str,
        options: XdpRxOptions,
        filter: Option<FilterProgramBuilder<'_>>,
    ) -> Result<Self, Error> {
        let rx = XdpRx::open_with_program(&METER_PROGRAM, netns, index, object, options, filter)?;
        Ok(Self { rx })
    }

    /// Calls `sink` with the headers and beginnings of frames that are ready, at most `most`. Returns their
    /// number. Does not wait.
    pub fn receive_headers(&mut self, most: usize, sink: &mut dyn FnMut(XdpFrame<'_>)) -> usize {
        self.rx.receive_frames(most, sink)
    }

    /// Stops receiving frames: they continue to the kernel's stack. Needs no rights.
    pub fn stop_intake(&mut self) -> Result<(), Error> {
        self.rx.stop_intake()
    }

    /// Number of frames that were dropped so far because their ring was full.
    pub fn dropped_frames(&self) -> u64 {
        self.rx.dropped_frames()
    }
}

/// The meter program without an interface, for tests and measurements.
#[derive(Debug)]
pub struct UnattachedMeterProgram {
    program: BpfProgram,
    rings: InterfaceRings,
}

impl UnattachedMeterProgram {
    pub fn load_meter_program() -> Result<Self, Error> {
        let options =
            XdpRxOptions { native: true, snap: UNPARSED_FRAME_BYTES, pass: FramesPassedToStack::Nothing };
        let LoadedProgram { program, rings } = rx::load_program_with_rings(&METER_PROGRAM, options)?;
        Ok(Self { program, rings })
    }

    /// Runs the program once on a frame of at least 14 bytes, and returns the record that it put into a ring.
    pub fn run_on_frame(&mut self, frame: &[u8], sink: &mut dyn FnMut(XdpFrame<'_>)) -> Result<(), Error> {
        self.program.run_program_once(frame)?;
        // The time passed here is later than now, because a record that is too young would not be delivered.
        self.rings.receive_frames(1, clock::monotonic_ns().saturating_add(ring::MIN_FRAME_AGE_NS), sink);
        Ok(())
    }

    /// Measures the program's mean time for this frame, in ns. The program runs as many times as there is space for
    /// records in a ring.
    pub fn time_per_frame(&mut self, frame: &[u8]) -> Result<u32, Error> {
        // More frames would find the ring full, and the time of a drop would be measured.
        let time =
            self.program.measure_run_time_ns(frame, ring::frames_per_ring(UNPARSED_FRAME_BYTES as usize));
        // Empties the ring for the next measurement.
        self.rings.receive_frames(usize::MAX, u64::MAX, &mut |_| ());
        time
    }
}
