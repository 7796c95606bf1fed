//! The collector's ledger: the losses that each exporter reports, by where they occurred, and the accounts of
//! everything that arrived here.
//!
//! ```text
//!  arrived at the meter - driver - ring - ignored - untracked - in its table - its queue - refused = sent
//!  sent - on the way = received here - not decoded = records - sinks lost = stored
//! ```

mod metrics;

use super::intake::IntakeCounts;
use super::relay::RelayCounts;
use packetrig_flow::collect::{
    ExporterIdentity, ForgottenExporters, GroupCounts, InterfaceCounters, RefusedMessages, ReportedLosses,
    SequenceNumbers, SessionCounts,
};
use packetrig_flow::{CountImbalance, FlowRecord, IgnoredReason, MeterLedger};
use serde::{Deserialize, Serialize};

/// Account of one exporter: the messages that arrived, and its own report of losses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExporterLedger {
    #[serde(flatten)]
    pub exporter: ExporterIdentity,
    /// True while the exporter's session is open. A closed session is listed without its port.
    pub is_here: bool,
    pub counts: SessionCounts,
    /// The exporter's last report about its own losses.
    pub reported: Option<ReportedLosses>,
    /// The exporter's sequence numbers, while its session is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numbers: Option<SequenceNumbers>,
    /// The counters of an sFlow agent's interfaces, while its session is open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceCounters>,
}

/// Records that were handed to the sinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedOverRecords {
    pub records: u64,
    /// Number of packets that the records report.
    pub packets: u64,
    /// Number of bytes that the records report.
    pub bytes: u64,
    /// Packets of SIM in flows that are still open.
    pub open_packets: u64,
}

/// All accounts of a collector, from its sockets to its sinks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CollectLedger {
    /// Time since the collector was started.
    pub elapsed_ns: u64,
    pub intake: Vec<IntakeCounts>,
    pub exporters: Vec<ExporterLedger>,
    /// Sum over all exporters, including exporters that are not listed because there are too many.
    pub total: SessionCounts,
    /// Messages that were not decoded, by cause: unknown protocol, address not allowed, too many
    /// exporters at an address.
    pub refused: RefusedMessages,
    /// Exporters whose state was removed to make room for other exporters, by cause.
    pub forgotten: ForgottenExporters,
    /// Memory for the state of exporters and for the flows of groups, in bytes, with the allocator's overhead. Open
    /// flows of SIM are not included.
    pub memory: u64,
    /// Records that went to the sinks.
    pub handed: HandedOverRecords,
    /// Accounts of the groups of meters that see copies of one link.
    pub groups: Vec<GroupLedger>,
    /// Datagrams that were forwarded to other collectors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relays: Vec<RelayCounts>,
}

/// The account of a group of meters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupLedger {
    /// The number of the group, in hexadecimal digits.
    pub group: String,
    #[serde(flatten)]
    pub counts: GroupCounts,
}

/// Packets of a meter that are in no received record, and the place where they are or were lost, such as `ring` or
/// `left to another meter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PacketLoss {
    pub place: &'static str,
    pub packets: u64,
}

/// Data that exporters sent and this collector does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MissingData {
    /// Unit of the missing data, and the reason.
    pub what: &'static str,
    pub amount: u64,
}

/// Balance of a meter's packets: packets in received records, and all other packets by the place where they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PacketBalance {
    /// Packets that arrived at the meter's interface or were in its file.
    pub arrived: u64,
    /// Packets in records that were received.
    pub received: u64,
    /// Losses by place; entries of zero are left out.
    pub losses: Vec<PacketLoss>,
    /// Received packets that the exporters' last reports do not count yet: arrived + newer = received + losses.
    pub newer: u64,
}

impl HandedOverRecords {
    /// Returns each number with its metric name and help text.
    pub const fn named_counts(&self) -> [(&'static str, &'static str, u64); 4] {
        [
            ("records_total", "records handed to the sinks", self.records),
            ("packets_total", "packets in the records handed to the sinks", self.packets),
            ("bytes_total", "IP bytes in the records handed to the sinks", self.bytes),
            ("open_packets", "packets that SIM reported in flows that are still open", self.open_packets),
        ]
    }

    pub(super) fn add_records(&mut self, records: &[FlowRecord]) {
        // The sums saturate, because an exporter may report any numbers.
        self.records = self.records.saturating_add(records.len() as u64);
        for record in records {
            self.packets = self.packets.saturating_add(record.packets());
            self.bytes = self.bytes.saturating_add(record.bytes());
        }
    }
}

impl GroupLedger {
    pub(super) fn new(group: u64, counts: &GroupCounts) -> Self {
        Self { group: format!("{group:016x}"), counts: counts.clone() }
    }

