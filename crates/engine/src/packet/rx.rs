//! The receive half: frames from the ring, with their stamps converted to the monotonic clock.

use super::facts::InterfaceMeter;
use super::filter;
use crate::Error;
use crate::port::{FrameRx, RingProgress, RxFrame};
use packetrig_stats::port::{RxCounters, StampKind};
use packetrig_sys::clock::{self, RealtimeOffset};
use packetrig_sys::packet::{ArrivalStamp, RxRing};
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::bpf::FilterProgram;

/// Time limit for emptying the ring between two runs; after it the port is closed and opened again.
const RING_DRAIN_TIMEOUT_NS: u64 = 20_000_000;

/// The receive half of a port on AF_PACKET rings.
#[derive(Debug)]
pub struct PacketRx {
    ring: RxRing,
    meter: InterfaceMeter,
    converter: StampConverter,
    seen: u64,
    /// Whether a kernel filter drops frames before the ring, where nothing counts them.
    is_narrowed: bool,
}

impl PacketRx {
    pub(super) fn new(ring: RxRing, meter: InterfaceMeter) -> Self {
        Self {
            ring,
            meter,
            converter: StampConverter::new(clock::measure_realtime_offset()),
            seen: 0,
            is_narrowed: false,
        }
    }

    /// Resets the half for another run. Returns `false` if it cannot be used again.
    pub(super) fn reset_for_run(&mut self) -> Result<bool, Error> {
        // A kernel filter cannot be removed, and the frames it drops would be missing in the ring.
        if self.is_narrowed {
            return Ok(false);
        }
        // The counters are read twice, as at opening: frames that arrive while the ring is emptied count as arrived
        // only if the ring has them.
        self.meter.restart_interface_counts()?;
        if !self.ring.restart_ring(RING_DRAIN_TIMEOUT_NS)? {
            return Ok(false);
        }
        self.meter.restart_interface_counts()?;
        // The uncertainty of the earlier run does not apply to the next one.
        self.converter = StampConverter::new(clock::measure_realtime_offset());
        self.seen = 0;
        Ok(true)
    }
}

impl FrameRx for PacketRx {
    fn receive_frames(&mut self, most: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> Result<usize, Error> {
        // One offset serves the batch. It changes only when the counters are read.
        let offset = self.converter.offset;
        let given = self.ring.receive_frames(most, &mut |frame| {
            sink(RxFrame::single_packet(
                frame.bytes,
                frame.full_len,
                MonoTime::from_nanos(offset.to_monotonic(frame.realtime_ns)),
                match frame.stamp {
                    ArrivalStamp::Hardware => StampKind::Hardware,
                    ArrivalStamp::Software | ArrivalStamp::Ring => StampKind::Software,
                },
            ));
        });
        self.seen += given as u64;
        Ok(given)
    }

    fn wait_for_frames(&mut self, within: Nanos) -> Result<(), Error> {
        Ok(self.ring.wait_for_frames(within.as_u64())?)
    }

    fn read_rx_counters(&mut self) -> Result<RxCounters, Error> {
        self.converter.update_offset(clock::measure_realtime_offset());
        let ring = self.ring.read_stats()?;
        let interface = self.meter.read_counters();
        Ok(RxCounters {
            // Nothing counts the frames that the kernel filter drops, so the interface's count cannot be
            // compared with the ring's.
            arrived: interface
                .filter(|_| !self.is_narrowed)
                .map(|counters| self.meter.arrived_frames(&counters, self.seen + ring.dropped)),
            dropped: interface.map(|counters| counters.rx_dropped),
            link_up: interface.map(|counters| counters.carrier),
            ring_dropped: ring.dropped,
            seen: self.seen,
            ..RxCounters::default()
        })
    }

    fn ring_progress(&mut self) -> Result<RingProgress, Error> {
        Ok(self.ring.read_progress()?)
    }

    fn clock_bound(&self) -> Nanos {
        Nanos::new(self.converter.bound_ns)
    }

    fn filter_in_kernel(&mut self, program: &FilterProgram) -> Result<bool, Error> {
        self.is_narrowed = self.ring.narrow_to_filter(&filter::build_kernel_filter(Some(program), None))?;
        Ok(self.is_narrowed)
    }
}

/// Converts stamps of the real-time clock. The offset of this clock from the monotonic clock drifts
/// while NTP steers it.
#[derive(Debug)]
struct StampConverter {
    offset: RealtimeOffset,
    bound_ns: u64,
}

impl StampConverter {
    fn new(offset: RealtimeOffset) -> Self {
        Self { offset, bound_ns: offset.bound_ns }
    }

    /// Replaces the offset by a new measurement. Frames since the last measurement were converted with the old offset,
    /// so the change is part of their uncertainty.
    fn update_offset(&mut self, next: RealtimeOffset) {
        // The largest uncertainty of the whole run is kept: the report has one number per port, and it must
        // hold for every frame.
        let drift = next.offset_ns.abs_diff(self.offset.offset_ns);
        let doubt = self.offset.bound_ns.max(next.bound_ns);
        self.bound_ns = self.bound_ns.max(doubt + drift);
        self.offset = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_clock_drift_or_step_widens_stamp_bound() {
        let mut converter = StampConverter::new(RealtimeOffset { offset_ns: 1_000_000, bound_ns: 50 });
        assert_eq!(converter.bound_ns, 50);
        converter.update_offset(RealtimeOffset { offset_ns: 1_000_030, bound_ns: 40 });
        assert_eq!(converter.bound_ns, 80);
        converter.update_offset(RealtimeOffset { offset_ns: 1_009_030, bound_ns: 40 });
        assert_eq!(converter.bound_ns, 9_040);
        converter.update_offset(RealtimeOffset { offset_ns: 1_009_030, bound_ns: 40 });
        assert_eq!(converter.bound_ns, 9_040, "frames of that interval are in the result");
        assert_eq!(converter.offset.to_monotonic(1_009_031), 1);
    }
}
