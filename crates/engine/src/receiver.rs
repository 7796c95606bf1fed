//! The generic receive side of the stream level: every frame into one account, over any frame level.
//!
//! ```text
//!  frame -> tag? -> stream -> number -> as sent? -> window (new, late, duplicate, stale) -> latency, jitter, series
//!            no -> headers of one of our streams? -> unnumbered : of the devices' protocols? -> protocol : foreign
//! ```
//! Invariant: frames seen = frames recognised + unnumbered + protocol + foreign.

use crate::Error;
use crate::capture::Tap;
use crate::device::is_protocol;
use crate::port::{FrameRx, RxFrame};
use crate::stream::{Announcing, Control, RxJob, Shift, Source, Step, StreamRx, StreamSpec};
use crate::take::{Take, Takes};
use packetrig_stats::counts::{Delays, SinceStart, StreamRxCounts};
use packetrig_stats::jitter::Jitter;
use packetrig_stats::latency::Latency;
use packetrig_stats::port::RxCounters;
use packetrig_stats::result::ReceiveResult;
use packetrig_stats::sequence::{Arrival, SequenceWindow};
use packetrig_stats::series::RateSeries;
use packetrig_units::{FrameSize, MonoTime, Nanos};
use packetrig_wire::tag::{self, Found, TagKey};
use packetrig_wire::{Verdict, foreign};
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
    /// Empty for what is read from a file.
    takes: Takes,
    /// Number of the first frame of the last start.
    started_at: u64,
    /// Frames and bytes that belong to earlier starts.
    before_start: (u64, u64),
    /// Frames that were missing when the last start was announced.
    missing_before: u64,
    /// Of a sender with another clock, once it is known.
    shift: Option<Shift>,
    window: SequenceWindow,
    counts: StreamRxCounts,
    latency: Latency,
    jitter: Jitter,
    series: RateSeries,
}

impl Lane {
    fn new(spec: Arc<StreamSpec>, streams: usize) -> Self {
        let digits = if streams <= FINE_STREAMS { 3 } else { 2 };
        let whole = spec.source.template().map(|template| Take::whole(Arc::clone(template), spec.timeline));
        Self {
            takes: Takes::new(whole),
            started_at: 0,
            before_start: (0, 0),
            missing_before: 0,
            shift: None,
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
        let verdict = match self.takes.of(number) {
            Some(take) => take.template().verify(take.nth(number), key, &found, bytes, scratch),
            None => foreign::verify(bytes, &found)?,
        };
        Some(Known { found, number, verdict })
    }

    fn take(&mut self, known: &Known, frame: &RxFrame<'_>) {
        let Self { window, spec, takes, .. } = self;
        let arrival = window.arrive(known.number, |number| second_of(spec, takes, number));
        let bytes = u64::from(FrameSize::from_kernel_len(frame.full_len).bytes());
        self.counts.frames += 1;
        self.counts.bytes += bytes;
        self.counts.first.get_or_insert(frame.at);
        self.counts.last = Some(frame.at);
        if known.number >= self.started_at {
            self.counts.since_start.first.get_or_insert(frame.at);
        } else {
            self.before_start = (self.before_start.0 + 1, self.before_start.1 + bytes);
        }
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
            self.time(known, frame.at);
        }
    }

    fn time(&mut self, known: &Known, at: MonoTime) {
        // On the sender's clock, so that the time in the tag, which lacks its upper bits, is taken for the right one.
        let at = match (self.spec.sent_elsewhere, self.shift) {
            (false, _) => at,
            (true, Some(shift)) => shift.sender_time(at),
            // Clocks of two nodes have nothing in common.
            (true, None) => return,
        };
        let Some(sent) = known.found.tag.sent_at(at.as_nanos()) else { return };
        let delay = at.signed_since(MonoTime::from_nanos(sent));
        if delay < 0 {
            self.counts.negative += 1;
            self.counts.least_delay_ns = self.counts.least_delay_ns.min(delay);
        }
        let latency = Nanos::new(u64::try_from(delay).unwrap_or(0));
        self.latency.record(latency);
        if known.number >= self.started_at {
            self.counts.delays.record(latency);
        }
        self.jitter.record(delay);
    }

    /// Frames of this take may arrive from now on.
    fn announce(&mut self, take: Take) {
        if take.is_fresh() {
            self.started_at = take.first();
            self.before_start = (self.counts.frames, self.counts.bytes);
            self.missing_before = self.window.live_counts().lost;
            (self.counts.since_start, self.counts.delays) = (SinceStart::default(), Delays::default());
        }
        self.takes.push(take);
    }

    /// Recorded frames have no headers in common.
    fn has_headers_of(&self, bytes: &[u8]) -> bool {
        self.takes.last().is_some_and(|take| take.template().has_headers_of(bytes))
    }

    fn live_counts(&self) -> StreamRxCounts {
        let sequence = self.window.live_counts();
        StreamRxCounts {
            missing: sequence.lost.saturating_sub(self.missing_before),
            sequence,
            since_start: self.since_start(),
            ..self.counts.clone()
        }
    }

