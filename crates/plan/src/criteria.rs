//! Acceptance criteria: the limits that a run must keep to get the verdict PASS.

use packetrig_units::{Nanos, Share};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A value of the latency distribution for which a plan can set a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LatencyFigure {
    P50,
    P90,
    P99,
    P999,
    P9999,
    Mean,
    Max,
}

impl LatencyFigure {
    /// All figures with their names in documents.
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

/// An upper limit of the latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyLimit {
    pub figure: LatencyFigure,
    pub limit: Nanos,
}

/// The assumed cause when a port that is up loses its carrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CarrierLossCause {
    /// The device, the cable or the rig may be the cause, so frames lost at that time are in doubt.
    #[default]
    Unknown,
    /// The device under test is expected to switch off its link, so frames lost at that time count as
    /// lost by the device.
    Device,
}

/// Error: the text is neither `device` nor `unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the assumed cause of a lost carrier must be `device` or `unknown`")]
pub struct UnknownCarrierLossCause;

impl FromStr for CarrierLossCause {
    type Err = UnknownCarrierLossCause;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "unknown" => Ok(Self::Unknown),
            "device" => Ok(Self::Device),
            _ => Err(UnknownCarrierLossCause),
        }
    }
}

/// Limits that a run must keep to pass. A maximum share is a share of the frames that are expected of a stream. A
/// figure without a limit is reported, not judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AcceptanceCriteria {
    /// Maximum share of frames that were sent but never arrived.
    pub max_loss: Share,
    /// Maximum share of frames that arrived more than once.
    pub max_duplicates: Share,
    /// Maximum share of frames with a damaged payload or tag.
    pub max_damaged: Share,
    /// Maximum share of frames that arrived at a port which is not a receiver of their stream.
    pub max_misdelivered: Share,
    /// Maximum share of frames that arrived after a frame with a higher number. Many devices reorder by design, so
    /// there is no limit by default.
    pub max_reordered: Option<Share>,
    /// Maximum share of frames whose headers differ from the sent headers. Routers rewrite headers by design, so there
    /// is no limit by default.
    pub max_altered: Option<Share>,
    pub latency: Vec<LatencyLimit>,
    /// Maximum interarrival jitter (RFC 3550).
    pub max_jitter: Option<Nanos>,
    /// Maximum time in which no frame of a stream arrives because frames are lost.
    pub max_outage: Option<Nanos>,
    /// Minimum received rate, as a share of the requested rate.
    pub min_rate: Option<Share>,
    /// Minimum share of the sent frames that receivers must be able to verify. With a smaller share, the
    /// verdict is not PASS.
    pub min_verified: Share,
    /// Maximum time from the due time of a frame to its departure. With later frames, the verdict is not PASS.
    pub max_late: Nanos,
    /// Maximum time between the starts of senders on different nodes.
    pub max_skew: Option<Nanos>,
    /// The assumed cause when a port that is up loses its carrier. This is not a limit: it decides which losses are
    /// compared with the limits.
    pub carrier_loss: CarrierLossCause,
}

/// Default of [`AcceptanceCriteria::max_late`].
const MAX_LATE: Nanos = Nanos::from_millis(200);

impl Default for AcceptanceCriteria {
    /// No frame may be lost, duplicated, damaged or misdelivered, and every frame must be verified.
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
            min_verified: Share::WHOLE_LINK,
            max_late: MAX_LATE,
            max_skew: None,
            carrier_loss: CarrierLossCause::Unknown,
        }
    }
}
