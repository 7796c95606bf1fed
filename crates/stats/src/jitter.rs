//! Delay variation by its named definitions: RFC 3550 (smoothed), RFC 5481 PDV (against the minimum) and IPDV
//! (between neighbours).

use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};

/// The figures of a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JitterSummary {
    /// RFC 3550 section 6.4.1 interarrival jitter at the end.
    pub rfc3550: Nanos,
    /// RFC 5481 PDV, 99.9 % quantile: p99.9 of latency minus its minimum.
    pub pdv_p999: Nanos,
    /// RFC 5481 IPDV: mean of |difference between consecutive frames|.
    pub ipdv_mean: Nanos,
    /// RFC 5481 IPDV: largest |difference between consecutive frames|.
    pub ipdv_max: Nanos,
}
