//! Records about the exporter: how it samples, when it was started, what it lost.

use super::meaning::{Meaning, Rank, Statistic};
use super::memory::map;
use super::reader::number;
use super::sampling::Sampling;
use super::template::Field;
use crate::account::{UNKNOWN, by_id};
use crate::ledger::Ledger;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Samplers of one exporter that are remembered.
const SAMPLERS: usize = 64;

/// What an exporter says of its own losses, all since it began. Absent is what it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    /// When it said so, nanoseconds since 1970.
    pub at_ns: u64,
    /// Packets it has seen (86).
    pub packets: Option<u64>,
    /// Packets it or its capture dropped (135).
    pub dropped_packets: Option<u64>,
    /// Packets it does not meter (164).
    pub ignored_packets: Option<u64>,
    /// Flows it has seen (163).
    pub flows: Option<u64>,
    /// Records it could not send (166).
    pub not_sent_records: Option<u64>,
    /// Packets those stand for (167).
    pub not_sent_packets: Option<u64>,
    /// Bytes those stand for (168).
    pub not_sent_bytes: Option<u64>,
    /// Records it has sent (42).
    pub exported_records: Option<u64>,
    /// Messages it has sent (41).
    pub exported_messages: Option<u64>,
    /// Their bytes (40).
    pub exported_bytes: Option<u64>,
    /// Its whole ledger; only a meter of this project says that.
    pub ledger: Option<Ledger>,
}

impl Reported {
    fn place(&mut self, statistic: Statistic) -> &mut Option<u64> {
        match statistic {
            Statistic::ExportedOctets => &mut self.exported_bytes,
            Statistic::ExportedMessages => &mut self.exported_messages,
            Statistic::ExportedRecords => &mut self.exported_records,
            Statistic::Packets => &mut self.packets,
            Statistic::Dropped => &mut self.dropped_packets,
            Statistic::Ignored => &mut self.ignored_packets,
            Statistic::NotSentRecords => &mut self.not_sent_records,
            Statistic::NotSentPackets => &mut self.not_sent_packets,
            Statistic::NotSentOctets => &mut self.not_sent_bytes,
            Statistic::Flows => &mut self.flows,
        }
    }

    /// Takes what a later record of the same exporter says, and keeps what that does not say.
    pub fn update(&mut self, later: &Self) {
        let Self { at_ns, .. } = *later;
        self.at_ns = at_ns;
        let mut later = *later;
        for statistic in Statistic::ALL {
            if let said @ Some(_) = *later.place(statistic) {
                *self.place(statistic) = said;
            }
        }
        self.ledger = later.ledger.or(self.ledger);
    }

    fn is_empty(&self) -> bool {
        let mut copy = *self;
        self.ledger.is_none() && Statistic::ALL.into_iter().all(|statistic| copy.place(statistic).is_none())
    }
}

/// An options record while its fields come in.
#[derive(Clone, Debug, Default)]
pub(super) struct OptionsDraft {
    reported: Reported,
    boot_ms: Option<u64>,
    sampling: Sampling,
    observed_ms: Option<u64>,
}

/// What a session knows of its exporter.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    pub(super) boot_ms: Option<u64>,
    /// By number of the sampler; that of all is without one.
    samplers: BTreeMap<Option<u64>, u32>,
}

impl OptionsDraft {
    pub(super) fn take(&mut self, field: Field, bytes: &[u8]) {
        let Some(value) = number(bytes) else { return };
        // An exporter has no directions.
        if field.reverse || self.sampling.take(field.meaning, value) {
            return;
        }
        match field.meaning {
            Meaning::Boot => self.boot_ms = Some(value),
            Meaning::Packets(Rank::Total) => self.reported.packets = Some(value),
            Meaning::Observed => self.observed_ms = Some(value),
            Meaning::Account(id) => {
                if let Some(account) = by_id(id) {
                    let ledger = self.reported.ledger.get_or_insert_default();
                    (account.set)(ledger, (value != UNKNOWN).then_some(value));
                }
            }
            Meaning::Statistic(statistic) => *self.reported.place(statistic) = Some(value),
            _ => {}
        }
    }

    /// What is news to the session, and the exporter's numbers about itself, if it was about those.
    pub(super) fn finish(self, at_ns: u64, about: &mut About) -> Option<Reported> {
        about.boot_ms = self.boot_ms.or(about.boot_ms);
        let sampler = self.sampling.sampler;
        if let Some(said) = self.sampling.interval()
            && (about.samplers.len() < SAMPLERS || about.samplers.contains_key(&sampler))
        {
            about.samplers.insert(sampler, said);
        }
        let at_ns = self.observed_ms.map_or(at_ns, |observed| observed.saturating_mul(1_000_000));
        (!self.reported.is_empty()).then_some(Reported { at_ns, ..self.reported })
    }
}

impl About {
    /// What it costs in memory.
    pub(super) fn memory(&self) -> usize {
        map::<Option<u64>, u32>(self.samplers.len())
    }

    /// Every how many packets a sampler took one; 1 if nothing is known.
    pub(super) fn interval(&self, sampler: Option<u64>) -> u32 {
        let known = self.samplers.get(&sampler).or_else(|| self.samplers.get(&None));
        known.copied().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_later_record_does_not_say_is_kept() {
        let mut known = Reported { at_ns: 1, packets: Some(5), flows: Some(2), ..Reported::default() };
        known.update(&Reported { at_ns: 2, packets: Some(9), ..Reported::default() });
        assert_eq!((known.at_ns, known.packets, known.flows), (2, Some(9), Some(2)));
    }

    #[test]
    fn samplers_are_told_apart() {
        let mut about = About::default();
        for (sampler, taken, space) in [(Some(3), 1, 99), (None, 2, 18)] {
            let sampling =
                Sampling { sampler, taken: Some(taken), space: Some(space), ..Sampling::default() };
            let draft = OptionsDraft { sampling, ..OptionsDraft::default() };
            assert_eq!(draft.finish(0, &mut about), None);
        }
        assert_eq!((about.interval(Some(3)), about.interval(Some(4)), about.interval(None)), (100, 10, 10));
    }
}
