//! Converts a stream into the generator's options, or into all reasons why it cannot be sent, each with its
//! path in the plan.
//!
//! Pure: no file is opened. Invariant: the kernel uses every number in an option unchanged.

use super::headers;
use crate::stream::StreamSpec;
use packetrig_plan::timeline::{SendPattern, StreamTimeline};
use packetrig_plan::{PlanProblem, PlanProblems};
use packetrig_units::{FrameSize, Nanos};
use packetrig_wire::payload::PayloadPattern;
use packetrig_wire::size::SizePattern;
use packetrig_wire::tag::{TagKey, TagStamp};
use std::sync::Arc;

/// Largest frame count: the kernel reads at most ten digits.
const MAX_FRAMES: u64 = 9_999_999_999;
/// The kernel reads a pause of this many nanoseconds or more as "never".
const MAX_PKTGEN_PAUSE: u64 = 0x7fff_ffff;
/// Bytes that the generator adds after the headers: a magic number, a sequence number and a timestamp.
const PKTGEN_TRAILER_BYTES: usize = 16;
/// Number of frames over which the rounded pause is compared with the exact rate of the plan.
const RATE_COMPARISON_FRAMES: u64 = 1_000_000;

/// Settings of one generator device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PktgenSettings {
    /// Options, in the order in which they must be written.
    pub(super) options: Vec<String>,
    /// The size of every frame.
    pub(super) size: FrameSize,
    /// Small differences from the plan, in words.
    pub(super) doubts: Vec<String>,
}

/// Collects options and problems of one flow.
#[derive(Debug)]
pub(super) struct PktgenOptionReader {
    flow: String,
    options: Vec<String>,
    pub(super) problems: Vec<PlanProblem>,
    /// Whether the plan does not set the hop limit.
    pub(super) hops_open: bool,
}

impl PktgenOptionReader {
    /// Adds the problem `what` of the setting at path `below` of the flow.
    pub(super) fn refuse_setting(&mut self, below: &str, what: impl AsRef<str>) {
        let message = format!("back end pktgen {}", what.as_ref());
        self.problems.push(PlanProblem::error(format!("{}.{below}", self.flow), message));
    }

    pub(super) fn add_option(&mut self, option: String) {
        self.options.push(option);
    }
}

/// Returns the settings of all streams of a port, or all problems of all streams.
pub(super) fn convert_streams(streams: &[Arc<StreamSpec>]) -> Result<Vec<PktgenSettings>, PlanProblems> {
    let mut settings = Vec::new();
    let mut problems = Vec::new();
    for stream in streams {
        match convert_stream(stream) {
            Ok(read) => settings.push(read),
            Err(found) => problems.extend(found),
        }
    }
    if problems.is_empty() { Ok(settings) } else { Err(PlanProblems(problems)) }
}

/// Returns the settings of a stream, or all its problems.
pub(super) fn convert_stream(stream: &StreamSpec) -> Result<PktgenSettings, Vec<PlanProblem>> {
    let flow = format!("flows[{}]", stream.number);
    let mut reading =
        PktgenOptionReader { flow, options: Vec::new(), problems: Vec::new(), hops_open: false };
    let Some(template) = stream.source.template() else {
        reading.refuse_setting("x_replay", "cannot send capture files");
        return Err(reading.problems);
    };
    let spec = template.spec();
    if spec.tagged {
        let what = "writes no test tag, so loss and latency cannot be measured; set this to false";
        reading.refuse_setting("metrics.enable", what);
    }
    if spec.payload != PayloadPattern::default() {
        reading.refuse_setting("payload", "writes zeros and its own marker into the payload");
    }
    // The first frame represents all frames: the patterns of varying fields are checked separately.
    let mut frame = vec![0; template.frame_size(0).kernel_len()];
    template.render_frame(0, TagStamp { key: TagKey(0), stream: 0, time: 0 }, &mut frame);
    headers::convert_headers(&mut reading, &spec.headers, &frame);
    let size = convert_size(&mut reading, &spec.size, template.header_len());
    let mut doubts = convert_schedule(&mut reading, &stream.timeline);
    if reading.hops_open {
        doubts.push(format!("{}: pktgen sets the hop limit of its packets to 32", reading.flow));
    }
    if !reading.problems.is_empty() {
        return Err(reading.problems);
    }
    // The kernel accepts an outer VLAN tag only after an inner one.
    reading.options.sort_by_key(|option| option.starts_with("svlan"));
    Ok(PktgenSettings { options: reading.options, size, doubts })
}

fn convert_size(reading: &mut PktgenOptionReader, size: &SizePattern, headers: usize) -> FrameSize {
    let SizePattern::Fixed(fixed) = size else {
        reading.refuse_setting("size", "can send only frames of one size");
        return size.max_size();
    };
    let least = FrameSize::from_kernel_len(headers + PKTGEN_TRAILER_BYTES);
    if *fixed < least {
        reading.refuse_setting(
            "size",
            format!("needs at least {} B for frames with these headers", least.bytes()),
        );
    }
    reading.add_option(format!("pkt_size {}", fixed.kernel_len()));
    *fixed
}

/// Converts the frame count and the pause between frames. Returns small differences from the plan, in words.
fn convert_schedule(reading: &mut PktgenOptionReader, timeline: &StreamTimeline) -> Vec<String> {
    if matches!(timeline.shape, SendPattern::Bursts { .. }) {
        reading.refuse_setting("duration", "cannot send bursts with pauses");
    }
    if timeline.delay != Nanos::ZERO {
        reading.refuse_setting("duration", "cannot delay the first frame");
    }
    // For the kernel, a count of 0 means that sending does not end by itself.
    let frames = timeline.total_frames().unwrap_or(0);
    if frames > MAX_FRAMES || timeline.total_frames() == Some(0) {
        let what = format!("can send 1 to {MAX_FRAMES} frames, or send until it is stopped");
        reading.refuse_setting("duration", what);
    }
    // The pause is in whole nanoseconds. It is compared with the exact rate over a million frames, so that a rate that
    // is only nearly right is reported.
    let pause = timeline.rate.due_time(1).as_u64();
    if pause >= MAX_PKTGEN_PAUSE {
        reading.refuse_setting("rate", "cannot send less than one frame every 2.147 s");
    }
    reading.add_option(format!("count {frames}"));
    reading.add_option(format!("delay {pause}"));
    // Each frame is built separately: clones would repeat the addresses and ports of a range.
    reading.add_option("clone_skb 0".into());
    let exact = timeline.rate.due_time(RATE_COMPARISON_FRAMES).as_u64()
        == pause.saturating_mul(RATE_COMPARISON_FRAMES);
    let doubt =
        format!("{}: pktgen sends one frame every {pause} ns instead of {}", reading.flow, timeline.rate);
    if exact { Vec::new() } else { vec![doubt] }
}
