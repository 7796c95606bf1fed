//! Account of the records that one output was offered.

use packetrig_flow::{CarriedRecords, CountImbalance, ExportCounts, RecordLosses};
use packetrig_units::RemovedFiles;
use serde::Serialize;

/// One output's part of the ledger.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OutputReport {
    pub to: String,
    #[serde(flatten)]
    pub counts: ExportCounts,
    /// Records that the output was offered but does not have, by cause.
    pub losses: RecordLosses,
    /// Old files that were removed to keep within limits; their records stay counted as sent.
    pub removed: RemovedFiles,
    /// Text of the last error. If no record is lost, the output has recovered from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl OutputReport {
    /// Lists the losses as lines for people, with the reason.
    pub fn loss_lines(&self) -> Vec<String> {
        let reason = self.failure.as_ref().map(|failure| format!(" ({failure})")).unwrap_or_default();
        let lines = self.losses.losses_by_cause().map(|(cause, CarriedRecords { records, packets, .. })| {
            let reason = if cause.is_failure() { reason.as_str() } else { "" };
            format!("{}: records lost: {records} (packets: {packets}): {}{reason}", self.to, cause.meaning())
        });
        lines.collect()
    }

    /// Describes the removed files in lines for people.
    pub fn removal_lines(&self) -> Vec<String> {
        let counts = self.removed.named_counts().into_iter().filter(|(_, _, count)| *count > 0);
        counts.map(|(_, what, count)| format!("{}: {count} {what}", self.to)).collect()
    }

    /// Returns the rules of the ledger that do not hold. They apply only at the end, when no record is waiting.
    pub(crate) fn imbalances(&self) -> Vec<CountImbalance> {
        let ExportCounts { offered, sent, left_to_others, .. } = self.counts;
        let mut accounted = self.losses.total_records();
        accounted.add_records(sent);
        accounted.add_records(left_to_others);
        let rules = [
            (
                "records offered to an output = stored + left to others + lost by cause",
                offered.records,
                accounted.records,
            ),
            (
                "packets offered to an output = stored + left to others + lost by cause",
                offered.packets,
                accounted.packets,
            ),
        ];
        let broken = rules.into_iter().filter(|(_, left, right)| left != right);
        broken.map(|(rule, left, right)| CountImbalance { rule, left, right }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_flow::LossCause;

    #[test]
    fn output_report_finds_imbalance_and_explains_losses() {
        let carried = |records| CarriedRecords { records, packets: 2 * records, bytes: 3 * records };
        let counts = ExportCounts { offered: carried(10), sent: carried(7), ..ExportCounts::default() };
        let mut report = OutputReport { to: "records".into(), counts, ..OutputReport::default() };
        report.losses.add_loss(LossCause::Refused, carried(2));
        report.failure = Some("no space".into());
        assert_eq!(report.imbalances().len(), 2);
        report.losses.add_loss(LossCause::QueueFull, carried(1));
        assert!(report.imbalances().is_empty());
        let lines = report.loss_lines();
        assert_eq!(
            lines,
            [
                "records: records lost: 1 (packets: 2): the output was too slow, and its queue was full",
                "records: records lost: 2 (packets: 4): the output refused them (no space)",
            ]
        );
    }
}
