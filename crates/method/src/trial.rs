//! Request and result of a trial.

use crate::Load;
use packetrig_units::{FrameSize, Nanos, Ratio};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A trial to make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRequest {
    pub purpose: TrialPurpose,
    /// Size of all frames, FCS included; `None` for the sizes of the plan.
    pub size: Option<FrameSize>,
    pub load: Load,
    pub length: TrialLength,
    /// A lower load that follows without a pause, to measure the system recovery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<LoadStep>,
    /// Event for the device during the trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<TrialEvent>,
    /// Device of the trial: 0, or 1 for the second one of a comparison.
    #[serde(default)]
    pub device: u8,
}

impl TrialRequest {
    /// A trial with one constant load on the first device.
    pub const fn with_constant_load(
        purpose: TrialPurpose,
        size: Option<FrameSize>,
        load: Load,
        length: TrialLength,
    ) -> Self {
        Self { purpose, size, load, length, then: None, event: None, device: 0 }
    }

    /// Returns the sending time of the trial.
    pub fn sending_time(&self) -> Nanos {
        let first = match self.length {
            TrialLength::Time(time) => time,
            // A load of 0 must not divide by zero.
            TrialLength::Frames(frames) => to_nanos(frames as f64 / self.load.frames_per_second().max(1e-9)),
        };
        first + self.then.map_or(Nanos::ZERO, |step| step.time)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast saturates: a load far below one frame per second takes the longest time"
)]
fn to_nanos(seconds: f64) -> Nanos {
    Nanos::new((seconds * 1e9) as u64)
}

/// Purpose of a trial. It decides the words in tables, the charts of the page, and how long to wait after a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrialPurpose {
    /// A load of a search.
    Search,
    /// Latency at the throughput (RFC 2544, 26.2).
    Latency,
    /// A point of the frame-loss curve (RFC 2544, 26.3).
    LossRate,
    /// A burst with the least gap (RFC 9004).
    BackToBack,
    /// Overload, then half of it (RFC 2544, 26.5).
    Recovery,
    /// The device is reset during the trial (RFC 2544, 26.6).
    Reset,
    /// A link or a route changes during the trial.
    Convergence,
    /// One of many equal trials.
    Repetition,
}

impl fmt::Display for TrialPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Search => "search",
            Self::Latency => "latency",
            Self::LossRate => "frame loss",
            Self::BackToBack => "back-to-back",
            Self::Recovery => "recovery",
            Self::Reset => "reset",
            Self::Convergence => "convergence",
            Self::Repetition => "repetition",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrialLength {
    /// Send for this long.
    Time(Nanos),
    /// Send this many frames.
    Frames(u64),
}

/// A load and its duration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadStep {
    pub load: Load,
    pub time: Nanos,
}

/// An event for the device during a trial: the user's command is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialEvent {
    /// Time of the event, after the first frame.
    pub at: Nanos,
}

/// Sent frames that did not arrive, with a lower and an upper bound. The rig itself may have lost
/// the frames beyond `least`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostFrames {
    pub least: u64,
    pub most: u64,
}

/// A time with a lower and an upper bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeRange {
    #[serde(rename = "least_ns")]
    pub least: Nanos,
    #[serde(rename = "most_ns")]
    pub most: Nanos,
}

impl TimeRange {
    /// True if the bounds do not decide whether the time is within this limit.
    pub fn is_undecided(self, limit: Nanos) -> bool {
        // The comparisons are the same as for the verdict: an upper bound equal to the limit passes.
        self.least <= limit && limit < self.most
    }
}

/// The result of a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialResult {
    /// Frames that were due in the whole trial.
    pub intended: u64,
    pub sent: u64,
    /// Frames of `sent` that left after the time at which all should have left: the trial was made at a lower load than
    /// ordered. 0 if they are too few to matter.
    #[serde(default)]
    pub sent_late: u64,
    pub received: u64,
    pub lost: LostFrames,
    /// Time from the first frame to the time at which a frame after the last one would be due.
    pub sending: Nanos,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<TrialLatency>,
    /// Results of the streams, in the order of the plan. With a second load (`TrialRequest::then`), first the results
    /// of all streams at the first load, then those at the second load.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamTrial>,
    /// Caveats from the report of the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caveats: Vec<String>,
    /// Reason why losses in the trial prove nothing about the device, if there is one: the rig could not send the
    /// frames that were due, or may have lost frames itself. A trial without loss is valid nevertheless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rig_fault: Option<String>,
    /// Time from the request to the result, without the sending time and the waits of the trial.
    #[serde(default)]
    pub overhead: Nanos,
    /// Time of the event, after the first frame; absent if no event happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_at: Option<Nanos>,
    /// Time when the command of the event had ended, after the first frame. The event itself may happen at any time
    /// between `event_at` and this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_ended_at: Option<Nanos>,
}

