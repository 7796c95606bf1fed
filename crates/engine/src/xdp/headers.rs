//! Listens at an interface for headers: the program in the driver reads the common headers, stamps them, and hands up a
//! record of what identifies the flow. Of frames that it cannot read it hands up the beginning.
//!
//! `flow::parse::unified` knows the record's layout. The filter runs first, as for [`XdpTap`](super::XdpTap).
//!
//! Invariant: every frame that the filter accepts is given as one of the two, or counted as dropped.

use super::stamp_of;
use super::tap::{XdpTapOptions, translated};
use crate::Error;
use crate::packet::InterfaceMeter;
use packetrig_plan::PortLocation;
use packetrig_stats::port::{RxCounters, StampKind};
use packetrig_sys::clock::{self, RealtimeOffset};
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netdev;
use packetrig_sys::netns::NetNs;
use packetrig_sys::xdp::meter::{BEGINNING, XdpMeter};
use packetrig_sys::xdp::rx::{PassedFrames, XdpRxOptions};
use packetrig_units::MonoTime;

/// What came up of a frame.
#[derive(Clone, Copy, Debug)]
pub struct FrameHeader<'a> {
    /// The program's record, or the first bytes of the frame, without FCS.
    pub bytes: &'a [u8],
    /// Whether it is a record.
    pub is_record: bool,
    /// Bytes the frame had when it came.
    pub full_len: usize,
    /// When, as the program stamped it.
    pub at: MonoTime,
}

/// An interface whose headers are listened to.
#[derive(Debug)]
pub struct HeaderListener {
    rings: XdpMeter,
    meter: InterfaceMeter,
    offset: RealtimeOffset,
    stamp: StampKind,
    interface: u32,
    seen: u64,
    is_up: bool,
    is_narrowed: bool,
}

impl HeaderListener {
    /// Listens from now on. Of frames that are not read in the driver, `snap_len` bytes come up, 192 if it is not given.
    pub fn open(location: &PortLocation, options: &XdpTapOptions) -> Result<Self, Error> {
        let name = location.to_string();
        let netns = NetNs::open_or_current(location.namespace.as_deref())?;
        let link = NamespaceLinks::open(&netns)?.by_name(&location.interface)?;
        let features = netdev::xdp_features(&netns, link.index).unwrap_or_default();
        let rx = XdpRxOptions {
            native: features.native,
            snap: options.snap_len.unwrap_or(BEGINNING),
            pass: if options.pass { PassedFrames::Everything } else { PassedFrames::Nothing },
        };
        let rings = match &options.filter {
            None => XdpMeter::open(&netns, link.index, &name, rx, None)?,
            Some(program) => {
                let filter = translated(&name, program)?;
                XdpMeter::open(&netns, link.index, &name, rx, Some(&filter))?
            }
        };
        Ok(Self {
            rings,
            meter: InterfaceMeter::start(&netns, link.index)?,
            offset: clock::realtime_offset(),
            stamp: stamp_of(features),
            interface: link.index,
            seen: 0,
            is_up: link.up,
            is_narrowed: options.filter.is_some(),
        })
    }

    /// Gives what is at hand to `sink`, at most `most`; returns how many. Does not wait: the rings hold tens of milliseconds
    /// of the fastest traffic.
    pub fn receive(&mut self, most: usize, sink: &mut dyn FnMut(FrameHeader<'_>)) -> usize {
        let given = self.rings.receive(most, &mut |frame| {
            sink(FrameHeader {
                bytes: frame.bytes,
                is_record: frame.is_header,
                full_len: frame.full_len,
                at: MonoTime::from_nanos(frame.monotonic_ns),
            });
        });
        self.seen += given as u64;
        given
    }

    /// Lets nothing in any more: frames go on to the kernel's stack uncounted. What is in the rings is given soon.
    pub fn shut(&mut self) -> Result<(), Error> {
        Ok(self.rings.shut()?)
    }

    /// Frames that found their ring full, so far.
    pub fn ring_dropped(&self) -> u64 {
        self.rings.dropped()
    }

    /// What the interface and the rings count. What a filter kept back is in the interface's count and in none of ours, so
    /// that is absent then.
    pub fn counters(&mut self) -> RxCounters {
        let interface = self.meter.read();
        RxCounters {
            arrived: interface.filter(|_| !self.is_narrowed).map(|counters| counters.rx_frames),
            dropped: interface.map(|counters| counters.rx_dropped),
            link_up: interface.map(|counters| counters.carrier),
            ring_dropped: self.rings.dropped(),
            seen: self.seen,
            ..RxCounters::default()
        }
    }

    /// How the wall clock was ahead of the monotonic one when listening began.
    pub const fn offset(&self) -> RealtimeOffset {
        self.offset
    }

    pub const fn stamp(&self) -> StampKind {
        self.stamp
    }

    /// The interface's index in the kernel.
    pub const fn interface(&self) -> u32 {
        self.interface
    }

    /// Whether the interface was up when listening began.
    pub const fn is_up(&self) -> bool {
        self.is_up
    }
}