    fn since_start(&self) -> SinceStart {
        let (frames, bytes) =
            (self.counts.frames - self.before_start.0, self.counts.bytes - self.before_start.1);
        let last = self.counts.last.filter(|_| frames > 0);
        SinceStart { frames, bytes, last, ..self.counts.since_start }
    }

    fn finish(mut self, port: usize, sent: u64) -> ReceiveResult {
        self.window.finish(sent, |number| second_of(&self.spec, &self.takes, number));
        let since_start = self.since_start();
        let timed = self.spec.latency && self.latency.count() > 0;
        ReceiveResult {
            stream: self.spec.number.into(),
            port,
            counts: StreamRxCounts { sequence: self.window.counts(), since_start, ..self.counts },
            jitter: timed.then(|| self.jitter.summary(&self.latency)),
            latency: timed.then_some(self.latency),
            series: self.series,
        }
    }
}

/// The second of the run in which frame `number`, of those with a tag, was due.
fn second_of(spec: &StreamSpec, takes: &Takes, number: u64) -> u64 {
    match (&spec.source, takes.of(number)) {
        (Source::Recorded(track), _) => track.second_of(number),
        (_, Some(take)) => take.due(number).as_u64() / 1_000_000_000,
        (_, None) => 0,
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
    has_devices: bool,
    protocol: u64,
    foreign_bytes: u64,
    unnumbered: u64,
    bytes: u64,
}

impl Books {
    fn open(job: RxJob) -> Self {
        let streams = job.streams.len();
        let lane_of = lanes_by_number(job.streams.iter().map(|spec| spec.number));
        Self {
            port: job.port,
            key: job.key,
            scratch: vec![0; longest_headers(&job.streams)],
            lanes: job.streams.into_iter().map(|spec| Lane::new(spec, streams)).collect(),
            lane_of,
            start: MonoTime::default(),
            taps: job.taps,
            foreign: 0,
            has_devices: job.has_devices,
            protocol: 0,
            foreign_bytes: 0,
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

    fn add(&mut self, streams: Vec<Arc<StreamSpec>>) {
        let all = self.lanes.len() + streams.len();
        let longest = longest_headers(&streams).max(self.scratch.len());
        self.scratch.resize(longest, 0);
        self.lanes.extend(streams.into_iter().map(|spec| Lane::new(spec, all)));
        self.lane_of = lanes_by_number(self.lanes.iter().map(|lane| lane.spec.number));
    }

    fn announce(&mut self, takes: &[(u16, Take)]) {
        for (number, take) in takes {
            let lane = self.lane_of.get(usize::from(*number)).and_then(|lane| lane.checked_sub(1));
            let Some(lane) = lane else { continue };
            let headers = take.template().header_len().max(self.scratch.len());
            self.scratch.resize(headers, 0);
            self.lanes[lane].announce(take.clone());
        }
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
        let bytes = u64::from(FrameSize::from_kernel_len(frame.full_len).bytes());
        if let Some(lane) = compared.find(|lane| lane.has_headers_of(frame.bytes)) {
            lane.counts.unnumbered += 1;
            self.unnumbered += 1;
            self.bytes += bytes;
        } else if self.has_devices && is_protocol(frame.bytes) {
            self.protocol += 1;
        } else {
            self.foreign += 1;
            self.foreign_bytes += bytes;
        }
    }
}

fn longest_headers(streams: &[Arc<StreamSpec>]) -> usize {
    let templates = streams.iter().filter_map(|spec| spec.source.template());
    templates.map(|template| template.header_len()).max().unwrap_or(0)
}

/// By stream number its place, plus one; zero where there is none.
fn lanes_by_number(numbers: impl Iterator<Item = u16> + Clone) -> Vec<usize> {
    let room = numbers.clone().map(|number| usize::from(number) + 1).max().unwrap_or(0);
    let mut lane_of = vec![0; room];
    for (lane, number) in numbers.enumerate() {
        lane_of[usize::from(number)] = lane + 1;
    }
    lane_of
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
        if let [tap] = &mut job.taps[..]
            && let Some(program) = tap.narrowing()
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

    fn shift(&mut self, shifts: &[(u16, Shift)]) {
        let Some(books) = &mut self.books else { return };
        for (number, shift) in shifts {
            let lane = books.lane_of.get(usize::from(*number)).and_then(|lane| lane.checked_sub(1));
            if let Some(lane) = lane {
                books.lanes[lane].shift = Some(*shift);
            }
        }
    }

    fn steering(&mut self) -> Option<&mut dyn Announcing> {
        Some(self)
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
                protocol: books.protocol,
                foreign_bytes: books.foreign_bytes,
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

impl<R: FrameRx> Announcing for Receiver<R> {
    fn announce(&mut self, takes: &[(u16, Take)]) {
        if let Some(books) = &mut self.books {
            books.announce(takes);
        }
    }

    fn add(&mut self, streams: Vec<Arc<StreamSpec>>) {
        if let Some(books) = &mut self.books {
            books.add(streams);
        }
    }
}
