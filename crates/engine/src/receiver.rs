//! The generic receive side of the stream level: every frame into one account, over any frame level.
//!
//! ```text
//!  frame -> tag? -> stream -> number -> as sent? -> window (new, late, duplicate, stale) -> latency, jitter, series
//!            no -> headers of one of our streams? -> unnumbered : foreign
//! ```
//! Invariant: frames seen = frames recognised + unnumbered + foreign.

use crate::Error;
use crate::capture::Tap;
use crate::port::{FrameRx, RxFrame};
use crate::stream::{Control, RxJob, Source, Step, StreamRx, StreamSpec};
use packetrig_stats::counts::StreamRxCounts;
use packetrig_stats::jitter::Jitter;
use packetrig_stats::latency::Latency;
use packetrig_stats::port::RxCounters;
use packetrig_stats::result::ReceiveResult;
use packetrig_stats::sequence::{Arrival, SequenceWindow};
use packetrig_stats::series::RateSeries;
use packetrig_units::{FrameSize, MonoTime, Nanos};
use packetrig_wire::tag::{self, Found, TagKey};
use packetrig_wire::{Template, Verdict, foreign};
use std::sync::Arc;

/// Frames taken in per step at most.
const BATCH: usize = 256;
/// Streams whose headers a frame without a tag is compared with; comparing with thousands would cost us the next frames.
const MOST_COMPARED: usize = 64;
/// Up to this many streams, latency is kept to three digits; beyond, to two, which takes a seventh of the memory.
const FINE_STREAMS: usize = 256;
/// Before something arrives, look again after this long.
const IDLE: Nanos = Nanos::from_millis(5);

struct Lane {
    spec: Arc<StreamSpec>,
    window: SequenceWindow,
    counts: StreamRxCounts,
    latency: Latency,
    jitter: Jitter,
    series: RateSeries,
}

impl Lane {
    fn new(spec: Arc<StreamSpec>, streams: usize) -> Self {
        let digits = if streams <= FINE_STREAMS { 3 } else { 2 };
        Self {
            window: SequenceWindow::new(),
            counts: StreamRxCounts::default(),
            latency: Latency::with_digits(digits),
            jitter: Jitter::default(),
            series: RateSeries::with_room(spec.series_room(streams)),
            spec,
        }
    }

    /// Which frame a tag says this is, and whether it is as sent; `None` if it is no tag of this stream.
    fn compare(&self, key: TagKey, found: Found, bytes: &[u8], scratch: &mut [u8]) -> Option<Known> {
        let number = self.window.unwrap(found.tag.sequence, found.tag.form.sequence_bits());
        let verdict = match &self.spec.source {
            Source::Made(template) => template.verify(number, key, &found, bytes, scratch),
            Source::Recorded(_) => foreign::verify(bytes, &found)?,
        };
        Some(Known { found, number, verdict })
    }

    fn take(&mut self, known: &Known, frame: &RxFrame<'_>) {
        let Self { window, spec, .. } = self;
        let arrival = window.arrive(known.number, |number| spec.second_of(number));
        self.counts.frames += 1;
        self.counts.bytes += u64::from(FrameSize::from_kernel_len(frame.full_len).bytes());
        self.counts.first.get_or_insert(frame.at);
        self.counts.last = Some(frame.at);
        if arrival == Arrival::Stale {
            // Its number may be wrong, so there is nothing to compare it with.
            return;
        }
        match known.verdict {
            Verdict::Intact => {}
            Verdict::Altered => self.counts.altered += 1,
            Verdict::Corrupt => self.counts.corrupt += 1,
        }
        if arrival != Arrival::Duplicate {
            self.time(&known.found, frame.at);
        }
    }

    fn time(&mut self, found: &Found, at: MonoTime) {
        let Some(sent) = found.tag.sent_at(at.as_nanos()) else { return };
        let delay = at.signed_since(MonoTime::from_nanos(sent));
        self.counts.negative += u64::from(delay < 0);
        self.latency.record(Nanos::new(u64::try_from(delay).unwrap_or(0)));
        self.jitter.record(delay);
    }

    /// Recorded frames have no headers in common.
    fn has_headers_of(&self, bytes: &[u8]) -> bool {
        self.spec.source.template().is_some_and(|template| template.has_headers_of(bytes))
    }

    fn live_counts(&self) -> StreamRxCounts {
        StreamRxCounts { sequence: self.window.live_counts(), ..self.counts.clone() }
    }

    fn finish(mut self, port: usize, sent: u64) -> ReceiveResult {
        self.window.finish(sent, |number| self.spec.second_of(number));
        let timed = self.spec.latency && self.latency.count() > 0;
        ReceiveResult {
            stream: self.spec.number.into(),
            port,
            counts: StreamRxCounts { sequence: self.window.counts(), ..self.counts },
            jitter: timed.then(|| self.jitter.summary(&self.latency)),
            latency: timed.then_some(self.latency),
            series: self.series,
        }
    }
}

/// A frame recognised by its tag.
struct Known {
    found: Found,
    number: u64,
    verdict: Verdict,
}

/// All that a receiver knows of its streams.
struct Books {
    port: usize,
    key: TagKey,
    lanes: Vec<Lane>,
    /// Lane of a stream number, plus one; zero if not expected here.
    lane_of: Vec<usize>,
    scratch: Vec<u8>,
    start: MonoTime,
    taps: Vec<Tap>,
    foreign: u64,
    unnumbered: u64,
    bytes: u64,
}

