//! The counts of one exporter's messages and records.

use crate::counts::CountImbalance;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Counts of a session since it began. The unit of `lost`, `late_units` and `untold` is what the protocol numbers: data
/// records (IPFIX, options records among them), packets (NetFlow v9), flows (v5), datagrams (sFlow), events (SIM).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCounts {
    /// Messages received, whether they could be read or not.
    pub messages: u64,
    pub message_bytes: u64,
    pub records: u64,
    /// Number of packets that the `records` report.
    pub packets: u64,
    /// Number of IP bytes that the `records` report.
    pub bytes: u64,
    /// Packets and new flows that SIM reported one by one; its packets are in `packets` too.
    pub events: u64,
    /// Records about the exporter itself.
    pub options_records: u64,
    /// Templates received, repetitions included.
    pub templates: u64,
    /// Templates forgotten because they were not repeated in time, or are from before a restart of the exporter.
    pub templates_expired: u64,
    /// Templates dropped because there was no memory for them.
    pub templates_no_room: u64,
    /// Units that are missing according to the exporter's sequence numbers: lost on the way.
    pub lost: u64,
    /// Gaps found in the sequence numbers, whether they were filled later or not.
    pub gaps: u64,
    /// Units that came late and filled a gap.
    pub late_units: u64,
    /// Messages that came a second time and were not decoded again.
    pub duplicates: u64,
    /// Decoded messages with a number before that of the first message received.
    pub early: u64,
    /// Decoded messages with a number far below the current one, in no gap that the session remembers.
    pub old: u64,
    /// Restarts of the exporter.
    pub restarts: u64,
    /// Data sets that came before their template, or without one.
    pub template_misses: u64,
    /// Bytes of the data sets that came without their template. Each byte is recovered, undecoded or pending.
    pub waited_bytes: u64,
    /// Bytes of waiting data sets that were decoded when their template came.
    pub recovered_bytes: u64,
    /// Bytes of waiting data sets that were discarded, for one of the next four causes.
    pub undecoded_bytes: u64,
    /// Bytes discarded because the template did not come in time.
    pub undecoded_late_bytes: u64,
    /// Bytes discarded because there was no memory for them.
    pub undecoded_no_room_bytes: u64,
    /// Bytes discarded because the exporter restarted.
    pub undecoded_restart_bytes: u64,
    /// Bytes discarded because the exporter was forgotten or went away.
    pub undecoded_ended_bytes: u64,
    /// Missing units that may be in undecoded or pending data sets, so they do not count as `lost`.
    pub untold: u64,
    /// Bytes of the data sets that still wait for their template.
    pub pending_bytes: u64,
    /// Messages that could not be read, or only in part; see [`MalformedMessage`](super::MalformedMessage).
    pub malformed: u64,
    /// Records that were skipped: of a set of n bytes, at most n / 4 + 16 records are decoded.
    pub over_budget: u64,
    /// Packets in records that came after the exporter's last ledger; all packets if it sends no ledger.
    pub newer_packets: u64,
    /// Records without times: they have the time of their message.
    pub timeless: u64,
    /// Packet samples received by sFlow.
    pub flow_samples: u64,
    /// Packet samples that are missing according to the samples' own sequence numbers. Most of them
    /// are in missing datagrams.
    pub lost_samples: u64,
    /// Packets that an sFlow agent selected but could not report, according to its own counts.
    pub sampler_drops: u64,
    /// Packet samples without a readable IP packet. They make no record.
    pub samples_without_ip: u64,
    /// Samples of the counters of an interface.
    pub counter_samples: u64,
    /// Samples of other kinds, which are not decoded, and samples of counters of other things than interfaces.
    pub unread_samples: u64,
    /// Interface counters that were not stored, or were dropped for lack of memory. If the samplers of an exporter are
    /// dropped, this counts as one.
    pub interfaces_no_room: u64,
    /// Names of the template fields that have no column, at most 64 of them.
    pub skipped: BTreeSet<String>,
}