    /// Returns each number with its metric name and meaning.
    pub const fn named_counts(&self) -> [(&'static str, &'static str, u64); 9] {
        let counts = &self.counts;
        [
            ("records_total", "records that arrived", counts.records),
            ("repeated_records_total", "records without new packets", counts.repeated),
            ("overlapping_records_total", "records of which only some packets were new", counts.overlapping),
            ("packets_total", "packets of the link, each counted once", counts.packets),
            ("known_packets_total", "packets that another record had reported already", counts.known_packets),
            (
                "unplaced_packets",
                "packets not matched to other records so far: their meter started during the flow",
                counts.unplaced_packets,
            ),
            (
                "forgotten_total",
                "flow directions whose state was dropped for lack of memory (--memory)",
                counts.forgotten,
            ),
            (
                "recovered_packets_total",
                "packets of lost records that later records reported again",
                counts.recovered_packets,
            ),
            ("switches_total", "changes of the active meter", counts.switch_count),
        ]
    }

    /// Returns how many packets of the group this meter lacks: the packets of the link, minus the packets of the
    /// meter's copy of the link. If the meter has not announced that number, the packets in its records count instead.
    pub fn lacking_packets(&self, meter: u32) -> u64 {
        let part = self.counts.meters.get(&meter).copied().unwrap_or_default();
        // Saturates: a meter's copy may have packets that no record reports yet.
        self.counts.packets.saturating_sub(part.copy_packets.unwrap_or(part.packets))
    }
}

/// Packets that a meter's interface received or sent, or that were in its file, according to the meter's ledger.
fn arrived_packets(ledger: &MeterLedger) -> u64 {
    let capture = &ledger.capture;
    // Some drivers count dropped packets as arrived, other drivers do not: the larger number is the complete one.
    let counted = capture.delivered.saturating_add(dropped_packets(ledger));
    // Interfaces do not count packets that this machine sent as arrived.
    capture.arrived.map_or(counted, |arrived| arrived.saturating_add(capture.sent)).max(counted)
}

/// Packets that the meter's driver and ring dropped.
fn dropped_packets(ledger: &MeterLedger) -> u64 {
    ledger.capture.ring_dropped.saturating_add(ledger.capture.driver_dropped.unwrap_or(0))
}

impl ExporterLedger {
    /// Balances the packets of this exporter; `None` if it has sent no ledger.
    pub fn packet_balance(&self) -> Option<PacketBalance> {
        let ledger = self.reported.as_ref()?.ledger.as_ref()?;
        let MeterLedger { capture, packets, export } = ledger;
        let arrived = arrived_packets(ledger);
        let received = self.counts.packets;
        let ignored = IgnoredReason::ALL.map(|cause| (ignored_name(cause), packets.ignored[cause as usize]));
        let read = dropped_packets(ledger).saturating_add(capture.delivered);
        // The exporter's report is some seconds old unless it has ended. So fewer packets than it sent may be
        // here (on the way, or lost), or more (`newer`): at least one of the two counts is zero.
        let on_the_way = export.sent.packets.saturating_sub(received);
        let newer = received.saturating_sub(export.sent.packets);
        let places = [
            ("driver", capture.driver_dropped.unwrap_or(0)),
            ("ring", capture.ring_dropped),
            ("before the parser", arrived.saturating_sub(read)),
            ("table full", packets.untracked),
            ("still in its table", packets.live),
            ("its export queue", export.queue_dropped.packets),
            ("its transport", export.refused.packets),
            ("left to another meter", export.left_to_others.packets),
            ("waiting for export", export.waiting.packets),
            ("on the way", on_the_way),
        ];
        // The order of a packet's path: ignored packets reach the parser after the first three places.
        let all = places[..3].iter().copied().chain(ignored).chain(places[3..].iter().copied());
        let losses =
            all.filter(|(_, packets)| *packets > 0).map(|(place, packets)| PacketLoss { place, packets });
        Some(PacketBalance { arrived, received, losses: losses.collect(), newer })
    }
}

const fn ignored_name(cause: IgnoredReason) -> &'static str {
    match cause {
        IgnoredReason::Arp => "ignored: arp",
        IgnoredReason::NotIp => "ignored: not ip",
        IgnoredReason::ShortLink => "ignored: short link header",
        IgnoredReason::ShortIp => "ignored: short ip header",
        IgnoredReason::BadIp => "ignored: bad ip header",
        IgnoredReason::TooDeep => "ignored: too deep",
        IgnoredReason::Sampled => "ignored: sampled",
        IgnoredReason::Elsewhere => "ignored: another meter's share",
    }
}

