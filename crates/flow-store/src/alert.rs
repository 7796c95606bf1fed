//! Alerts: in each time window, a rule compares the traffic of each group of records with a threshold. An event reports
//! that a group begins or ceases to cross the threshold.
//!
//! ```text
//! records -> filter, groups -> sums in windows -> judged when a window is over -> events -> standard output, files, webhooks
//! ```
//!
//! Invariants: memory is bounded, whatever records arrive; every raised alert is cleared or still active; every event
//! is delivered, waits for delivery, or is counted as lost.

mod judge;
mod outlet;
mod rules;
mod sink;
mod windows;

pub use judge::{AlertEvent, AlertEventKind};
pub use outlet::{AlertDestination, InvalidAlertDestination};
pub use rules::{AlertMeasure, AlertRule, AlertRules, AlertThreshold, InvalidAlertRules};
pub use sink::{AlertCounts, AlertCountsReader, AlertOptions, AlertSink};
