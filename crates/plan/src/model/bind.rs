//! Computes the schedules of streams from their rates and gaps and the speeds of the links, and checks that the links
//! can carry the streams.

use super::{FlowShare, MeanSize, OtgPause, Plan, Stream, StreamAmount};
use crate::timeline::{SendPattern, StreamTimeline};
use crate::{PlanProblem, PlanProblems};
use packetrig_units::{BitRate, FrameRate, Nanos, Rate};

/// A plan with a schedule for each stream, computed for the speeds of the links.
#[derive(Clone, Debug)]
pub struct BoundPlan {
    pub plan: Plan,
    /// The schedules, in the order of `plan.streams`.
    pub streams: Vec<BoundStream>,
    /// Speed of each port, if known.
    pub speeds: Vec<Option<BitRate>>,
}

#[derive(Clone, Copy, Debug)]
pub struct BoundStream {
    /// Time at which each frame is due.
    pub timeline: StreamTimeline,
    /// True if the schedule is an estimate for an assumed link speed. This happens only on nodes that do not send the
    /// stream; they need no exact schedule.
    pub assumed: bool,
}

/// Assumed speed of a link that reports none. It serves only to estimate the duration of a stream that is sent as fast
/// as possible, or by another node.
const ASSUMED_LINK_RATE: BitRate = BitRate::new(10_000_000_000);

impl Plan {
    /// Computes the schedules for the given port speeds (one for each port; `layer1.speed` in the document overrides
    /// it). Fails if a schedule needs a speed that is not known, or if the streams of a port need more than its speed.
    pub fn bind_to_links(self, speeds: &[Option<BitRate>]) -> Result<BoundPlan, PlanProblems> {
        self.bind_to_links_of_node(speeds, &|_| true)
    }

    /// Like [`Self::bind_to_links`], on a node that has only the ports for which `is_here` is true. If the schedule of
    /// a stream from another node cannot be computed, it is estimated for an assumed link speed.
    pub fn bind_to_links_of_node(
        self,
        speeds: &[Option<BitRate>],
        is_here: &dyn Fn(usize) -> bool,
    ) -> Result<BoundPlan, PlanProblems> {
        // Without the repeated `None`, `zip` would drop the ports for which the caller gives no speed.
        let of_links = speeds.iter().copied().chain(std::iter::repeat(None));
        let speeds: Vec<_> =
            self.ports.iter().zip(of_links).map(|(port, link)| port.speed.or(link)).collect();
        let mut problems = Vec::new();
        let mut streams = Vec::with_capacity(self.streams.len());
        for stream in &self.streams {
            let exact = stream
                .compute_stream_schedule(speeds[stream.tx])
                .map(|timeline| BoundStream { timeline, assumed: false });
            let bound = match exact {
                // If more than the link speed is missing, the sending node reports the error; this node does
                // not send the stream.
                Err(_) if !is_here(stream.tx) => stream
                    .compute_stream_schedule(Some(ASSUMED_LINK_RATE))
                    .map(|timeline| BoundStream { timeline, assumed: true }),
                exact => exact,
            };
            match bound {
                Ok(bound) => streams.push(bound),
                Err(problem) => problems.push(stream.place.locate_problem(*problem)),
            }
        }
        // The load of a port is known only when all its streams have a schedule.
        if problems.is_empty() {
            problems = self.find_overloaded_ports(&streams, &speeds);
        }
        if problems.is_empty() {
            Ok(BoundPlan { plan: self, streams, speeds })
        } else {
            Err(PlanProblems(problems))
        }
    }

