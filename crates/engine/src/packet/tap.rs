//! Listens on an interface for captures, without reserving it.
//!
//! This tap does not lock or guard the interface and does not make it quiet. The only change is promiscuous
//! mode, which ends with the socket. The filter runs in the kernel, so that an unwanted frame costs nothing.
//! It sees frames without the VLAN tag that the kernel removed; therefore the kernel passes all tagged
//! frames, and they are filtered here with their tag in place.
//!
//! Invariant: a frame is delivered if and only if the filter accepts it as it was on the wire.

use super::facts::InterfaceMeter;
use super::filter;
use crate::Error;
use crate::port::{FrameRx, RingProgress, RxFrame};
use packetrig_plan::PortLocation;
use packetrig_stats::port::{RxCounters, StampKind};
use packetrig_sys::clock::{self, RealtimeOffset};
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::{ArrivalStamp, RxOptions, RxRing, RxStats};
use packetrig_units::{MonoTime, Nanos, clamp_to_u32};
use packetrig_wire::bpf::FilterProgram;

/// Usual number of blocks of a ring; a block has 64 KiB.
pub const TAP_RING_BLOCKS: u32 = 1024;
const BLOCK_RETIRE_TIMEOUT_MS: u32 = 10;
/// `EINVAL`.
const EINVAL_ERRNO: i32 = 22;

#[derive(Clone, Debug)]
pub struct TapOptions {
    /// Filter of the frames to deliver; `None` delivers all.
    pub filter: Option<FilterProgram>,
    /// Number of bytes that the caller needs of each frame. Frames may be longer.
    pub snap_len: Option<u32>,
    /// Also receive frames for other stations.
    pub promiscuous: bool,
    /// Also deliver frames that this machine sends.
    pub outgoing: bool,
    /// Blocks of the ring, of 64 KiB each; usually [`TAP_RING_BLOCKS`].
    pub blocks: u32,
}

/// An open tap on an interface.
#[derive(Debug)]
pub struct PacketTap {
    ring: RxRing,
    meter: InterfaceMeter,
    /// Offset of the wall clock, measured once. It never changes, so converting a time back to the wall clock yields
    /// the kernel's stamp to the nanosecond.
    offset: RealtimeOffset,
    filter: Option<FilterProgram>,
    in_kernel: bool,
    is_up: bool,
    seen: u64,
}

impl PacketTap {
    /// Starts to listen on the interface at this location.
    pub fn open_interface(location: &PortLocation, options: TapOptions) -> Result<Self, Error> {
        let mut taps = Self::open_fanout_rings(location, options, 1)?;
        taps.pop().ok_or(Error::Bug("no ring was opened"))
    }

    /// Starts to listen with `count` rings that share the frames by flow: both directions of a flow are in one ring.
    pub fn open_fanout_rings(
        location: &PortLocation,
        options: TapOptions,
        count: usize,
    ) -> Result<Vec<Self>, Error> {
        let name = location.to_string();
        let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref())?;
        let link = NamespaceLinks::open_in(&netns)?.find_link_by_name(&location.interface)?;
        let ring = RxOptions {
            blocks: options.blocks,
            retire_ms: BLOCK_RETIRE_TIMEOUT_MS,
            promiscuous: options.promiscuous,
            // A socket sees each frame on the loopback interface twice, leaving and arriving. The tap delivers it once.
            outgoing: options.outgoing && !link.loopback,
            merges: true,
            ..RxOptions::default()
        };
        let code = filter::build_kernel_filter(options.filter.as_ref(), options.snap_len);
        let mut in_kernel = !code.is_empty();
        let rings = match RxRing::open_fanout_rings(&netns, link.index, &name, ring, &code, count) {
            // The kernel rejects some programs that libpcap compiles; the filter then runs here.
            Err(error) if in_kernel && error.errno() == Some(EINVAL_ERRNO) => {
                in_kernel = false;
                RxRing::open_fanout_rings(&netns, link.index, &name, ring, &[], count)?
            }
            opened => opened?,
        };
        let offset = clock::measure_realtime_offset();
        let taps = rings.into_iter().map(|ring| {
            let meter = InterfaceMeter::start(&netns, link.index)?;
            let filter = options.filter.clone();
            Ok(Self { ring, meter, offset, filter, in_kernel, is_up: link.up, seen: 0 })
        });
        taps.collect()
    }

    /// Stops receiving. The frames in the ring are delivered within [`PacketTap::MAX_DELIVERY_DELAY`].
    pub fn stop_receiving(&mut self) -> Result<(), Error> {
        Ok(self.ring.stop_intake()?)
    }

    /// Upper bound of the time until a frame that is in the ring is delivered.
    pub const MAX_DELIVERY_DELAY: Nanos = Nanos::from_millis(BLOCK_RETIRE_TIMEOUT_MS as u64 * 2);

    /// Returns the counters of the ring.
    pub fn ring_stats(&mut self) -> Result<RxStats, Error> {
        Ok(self.ring.read_stats()?)
    }

    /// Returns the offset of the wall clock from the monotonic one, with which the times of frames were computed.
    pub fn offset(&self) -> RealtimeOffset {
        self.offset
    }

    /// Returns whether the interface was up when listening began.
    pub fn is_up(&self) -> bool {
        self.is_up
    }
}

impl FrameRx for PacketTap {
    fn receive_frames(&mut self, most: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> Result<usize, Error> {
        let Self { ring, offset, filter, in_kernel, .. } = self;
        let mut passed = 0;
        let taken = ring.receive_frames(most, &mut |frame| {
            // Only the kernel's filter truncates frames, and only frames that pass it.
            let is_decided = *in_kernel && frame.bytes.len() < frame.full_len;
            let full_len = clamp_to_u32(frame.full_len);
            if !is_decided
                && filter
                    .as_ref()
                    .is_some_and(|filter| !filter.matches_truncated_frame(frame.bytes, full_len))
            {
                return;
            }
            passed += 1;
            sink(RxFrame {
                bytes: frame.bytes,
                full_len: frame.full_len,
                at: MonoTime::from_nanos(offset.to_monotonic(frame.realtime_ns)),
                realtime_ns: Some(frame.realtime_ns),
                stamp: match frame.stamp {
                    ArrivalStamp::Hardware => StampKind::Hardware,
                    ArrivalStamp::Software | ArrivalStamp::Ring => StampKind::Software,
                },
                is_outgoing: frame.is_outgoing,
                merged: frame.merged,
            });
        });
        self.seen += passed;
        // Counts rejected frames too: with 0 the caller would conclude that the ring is empty.
        Ok(taken)
    }

    fn wait_for_frames(&mut self, within: Nanos) -> Result<(), Error> {
        Ok(self.ring.wait_for_frames(within.as_u64())?)
    }

    fn read_rx_counters(&mut self) -> Result<RxCounters, Error> {
        let ring = self.ring.read_stats()?;
        let interface = self.meter.read_counters();
        Ok(RxCounters {
            arrived: interface.map(|counters| counters.rx_frames),
            dropped: interface.map(|counters| counters.rx_dropped),
            ring_dropped: ring.dropped,
            seen: self.seen,
            ..RxCounters::default()
        })
    }

    fn ring_progress(&mut self) -> Result<RingProgress, Error> {
        Ok(self.ring.read_progress()?)
    }

    fn clock_bound(&self) -> Nanos {
        Nanos::new(self.offset.bound_ns)
    }
}
