//! Writes the ledger in the text format of Prometheus.

use super::{LedgerReport, OutputReport};
use crate::group::{GroupReport, PeerReport};
use packetrig_flow::{CarriedRecords, ExportCounts, IgnoredReason, LossCause, MeterLedger};
use packetrig_units::RemovedFiles;
use packetrig_units::exposition::MetricsText;

/// A number of the ledger: name, help text, and how to read it.
type LedgerMetric = (&'static str, &'static str, fn(&MeterLedger) -> Option<u64>);

const LEDGER_METRICS: [LedgerMetric; 15] = [
    ("arrived_packets_total", "Packets at the interface or in the file.", |l| l.capture.arrived),
    ("delivered_packets_total", "Packets given to the parser.", |l| Some(l.capture.delivered)),
    ("seen_bytes_total", "Bytes of frames given to the parser.", |l| Some(l.packets.seen_bytes)),
    ("metered_packets_total", "Packets in flows.", |l| Some(l.packets.metered)),
    ("live_packets", "Packets in flows that are not reported yet.", |l| Some(l.packets.live)),
    ("recorded_packets_total", "Packets in records.", |l| Some(l.packets.recorded)),
    ("records_total", "Records that left the table.", |l| Some(l.packets.records)),
    ("flows_total", "Flows opened.", |l| Some(l.packets.flows)),
    ("evicted_flows_total", "Flows ended early because the table was full.", |l| Some(l.packets.evicted)),
    ("backwards_packets_total", "Packets with an earlier time than the packet before.", |l| {
        Some(l.packets.backwards)
    }),
    ("seen_packets_total", "Packets the parser looked at.", |l| Some(l.packets.seen)),
    ("sent_packets_total", "Packets that this machine sent.", |l| Some(l.capture.sent)),
    ("merged_packets_total", "Merged packets (GRO, LRO) that the meter split.", |l| Some(l.packets.merged)),
    ("merged_on_wire_packets_total", "Packets on the wire in the merged packets that were split.", |l| {
        Some(l.packets.merged_packets)
    }),
    ("unsplit_packets_total", "Merged packets that were not split: each counts as one.", |l| {
        Some(l.packets.unsplit)
    }),
];

/// A state of the records that an output was offered: name, whether it can fall, and how to read it.
type OfferState = (&'static str, bool, fn(&ExportCounts) -> CarriedRecords);

const OFFER_STATES: [OfferState; 6] = [
    ("offered", false, |counts| counts.offered),
    ("queue_dropped", false, |counts| counts.queue_dropped),
    ("sent", false, |counts| counts.sent),
    ("refused", false, |counts| counts.refused),
    ("left_to_others", false, |counts| counts.left_to_others),
    ("waiting", true, |counts| counts.waiting),
];

/// A number of another meter of the group: name, help text, and how to read it.
type PeerMetric = (&'static str, &'static str, fn(&PeerReport) -> u64);

/// Formats the report as metrics in the text format of Prometheus. Unknown numbers are left out.
pub fn prometheus_text(report: &LedgerReport) -> String {
    let mut text = MetricsText::with_prefix("packetrig_meter_");
    for (name, help, value) in LEDGER_METRICS {
        text.write_value(name, help, value(&report.ledger));
    }
    write_drop_metrics(&mut text, &report.ledger);
    for (name, can_fall, of) in OFFER_STATES {
        let total = if can_fall { "" } else { "_total" };
        let records = format!("output_{name}_records{total}");
        write_metric_by_output(&mut text, &records, "Records by their state.", report, |o| {
            of(&o.counts).records
        });
        let packets = format!("output_{name}_packets{total}");
        write_metric_by_output(
            &mut text,
            &packets,
            "Packets in the records, by the state of the record.",
            report,
            |o| of(&o.counts).packets,
        );
    }
    write_loss_metrics(&mut text, report);
    write_metric_by_output(&mut text, "output_messages_total", "Messages sent.", report, |o| {
        o.counts.messages
    });
    write_metric_by_output(
        &mut text,
        "output_bytes_total",
        "Bytes of the messages sent, or of the files written.",
        report,
        |o| o.counts.message_bytes,
    );
    for (at, (name, what, _)) in RemovedFiles::default().named_counts().into_iter().enumerate() {
        let help = format!("Outputs: {what}.");
        write_metric_by_output(&mut text, &format!("output_{name}"), &help, report, |o| {
            o.removed.named_counts()[at].2
        });
    }
    if let Some(group) = &report.group {
        write_group(&mut text, group);
    }
    text.into_text()
}

/// Writes the lost records of each output by cause. Every cause has a line, so that an alerting rule finds it
/// before the first loss.
fn write_loss_metrics(text: &mut MetricsText, report: &LedgerReport) {
    let help = "Records that were lost before or at an output, by cause.";
    text.write_metric("output_lost_records_total", help, |samples| {
        for output in &report.outputs {
            for cause in LossCause::ALL {
                let lost = output.losses.losses_by_cause().find(|(of, _)| *of == cause);
                let records = lost.map_or(0, |(_, carried)| carried.records);
                samples.add_sample(&[("to", &output.to), ("cause", cause.name())], records);
            }
        }
    });
}

fn write_group(text: &mut MetricsText, group: &GroupReport) {
    let own: [(&str, &str, u64); 5] = [
        ("group_active", "1 if this meter exports for its group.", group.is_active.into()),
        ("group_ready", "1 if this meter could take over without a gap.", group.is_ready.into()),
        ("group_blind", "1 if packets arrive only at other meters.", group.is_blind.into()),
        ("group_packets_total", "Packets of the link's traffic that this meter received.", group.packets),
        ("group_switches_total", "Changes of this meter's role.", group.switch_count),
    ];
    for (name, help, value) in own {
        text.write_value(name, help, value);
    }
    let peers: [PeerMetric; 3] = [
        ("group_peer_alive", "1 if the other meter sends advertisements.", |peer| peer.is_alive.into()),
        ("group_peer_active", "1 if the other meter exports for the group.", |peer| peer.is_active.into()),
        (
            "group_peer_packets_total",
            "Packets of the link's traffic that the other meter received.",
            |peer| peer.packets,
        ),
    ];
    for (name, help, value) in peers {
        text.write_metric(name, help, |samples| {
            for peer in &group.peers {
                samples.add_sample(&[("meter", &peer.meter.to_string())], value(peer));
            }
        });
    }
}

fn write_drop_metrics(text: &mut MetricsText, ledger: &MeterLedger) {
    text.write_metric("dropped_packets_total", "Packets dropped before metering, by place.", |samples| {
        // Absent where the source has no driver counter, such as a file.
        samples.add_sample(&[("place", "driver")], ledger.capture.driver_dropped);
        samples.add_sample(&[("place", "ring")], ledger.capture.ring_dropped);
        samples.add_sample(&[("place", "table")], ledger.packets.untracked);
    });
    text.write_metric("ignored_packets_total", "Packets that are not metered, by cause.", |samples| {
        for cause in IgnoredReason::ALL {
            samples.add_sample(&[("cause", cause.name())], ledger.packets.ignored[cause as usize]);
        }
    });
}

fn write_metric_by_output(
    text: &mut MetricsText,
    name: &str,
    help: &str,
    report: &LedgerReport,
    value: impl Fn(&OutputReport) -> u64,
) {
    text.write_metric(name, help, |samples| {
        for output in &report.outputs {
            samples.add_sample(&[("to", &output.to)], value(output));
        }
    });
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