impl CollectLedger {
    /// Sums the balances of the exporters that have sent a ledger; `None` if none has.
    pub fn packet_balance(&self) -> Option<PacketBalance> {
        let balances = self.exporters.iter().filter_map(ExporterLedger::packet_balance);
        let sum = balances.reduce(|mut sum, one| {
            // The sums saturate, because an exporter may report any numbers.
            sum.arrived = sum.arrived.saturating_add(one.arrived);
            sum.received = sum.received.saturating_add(one.received);
            sum.newer = sum.newer.saturating_add(one.newer);
            for loss in one.losses {
                match sum.losses.iter_mut().find(|known| known.place == loss.place) {
                    Some(known) => known.packets = known.packets.saturating_add(loss.packets),
                    None => sum.losses.push(loss),
                }
            }
            sum
        })?;
        Some(self.subtract_group_copies(sum))
    }

    /// Lets each packet of a group's link count once. Further reports of the same packet by other meters leave
    /// `received` and become an entry of the losses.
    fn subtract_group_copies(&self, mut balance: PacketBalance) -> PacketBalance {
        let copies = self.groups.iter().map(|group| {
            let counts = &group.counts;
            counts
                .known_packets
                .saturating_add(counts.unplaced_packets)
                .saturating_sub(counts.recovered_packets)
        });
        let packets = copies.fold(0, u64::saturating_add);
        if packets > 0 {
            balance.received = balance.received.saturating_sub(packets);
            balance.losses.push(PacketLoss { place: "copies that another meter reported", packets });
        }
        balance
    }

    fn sum_over_listeners(&self, count: fn(&IntakeCounts) -> u64) -> u64 {
        self.intake.iter().map(count).sum()
    }

    /// Returns the rules of the ledger that do not hold. While the collector runs, a rule may fail for a moment,
    /// because the counts of sockets and of exporters are read at different times.
    pub fn imbalances(&self) -> Vec<CountImbalance> {
        let left = self.sum_over_listeners(|intake| intake.messages);
        let not_read = self.sum_over_listeners(IntakeCounts::datagrams_not_allowed)
            + self.sum_over_listeners(|intake| intake.unread);
        // Refused connections are not included, because they brought no message.
        let right = self.total.messages + self.refused.total_messages() + not_read;
        let mut found = self.total.find_imbalances();
        if left != right {
            found.push(CountImbalance {
                rule: "messages = read + refused + not allowed + unread at the end",
                left,
                right,
            });
        }
        found
    }

    /// Messages that were not decoded, by cause, including datagrams that a listener did not pass on.
    pub fn refused_by_cause(&self) -> [(&'static str, u64); 4] {
        let not_allowed = self.sum_over_listeners(IntakeCounts::datagrams_not_allowed);
        [
            ("not_allowed", self.refused.not_allowed + not_allowed),
            ("address_full", self.refused.address_full),
            ("unknown_protocol", self.refused.unknown_protocol),
            ("unread_at_end", self.sum_over_listeners(|intake| intake.unread)),
        ]
    }

    /// Exporters whose state was removed to make room for other exporters, by cause.
    pub const fn forgotten_by_cause(&self) -> [(&'static str, u64); 3] {
        let ForgottenExporters { on_trial, for_memory, silent } = self.forgotten;
        [("on_trial", on_trial), ("for_memory", for_memory), ("silent", silent)]
    }

    /// Lists data that exporters sent and this collector did not decode, as far as it knows. Entries of zero are
    /// left out. Messages that the user excluded (`--allow-exporter`), duplicates and messages of other protocols
    /// are not counted as missing.
    pub fn missing_data(&self) -> Vec<MissingData> {
        let total = &self.total;
        let all = [
            ("datagrams dropped by the kernel: receive buffer full", self.dropped_by_sockets()),
            ("datagrams not read at the end", self.sum_over_listeners(|intake| intake.unread)),
            (
                "records or other units lost on the way, according to the exporters' sequence numbers",
                total.lost,
            ),
            ("bytes not decoded: their template is missing", total.undecoded_bytes + total.pending_bytes),
            ("malformed messages", total.malformed),
            ("records skipped: too many in one set", total.over_budget),
            ("messages refused: too many exporters at one address", self.refused.address_full),
            (
                "connections that ended within a message, sent other data, or timed out",
                self.sum_over_listeners(|intake| intake.broken_connections() + intake.slow),
            ),
            (
                "files that end within a message, or contain other data",
                self.intake.iter().filter(|intake| intake.is_damaged_file()).count() as u64,
            ),
            (
                "connections refused: one side rejected the other's certificate or protocol",
                self.sum_over_listeners(|intake| intake.handshakes_failed),
            ),
            (
                "connections with unread data when the collector ended",
                self.sum_over_listeners(|intake| intake.cut),
            ),
        ];
        let found = all.into_iter().filter(|(_, amount)| *amount > 0);
        found.map(|(what, amount)| MissingData { what, amount }).collect()
    }

    /// Datagrams that the kernel dropped at sockets because the receive buffer was full.
    pub fn dropped_by_sockets(&self) -> u64 {
        self.sum_over_listeners(|intake| intake.dropped)
    }
}