    /// Returns an error for each port whose streams together need more than the speed of its link.
    fn find_overloaded_ports(&self, streams: &[BoundStream], speeds: &[Option<BitRate>]) -> Vec<PlanProblem> {
        let over = speeds.iter().enumerate().filter_map(|(port, speed)| {
            // A port with an unknown speed cannot be checked.
            let speed = (*speed)?;
            let load = self.sum_port_load(streams, port);
            (load > speed).then(|| {
                // The problem concerns all streams of the port, but has only one position: that of the first stream.
                let first = self.streams.iter().find(|stream| stream.tx == port);
                let message = format!(
                    "the flows of port `{}` ({}) need {load} at layer 1, but the speed of its link is \
                    {speed}",
                    self.ports[port].name,
                    self.format_senders_of_port(port)
                );
                let path = format!("flows[{}].rate", first.map_or(0, |stream| stream.flow));
                let problem = PlanProblem::error(path, message)
                    .with_hint("lower the rates, or set the port's `layer1` speed if the link is faster");
                first.map(|stream| stream.place.locate_problem(problem.clone())).unwrap_or(problem)
            })
        });
        over.collect()
    }

    /// Total layer 1 rate of the paced streams that the port sends.
    fn sum_port_load(&self, streams: &[BoundStream], port: usize) -> BitRate {
        let of_port = self.streams.iter().zip(streams).filter(|(stream, _)| stream.tx == port);
        // An unpaced stream takes only the remaining capacity of the link.
        let loads = of_port
            .filter(|(stream, _)| !stream.frames.is_unpaced())
            .map(|(stream, bound)| stream.l1_rate(bound.timeline.rate).bits_per_second());
        BitRate::new(loads.fold(0, u64::saturating_add))
    }

    /// The names of the streams that a port sends, for a message. Of more than six streams, only the
    /// first five are named.
    fn format_senders_of_port(&self, port: usize) -> String {
        let names: Vec<&str> = self
            .streams
            .iter()
            .filter(|stream| stream.tx == port)
            .map(|stream| stream.name.as_str())
            .collect();
        match names.len() {
            0..=6 => names.join(", "),
            many => format!("{} and {} more", names[..5].join(", "), many - 5),
        }
    }
}

impl Stream {
    /// Computes the stream's schedule on a link of this speed (`None`: not known).
    fn compute_stream_schedule(&self, link: Option<BitRate>) -> Result<StreamTimeline, Box<PlanProblem>> {
        let size = MeanSize::from(self.frames.mean_size());
        // An unpaced stream has no rate of its own. Any link speed is good enough to estimate its duration.
        let link = if self.frames.is_unpaced() { link.or(Some(ASSUMED_LINK_RATE)) } else { link };
        // OTG's `bps` counts layer 2 with FCS, its `percentage` counts layer 1 (preamble and gap included).
        let rate = match self.rate {
            Rate::Frames(rate) => Some(rate),
            Rate::Bits(bits) => FrameRate::from_bits(bits, size.bytes, size.frames),
            Rate::Share(share) => {
                // A percentage has no meaning without a speed. With an assumed speed, the load would not be the
                // requested one.
                let link =
                    link.ok_or_else(|| self.missing_speed_problem("rate.percentage", "a percentage"))?;
                FrameRate::from_share(link, share, size.l1_bytes(), size.frames)
            }
        };
        // With a rate of 0, no frame after the first would ever be due.
        let rate =
            rate.ok_or_else(|| self.flow_field_problem("rate", "the rate is too low: it rounds to zero"))?;
        self.check_frame_gap(rate, link).map_err(|message| self.flow_field_problem("duration", message))?;
        let shape = match self.duration.amount {
            StreamAmount::Continuous => SendPattern::Endless,
            StreamAmount::Packets(packets) => SendPattern::Frames(packets),
            StreamAmount::Seconds(seconds) => SendPattern::Within(seconds),
            StreamAmount::Bursts { bursts, packets, between } => {
                // `StreamTimeline::due_time` divides by the number of frames in a burst, so there must be at least one.
                SendPattern::Bursts { bursts, frames: packets.max(1), pause: self.pause_time(between, link)? }
            }
        };
        let delay = self.pause_time(self.duration.delay, link)?;
        let whole = StreamTimeline { rate, delay, shape };
        Ok(self
            .part
            .schedule_of_share(whole)
            .map_err(|message| self.flow_field_problem("duration", message))?)
    }

