//! Options records: the exporter's sampling, its start time and its losses.

use super::meaning::{ExporterStatistic, FieldMeaning, FieldRank};
use super::memory::map_memory_bytes;
use super::reader::read_number;
use super::sampling::SamplingState;
use super::template::TemplateField;
use crate::account::{UNKNOWN_VALUE, ledger_value_by_id};
use crate::ledger::MeterLedger;
use crate::membership::GroupMembership;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of samplers of one exporter that are remembered.
const MAX_SAMPLERS: usize = 64;

/// The losses and totals that an exporter reports about itself, all since it began. A number that it does not report is
/// absent. Numbers in brackets are IANA elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedLosses {
    /// Time of the report, nanoseconds since 1970.
    pub at_ns: u64,
    /// Packets that the exporter has seen (86).
    pub packets: Option<u64>,
    /// Packets that the exporter or its capture dropped (135).
    pub dropped_packets: Option<u64>,
    /// Packets that the exporter does not meter (164).
    pub ignored_packets: Option<u64>,
    /// Flows that the exporter has seen (163).
    pub flows: Option<u64>,
    /// Records that the exporter could not send (166).
    pub not_sent_records: Option<u64>,
    /// Packets in the records that it could not send (167).
    pub not_sent_packets: Option<u64>,
    /// Bytes in the records that it could not send (168).
    pub not_sent_bytes: Option<u64>,
    /// Records that the exporter has sent (42).
    pub exported_records: Option<u64>,
    /// Messages that the exporter has sent (41).
    pub exported_messages: Option<u64>,
    /// Bytes of the messages that it has sent (40).
    pub exported_bytes: Option<u64>,
    /// The whole ledger of the exporter; only packetrig's own meter sends it.
    pub ledger: Option<MeterLedger>,
    /// Role of a packetrig meter in a group in which one meter exports for all; `None` for other exporters.
    #[serde(default)]
    pub membership: Option<GroupMembership>,
}

impl ReportedLosses {
    fn statistic_mut(&mut self, statistic: ExporterStatistic) -> &mut Option<u64> {
        match statistic {
            ExporterStatistic::ExportedOctets => &mut self.exported_bytes,
            ExporterStatistic::ExportedMessages => &mut self.exported_messages,
            ExporterStatistic::ExportedRecords => &mut self.exported_records,
            ExporterStatistic::Packets => &mut self.packets,
            ExporterStatistic::Dropped => &mut self.dropped_packets,
            ExporterStatistic::Ignored => &mut self.ignored_packets,
            ExporterStatistic::NotSentRecords => &mut self.not_sent_records,
            ExporterStatistic::NotSentPackets => &mut self.not_sent_packets,
            ExporterStatistic::NotSentOctets => &mut self.not_sent_bytes,
            ExporterStatistic::Flows => &mut self.flows,
        }
    }

    /// Replaces values with those of a later report of the same exporter. Values that the later report
    /// does not contain stay.
    pub fn update_from_later(&mut self, later: &Self) {
        let Self { at_ns, .. } = *later;
        self.at_ns = at_ns;
        let mut later = *later;
        for statistic in ExporterStatistic::ALL {
            if let said @ Some(_) = *later.statistic_mut(statistic) {
                *self.statistic_mut(statistic) = said;
            }
        }
        self.ledger = later.ledger.or(self.ledger);
        self.membership = later.membership.or(self.membership);
    }

    fn is_empty(&self) -> bool {
        let mut copy = *self;
        self.ledger.is_none()
            && self.membership.is_none()
            && ExporterStatistic::ALL.into_iter().all(|statistic| copy.statistic_mut(statistic).is_none())
    }
}

/// An options record while its fields are read.
#[derive(Clone, Debug, Default)]
pub(super) struct OptionsDraft {
    reported: ReportedLosses,
    boot_ms: Option<u64>,
    sampling: SamplingState,
    observed_ms: Option<u64>,
}

