//! The frame level: batches of frames in both directions, each with its time and the kind of that time.

pub use packetrig_plan::PortLocation;
pub use packetrig_sys::packet::{MergedFrame, RingDrain, RingProgress};

use packetrig_stats::port::{RxCounters, StampKind, TxCounters};
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::bpf::FilterProgram;

/// A worker's clock: real or virtual.
pub trait WorkerClock: Send {
    /// Returns the current time of the node's monotonic clock.
    fn now(&self) -> MonoTime;
    /// Returns at `until` or slightly earlier. Only the kernel's scheduler can make it return later.
    fn wait_until(&self, until: MonoTime);
}

/// An arrived frame without FCS, with its VLAN tags in place.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    pub bytes: &'a [u8],
    /// Length before the ring cut it; equal to `bytes.len()` unless the frame was too long for a slot.
    pub full_len: usize,
    /// Time of arrival, converted to the monotonic clock.
    pub at: MonoTime,
    /// The real-time clock's stamp that `at` was computed from, if the receiver delivers it. If that clock was set back
    /// to a time before the machine was booted, the stamp has no equivalent on the monotonic clock.
    pub realtime_ns: Option<u64>,
    pub stamp: StampKind,
    /// Whether this machine sent the frame.
    pub is_outgoing: bool,
    /// Set if the receiver knows that the frame is several packets on the wire.
    pub merged: Option<MergedFrame>,
}

impl<'a> RxFrame<'a> {
    /// Creates a frame that arrived as one packet.
    pub const fn single_packet(bytes: &'a [u8], full_len: usize, at: MonoTime, stamp: StampKind) -> Self {
        Self { bytes, full_len, at, realtime_ns: None, stamp, is_outgoing: false, merged: None }
    }
}

/// The transmit half of a port.
pub trait FrameTx: Send {
    /// Offers up to `want` free slots to `fill`, one after another. `fill` writes a frame and returns its
    /// length, or returns `None` to stop. Returns the number of slots filled; fewer than `want` means that
    /// the ring is full or `fill` stopped.
    fn fill_slots(&mut self, want: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> usize;
    /// Hands the filled slots to the kernel without waiting. Call it again while frames are pending.
    fn flush_frames(&mut self) -> Result<(), crate::Error>;
    /// Returns the number of filled frames that the kernel has neither taken nor refused.
    fn pending_frames(&self) -> usize;
    /// Reads the counters since the port was opened.
    fn read_tx_counters(&mut self) -> Result<TxCounters, crate::Error>;
}

/// The receive half of a port.
pub trait FrameRx: Send {
    /// Gives available frames to `sink`, at most `most`; returns their number. Does not wait.
    fn receive_frames(
        &mut self,
        most: usize,
        sink: &mut dyn FnMut(RxFrame<'_>),
    ) -> Result<usize, crate::Error>;
    /// Waits for a frame, at most this long.
    fn wait_for_frames(&mut self, within: Nanos) -> Result<(), crate::Error>;
    /// Reads the counters since the port was opened.
    fn read_rx_counters(&mut self) -> Result<RxCounters, crate::Error>;
    /// Returns how far the reader is behind the kernel: zeros where a frame can be read as soon as it arrives.
    fn ring_progress(&mut self) -> Result<RingProgress, crate::Error> {
        Ok(RingProgress::default())
    }
    /// Returns the largest uncertainty so far of converting an arrival stamp to the monotonic clock.
    fn clock_bound(&self) -> Nanos;
    /// Tells whether many frames are expected: without them, polling less often spares the processor.
    fn set_traffic_expectation(&mut self, expected: bool) {
        let _ = expected;
    }
    /// Requests only the frames that pass `program`; the port neither delivers nor counts other frames. The
    /// port may still deliver some frames that fail it. Returns whether this port can filter.
    fn filter_in_kernel(&mut self, program: &FilterProgram) -> Result<bool, crate::Error> {
        let _ = program;
        Ok(false)
    }
}
