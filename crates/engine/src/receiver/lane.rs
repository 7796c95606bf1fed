//! One stream at one receiver: its sequence window, latency, jitter and series.

use super::send_times::SendTimeHistory;
use crate::port::RxFrame;
use crate::segment::{StreamSegment, StreamSegments};
use crate::stream::{ClockShift, FrameSource, StreamSpec};
use packetrig_stats::counts::{DelaySummary, SinceStart, StreamRxCounts};
use packetrig_stats::jitter::JitterMeter;
use packetrig_stats::latency::Latency;
use packetrig_stats::result::ReceiveResult;
use packetrig_stats::sequence::{SequenceArrival, SequenceWindow};
use packetrig_stats::series::{QualitySeries, RateSeries};
use packetrig_units::{FrameSize, MonoTime, Nanos};
use packetrig_wire::tag::{FoundTag, TagKey};
use packetrig_wire::{FrameComparison, foreign};
use std::sync::Arc;

/// Maximum number of streams whose latencies have three significant digits. With more, they have two, which take a
/// seventh of the memory.
const MAX_FINE_RESOLUTION_STREAMS: usize = 256;
/// Maximum number of outages that are stored separately for each stream: with few streams, and with many.
const MAX_STORED_OUTAGES: [usize; 2] = [512, 64];
/// A number at least this far ahead of the expected one is accepted only if that frame can have been sent by now.
const NUMBER_JUMP_FRAMES: u64 = 64;
/// Tolerance for a sender ahead of its schedule, in addition to a 64th of the elapsed time: the kernel's packet
/// generator keeps its own time.
const EARLY_SENDER_TOLERANCE: Nanos = Nanos::from_millis(100);

pub(super) struct ReceiverStreamState {
    pub(super) spec: Arc<StreamSpec>,
    /// Segments of the stream that were announced so far; empty for frames read from a file.
    segments: StreamSegments,
    /// Number of the first frame since the last start.
    started_at: u64,
    /// Frames and bytes counted before the last start.
    before_start: (u64, u64),
    /// Frames that were missing when the last start was announced.
    missing_before: u64,
    /// Relation to the clock of a sender on another node, once known.
    pub(super) shift: Option<ClockShift>,
    window: SequenceWindow,
    send_times: SendTimeHistory,
    pub(super) counts: StreamRxCounts,
    pub(super) latency: Latency,
    jitter: JitterMeter,
    pub(super) series: RateSeries,
}

impl ReceiverStreamState {
    pub(super) fn new(spec: Arc<StreamSpec>, streams: usize) -> Self {
        let digits = if streams <= MAX_FINE_RESOLUTION_STREAMS { 3 } else { 2 };
        let whole = spec
            .source
            .template()
            .map(|template| StreamSegment::for_whole_stream(Arc::clone(template), spec.timeline));
        let mut window = SequenceWindow::with_outages(
            MAX_STORED_OUTAGES[usize::from(streams > MAX_FINE_RESOLUTION_STREAMS)],
        );
        *window.quality_mut() = QualitySeries::with_limit(spec.series_seconds_to_reserve(streams));
        Self {
            segments: StreamSegments::new(whole),
            started_at: 0,
            before_start: (0, 0),
            missing_before: 0,
            shift: None,
            window,
            send_times: SendTimeHistory::new(),
            counts: StreamRxCounts::default(),
            latency: Latency::with_digits(digits),
            jitter: JitterMeter::default(),
            series: RateSeries::with_limit(spec.series_seconds_to_reserve(streams)),
            spec,
        }
    }

    /// Identifies the frame by its tag and compares it with the frame as sent; `None` if the tag is not of this
    /// stream. `start` is the start of the run.
    pub(super) fn compare_frame(
        &self,
        key: TagKey,
        found: FoundTag,
        frame: &RxFrame<'_>,
        start: MonoTime,
        scratch: &mut [u8],
    ) -> Option<RecognisedFrame> {
        let bytes = frame.bytes;
        // Tags carry the low bits of the number. The window completes them to the number nearest to its newest one.
        let number = self.window.restore_full_number(found.tag.sequence, found.tag.form.sequence_bits());
        if self.was_sent_before_start(&found, start, frame.at)
            || self.has_seen_number_but_is_no_copy(&found, number)
        {
            return None;
        }
        let is_possible = self.is_number_plausible(number, frame.at.since(start));
        let verdict = match self.segments.find_segment(number) {
            Some(take) => take.template().verify_frame(take.frame_index(number), key, &found, bytes, scratch),
            None => foreign::compare_payload_with_tag(bytes, &found)?,
        };
        Some(RecognisedFrame { found, number, verdict, is_possible })
    }

