//! The generic receive side of the stream level: every frame into one account, over any frame level.
//!
//! ```text
//!  frame -> tag? -> stream -> number -> as sent? -> window (new, late, duplicate, stale) -> latency, jitter, series
//!            no -> a stream that is expected elsewhere? -> misdelivered
//!            no -> a frame of another run? -> other runs
//!            no -> headers of one of our streams? -> unnumbered : of the devices' protocols? -> protocol : foreign
//! ```
//! Invariant: frames seen = frames recognised + unnumbered + misdelivered + other runs + protocol + foreign.

mod books;
mod elsewhere;
mod lane;
mod other_runs;

use crate::Error;
use crate::port::FrameRx;
use crate::stream::{
    ClockShift, NextStep, ReceivedFrames, RxJob, SteeredReceiver, StreamControl, StreamRx, StreamSpec,
};
use crate::take::Take;
use books::{ReceiverState, place_of};
use lane::ReceiverLane;
use packetrig_stats::counts::StreamRxCounts;
use packetrig_stats::latency::Latency;
use packetrig_stats::port::RxCounters;
use packetrig_units::{MonoTime, Nanos};
use std::sync::Arc;

/// Frames taken in per step at most.
const BATCH: usize = 256;
/// Before something arrives, look again after this long.
const IDLE: Nanos = Nanos::from_millis(5);

pub struct TestReceiver<R> {
    port: R,
    books: Option<ReceiverState>,
}

impl<R> std::fmt::Debug for TestReceiver<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestReceiver").field("armed", &self.books.is_some()).finish_non_exhaustive()
    }
}

impl<R: FrameRx> TestReceiver<R> {
    /// A receiver on `port`.
    pub fn new(port: R) -> Self {
        Self { port, books: None }
    }

    fn lanes(&self) -> impl Iterator<Item = &ReceiverLane> {
        self.books.iter().flat_map(|books| &books.lanes)
    }
}

impl<R: FrameRx> StreamRx for TestReceiver<R> {
    fn arm(&mut self, job: RxJob) -> Result<(), Error> {
        let mut job = job;
        // A filter in front of the ring is possible only with a single capture: of two, each would miss what the
        // other does not want.
        if let [tap] = &mut job.taps[..]
            && let Some(program) = tap.narrowing()
            && self.port.narrow(program)?
        {
            tap.filtered_before();
        }
        let books = ReceiverState::open(job);
        self.port.expect_traffic(books.is_needed_often());
        self.books = Some(books);
        Ok(())
    }

    fn control(&mut self, control: StreamControl) {
        if let (StreamControl::StartAt(start), Some(books)) = (control, &mut self.books) {
            books.start = start;
        }
    }

    fn shift(&mut self, shifts: &[(u16, ClockShift)]) {
        let Some(books) = &mut self.books else { return };
        for (number, shift) in shifts {
            if let Some(lane) = place_of(&books.lane_of, *number) {
                books.lanes[lane].shift = Some(*shift);
            }
        }
    }

    fn steering(&mut self) -> Option<&mut dyn SteeredReceiver> {
        Some(self)
    }

    fn step(&mut self, now: MonoTime) -> Result<NextStep, Error> {
        let Some(books) = &mut self.books else { return Ok(NextStep::IdleUntil(now + IDLE)) };
        let taken = self.port.receive(BATCH, &mut |frame| books.take(frame))?;
        books.attend_taps(&mut self.port, now, taken == 0)?;
        Ok(if taken > 0 { NextStep::Busy } else { NextStep::IdleUntil(now + IDLE) })
    }

    fn wait(&mut self, within: Nanos) -> Result<(), Error> {
        self.port.wait(within)
    }

    fn counts(&self) -> Vec<StreamRxCounts> {
        self.lanes().map(ReceiverLane::live_counts).collect()
    }

    fn latency_so_far(&self) -> Option<(Nanos, Nanos, Nanos)> {
        let timed = || self.lanes().filter(|lane| lane.spec.latency).map(|lane| &lane.latency);
        let samples: u64 = timed().map(Latency::count).sum();
        // Weighted by count, in 128 bits: a sum of nanoseconds over billions of frames does not fit 64.
        let total: u128 =
            timed().filter_map(|l| Some(u128::from(l.mean()?.as_u64()) * u128::from(l.count()))).sum();
        let mean = u64::try_from(total.checked_div(samples.into())?).unwrap_or(u64::MAX);
        Some((
            timed().filter_map(Latency::min).min()?,
            Nanos::new(mean),
            timed().filter_map(Latency::max).max()?,
        ))
    }

    fn port_counters(&mut self) -> Result<RxCounters, Error> {
        let counters = self.port.counters()?;
        for tap in self.books.iter_mut().flat_map(|books| &mut books.taps) {
            tap.ring_dropped(counters.ring_dropped);
        }
        Ok(self.books.as_ref().map_or(counters, |books| books.add_to(counters)))
    }

    fn clock_bound(&self) -> Nanos {
        self.port.clock_bound()
    }

    fn finish(&mut self, sent: &[u64]) -> ReceivedFrames {
        self.books.take().map_or_else(ReceivedFrames::default, |books| books.finish(sent))
    }
}

impl<R: FrameRx> SteeredReceiver for TestReceiver<R> {
    fn announce(&mut self, takes: &[(u16, Take)]) {
        if let Some(books) = &mut self.books {
            books.announce(takes);
        }
    }

    fn add(&mut self, streams: Vec<Arc<StreamSpec>>, elsewhere: Vec<Arc<StreamSpec>>) {
        if let Some(books) = &mut self.books {
            books.add(streams, elsewhere);
        }
    }
}
