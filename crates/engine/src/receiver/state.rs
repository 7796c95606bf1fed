//! State of one receiver: finds the stream of each frame, or the reason why the frame belongs to no stream.

use super::elsewhere::MisdeliveredStream;
use super::lane::{ReceiverStreamState, RecognisedFrame};
use super::other_runs::OtherRuns;
use crate::Error;
use crate::capture::CaptureTap;
use crate::device::is_link_protocol_frame;
use crate::port::{FrameRx, RxFrame};
use crate::segment::StreamSegment;
use crate::stream::{FrameSource, ReceivedFrames, RxJob, StreamSpec};
use packetrig_stats::content::ContentCounts;
use packetrig_stats::port::RxCounters;
use packetrig_units::{FrameSize, MonoTime};
use packetrig_wire::tag::{self, TagKey};
use packetrig_wire::{FrameComparison, foreign};
use std::sync::Arc;

/// Number of streams that an untagged frame is compared with. With thousands, the receiver would be too slow
/// and lose the next frames.
const MAX_COMPARED: usize = 64;

/// State of a receiver and its streams.
pub(super) struct ReceiverState {
    pub(super) port: usize,
    key: TagKey,
    pub(super) lanes: Vec<ReceiverStreamState>,
    /// Lane of a stream number, plus one; zero if the stream is not expected here.
    pub(super) lane_of: Vec<usize>,
    scratch: Vec<u8>,
    /// Streams that are expected at other ports. `elsewhere_of` finds them by number, as `lane_of` does for lanes.
    elsewhere: Vec<MisdeliveredStream>,
    elsewhere_of: Vec<usize>,
    other_runs: OtherRuns,
    /// Content of untagged frames, if frames of a file are expected.
    contents: Option<ContentCounts>,
    pub(super) start: MonoTime,
    pub(super) taps: Vec<CaptureTap>,
    pub(super) foreign: u64,
    has_devices: bool,
    pub(super) protocol: u64,
    pub(super) foreign_bytes: u64,
    pub(super) unnumbered: u64,
    misdelivered: u64,
    pub(super) bytes: u64,
}

impl ReceiverState {
    pub(super) fn from_job(job: RxJob) -> Self {
        let streams = job.streams.len();
        let lane_of = index_by_number(job.streams.iter().map(|spec| spec.number));
        let elsewhere: Vec<_> = job.elsewhere.into_iter().map(MisdeliveredStream::new).collect();
        let has_recording = job.streams.iter().any(|spec| matches!(spec.source, FrameSource::Recorded(_)));
        Self {
            elsewhere_of: index_by_number(elsewhere.iter().map(MisdeliveredStream::stream_number)),
            elsewhere,
            other_runs: OtherRuns::new(job.earlier_runs),
            contents: has_recording.then(ContentCounts::with_allocated_memory),
            port: job.port,
            key: job.key,
            scratch: vec![0; max_header_len(&job.streams)],
            lanes: job.streams.into_iter().map(|spec| ReceiverStreamState::new(spec, streams)).collect(),
            lane_of,
            start: MonoTime::default(),
            taps: job.taps,
            foreign: 0,
            has_devices: job.has_devices,
            protocol: 0,
            foreign_bytes: 0,
            unnumbered: 0,
            misdelivered: 0,
            bytes: 0,
        }
    }

    /// Updates the captures after each batch of frames. `is_idle` means that the batch was empty.
    pub(super) fn update_captures(
        &mut self,
        port: &mut impl FrameRx,
        now: MonoTime,
        is_idle: bool,
    ) -> Result<(), Error> {
        for tap in &mut self.taps {
            if tap.update_capture(now, is_idle) {
                tap.on_ring_read(port.ring_progress()?, now);
                tap.on_ring_dropped(port.read_rx_counters()?.ring_dropped);
            }
        }
        Ok(())
    }

    /// Returns whether the ring must be read often: frames are expected or captured here.
    pub(super) fn needs_frequent_reads(&self) -> bool {
        !self.lanes.is_empty() || !self.taps.is_empty()
    }

    pub(super) fn add_streams(&mut self, streams: Vec<Arc<StreamSpec>>, elsewhere: Vec<Arc<StreamSpec>>) {
        self.elsewhere.extend(elsewhere.into_iter().map(MisdeliveredStream::new));
        self.elsewhere_of = index_by_number(self.elsewhere.iter().map(MisdeliveredStream::stream_number));
        let all = self.lanes.len() + streams.len();
        // The buffers grow here and not while frames are received: the hot path allocates nothing.
        let longest = max_header_len(&streams).max(self.scratch.len());
        self.scratch.resize(longest, 0);
        self.lanes.extend(streams.into_iter().map(|spec| ReceiverStreamState::new(spec, all)));
        self.lane_of = index_by_number(self.lanes.iter().map(|lane| lane.spec.number));
    }

    pub(super) fn announce_segments(&mut self, segments: &[(u16, StreamSegment)]) {
        for (number, take) in segments {
            let Some(lane) = find_stream_index(&self.lane_of, *number) else { continue };
            let headers = take.template().header_len().max(self.scratch.len());
            self.scratch.resize(headers, 0);
            self.lanes[lane].announce_segment(take.clone());
        }
    }

