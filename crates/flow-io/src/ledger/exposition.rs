//! Writes the ledger in the text format of Prometheus.

use super::{LedgerReport, OutputReport};
use crate::group::{GroupReport, PeerReport};
use packetrig_flow::{CarriedRecords, ExportCounts, IgnoredReason, LossCause, MeterLedger};

/// A number of the ledger: name, help text, kind, and how to read it.
type LedgerMetric = (&'static str, &'static str, &'static str, fn(&MeterLedger) -> Option<u64>);

const METRICS: [LedgerMetric; 15] = [
    ("arrived_packets_total", "Packets at the interface or in the file.", COUNTER, |l| l.capture.arrived),
    ("delivered_packets_total", "Packets given to the parser.", COUNTER, |l| Some(l.capture.delivered)),
    ("seen_bytes_total", "Bytes of frames given to the parser.", COUNTER, |l| Some(l.packets.seen_bytes)),
    ("metered_packets_total", "Packets in flows.", COUNTER, |l| Some(l.packets.metered)),
    ("live_packets", "Packets in flows that are not reported yet.", GAUGE, |l| Some(l.packets.live)),
    ("recorded_packets_total", "Packets in records.", COUNTER, |l| Some(l.packets.recorded)),
    ("records_total", "Records that left the table.", COUNTER, |l| Some(l.packets.records)),
    ("flows_total", "Flows opened.", COUNTER, |l| Some(l.packets.flows)),
    ("evicted_flows_total", "Flows ended early because the table was full.", COUNTER, |l| {
        Some(l.packets.evicted)
    }),
    ("backwards_packets_total", "Packets older than the one before.", COUNTER, |l| Some(l.packets.backwards)),
    ("seen_packets_total", "Packets the parser looked at.", COUNTER, |l| Some(l.packets.seen)),
    ("sent_packets_total", "Packets that this machine sent.", COUNTER, |l| Some(l.capture.sent)),
    ("merged_packets_total", "Merged packets that were taken apart.", COUNTER, |l| Some(l.packets.merged)),
    ("merged_on_wire_packets_total", "What merged packets were on the wire.", COUNTER, |l| {
        Some(l.packets.merged_packets)
    }),
    ("unsplit_packets_total", "Merged packets that count as one.", COUNTER, |l| Some(l.packets.unsplit)),
];

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

/// A state of the records that an output was offered: name, kind, and how to read it.
type OfferState = (&'static str, &'static str, fn(&ExportCounts) -> CarriedRecords);

const STATES: [OfferState; 6] = [
    ("offered", COUNTER, |counts| counts.offered),
    ("queue_dropped", COUNTER, |counts| counts.queue_dropped),
    ("sent", COUNTER, |counts| counts.sent),
    ("refused", COUNTER, |counts| counts.refused),
    ("left_to_others", COUNTER, |counts| counts.left_to_others),
    ("waiting", GAUGE, |counts| counts.waiting),
];

/// A number of another meter of the group: name, help text, kind, and how to read it.
type PeerMetric = (&'static str, &'static str, &'static str, fn(&PeerReport) -> u64);

/// Writes the report as text. Unknown numbers are left out.
pub fn prometheus_text(report: &LedgerReport) -> String {
    let mut text = MetricsText(String::with_capacity(8192));
    for (name, help, kind, value) in METRICS {
        text.write_head(name, help, kind);
        text.write_value(name, "", value(&report.ledger));
    }
    write_drops(&mut text, &report.ledger);
    for (name, kind, of) in STATES {
        // Prometheus: the name of a counter ends in `_total`.
        let total = if kind == COUNTER { "_total" } else { "" };
        let records = format!("output_{name}_records{total}");
        text.write_outputs(&records, "Records by what became of them.", kind, report, |o| {
            of(&o.counts).records
        });
        let packets = format!("output_{name}_packets{total}");
        text.write_outputs(&packets, "Packets in these records.", kind, report, |o| of(&o.counts).packets);
    }
    write_losses(&mut text, report);
    text.write_outputs("output_messages_total", "Messages sent.", COUNTER, report, |o| o.counts.messages);
    text.write_outputs("output_bytes_total", "Bytes of these messages.", COUNTER, report, |o| {
        o.counts.message_bytes
    });
    if let Some(group) = &report.group {
        write_group(&mut text, group);
    }
    text.0
}

/// Writes the lost records of each output by cause. Every cause has a line, so that an alerting rule finds it
/// before the first loss.
fn write_losses(text: &mut MetricsText, report: &LedgerReport) {
    let name = "output_lost_records_total";
    text.write_head(name, "Records that an output does not have, by cause.", COUNTER);
    for output in &report.outputs {
        for cause in LossCause::ALL {
            let records = output
                .losses
                .by_cause()
                .find(|(of, _)| *of == cause)
                .map_or(0, |(_, carried)| carried.records);
            text.write_value(
                name,
                &format!("{{to=\"{}\",cause=\"{}\"}}", sanitize_label(&output.to), cause.name()),
                Some(records),
            );
        }
    }
}

/// Removes the characters that would end a label.
fn sanitize_label(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, '"' | '\\' | '\n')).collect()
}