/// One count of [`SessionCounts`], for code that shows or adds all of them.
#[derive(Clone, Copy, Debug)]
pub struct SessionCount {
    /// Name of its field, in JSON and in metrics.
    pub name: &'static str,
    pub meaning: &'static str,
    /// True if the number may go down again.
    pub is_level: bool,
    pub get: fn(&SessionCounts) -> u64,
    get_mut: fn(&mut SessionCounts) -> &mut u64,
}

macro_rules! session_counts {
    ($($name:ident $kind:ident $meaning:literal;)*) => {
        &[$(SessionCount {
            name: stringify!($name),
            meaning: $meaning,
            is_level: matches!(stringify!($kind).as_bytes(), b"level"),
            get: |counts| counts.$name,
            get_mut: |counts| &mut counts.$name,
        }),*]
    };
}

/// Every count of [`SessionCounts`], in order.
pub const SESSION_COUNTS: &[SessionCount] = session_counts! {
    messages total "messages accepted from exporters, malformed ones included";
    message_bytes total "bytes of the accepted messages";
    records total "flow records decoded";
    packets total "packets in decoded records";
    bytes total "IP bytes in decoded records";
    events total "packets and new flows that SIM reported";
    options_records total "records about the exporter itself";
    templates total "templates received, including repeated ones";
    templates_expired total "templates expired: not repeated in time, or received before a restart of the exporter";
    templates_no_room total "templates dropped for lack of memory (--memory)";
    lost level "records, packets or other numbered units lost on the way, according to the exporters' sequence numbers";
    gaps total "gaps in the sequence numbers, whether filled later or not";
    late_units total "numbered units that arrived late and filled a gap";
    duplicates total "messages received a second time and skipped";
    early total "decoded messages with a sequence number before the first one received";
    old total "decoded messages with a sequence number far below the current one, in no known gap";
    restarts total "restarts of exporters";
    template_misses total "data sets that came before their template, or without a template";
    waited_bytes total "bytes of the data sets that came without their template";
    recovered_bytes total "bytes of waiting data sets that were decoded when their template came";
    undecoded_bytes total "bytes of waiting data sets that were discarded";
    undecoded_late_bytes total "bytes not decoded: their template did not come in time";
    undecoded_no_room_bytes total "bytes not decoded: no memory to store them until their template came (--memory)";
    undecoded_restart_bytes total "bytes not decoded: the exporter restarted";
    undecoded_ended_bytes total "bytes not decoded: the exporter was forgotten or disconnected";
    untold level "missing units that may be in data sets without a template, so they do not count as lost";
    pending_bytes level "bytes of data sets that still wait for their template";
    malformed total "messages that could not be read completely";
    over_budget total "records skipped: their set had too many records for its length";
    newer_packets level "packets in records that came after the exporters' last ledgers";
    timeless total "records without a time; they get the time of their message";
    flow_samples total "sFlow: packet samples received";
    lost_samples level "sFlow: packet samples lost on the way, according to the samples' sequence numbers";
    sampler_drops total "sFlow: samples that agents dropped, according to their own counts";
    samples_without_ip total "sFlow: packet samples without a readable IP packet, which make no record";
    counter_samples total "sFlow: samples of interface counters";
    unread_samples total "sFlow: samples that are not decoded, such as counters of other things than interfaces";
    interfaces_no_room total "sFlow: interface counters dropped for lack of room";
};

impl SessionCounts {
    pub fn add_counts(&mut self, other: &Self) {
        for count in SESSION_COUNTS {
            let mine = (count.get_mut)(self);
            // Exporters choose the values of their records, so a sum may overflow.
            *mine = mine.saturating_add((count.get)(other));
        }
        // Exporters choose the names, so their number is bounded in the sum, too.
        for name in &other.skipped {
            if self.skipped.len() >= MAX_SKIPPED_NAMES {
                break;
            }
            if !self.skipped.contains(name) {
                self.skipped.insert(name.clone());
            }
        }
    }

    /// Checks that the counts add up. Returns every rule that does not hold.
    pub fn find_imbalances(&self) -> Vec<CountImbalance> {
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
        broken.map(|(rule, left, right)| CountImbalance { rule, left, right }).collect()
    }
}

/// Maximum number of names of skipped fields that are remembered for a session.
pub(super) const MAX_SKIPPED_NAMES: usize = 64;
