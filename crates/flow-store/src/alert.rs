//! Alerts: rules compare the traffic of groups in time windows with thresholds. An event tells that a group has crossed
//! its threshold, or no longer does.
//!
//! ```text
//! records -> filter, groups -> sums in windows -> judged when a window is over -> events -> standard output, files, webhooks
//! ```
//!
//! Invariants: memory is bounded, whatever records arrive; every raised alert is cleared or still active; every event is delivered, waits,
//! or is counted as lost.

mod judge;
mod outlet;
mod rules;
mod sink;
mod windows;

pub use judge::{AlertEvent, AlertEventKind};
pub use outlet::{AlertDestination, InvalidAlertPlace};
pub use rules::{AlertMeasure, AlertRule, AlertRules, AlertThreshold, InvalidAlertRules};
pub use sink::{AlertCounts, AlertCountsReader, AlertOptions, AlertSink};