    pub(super) fn on_frame(&mut self, frame: RxFrame<'_>) {
        for tap in &mut self.taps {
            tap.offer_frame(&frame);
        }
        let Some((lane, known)) = self.recognise_frame(&frame) else {
            return self.count_unrecognised(&frame);
        };
        let bytes = u64::from(FrameSize::from_kernel_len(frame.full_len).bytes());
        self.bytes += bytes;
        // The frame is of this run, but its number is damaged: no frame with this number can have been sent yet.
        self.unnumbered += u64::from(!known.is_possible);
        let lane = &mut self.lanes[lane];
        lane.on_frame(&known, &frame, self.start);
        lane.series.add_frames(self.start, frame.at, 1, bytes);
    }

    /// Finds the stream of a frame by its tag. Bytes that merely look like a tag fail the comparison with the template,
    /// so of several candidates the intact one is right.
    fn recognise_frame(&mut self, frame: &RxFrame<'_>) -> Option<(usize, RecognisedFrame)> {
        // Payload or padding behind the real tag can look like a tag. A damaged match counts only if
        // no candidate is intact.
        let mut damaged = None;
        for found in tag::tag_candidates(frame.bytes, self.key) {
            let Some(lane) = find_stream_index(&self.lane_of, found.tag.stream) else { continue };
            let known = self.lanes[lane].compare_frame(self.key, found, frame, self.start, &mut self.scratch);
            let Some(known) = known else { continue };
            if known.verdict != FrameComparison::Corrupt && known.is_possible {
                return Some((lane, known));
            }
            damaged = damaged.or(Some((lane, known)));
        }
        damaged
    }

    /// Returns the start of this run, if it has started.
    fn run_start(&self) -> Option<MonoTime> {
        (self.start != MonoTime::default()).then_some(self.start)
    }

    /// Counts a frame without a readable tag of a stream that is expected here.
    fn count_unrecognised(&mut self, frame: &RxFrame<'_>) {
        let bytes = u64::from(FrameSize::from_kernel_len(frame.full_len).bytes());
        // The checks go from the strongest evidence to the weakest: a tag of this run, a tag of another run,
        // equal headers, a protocol. Each frame is counted by exactly one of them.
        if self.count_if_misdelivered(frame) {
            self.misdelivered += 1;
        } else if self.other_runs.count_if_other_run(frame.bytes, self.run_start(), frame.at) {
            // `other_runs` counts this frame.
        } else if let Some(lane) = self.find_lane_by_headers(frame.bytes) {
            lane.counts.unnumbered += 1;
            self.unnumbered += 1;
            self.bytes += bytes;
        } else if self.has_devices && is_link_protocol_frame(frame.bytes) {
            self.protocol += 1;
        } else {
            self.foreign += 1;
            self.foreign_bytes += bytes;
            if let Some(contents) = &mut self.contents {
                contents.add_frame(foreign::content_hash(frame.bytes));
            }
        }
    }

    fn count_if_misdelivered(&mut self, frame: &RxFrame<'_>) -> bool {
        let Self { elsewhere, elsewhere_of, key, .. } = self;
        tag::tag_candidates(frame.bytes, *key).any(|found| {
            let place = find_stream_index(elsewhere_of, found.tag.stream);
            place.is_some_and(|place| elsewhere[place].count_if_tag_is_valid(&found, frame))
        })
    }

    /// Finds the stream whose headers the frame has, among the first [`MAX_COMPARED`] streams. Used for frames
    /// without a readable tag.
    fn find_lane_by_headers(&mut self, bytes: &[u8]) -> Option<&mut ReceiverStreamState> {
        self.lanes.iter_mut().take(MAX_COMPARED).find(|lane| lane.matches_constant_headers(bytes))
    }

    /// Adds the frame classes that the receiver counts to the counters of the port's rings.
    pub(super) fn with_receiver_counts(&self, counters: RxCounters) -> RxCounters {
        RxCounters {
            foreign: self.foreign,
            protocol: self.protocol,
            foreign_bytes: self.foreign_bytes,
            unnumbered: self.unnumbered,
            misdelivered: self.misdelivered,
            other_runs: self.other_runs.total_frames(),
            bytes: self.bytes,
            ..counters
        }
    }

    /// Returns the final results; `sent` is the number of frames that each stream sent.
    pub(super) fn into_received(self, sent: &[u64]) -> ReceivedFrames {
        let port = self.port;
        let lanes = self.lanes.into_iter().enumerate();
        ReceivedFrames {
            streams: lanes
                .map(|(i, lane)| lane.into_result(port, sent.get(i).copied().unwrap_or(0)))
                .collect(),
            misdelivered: self
                .elsewhere
                .into_iter()
                .filter_map(|stream| stream.into_misdelivered(port))
                .collect(),
            other_runs: self.other_runs.into_frames(port),
            untagged_contents: self.contents.unwrap_or_default(),
        }
    }
}

fn max_header_len(streams: &[Arc<StreamSpec>]) -> usize {
    let templates = streams.iter().filter_map(|spec| spec.source.template());
    templates.map(|template| template.header_len()).max().unwrap_or(0)
}

/// Returns a table: the entry for a stream number is the index of the stream plus one, or zero without a stream.
fn index_by_number(numbers: impl Iterator<Item = u16> + Clone) -> Vec<usize> {
    let room = numbers.clone().map(|number| usize::from(number) + 1).max().unwrap_or(0);
    let mut places = vec![0; room];
    for (place, number) in numbers.enumerate() {
        places[usize::from(number)] = place + 1;
    }
    places
}

pub(super) fn find_stream_index(places: &[usize], number: u16) -> Option<usize> {
    places.get(usize::from(number)).and_then(|place| place.checked_sub(1))
}
