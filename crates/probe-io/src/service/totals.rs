//! Counts of all clients together, for readers outside the service.
//!
//! Invariant: a reader takes no lock, so it cannot delay a packet.

use packetrig_release::message::{PacketOutcome, PacketReport, ReportFlags};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the service started, and the number of connected clients. Each number is read separately, so
/// for a moment the numbers may contradict each other.
#[derive(Debug)]
pub(super) struct ServiceTotals {
    pub(super) clients: AtomicU64,
    /// Number of packets by outcome, in the order of [`PacketOutcome::ALL`].
    outcomes: Vec<AtomicU64>,
    late: AtomicU64,
    shifted: AtomicU64,
    pub(super) answers: AtomicU64,
    pub(super) lost_answers: AtomicU64,
}

impl Default for ServiceTotals {
    fn default() -> Self {
        Self {
            clients: AtomicU64::default(),
            outcomes: PacketOutcome::ALL.iter().map(|_| AtomicU64::default()).collect(),
            late: AtomicU64::default(),
            shifted: AtomicU64::default(),
            answers: AtomicU64::default(),
            lost_answers: AtomicU64::default(),
        }
    }
}

impl ServiceTotals {
    pub(super) fn add_report(&self, report: &PacketReport) {
        let place = PacketOutcome::ALL.iter().position(|outcome| *outcome == report.outcome);
        if let Some(count) = place.and_then(|place| self.outcomes.get(place)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if report.outcome == PacketOutcome::Sent {
            let has = |flag| u64::from(report.flags.has_flag(flag));
            self.late.fetch_add(has(ReportFlags::LATE), Ordering::Relaxed);
            self.shifted.fetch_add(has(ReportFlags::SHIFTED), Ordering::Relaxed);
        }
    }

    pub(super) fn read_status(&self) -> ServiceStatus {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let outcomes = PacketOutcome::ALL.iter().copied().zip(&self.outcomes);
        let mut status = ServiceStatus {
            clients: read(&self.clients),
            sent: 0,
            late: read(&self.late),
            shifted: read(&self.shifted),
            refused: Vec::new(),
            answers: read(&self.answers),
            lost_answers: read(&self.lost_answers),
        };
        for (outcome, count) in outcomes {
            match outcome {
                PacketOutcome::Sent => status.sent = read(count),
                other => status.refused.push((other.name(), read(count))),
            }
        }
        status
    }
}

/// State of a service at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceStatus {
    /// Programs that are connected.
    pub clients: u64,
    pub sent: u64,
    /// Sent packets that certainly left later than requested by more than the tolerance.
    pub late: u64,
    /// Sent packets that were delayed because other packets had their departure times.
    pub shifted: u64,
    /// Number of packets that were not sent, for each reason, zeros included.
    pub refused: Vec<(&'static str, u64)>,
    /// Answers that were delivered to programs.
    pub answers: u64,
    /// Answers that were dropped because their program did not read its messages.
    pub lost_answers: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_totals_count_each_report_once() {
        let totals = ServiceTotals::default();
        let report = |outcome| PacketReport::new_unsent(1, 1, 0, 0, outcome);
        let late = PacketReport { flags: ReportFlags::LATE, ..report(PacketOutcome::Sent) };
        for report in [late, report(PacketOutcome::Sent), report(PacketOutcome::Late)] {
            totals.add_report(&report);
        }
        let status = totals.read_status();
        assert_eq!((status.sent, status.late, status.shifted), (2, 1, 0));
        let refused: Vec<_> = status.refused.iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(refused, [&("late", 1)]);
        assert_eq!(status.refused.len(), PacketOutcome::ALL.len() - 1);
    }
}