/// Reason why a trial without losses proves nothing about its event.
pub(crate) const LATE_EVENT_REASON: &str = "nothing was lost, and the command of the event ended after the last frame: the event may have come too late";

impl TrialResult {
    /// Returns whether the event may have come after the last frame: nothing was lost, and the command of the event
    /// ended after the sending time.
    pub fn may_have_missed_event(&self, sending: Nanos) -> bool {
        self.is_without_loss() && self.event_ended_at.is_some_and(|ended| ended > sending)
    }

    /// Loss ratio as in MLRsearch (RFC 9971: trial loss ratio): frames that were lost or not sent in time, divided by
    /// the frames that were due.
    pub fn loss_ratio(&self) -> Ratio {
        let missing = self.lost.most.saturating_add(self.unsent_frames()).saturating_add(self.sent_late);
        // A trial that sent more than it intended must not get a ratio above 1.
        Ratio::new(missing, self.sent.max(self.intended))
    }

    /// The loss ratio from 0 to 1.
    pub fn loss_share(&self) -> f64 {
        let loss = self.loss_ratio();
        // No frame was due, so none is missing. `is_without_loss` is false nevertheless, because such
        // a trial proves nothing.
        if loss.whole == 0 { 0.0 } else { loss.part as f64 / loss.whole as f64 }
    }

    /// The load that the rig sent, if it sent less than half of the frames. The ordered load is then far beyond the
    /// rig, and repeating the trial is useless. `None` for all other trials.
    pub fn sent_load_if_beyond_rig(&self) -> Option<Load> {
        let seconds = self.sending.as_secs_f64();
        // Without a sent frame there is no load to search below.
        let is_far_beyond =
            self.rig_fault.is_some() && self.unsent_frames() > self.intended / 2 && self.sent > 0;
        (is_far_beyond && seconds > 0.0).then(|| Load::new(self.sent as f64 / seconds))
    }

    /// Number of frames that were due and not sent.
    pub const fn unsent_frames(&self) -> u64 {
        self.intended.saturating_sub(self.sent)
    }

    /// True if every frame that was due was sent in time and arrived.
    pub const fn is_without_loss(&self) -> bool {
        // A trial that sent nothing lost nothing, and proves nothing.
        self.sent > 0 && self.lost.most == 0 && self.unsent_frames() == 0 && self.sent_late == 0
    }
}

/// One-way latency in a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialLatency {
    pub frames: u64,
    #[serde(rename = "min_ns")]
    pub min: Nanos,
    #[serde(rename = "mean_ns")]
    pub mean: Nanos,
    #[serde(rename = "p50_ns")]
    pub p50: Nanos,
    #[serde(rename = "p99_ns")]
    pub p99: Nanos,
    #[serde(rename = "max_ns")]
    pub max: Nanos,
    /// Greatest possible error of the mean.
    #[serde(rename = "bound_ns")]
    pub bound: Nanos,
}

/// Results of one stream in a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamTrial {
    pub name: String,
    pub sent: u64,
    pub lost: LostFrames,
    /// Frames per second at which the stream was sent.
    pub rate: f64,
    /// The longest time between two arrivals with lost frames between them: no outage was longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_outage: Option<Nanos>,
    /// Lower bound of the longest outage. Absent if only `longest_outage` is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_longest_outage: Option<Nanos>,
    /// Total time for which the stream lost all its frames. Absent if only the lost frames are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_of_connectivity: Option<TimeRange>,
    /// Time at which the stream's last lost frame was due, after the stream's first frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_loss: Option<Nanos>,
}
