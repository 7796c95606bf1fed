//! The far end: the kernel's stamp of every frame of ours that arrives, from a ring that nobody reads while frames are under way.
//!
//! On a virtual cable whose far end neither merges nor has a program, the stamp is taken inside the sender's call, right behind the
//! driver (`net.core.netdev_tstamp_prequeue` is 1): it is the wire's. With merging, which live frames need, it is taken when the far end
//! gets its turn, which is later: such a cable is measured against itself.

use crate::frames::{self, Key};
use anyhow::ensure;
use packetrig_sys::clock;
use packetrig_sys::packet::{ArrivalStamp, RawFrame, RxOptions, RxRing};
use packetrig_sys::pcap::ClassicInsn;
use packetrig_testkit::lab::{INTERFACE, LabPort};

/// Frames are handed over this long after the first of a block.
const RETIRE_MS: u32 = 4;
/// What did not come within this time after the last one is lost.
const PATIENCE_NS: u64 = 60_000_000;
/// The machine's `net.core.netdev_tstamp_prequeue`, which is not seen from inside a lab.
const PREQUEUE: &str = "EVAL_PREQUEUE";

/// A frame that arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) key: Key,
    /// The kernel's stamp, nanoseconds of the monotonic clock.
    pub(crate) at: u64,
}

#[derive(Debug)]
pub(crate) struct Referee {
    ring: RxRing,
}

impl Referee {
    /// At a port, from now on.
    pub(crate) fn open(port: &LabPort) -> anyhow::Result<Self> {
        Self::open_filtered(port, RETIRE_MS, &frames::filter())
    }

    /// The same for echo requests over IPv4, whoever sends them.
    pub(crate) fn of_echo_requests(port: &LabPort, retire_ms: u32) -> anyhow::Result<Self> {
        Self::open_filtered(port, retire_ms, &frames::echo_request_filter())
    }

    fn open_filtered(port: &LabPort, retire_ms: u32, filter: &[ClassicInsn]) -> anyhow::Result<Self> {
        let prequeue = std::env::var(PREQUEUE).unwrap_or_else(|_| "1".to_owned());
        ensure!(
            prequeue == "1",
            "net.core.netdev_tstamp_prequeue is {prequeue}: arrival stamps would be late"
        );
        let options = RxOptions { retire_ms, blocks: 256, ..RxOptions::default() };
        let ring = RxRing::open_filtered(port.netns(), port.link.index, INTERFACE, options, filter)?;
        Ok(Self { ring })
    }

    /// What arrived since last time: `wanted` frames, or fewer when no more come. Only such with a stamp of the stack.
    pub(crate) fn collect(&mut self, wanted: usize) -> anyhow::Result<Vec<Seen>> {
        let mut seen = Vec::with_capacity(wanted);
        let mut deadline = clock::monotonic_ns() + PATIENCE_NS;
        while seen.len() < wanted && clock::monotonic_ns() < deadline {
            self.ring.wait_for_frames(1_000_000)?;
            let took = self.take(&mut seen);
            if took > 0 {
                deadline = clock::monotonic_ns() + PATIENCE_NS;
            }
        }
        Ok(seen)
    }

    /// Arrivals of whatever came to our port since last time, in order: `wanted` frames, or fewer when no more come.
    pub(crate) fn collect_all(&mut self, wanted: usize) -> anyhow::Result<Vec<u64>> {
        let mut arrivals = Vec::with_capacity(wanted);
        let mut deadline = clock::monotonic_ns() + PATIENCE_NS;
        while arrivals.len() < wanted && clock::monotonic_ns() < deadline {
            self.ring.wait_for_frames(1_000_000)?;
            let offset = clock::measure_realtime_offset();
            let take = &mut |frame: RawFrame<'_>| arrivals.push(offset.to_monotonic(frame.realtime_ns));
            if self.ring.receive_frames(usize::MAX, take) > 0 {
                deadline = clock::monotonic_ns() + PATIENCE_NS;
            }
        }
        Ok(arrivals)
    }

    /// Forgets what is there.
    pub(crate) fn clear(&mut self) {
        self.take(&mut Vec::new());
    }

    fn take(&mut self, seen: &mut Vec<Seen>) -> usize {
        let offset = clock::measure_realtime_offset();
        self.ring.receive_frames(usize::MAX, &mut |frame| {
            if frame.stamp == ArrivalStamp::Software
                && let Some(key) = frames::read(frame.bytes)
            {
                seen.push(Seen { key, at: offset.to_monotonic(frame.realtime_ns) });
            }
        })
    }
}