fn write_group(text: &mut MetricsText, group: &GroupReport) {
    let own: [(&str, &str, &str, u64); 5] = [
        ("group_active", "Whether this meter exports for its group.", GAUGE, group.is_active.into()),
        ("group_ready", "Whether it could take over without a gap.", GAUGE, group.is_ready.into()),
        ("group_blind", "Whether packets come at other meters only.", GAUGE, group.is_blind.into()),
        ("group_packets_total", "Packets of this meter's copy of the link.", COUNTER, group.packets),
        ("group_switches_total", "Changes of this meter's role.", COUNTER, group.switch_count),
    ];
    for (name, help, kind, value) in own {
        text.write_head(name, help, kind);
        text.write_value(name, "", Some(value));
    }
    let peers: [PeerMetric; 3] = [
        ("group_peer_alive", "Whether the other meter is heard.", GAUGE, |peer| peer.is_alive.into()),
        ("group_peer_active", "Whether the other meter exports.", GAUGE, |peer| peer.is_active.into()),
        ("group_peer_packets_total", "Packets of its copy of the link.", COUNTER, |peer| peer.packets),
    ];
    for (name, help, kind, value) in peers {
        text.write_head(name, help, kind);
        for peer in &group.peers {
            text.write_value(name, &format!("{{meter=\"{}\"}}", peer.meter), Some(value(peer)));
        }
    }
}

fn write_drops(text: &mut MetricsText, ledger: &MeterLedger) {
    let name = "dropped_packets_total";
    text.write_head(name, "Packets that are in no record, by place.", COUNTER);
    // Absent where the source has no driver counter, such as a file.
    text.write_value(name, "{place=\"driver\"}", ledger.capture.driver_dropped);
    text.write_value(name, "{place=\"ring\"}", Some(ledger.capture.ring_dropped));
    text.write_value(name, "{place=\"table\"}", Some(ledger.packets.untracked));
    let name = "ignored_packets_total";
    text.write_head(name, "Packets that are not metered, by cause.", COUNTER);
    for cause in IgnoredReason::ALL {
        let count = ledger.packets.ignored[cause as usize];
        text.write_value(name, &format!("{{cause=\"{}\"}}", cause.name()), Some(count));
    }
}

struct MetricsText(String);

impl MetricsText {
    fn write_head(&mut self, name: &str, help: &str, kind: &str) {
        let parts =
            ["# HELP packetrig_meter_", name, " ", help, "\n# TYPE packetrig_meter_", name, " ", kind, "\n"];
        self.0.extend(parts);
    }

    fn write_value(&mut self, name: &str, labels: &str, value: Option<u64>) {
        // No line instead of a zero, because a zero would claim that nothing was lost.
        if let Some(value) = value {
            self.0.extend(["packetrig_meter_", name, labels, " ", &value.to_string(), "\n"]);
        }
    }

    fn write_outputs(
        &mut self,
        name: &str,
        help: &str,
        kind: &str,
        report: &LedgerReport,
        value: impl Fn(&OutputReport) -> u64,
    ) {
        self.write_head(name, help, kind);
        for output in &report.outputs {
            self.write_value(
                name,
                &format!("{{to=\"{}\"}}", sanitize_label(&output.to)),
                Some(value(output)),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::MeterAccounts;

    #[test]
    fn unknown_metric_is_not_exposed() {
        let accounts = MeterAccounts::new();
        let text = prometheus_text(&accounts.build_report(false));
        assert!(text.contains("packetrig_meter_delivered_packets_total 0\n"), "{text}");
        assert!(!text.contains("packetrig_meter_arrived_packets_total 0"), "{text}");
        assert!(text.contains("packetrig_meter_ignored_packets_total{cause=\"arp\"} 0\n"), "{text}");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.rsplit_once(' ').is_some_and(|(_, value)| value.parse::<u64>().is_ok()), "{line}");
        }
    }
}