    /// Converts a pause to a time. Fails for a pause in bytes if the speed of the link is not known.
    fn pause_time(&self, gap: OtgPause, link: Option<BitRate>) -> Result<Nanos, Box<PlanProblem>> {
        Ok(gap
            .time_on_link(link)
            .ok_or_else(|| self.missing_speed_problem("duration", "a pause in bytes"))?)
    }

    fn flow_field_problem(&self, field: &str, message: impl Into<String>) -> PlanProblem {
        PlanProblem::error(format!("flows[{}].{field}", self.flow), message)
    }

    fn missing_speed_problem(&self, field: &str, what: &str) -> PlanProblem {
        let problem =
            self.flow_field_problem(field, format!("{what} needs the speed of the link, which is not known"));
        problem.with_hint("set the port's `speed` in `layer1`")
    }

    /// Checks that a gap wider than Ethernet's own 12 bytes fits between frames at the requested rate. Without a known
    /// link speed it checks nothing.
    fn check_frame_gap(&self, rate: FrameRate, link: Option<BitRate>) -> Result<(), String> {
        // The check of the port's load already includes Ethernet's own gap, so only a wider gap needs a check.
        let Some(link) = link.filter(|_| self.duration.gap > 12) else { return Ok(()) };
        let size = MeanSize::from(self.frames.mean_size());
        // Preamble and start delimiter are 8 bytes; the gap replaces the usual 12.
        let spaced = size.bytes + size.frames * (8 + u64::from(self.duration.gap));
        let needed = rate.bit_rate(spaced, size.frames);
        if needed > link {
            return Err(format!(
                "frames at this rate with gaps of {} bytes need {needed}, but the speed of the link is \
                {link}",
                self.duration.gap
            ));
        }
        Ok(())
    }
}

impl OtgPause {
    /// Converts the pause to a time on a link of this speed. `None` if the pause is in bytes and the
    /// speed is not known.
    fn time_on_link(self, link: Option<BitRate>) -> Option<Nanos> {
        match self {
            // Zero bytes take no time on any link, so a document without pauses needs no link speed.
            Self::Bytes(0) => Some(Nanos::ZERO),
            Self::Bytes(bytes) => link.map(|speed| speed.time_to_send(bytes)),
            Self::Time(time) => Some(time),
        }
    }
}

impl FlowShare {
    /// Returns the schedule of this share of a flow. All shares together send exactly the frames of the flow, each at
    /// its time in the flow's schedule.
    // Share i sends frames i, i + of, …: it starts when frame i of the flow is due, at 1/of of the flow's rate. The
    // frames of a burst must divide evenly, or the bursts of a share would differ in length.
    fn schedule_of_share(self, whole: StreamTimeline) -> Result<StreamTimeline, String> {
        if self.of == 1 {
            return Ok(whole);
        }
        let shape = match whole.shape {
            SendPattern::Endless => SendPattern::Endless,
            // A time limit becomes a number of frames: with a time limit, each share would round
            // its last frame differently.
            SendPattern::Frames(_) | SendPattern::Within(_) => {
                match self.count_frames_in_share(whole.total_frames().unwrap_or(0)) {
                    0 => return Err(self.too_few_frames_message()),
                    frames => SendPattern::Frames(frames),
                }
            }
            SendPattern::Bursts { frames, .. } if frames % self.of != 0 => {
                return Err(format!(
                    "bursts of {frames} frames cannot be divided evenly among {} pairs of interfaces; make the \
                        number of frames a multiple of the number of pairs",
                    self.of
                ));
            }
            // Fewer frames at a proportionally lower rate take the same time: the pause does not change.
            SendPattern::Bursts { bursts, frames, pause } => {
                SendPattern::Bursts { bursts, frames: frames / self.of, pause }
            }
        };
        // The rate is an exact fraction, so each frame of the share is due exactly when it is due
        // in the flow's schedule.
        let rate = whole.rate.divide_by(self.of).ok_or_else(|| self.too_few_frames_message())?;
        Ok(StreamTimeline { rate, delay: whole.delay + whole.rate.due_time(self.index), shape })
    }

    fn too_few_frames_message(self) -> String {
        format!("the flow has too few frames: each of its {} pairs of interfaces needs at least one", self.of)
    }
}
