//! A stated doubt on a result.

use serde::{Deserialize, Serialize};

/// What kind of doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaveatKind {
    /// The sender did not reach its rate.
    SenderShort,
    /// The sender stopped by itself because nobody renewed its lease.
    LeaseEnded,
    /// Frames left later than they were due.
    SentLate,
    /// Our own receiver lost frames.
    ReceiverLost,
    /// The accounts do not balance.
    Unbalanced,
    /// An interface counter could not be read.
    NotMeasured,
    /// Frames that are not of this run.
    ForeignFrames,
    /// Frames went without a tag: nothing is known of them at the receiver.
    Untagged,
    /// A capture file could not be replayed as it is.
    Recording,
    /// No latency: the tag has no send time.
    NoSendTime,
    /// The clocks' relation changed or is not known well.
    Clock,
    /// Part of the capture is missing.
    CaptureIncomplete,
    /// The run was stopped before its plan ended.
    Interrupted,
    /// Receivers stopped while frames may have been under way.
    StoppedListening,
    /// The interface could not be made quiet.
    NotQuiet,
    /// The load came near what the rig itself can do.
    NearLimit,
    /// Nothing of a stream arrived, or no stream ran.
    NothingMeasured,
    /// The rig's own program did not run for a while.
    StoodStill,
    /// A result came after the report was written.
    CameLate,
}

/// A doubt about something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caveat {
    pub doubt: CaveatKind,
    /// About what: a stream, port or node by name.
    pub subject: String,
    /// In words, with the numbers.
    pub text: String,
    /// Whether it forbids PASS.
    pub matters: bool,
}
