//! The receive half: frames from the program's rings, already stamped with the monotonic clock.

use super::tap::translate_filter;
use crate::Error;
use crate::packet::InterfaceMeter;
use crate::port::{FrameRx, RxFrame};
use packetrig_stats::port::{RxCounters, StampKind};
use packetrig_sys::clock;
use packetrig_sys::xdp::rx::XdpRx;
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::bpf::FilterProgram;

/// Polling interval while nothing arrives. The rings hold tens of milliseconds of the fastest traffic, and the program
/// stamps arrivals, so nothing depends on a fast reaction.
const POLL_INTERVAL: Nanos = Nanos::from_millis(1);
/// Polling interval on a port where no frames are expected. Even then the rings have room for a
/// flood of misdelivered frames.
const IDLE_POLL_INTERVAL: Nanos = Nanos::from_millis(5);

/// The receive half of a port on XDP.
#[derive(Debug)]
pub struct XdpFrameReceiver {
    rings: XdpRx,
    meter: InterfaceMeter,
    stamp: StampKind,
    seen: u64,
    is_narrowed: bool,
    look_again: Nanos,
}

impl XdpFrameReceiver {
    /// Creates the half. `stamp` is the kind of its stamps: made in the driver or in the kernel's generic path.
    pub(crate) fn new(rings: XdpRx, meter: InterfaceMeter, stamp: StampKind) -> Self {
        Self { rings, meter, stamp, seen: 0, is_narrowed: false, look_again: POLL_INTERVAL }
    }

    /// Stops receiving: later frames go to the kernel's stack.
    pub(super) fn stop_receiving(&mut self) -> Result<(), Error> {
        Ok(self.rings.stop_intake()?)
    }

    /// Returns how many frames were dropped so far because their ring was full.
    pub(super) fn ring_dropped(&self) -> u64 {
        self.rings.dropped_frames()
    }
}

impl FrameRx for XdpFrameReceiver {
    fn receive_frames(&mut self, most: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> Result<usize, Error> {
        let stamp = self.stamp;
        let given = self.rings.receive_frames(most, &mut |frame| {
            sink(RxFrame::single_packet(
                frame.bytes,
                frame.full_len,
                MonoTime::from_nanos(frame.monotonic_ns),
                stamp,
            ));
        });
        self.seen += given as u64;
        Ok(given)
    }

    fn wait_for_frames(&mut self, within: Nanos) -> Result<(), Error> {
        // The rings are polled: they hold much more than arrives in this time.
        clock::sleep_until_ns(clock::monotonic_ns() + within.min(self.look_again).as_u64());
        Ok(())
    }

    fn read_rx_counters(&mut self) -> Result<RxCounters, Error> {
        let interface = self.meter.read_counters();
        let ring_dropped = self.rings.dropped_frames();
        Ok(RxCounters {
            // The interface also counts the frames that a filter rejects before the rings.
            arrived: interface
                .filter(|_| !self.is_narrowed)
                .map(|counters| self.meter.arrived_frames(&counters, self.seen + ring_dropped)),
            dropped: interface.map(|counters| counters.rx_dropped),
            link_up: interface.map(|counters| counters.carrier),
            ring_dropped,
            seen: self.seen,
            ..RxCounters::default()
        })
    }

    fn clock_bound(&self) -> Nanos {
        Nanos::ZERO
    }

    fn set_traffic_expectation(&mut self, expected: bool) {
        self.look_again = if expected { POLL_INTERVAL } else { IDLE_POLL_INTERVAL };
    }

    fn filter_in_kernel(&mut self, program: &FilterProgram) -> Result<bool, Error> {
        // Whether the filter can be translated does not depend on the code that follows it.
        if translate_filter(program, &[], &[]).is_err() {
            return Ok(false);
        }
        self.rings.narrow_to_filter(&|wanted, others| {
            translate_filter(program, wanted, others).unwrap_or_default()
        })?;
        self.is_narrowed = true;
        Ok(true)
    }
}
