//! The generic receiver, for every back end that delivers frames: counts each frame in exactly one class.
//!
//! ```text
//!  frame -> tag? -> stream -> number -> as sent? -> window (new, late, duplicate, stale) -> latency, jitter, series
//!            no -> a stream that is expected elsewhere? -> misdelivered
//!            no -> a frame of another run? -> other runs
//!            no -> headers of one of our streams? -> unnumbered : of the devices' protocols? -> protocol : foreign
//! ```
//! Invariant: frames seen = frames recognised + unnumbered + misdelivered + other runs + protocol + foreign.

mod elsewhere;
mod lane;
mod other_runs;
mod send_times;
mod state;

use crate::Error;
use crate::port::{FrameRx, RingProgress};
use crate::segment::StreamSegment;
use crate::stream::{
    ClockShift, NextStep, ReceivedFrames, RxJob, SteeredReceiver, StreamControl, StreamRx, StreamSpec,
};
use lane::ReceiverStreamState;
use packetrig_stats::counts::{DelaySummary, StreamRxCounts};
use packetrig_stats::latency::Latency;
use packetrig_stats::port::RxCounters;
use packetrig_units::{MonoTime, Nanos};
use state::{ReceiverState, find_stream_index};
use std::sync::Arc;

/// Maximum number of frames received per step.
const MAX_FRAMES_PER_STEP: usize = 256;
/// Longest wait between two steps while nothing arrives.
const MAX_IDLE_WAIT: Nanos = Nanos::from_millis(5);

pub struct TestReceiver<R> {
    port: R,
    state: Option<ReceiverState>,
}

impl<R> std::fmt::Debug for TestReceiver<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestReceiver").field("armed", &self.state.is_some()).finish_non_exhaustive()
    }
}

impl<R: FrameRx> TestReceiver<R> {
    /// Creates a receiver on `port`.
    pub fn new(port: R) -> Self {
        Self { port, state: None }
    }

    fn lanes(&self) -> impl Iterator<Item = &ReceiverStreamState> {
        self.state.iter().flat_map(|state| &state.lanes)
    }

    /// Returns the latencies of the streams whose latency is measured.
    fn measured_latencies(&self) -> impl Iterator<Item = &Latency> {
        self.lanes().filter(|lane| lane.spec.latency).map(|lane| &lane.latency)
    }
}

impl<R: FrameRx> StreamRx for TestReceiver<R> {
    fn arm_receiver(&mut self, job: RxJob) -> Result<(), Error> {
        let mut job = job;
        // A filter before the ring is possible only with a single capture: with two captures, each would miss
        // frames that only the other one wants.
        if let [tap] = &mut job.taps[..]
            && let Some(program) = tap.ring_filter()
            && self.port.filter_in_kernel(program)?
        {
            tap.mark_filtered_before_ring();
        }
        let state = ReceiverState::from_job(job);
        self.port.set_traffic_expectation(state.needs_frequent_reads());
        self.state = Some(state);
        Ok(())
    }

    fn apply_control(&mut self, control: StreamControl) {
        // A stop concerns senders only: receivers continue until they are finished.
        if let (StreamControl::StartAt(start), Some(state)) = (control, &mut self.state) {
            state.start = start;
        }
    }

    fn set_clock_shifts(&mut self, shifts: &[(u16, ClockShift)]) {
        let Some(state) = &mut self.state else { return };
        for (number, shift) in shifts {
            if let Some(lane) = find_stream_index(&state.lane_of, *number) {
                state.lanes[lane].shift = Some(*shift);
            }
        }
    }

    fn steered_receiver(&mut self) -> Option<&mut dyn SteeredReceiver> {
        Some(self)
    }

    fn receive_arrivals(&mut self, now: MonoTime) -> Result<NextStep, Error> {
        let Some(state) = &mut self.state else { return Ok(NextStep::IdleUntil(now + MAX_IDLE_WAIT)) };
        let taken = self.port.receive_frames(MAX_FRAMES_PER_STEP, &mut |frame| state.on_frame(frame))?;
        state.update_captures(&mut self.port, now, taken == 0)?;
        Ok(if taken > 0 { NextStep::Busy } else { NextStep::IdleUntil(now + MAX_IDLE_WAIT) })
    }

    fn wait_for_frames(&mut self, within: Nanos) -> Result<(), Error> {
        self.port.wait_for_frames(within)
    }

    fn ring_progress(&mut self) -> Result<RingProgress, Error> {
        self.port.ring_progress()
    }

    fn stream_counts(&self) -> Vec<StreamRxCounts> {
        self.lanes().map(ReceiverStreamState::live_counts).collect()
    }

    fn current_latency(&self) -> DelaySummary {
        let mut all = DelaySummary::default();
        self.measured_latencies().for_each(|latency| all.merge(&latency.summary()));
        all
    }

    fn port_counters(&mut self) -> Result<RxCounters, Error> {
        let counters = self.port.read_rx_counters()?;
        // The counters were read anyway, so the captures get the latest value.
        for tap in self.state.iter_mut().flat_map(|state| &mut state.taps) {
            tap.on_ring_dropped(counters.ring_dropped);
        }
        Ok(self.state.as_ref().map_or(counters, |state| state.with_receiver_counts(counters)))
    }

    fn clock_bound(&self) -> Nanos {
        self.port.clock_bound()
    }

    fn finish_receiving(&mut self, sent: &[u64]) -> ReceivedFrames {
        self.state.take().map_or_else(ReceivedFrames::default, |state| state.into_received(sent))
    }
}

impl<R: FrameRx> SteeredReceiver for TestReceiver<R> {
    fn announce_segments(&mut self, segments: &[(u16, StreamSegment)]) {
        if let Some(state) = &mut self.state {
            state.announce_segments(segments);
        }
    }

    fn add_streams(&mut self, streams: Vec<Arc<StreamSpec>>, elsewhere: Vec<Arc<StreamSpec>>) {
        if let Some(state) = &mut self.state {
            state.add_streams(streams, elsewhere);
        }
    }
}
