//! What the user accepts: each criterion with its limit.

use packetrig_units::{Nanos, Share};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A figure of the latency distribution that has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LatencyFigure {
    /// Half of the frames are at or below.
    P50,
    /// 90 %.
    P90,
    /// 99 %.
    P99,
    /// 99.9 %.
    P999,
    /// 99.99 %.
    P9999,
    Mean,
    Max,
}

impl LatencyFigure {
    /// Every figure, with the name users write.
    pub const ALL: [(&'static str, Self); 7] = [
        ("p50", Self::P50),
        ("p90", Self::P90),
        ("p99", Self::P99),
        ("p99.9", Self::P999),
        ("p99.99", Self::P9999),
        ("mean", Self::Mean),
        ("max", Self::Max),
    ];
}

impl fmt::Display for LatencyFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(_, figure)| figure == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

/// The largest latency that is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyLimit {
    pub figure: LatencyFigure,
    pub limit: Nanos,
}

/// What the user accepts. A share is of the frames expected of a stream. What has no limit is reported, not judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AcceptanceCriteria {
    /// Lost frames.
    pub max_loss: Share,
    /// Frames that arrived more than once.
    pub max_duplicates: Share,
    /// Frames with a damaged payload or tag.
    pub max_damaged: Share,
    /// Frames at ports where the plan expects none of their stream.
    pub max_misdelivered: Share,
    /// Frames that arrived after a later one. Many devices reorder by design.
    pub max_reordered: Option<Share>,
    /// Frames with headers that are not as sent. Routers rewrite headers by design.
    pub max_altered: Option<Share>,
    pub latency: Vec<LatencyLimit>,
    /// Interarrival jitter (RFC 3550).
    pub max_jitter: Option<Nanos>,
    /// The longest time without a frame of a stream in which frames were lost.
    pub max_outage: Option<Nanos>,
    /// The rate received, as a share of the rate asked for.
    pub min_rate: Option<Share>,
    /// Frames sent that receivers can verify. Below that there is no PASS.
    pub min_verified: Share,
    /// How late a frame may leave. Beyond that there is no PASS.
    pub max_late: Nanos,
    /// How far apart senders on different nodes may begin at most.
    pub max_skew: Option<Nanos>,
}

/// How late frames may leave, unless the user says otherwise.
const MAX_LATE: Nanos = Nanos::from_millis(200);

impl Default for AcceptanceCriteria {
    /// Nothing may be lost, doubled, damaged or misdelivered, and everything is to be verified.
    fn default() -> Self {
        let none = Share::from_billionths(0);
        Self {
            max_loss: none,
            max_duplicates: none,
            max_damaged: none,
            max_misdelivered: none,
            max_reordered: None,
            max_altered: None,
            latency: Vec::new(),
            max_jitter: None,
            max_outage: None,
            min_rate: None,
            min_verified: Share::WHOLE,
            max_late: MAX_LATE,
            max_skew: None,
        }
    }
}
