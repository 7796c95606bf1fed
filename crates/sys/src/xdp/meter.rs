//! Headers in place of frames: of plain frames the program puts only what identifies a flow into the rings, of others
//! the beginning of the frame.
//!
//! `flow::parse::unified` reads the records; here they are bytes.

use super::METER;
use super::ring::{self, InterfaceRings, XdpFrame};
use super::rx::{self, FilterMaker, LoadedProgram, PassedFrames, XdpRx, XdpRxOptions};
use crate::bpf::BpfProgram;
use crate::netns::NetNs;
use crate::{Error, clock};

/// Bytes of a frame that are kept when the program does not read its headers: enough for a stack of them.
pub const BEGINNING: u32 = 192;

/// Rings of an interface that hold headers.
#[derive(Debug)]
pub struct XdpMeter {
    rx: XdpRx,
}

impl XdpMeter {
    /// Reads the headers of what arrives at an interface from now on; with a filter, of what passes it.
    pub fn open(
        netns: &NetNs,
        index: u32,
        object: &str,
        options: XdpRxOptions,
        filter: Option<FilterMaker<'_>>,
    ) -> Result<Self, Error> {
        let rx = XdpRx::with(&METER, netns, index, object, options, filter)?;
        Ok(Self { rx })
    }

    /// Gives every header and beginning of a frame at hand to `sink`, at most `most`; returns how many. Does not wait.
    pub fn receive(&mut self, most: usize, sink: &mut dyn FnMut(XdpFrame<'_>)) -> usize {
        self.rx.receive(most, sink)
    }

    /// Stops taking frames in: they go on to the kernel's stack. Takes no rights.
    pub fn shut(&mut self) -> Result<(), Error> {
        self.rx.shut()
    }

    /// Number of frames so far that found their ring full.
    pub fn dropped(&self) -> u64 {
        self.rx.dropped()
    }
}

/// The program on no interface, for tests and measurements.
#[derive(Debug)]
pub struct UnattachedProgram {
    program: BpfProgram,
    rings: InterfaceRings,
}

impl UnattachedProgram {
    pub fn load() -> Result<Self, Error> {
        let options = XdpRxOptions { native: true, snap: BEGINNING, pass: PassedFrames::Nothing };
        let LoadedProgram { program, rings } = rx::load(&METER, options)?;
        Ok(Self { program, rings })
    }

    /// Runs it once on a frame of 14 bytes at least, and gives what it put into a ring.
    pub fn run(&mut self, frame: &[u8], sink: &mut dyn FnMut(XdpFrame<'_>)) -> Result<(), Error> {
        self.program.run_once(frame)?;
        // As of a later time, because a fresh record would be held back.
        self.rings.receive(1, clock::monotonic_ns().saturating_add(ring::SETTLED_NS), sink);
        Ok(())
    }

    /// Measures the program's time for a frame like this, in ns: the mean of as many as a ring holds.
    pub fn time_per_frame(&mut self, frame: &[u8]) -> Result<u32, Error> {
        // More frames would find the ring full, and the time of a drop would be measured.
        let time = self.program.time(frame, ring::fitting(BEGINNING as usize));
        // Empties the ring for the next measurement.
        self.rings.receive(usize::MAX, u64::MAX, &mut |_| ());
        time
    }
}