/// State of the exporter that a session needs to read its records.
#[derive(Clone, Debug, Default)]
pub(super) struct ExporterDecodingState {
    pub(super) boot_ms: Option<u64>,
    /// Sampling interval by sampler number; the interval under `None` is for all samplers.
    samplers: BTreeMap<Option<u64>, u32>,
}

impl OptionsDraft {
    pub(super) fn set_field(&mut self, field: TemplateField, bytes: &[u8]) {
        let Some(value) = read_number(bytes) else { return };
        // Numbers about the exporter itself have no direction, so a reverse field here is an error of the exporter.
        if field.reverse || self.sampling.set_field(field.meaning, value) {
            return;
        }
        match field.meaning {
            FieldMeaning::Boot => self.boot_ms = Some(value),
            FieldMeaning::Packets(FieldRank::Total) => self.reported.packets = Some(value),
            FieldMeaning::Observed => self.observed_ms = Some(value),
            FieldMeaning::Account(id) => {
                if let Some(account) = ledger_value_by_id(id) {
                    let ledger = self.reported.ledger.get_or_insert_default();
                    (account.set)(ledger, (value != UNKNOWN_VALUE).then_some(value));
                }
            }
            FieldMeaning::History(id) => {
                self.reported.membership.get_or_insert_default().set_element(id, value);
            }
            FieldMeaning::Statistic(statistic) => *self.reported.statistic_mut(statistic) = Some(value),
            _ => {}
        }
    }

    /// Updates the state of the exporter. Returns what the record reports about the exporter itself; `None`
    /// if that is nothing.
    pub(super) fn finish_record(
        self,
        at_ns: u64,
        about: &mut ExporterDecodingState,
    ) -> Option<ReportedLosses> {
        about.boot_ms = self.boot_ms.or(about.boot_ms);
        let sampler = self.sampling.sampler;
        // The exporter chooses how many samplers it reports, so at most 64 are kept. A known sampler
        // may change its interval.
        if let Some(said) = self.sampling.sampling_interval_of_record()
            && (about.samplers.len() < MAX_SAMPLERS || about.samplers.contains_key(&sampler))
        {
            about.samplers.insert(sampler, said);
        }
        let at_ns = self.observed_ms.map_or(at_ns, |observed| observed.saturating_mul(1_000_000));
        (!self.reported.is_empty()).then_some(ReportedLosses { at_ns, ..self.reported })
    }
}

impl ExporterDecodingState {
    /// Returns the memory of the samplers, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        map_memory_bytes::<Option<u64>, u32>(self.samplers.len())
    }

    /// Returns the sampling interval of a sampler; 1 if it is unknown.
    pub(super) fn sampling_interval_or_one(&self, sampler: Option<u64>) -> u32 {
        // An interval without a sampler number is valid for all samplers.
        let known = self.samplers.get(&sampler).or_else(|| self.samplers.get(&None));
        known.copied().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_loss_values_keep_previous_report() {
        let mut known =
            ReportedLosses { at_ns: 1, packets: Some(5), flows: Some(2), ..ReportedLosses::default() };
        known.update_from_later(&ReportedLosses { at_ns: 2, packets: Some(9), ..ReportedLosses::default() });
        assert_eq!((known.at_ns, known.packets, known.flows), (2, Some(9), Some(2)));
    }

    #[test]
    fn samplers_are_told_apart() {
        let mut about = ExporterDecodingState::default();
        for (sampler, taken, space) in [(Some(3), 1, 99), (None, 2, 18)] {
            let sampling =
                SamplingState { sampler, taken: Some(taken), space: Some(space), ..SamplingState::default() };
            let draft = OptionsDraft { sampling, ..OptionsDraft::default() };
            assert_eq!(draft.finish_record(0, &mut about), None);
        }
        assert_eq!(
            (
                about.sampling_interval_or_one(Some(3)),
                about.sampling_interval_or_one(Some(4)),
                about.sampling_interval_or_one(None)
            ),
            (100, 10, 10)
        );
    }
}