    /// Returns whether the tag's send time is before the start of this run. Then the frame belongs to another run, and
    /// its mark is valid only by chance.
    fn was_sent_before_start(&self, found: &FoundTag, start: MonoTime, at: MonoTime) -> bool {
        let sent = found.tag.restore_send_time(at.as_nanos());
        let sent = sent.filter(|_| !self.spec.sent_elsewhere && !self.spec.untimed);
        // The check has a tolerance: a frame of this run must never be refused because its sender's clock is inexact.
        sent.is_some_and(|sent| sent + EARLY_SENDER_TOLERANCE.as_u64() < start.as_nanos())
    }

    /// Returns whether the frame has the number of a frame seen before but cannot be its copy. Then the frame belongs
    /// to another run, and its mark is valid only by chance.
    fn has_seen_number_but_is_no_copy(&self, found: &FoundTag, number: u64) -> bool {
        !self.spec.untimed
            && self.window.has_seen_number(number)
            && self.send_times.rules_out_copy(number, found.tag)
    }

    /// Returns whether frame `number` can have been sent by `elapsed` after the start of the run. Checked only where
    /// numbers jump: one impossible number would make all frames below it late.
    fn is_number_plausible(&self, number: u64, elapsed: Nanos) -> bool {
        if self.window.distance_ahead(number) < NUMBER_JUMP_FRAMES {
            return true;
        }
        match (&self.spec.source, self.segments.find_segment(number)) {
            (FrameSource::Recorded(track), _) => number < track.recording().frames_of_all_passes(),
            (_, Some(take)) => {
                // Generous on purpose: a sender's clock may be fast, and the check must catch only damaged numbers.
                let latest = elapsed + Nanos::new(elapsed.as_u64() / 64) + EARLY_SENDER_TOLERANCE;
                number < take.end_number() && take.due_time(number) <= latest
            }
            (_, None) => true,
        }
    }

    pub(super) fn on_frame(&mut self, known: &RecognisedFrame, frame: &RxFrame<'_>, start: MonoTime) {
        if !known.is_possible {
            self.counts.unnumbered += 1;
            return;
        }
        let Self { window, spec, segments: takes, .. } = self;
        // The window comes first: it decides whether the frame is new, late or a copy. Only the first arrival of a
        // number has a latency, because a copy would distort the mean.
        let arrival =
            window.on_arrival(known.number, frame.at, |number| due_second_of_frame(spec, takes, number));
        let bytes = u64::from(FrameSize::from_kernel_len(frame.full_len).bytes());
        self.counts.frames += 1;
        self.counts.bytes += bytes;
        self.counts.first.get_or_insert(frame.at);
        self.counts.last = Some(frame.at);
        // A late frame from before the last start does not count since that start (decision 0009).
        if known.number >= self.started_at {
            self.counts.since_start.first.get_or_insert(frame.at);
        } else {
            self.before_start = (self.before_start.0 + 1, self.before_start.1 + bytes);
        }
        if arrival == SequenceArrival::Stale {
            // The sequence number may be damaged, so the frame cannot be compared with the sent one.
            return;
        }
        match known.verdict {
            // Only an intact tag has a send time that can be trusted.
            FrameComparison::Intact if arrival == SequenceArrival::New => {
                self.send_times.record_send_time(known.number, known.found.tag);
            }
            FrameComparison::Intact => {}
            FrameComparison::Altered => self.counts.altered += 1,
            FrameComparison::Corrupt => self.counts.corrupt += 1,
        }
        if arrival != SequenceArrival::Duplicate {
            self.measure_latency(known, frame.at, start);
        }
    }

