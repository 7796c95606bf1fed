//! The frame level: batches of frames in and out, each with its time and the kind of that time.

pub use packetrig_plan::PortLocation;
pub use packetrig_sys::packet::{MergedFrame, RingProgress, RingRest};

use packetrig_stats::port::{RxCounters, StampKind, TxCounters};
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::bpf::FilterProgram;

/// A worker's clock: real or virtual.
pub trait WorkerClock: Send {
    /// Now, on the node's monotonic clock.
    fn now(&self) -> MonoTime;
    /// Returns at `until` or a little before; never much after by its own doing.
    fn wait(&self, until: MonoTime);
}

/// An arrived frame, without FCS, VLAN tags in place.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    pub bytes: &'a [u8],
    /// Bytes it had before the ring cut it, equal to `bytes.len()` unless it was too long for a slot.
    pub full_len: usize,
    /// When it arrived, converted to the monotonic clock.
    pub at: MonoTime,
    pub stamp: StampKind,
    /// Whether this machine sent it.
    pub is_outgoing: bool,
    /// Set if it is several packets on the wire, where the receiver knows that.
    pub merged: Option<MergedFrame>,
}

impl<'a> RxFrame<'a> {
    /// A frame that arrived, as it was on the wire.
    pub const fn single(bytes: &'a [u8], full_len: usize, at: MonoTime, stamp: StampKind) -> Self {
        Self { bytes, full_len, at, stamp, is_outgoing: false, merged: None }
    }
}

/// The transmit half of a port.
pub trait FrameTx: Send {
    /// Offers up to `want` free slots, one after another, to `fill`, which writes a frame and returns its length, or
    /// `None` to stop. Returns the number of slots filled; fewer than asked means the ring is full.
    fn fill(&mut self, want: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> usize;
    /// Hands what was filled to the kernel, without waiting. Call again while frames are pending.
    fn flush(&mut self) -> Result<(), crate::Error>;
    /// Frames filled and not yet taken or refused.
    fn pending(&self) -> usize;
    /// Counters since the port was opened.
    fn counters(&mut self) -> Result<TxCounters, crate::Error>;
}

/// The receive half of a port.
pub trait FrameRx: Send {
    /// Gives every frame at hand to `sink`, at most `most`; returns how many. Does not wait.
    fn receive(&mut self, most: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> Result<usize, crate::Error>;
    /// Waits for a frame, at most until `within` has passed.
    fn wait(&mut self, within: Nanos) -> Result<(), crate::Error>;
    /// Counters since the port was opened.
    fn counters(&mut self) -> Result<RxCounters, crate::Error>;
    /// How far the reader is behind the kernel. Nothing lies between them where a frame can be read as soon as it is there.
    fn progress(&mut self) -> Result<RingProgress, crate::Error> {
        Ok(RingProgress::default())
    }
    /// Largest doubt so far of converting an arrival stamp to the monotonic clock.
    fn clock_bound(&self) -> Nanos;
    /// Whether many frames are expected: without them, looking less often spares the processor.
    fn expect_traffic(&mut self, expected: bool) {
        let _ = expected;
    }
    /// Asks for frames only that pass `program`; what is kept back is seen and counted by nobody. Some that do not
    /// pass may be given all the same. Says whether that can be done here.
    fn narrow(&mut self, program: &FilterProgram) -> Result<bool, crate::Error> {
        let _ = program;
        Ok(false)
    }
}
