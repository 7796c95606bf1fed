//! The frame level: batches of frames to send, and received frames with arrival time and kind of timestamp.

pub use packetrig_plan::PortLocation;
pub use packetrig_sys::packet::{MergedFrame, RingDrainTarget, RingProgress};

use packetrig_stats::port::{RxCounters, StampKind, TxCounters};
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::bpf::FilterProgram;

/// A worker's clock: real or virtual.
pub trait WorkerClock: Send {
    /// Returns the current time of the node's monotonic clock.
    fn now(&self) -> MonoTime;
    /// Waits until about `until`. May return earlier (virtual time does not wait), so the caller checks the time again.
    /// Returns later only if the kernel's scheduler delays the thread.
    fn wait_until(&self, until: MonoTime);
}

/// An arrived frame without FCS, with its VLAN tags in place.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    pub bytes: &'a [u8],
    /// Length of the frame before the ring cut it; equal to `bytes.len()` unless the frame was too long for a slot.
    pub full_len: usize,
    /// Time of arrival, converted to the monotonic clock.
    pub at: MonoTime,
    /// Arrival time on the real-time clock, from which `at` was computed; `None` if the back end does not deliver it.
    /// Kept because the conversion loses times before the boot, which a clock that was set back may show.
    pub realtime_ns: Option<u64>,
    pub stamp: StampKind,
    /// Whether this machine sent the frame.
    pub is_outgoing: bool,
    /// Set if the receiver knows that the frame was merged from several packets on the wire.
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
    /// Returns the number of filled slots whose frames the kernel has neither accepted nor refused.
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
    /// Waits until a frame arrives, but not longer than `within`.
    fn wait_for_frames(&mut self, within: Nanos) -> Result<(), crate::Error>;
    /// Reads the counters since the port was opened.
    fn read_rx_counters(&mut self) -> Result<RxCounters, crate::Error>;
    /// Returns how far the reader is behind the kernel: zeros where a frame can be read as soon as it arrives.
    fn ring_progress(&mut self) -> Result<RingProgress, crate::Error> {
        Ok(RingProgress::default())
    }
    /// Returns the largest uncertainty so far of converting an arrival stamp to the monotonic clock.
    fn clock_bound(&self) -> Nanos;
    /// Sets whether many frames are expected. If not, the port may poll less often, which saves processor time.
    fn set_traffic_expectation(&mut self, expected: bool) {
        let _ = expected;
    }
    /// Makes the kernel discard frames that fail `program`, without counting them. Some of these frames may still
    /// be delivered. Returns false if this port cannot filter; then all frames are delivered.
    fn filter_in_kernel(&mut self, program: &FilterProgram) -> Result<bool, crate::Error> {
        let _ = program;
        Ok(false)
    }
}