    fn measure_latency(&mut self, known: &RecognisedFrame, arrived: MonoTime, start: MonoTime) {
        if self.spec.untimed {
            return;
        }
        // The arrival is converted to the sender's clock first: the tag holds only the low bits of the send time. The
        // high bits are chosen so that the send time is as near as possible to `at`.
        let at = match (self.spec.sent_elsewhere, self.shift) {
            (false, _) => arrived,
            (true, Some(shift)) => shift.sender_time(arrived),
            // Without a measured shift, times of two nodes cannot be compared.
            (true, None) => return,
        };
        let Some(sent) = known.found.tag.restore_send_time(at.as_nanos()) else { return };
        let delay = at.signed_since(MonoTime::from_nanos(sent));
        if delay < 0 {
            self.counts.negative += 1;
            self.counts.least_delay_ns = self.counts.least_delay_ns.min(delay);
        }
        // A negative delay is a fault of clocks. It is counted above and shown as a caveat; here it becomes zero, so
        // that minimum and mean stay valid.
        let latency = Nanos::new(delay.max(0).unsigned_abs());
        self.latency.record_time(latency);
        self.window.quality_mut().add_delay(start, arrived, latency);
        if known.number >= self.started_at {
            self.counts.delays.record_delay(latency);
        }
        self.jitter.record_delay(delay);
    }

    /// Accepts frames of this segment from now on.
    pub(super) fn announce_segment(&mut self, segment: StreamSegment) {
        if segment.starts_at_first_frame() {
            self.started_at = segment.first_number();
            self.before_start = (self.counts.frames, self.counts.bytes);
            // Live counts restart with the stream; frames missing before belong to the earlier start.
            self.missing_before = self.window.live_counts().lost;
            self.counts.since_start = SinceStart::default();
            self.counts.delays = DelaySummary::default();
        }
        self.segments.push(segment);
    }

    /// Returns whether a frame has the headers of the last segment. Recorded frames have no common headers.
    pub(super) fn matches_constant_headers(&self, bytes: &[u8]) -> bool {
        self.segments.last().is_some_and(|take| take.template().matches_constant_headers(bytes))
    }

    pub(super) fn live_counts(&self) -> StreamRxCounts {
        let sequence = self.window.live_counts();
        StreamRxCounts {
            missing: sequence.lost.saturating_sub(self.missing_before),
            sequence,
            since_start: self.since_start(),
            ..self.counts.clone()
        }
    }

    fn since_start(&self) -> SinceStart {
        let frames = self.counts.frames - self.before_start.0;
        let bytes = self.counts.bytes - self.before_start.1;
        let last = self.counts.last.filter(|_| frames > 0);
        SinceStart { frames, bytes, last, ..self.counts.since_start }
    }

    pub(super) fn into_result(mut self, port: usize, sent: u64) -> ReceiveResult {
        self.window.finish_stream(sent, |number| due_second_of_frame(&self.spec, &self.segments, number));
        let since_start = self.since_start();
        self.window.quality_mut().close_latest_seconds();
        let timed = self.spec.latency && self.latency.count() > 0;
        ReceiveResult {
            stream: self.spec.number.into(),
            port,
            counts: StreamRxCounts { sequence: self.window.counts(), since_start, ..self.counts },
            jitter: timed.then(|| self.jitter.summary(&self.latency)),
            latency: timed.then_some(self.latency),
            series: self.series,
            outages: self.window.take_outages(),
            quality: std::mem::take(self.window.quality_mut()),
        }
    }
}

/// Returns the second of the run in which the tagged frame `number` was due.
fn due_second_of_frame(spec: &StreamSpec, segments: &StreamSegments, number: u64) -> u64 {
    match (&spec.source, segments.find_segment(number)) {
        (FrameSource::Recorded(track), _) => track.due_second_of_sent_frame(number),
        (_, Some(take)) => take.due_time(number).as_u64() / 1_000_000_000,
        (_, None) => 0,
    }
}

/// A frame identified by its tag.
pub(super) struct RecognisedFrame {
    found: FoundTag,
    number: u64,
    pub(super) verdict: FrameComparison,
    /// Whether a frame with this number can have been sent by now; if not, the tag is damaged.
    pub(super) is_possible: bool,
}
