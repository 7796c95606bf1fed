//! What is known of one exporter's messages.

use crate::counts::Imbalance;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Counts of a session since it began. The unit of `lost`, `late_units` and `untold` is what the protocol numbers: data records
/// (IPFIX, options among them), packets (NetFlow v9), flows (v5), events (SIM).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCounts {
    /// Messages heard, whatever became of them.
    pub messages: u64,
    /// Their bytes.
    pub message_bytes: u64,
    /// Flow records decoded.
    pub records: u64,
    /// Packets these stand for.
    pub packets: u64,
    /// Bytes of IP these stand for.
    pub bytes: u64,
    /// Packets and new flows that SIM told of, one by one; its packets are in `packets` too.
    pub events: u64,
    /// Records about the exporter itself.
    pub options_records: u64,
    /// Templates heard, repetitions too.
    pub templates: u64,
    /// Templates forgotten because they were not repeated in time, or belong to the exporter's former life.
    pub templates_expired: u64,
    /// Templates given up because there was no room for them.
    pub templates_no_room: u64,
    /// Units missing by the exporter's numbers: lost between it and us.
    pub lost: u64,
    /// Gaps found in the numbers, whether they were filled later or not.
    pub gaps: u64,
    /// Units that came late and filled a gap.
    pub late_units: u64,
    /// Messages that came a second time, and were left.
    pub duplicates: u64,
    /// Messages older than is remembered, left: their units are in `lost`.
    pub too_old: u64,
    /// Times the exporter began anew.
    pub restarts: u64,
    /// Sets of data that came before their template, or without one.
    pub template_misses: u64,
    /// Bytes of those sets: what waited is recovered, undecoded or pending.
    pub waited_bytes: u64,
    /// Bytes of those whose template came.
    pub recovered_bytes: u64,
    /// Bytes of those that were given up, for one of the four causes that follow.
    pub undecoded_bytes: u64,
    /// Bytes given up because the template did not come in time.
    pub undecoded_late_bytes: u64,
    /// Bytes given up because there was no room for them.
    pub undecoded_no_room_bytes: u64,
    /// Bytes given up because the exporter began anew.
    pub undecoded_restart_bytes: u64,
    /// Bytes given up because the exporter was forgotten or went away.
    pub undecoded_ended_bytes: u64,
    /// Units in those, as far as the numbers tell.
    pub untold: u64,
    /// Bytes of those that wait for their template.
    pub pending_bytes: u64,
    /// Messages that broke off or were refused; see [`Malformed`](super::Malformed).
    pub malformed: u64,
    /// Records that were read and left: more than a set of that length may hold.
    pub over_budget: u64,
    /// Records that do not say when: they have the time of their message.
    pub timeless: u64,
    /// Fields of templates that records here have no place for, by name.
    pub skipped: BTreeSet<String>,
}

impl SessionCounts {
    /// Adds another session's.
    pub fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.messages, other.messages),
            (&mut self.message_bytes, other.message_bytes),
            (&mut self.records, other.records),
            (&mut self.packets, other.packets),
            (&mut self.bytes, other.bytes),
            (&mut self.events, other.events),
            (&mut self.options_records, other.options_records),
            (&mut self.templates, other.templates),
            (&mut self.templates_expired, other.templates_expired),
            (&mut self.templates_no_room, other.templates_no_room),
            (&mut self.lost, other.lost),
            (&mut self.gaps, other.gaps),
            (&mut self.late_units, other.late_units),
            (&mut self.duplicates, other.duplicates),
            (&mut self.too_old, other.too_old),
            (&mut self.restarts, other.restarts),
            (&mut self.template_misses, other.template_misses),
            (&mut self.waited_bytes, other.waited_bytes),
            (&mut self.recovered_bytes, other.recovered_bytes),
            (&mut self.undecoded_bytes, other.undecoded_bytes),
            (&mut self.undecoded_late_bytes, other.undecoded_late_bytes),
            (&mut self.undecoded_no_room_bytes, other.undecoded_no_room_bytes),
            (&mut self.undecoded_restart_bytes, other.undecoded_restart_bytes),
            (&mut self.undecoded_ended_bytes, other.undecoded_ended_bytes),
            (&mut self.untold, other.untold),
            (&mut self.pending_bytes, other.pending_bytes),
            (&mut self.malformed, other.malformed),
            (&mut self.over_budget, other.over_budget),
            (&mut self.timeless, other.timeless),
        ];
        for (mine, theirs) in pairs {
            *mine = mine.saturating_add(theirs);
        }
        for name in &other.skipped {
            if self.skipped.len() >= SKIPPED {
                break;
            }
            if !self.skipped.contains(name) {
                self.skipped.insert(name.clone());
            }
        }
    }

    /// What does not add up.
    pub fn imbalances(&self) -> Vec<Imbalance> {
        let causes = [
            self.undecoded_late_bytes,
            self.undecoded_no_room_bytes,
            self.undecoded_restart_bytes,
            self.undecoded_ended_bytes,
        ];
        let rules = [
            (
                "bytes that waited = recovered + undecoded + pending",
                self.waited_bytes,
                self.recovered_bytes + self.undecoded_bytes + self.pending_bytes,
            ),
            ("undecoded bytes = late + no room + restart + ended", self.undecoded_bytes, causes.iter().sum()),
        ];
        let broken = rules.into_iter().filter(|(_, left, right)| left != right);
        broken.map(|(rule, left, right)| Imbalance { rule, left, right }).collect()
    }
}

/// Names that are kept of a session, at most.
pub(super) const SKIPPED: usize = 64;