impl Books {
    fn open(job: RxJob) -> Self {
        let streams = job.streams.len();
        let numbers = job.streams.iter().map(|spec| usize::from(spec.number) + 1).max().unwrap_or(0);
        let mut lane_of = vec![0; numbers];
        for (lane, spec) in job.streams.iter().enumerate() {
            lane_of[usize::from(spec.number)] = lane + 1;
        }
        let templates = job.streams.iter().filter_map(|spec| spec.source.template());
        let longest = templates.map(Template::header_len).max().unwrap_or(0);
        Self {
            port: job.port,
            key: job.key,
            lanes: job.streams.into_iter().map(|spec| Lane::new(spec, streams)).collect(),
            lane_of,
            scratch: vec![0; longest],
            start: MonoTime::default(),
            taps: job.taps,
            foreign: 0,
            unnumbered: 0,
            bytes: 0,
        }
    }

    /// Looks after the captures, between batches.
    fn attend_taps(&mut self, port: &mut impl FrameRx, now: MonoTime, is_idle: bool) -> Result<(), Error> {
        for tap in &mut self.taps {
            if tap.attend(now, is_idle) {
                tap.ring_dropped(port.counters()?.ring_dropped);
            }
        }
        Ok(())
    }

    fn take(&mut self, frame: RxFrame<'_>) {
        for tap in &mut self.taps {
            tap.offer(&frame);
        }
        let Some((lane, known)) = self.recognise(frame.bytes) else { return self.take_untagged(&frame) };
        let bytes = u64::from(FrameSize::from_kernel_len(frame.full_len).bytes());
        self.bytes += bytes;
        let lane = &mut self.lanes[lane];
        lane.take(&known, &frame);
        lane.series.add(self.start, frame.at, 1, bytes);
    }

    /// Whose frame it is, by its tag. What merely looks like a tag does not pass the comparison with the template, so of
    /// several candidates the intact one is the true one.
    fn recognise(&mut self, bytes: &[u8]) -> Option<(usize, Known)> {
        let mut damaged = None;
        for found in tag::candidates(bytes, self.key) {
            let lane = self.lane_of.get(usize::from(found.tag.stream)).and_then(|lane| lane.checked_sub(1));
            let Some(lane) = lane else { continue };
            let known = self.lanes[lane].compare(self.key, found, bytes, &mut self.scratch);
            let Some(known) = known else { continue };
            if known.verdict != Verdict::Corrupt {
                return Some((lane, known));
            }
            damaged = damaged.or(Some((lane, known)));
        }
        damaged
    }

    /// A frame without a readable tag: ours with a damaged tag, or somebody else's.
    fn take_untagged(&mut self, frame: &RxFrame<'_>) {
        let mut compared = self.lanes.iter_mut().take(MOST_COMPARED);
        match compared.find(|lane| lane.has_headers_of(frame.bytes)) {
            Some(lane) => {
                lane.counts.unnumbered += 1;
                self.unnumbered += 1;
                self.bytes += u64::from(FrameSize::from_kernel_len(frame.full_len).bytes());
            }
            None => self.foreign += 1,
        }
    }
}

/// See the module.
pub struct Receiver<R> {
    port: R,
    books: Option<Books>,
}

impl<R> std::fmt::Debug for Receiver<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("armed", &self.books.is_some()).finish_non_exhaustive()
    }
}

impl<R: FrameRx> Receiver<R> {
    /// A receiver on `port`.
    pub fn new(port: R) -> Self {
        Self { port, books: None }
    }

    fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.books.iter().flat_map(|books| &books.lanes)
    }
}

impl<R: FrameRx> StreamRx for Receiver<R> {
    fn arm(&mut self, job: RxJob) -> Result<(), Error> {
        let mut job = job;
        if let ([], [tap]) = (&job.streams[..], &mut job.taps[..])
            && let Some(program) = tap.program()
            && self.port.narrow(program)?
        {
            tap.filtered_before();
        }
        self.books = Some(Books::open(job));
        Ok(())
    }

    fn control(&mut self, control: Control) {
        if let (Control::StartAt(start), Some(books)) = (control, &mut self.books) {
            books.start = start;
        }
    }

    fn step(&mut self, now: MonoTime) -> Result<Step, Error> {
        let Some(books) = &mut self.books else { return Ok(Step::IdleUntil(now + IDLE)) };
        let taken = self.port.receive(BATCH, &mut |frame| books.take(frame))?;
        books.attend_taps(&mut self.port, now, taken == 0)?;
        Ok(if taken > 0 { Step::Busy } else { Step::IdleUntil(now + IDLE) })
    }

    fn wait(&mut self, within: Nanos) -> Result<(), Error> {
        self.port.wait(within)
    }

    fn counts(&self) -> Vec<StreamRxCounts> {
        self.lanes().map(Lane::live_counts).collect()
    }

    fn latency_so_far(&self) -> Option<(Nanos, Nanos, Nanos)> {
        let timed = || self.lanes().filter(|lane| lane.spec.latency).map(|lane| &lane.latency);
        let samples: u64 = timed().map(Latency::count).sum();
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
        Ok(match &self.books {
            Some(books) => RxCounters {
                foreign: books.foreign,
                unnumbered: books.unnumbered,
                bytes: books.bytes,
                ..counters
            },
            None => counters,
        })
    }

    fn clock_bound(&self) -> Nanos {
        self.port.clock_bound()
    }

    fn finish(&mut self, sent: &[u64]) -> Vec<ReceiveResult> {
        let Some(books) = self.books.take() else { return Vec::new() };
        let port = books.port;
        let finished = books.lanes.into_iter().enumerate();
        finished.map(|(i, lane)| lane.finish(port, sent.get(i).copied().unwrap_or(0))).collect()
    }
}
