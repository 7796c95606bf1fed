//! Listens on an interface for headers: a BPF program parses the common headers, stamps them, and delivers a record
//! that identifies the flow. Of a frame that it cannot parse, it delivers the first bytes.
//!
//! `flow::parse::unified` interprets the record. The filter runs first, as for [`XdpTap`](super::XdpTap).
//!
//! Invariant: of every frame that the filter accepts, a record or the beginning is delivered, or it
//! is counted as dropped.

use super::stamp_kind_for;
use super::tap::{XdpTapOptions, make_filter_translator};
use crate::Error;
use crate::packet::InterfaceMeter;
use packetrig_plan::PortLocation;
use packetrig_stats::port::{RxCounters, StampKind};
use packetrig_sys::clock::{self, RealtimeOffset};
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netdev;
use packetrig_sys::netns::NetNs;
use packetrig_sys::xdp::meter::{UNPARSED_FRAME_BYTES, XdpMeter};
use packetrig_sys::xdp::rx::{FramesPassedToStack, XdpRxOptions};
use packetrig_units::MonoTime;

/// What is delivered of one frame: a record that identifies its flow, or its first bytes.
#[derive(Clone, Copy, Debug)]
pub struct HeaderRecord<'a> {
    /// The program's record, or the first bytes of the frame, without FCS.
    pub bytes: &'a [u8],
    /// Whether `bytes` is a record.
    pub is_record: bool,
    /// Length of the whole frame on arrival, without FCS.
    pub full_len: usize,
    /// Time of arrival, as the program stamped it.
    pub at: MonoTime,
}

/// Reads the headers of the frames that arrive on one interface.
#[derive(Debug)]
pub struct HeaderListener {
    rings: XdpMeter,
    meter: InterfaceMeter,
    offset: RealtimeOffset,
    stamp: StampKind,
    seen: u64,
    is_up: bool,
    is_narrowed: bool,
}

impl HeaderListener {
    /// Starts to listen on the interface at this location. Of frames that the BPF program does not parse, up to
    /// `snap_len` bytes are delivered, by default 192.
    pub fn open_interface(location: &PortLocation, options: &XdpTapOptions) -> Result<Self, Error> {
        let name = location.to_string();
        let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref())?;
        let link = NamespaceLinks::open_in(&netns)?.find_link_by_name(&location.interface)?;
        // Without native XDP the program runs in the kernel's generic path, with the same result.
        let features = netdev::read_xdp_features(&netns, link.index).unwrap_or_default();
        let rx = XdpRxOptions {
            native: features.native,
            snap: options.snap_len.unwrap_or(UNPARSED_FRAME_BYTES),
            pass: if options.pass { FramesPassedToStack::Everything } else { FramesPassedToStack::Nothing },
        };
        let rings = match &options.filter {
            None => XdpMeter::open_on_interface(&netns, link.index, &name, rx, None)?,
            Some(program) => {
                let filter = make_filter_translator(&name, program)?;
                XdpMeter::open_on_interface(&netns, link.index, &name, rx, Some(&filter))?
            }
        };
        Ok(Self {
            rings,
            meter: InterfaceMeter::start(&netns, link.index)?,
            offset: clock::measure_realtime_offset(),
            stamp: stamp_kind_for(features),
            seen: 0,
            is_up: link.up,
            is_narrowed: options.filter.is_some(),
        })
    }

    /// Calls `sink` with the available headers, at most `most`; returns their number. Does not wait: the rings hold
    /// tens of milliseconds of the fastest traffic.
    pub fn receive_headers(&mut self, most: usize, sink: &mut dyn FnMut(HeaderRecord<'_>)) -> usize {
        let given = self.rings.receive_headers(most, &mut |frame| {
            sink(HeaderRecord {
                bytes: frame.bytes,
                is_record: frame.is_header,
                full_len: frame.full_len,
                at: MonoTime::from_nanos(frame.monotonic_ns),
            });
        });
        self.seen += given as u64;
        given
    }

    /// Stops receiving: later frames go to the kernel's stack uncounted. Headers in the rings are still delivered.
    pub fn stop_receiving(&mut self) -> Result<(), Error> {
        Ok(self.rings.stop_intake()?)
    }

    /// Returns how many frames were dropped so far because their ring was full.
    pub fn ring_dropped(&self) -> u64 {
        self.rings.dropped_frames()
    }

    /// Returns the counts of interface and rings. With a filter, the number of arrived frames is absent: the interface
    /// also counts frames that the filter rejects before the rings.
    pub fn read_counters(&mut self) -> RxCounters {
        let interface = self.meter.read_counters();
        RxCounters {
            arrived: interface.filter(|_| !self.is_narrowed).map(|counters| counters.rx_frames),
            dropped: interface.map(|counters| counters.rx_dropped),
            link_up: interface.map(|counters| counters.carrier),
            ring_dropped: self.rings.dropped_frames(),
            seen: self.seen,
            ..RxCounters::default()
        }
    }

    /// Returns the offset of the wall clock from the monotonic one when listening began.
    pub const fn offset(&self) -> RealtimeOffset {
        self.offset
    }

    pub const fn stamp(&self) -> StampKind {
        self.stamp
    }

    /// Returns whether the interface was up when listening began.
    pub const fn is_up(&self) -> bool {
        self.is_up
    }
}
