//! Writes the ledger in the text format of Prometheus. The number of series is bounded, whatever exporters send.

use super::{CollectLedger, ExporterLedger, GroupLedger, RelayCounts};
use packetrig_flow::collect::{
    GroupCounts, InterfaceCounters, MessageTransport, SESSION_COUNTS, SessionCounts,
};
use packetrig_units::exposition::MetricsText;
use std::cmp::Reverse;

impl CollectLedger {
    /// Formats the ledger as metrics in the text format of Prometheus.
    pub fn prometheus_text(&self) -> String {
        let mut text = MetricsText::with_prefix("packetrig_collect_");
        text.write_metric("messages_total", "Datagrams and messages received.", |samples| {
            self.intake
                .iter()
                .for_each(|intake| samples.add_sample(&[("listen", &intake.place)], intake.messages));
        });
        text.write_metric("message_bytes_total", "Bytes of datagrams and messages received.", |samples| {
            self.intake
                .iter()
                .for_each(|intake| samples.add_sample(&[("listen", &intake.place)], intake.bytes));
        });
        text.write_metric(
            "socket_dropped_total",
            "Datagrams that the kernel dropped because the receive buffer was full.",
            |samples| {
                self.intake
                    .iter()
                    .for_each(|intake| samples.add_sample(&[("listen", &intake.place)], intake.dropped));
            },
        );
        self.write_connection_metrics(&mut text);
        self.write_refusal_and_memory_metrics(&mut text);
        self.write_exporter_metrics(&mut text);
        for (name, help, value) in self.handed.named_counts() {
            text.write_metric(&format!("handed_{name}"), help, |samples| samples.add_sample(&[], value));
        }
        self.write_group_metrics(&mut text);
        self.write_relay_metrics(&mut text);
        if let Some(balance) = self.packet_balance() {
            text.write_metric("wire_packets_total", "Packets that arrived at the meters.", |samples| {
                samples.add_sample(&[], balance.arrived);
            });
            text.write_metric(
                "wire_lost_packets",
                "Packets without a received record, by their place on the path.",
                |samples| {
                    balance
                        .losses
                        .iter()
                        .for_each(|loss| samples.add_sample(&[("place", loss.place)], loss.packets));
                },
            );
        }
        text.into_text()
    }
}

/// The exporters with their own series, and the sum of all other exporters.
struct ExporterSeries<'a> {
    own: Vec<&'a ExporterLedger>,
    others: SessionCounts,
    other_count: usize,
}

impl<'a> ExporterSeries<'a> {
    /// Maximum number of exporters with a separate series: a sender that forges addresses must not create an
    /// unlimited number of series.
    const MAX_EXPORTERS_WITH_SERIES: usize = 256;

    fn from_exporters(exporters: &'a [ExporterLedger]) -> Self {
        let mut own: Vec<_> = exporters.iter().collect();
        let mut rest = Vec::new();
        if own.len() > Self::MAX_EXPORTERS_WITH_SERIES {
            // The address of a connection cannot be forged, so connected exporters come first.
            own.sort_by_key(|one| {
                let is_connected = one.is_here && one.exporter.source.transport != MessageTransport::Udp;
                Reverse((is_connected, one.counts.messages))
            });
            rest = own.split_off(Self::MAX_EXPORTERS_WITH_SERIES);
        }
        let mut others = SessionCounts::default();
        for one in &rest {
            others.add_counts(&one.counts);
        }
        Self { own, others, other_count: rest.len() }
    }
}

/// Maximum number of interfaces with a separate series, over all agents.
const MAX_INTERFACES: usize = 1024;

/// Writes the interface counters that sFlow agents have sent.
fn write_interfaces(text: &mut MetricsText, exporters: &[&ExporterLedger]) {
    let interfaces =
        exporters.iter().flat_map(|one| one.interfaces.iter().map(|counters| (&one.exporter, counters)));
    let listed: Vec<_> = interfaces
        .take(MAX_INTERFACES)
        .map(|(exporter, counters)| {
            let labels =
                [exporter.address().to_string(), exporter.domain.to_string(), counters.index.to_string()];
            (labels, counters)
        })
        .collect();
    let mut write = |name: &str, help: &str, value: &dyn Fn(&InterfaceCounters) -> u64| {
        text.write_metric(name, help, |samples| {
            for ([exporter, domain, index], counters) in &listed {
                let labels = [("exporter", &exporter[..]), ("domain", domain), ("interface", index)];
                samples.add_sample(&labels, value(counters));
            }
        });
    };
    // The default supplies only the names. Each interface has its values at the same positions.
    for (at, (name, _)) in InterfaceCounters::default().named_counts().into_iter().enumerate() {
        let help =
            "Counter of an agent's interface, from its last sFlow sample; wraps at the width of the counter.";
        write(&format!("interface_{name}_total"), help, &|counters| counters.named_counts()[at].1);
    }
    write("interface_speed_bits", "Bits per second of an agent's interface.", &|counters| counters.speed);
}

impl CollectLedger {
    fn write_exporter_metrics(&self, text: &mut MetricsText) {
        let series = ExporterSeries::from_exporters(&self.exporters);
        for count in SESSION_COUNTS {
            let suffix = if count.is_level { "" } else { "_total" };
            text.write_metric(&format!("exporter_{}{suffix}", count.name), count.meaning, |samples| {
                for ledger in &series.own {
                    let source = &ledger.exporter.source;
                    let address = ledger.exporter.address().to_string();
                    let domain = ledger.exporter.domain.to_string();
                    let port = source.port.to_string();
                    let labels = [
                        ("exporter", &address[..]),
                        ("port", &port),
                        ("transport", source.transport.name()),
                        ("protocol", ledger.exporter.protocol.name()),
                        ("domain", &domain),
                    ];
                    samples.add_sample(&labels, (count.get)(&ledger.counts));
                }
                if series.other_count > 0 {
                    samples.add_sample(&[("exporter", "others")], (count.get)(&series.others));
                }
            });
        }
        text.write_metric("other_exporters", "Exporters without a separate series.", |samples| {
            samples.add_sample(&[], series.other_count as u64);
        });
        write_interfaces(text, &series.own);
    }

    fn write_relay_metrics(&self, text: &mut MetricsText) {
        // The default supplies only the names. Without a relay, nothing is written.
        let names = RelayCounts::default().named_counts();
        for (at, (name, help, _)) in names.into_iter().enumerate().filter(|_| !self.relays.is_empty()) {
            text.write_metric(&format!("relay_{name}"), help, |samples| {
                for relay in &self.relays {
                    samples.add_sample(&[("to", &relay.to)], relay.named_counts()[at].2);
                }
            });
        }
    }

    fn write_group_metrics(&self, text: &mut MetricsText) {
        // The header of a metric is written once for all groups, so its name comes from an empty ledger.
        let names = GroupLedger::new(0, &GroupCounts::default()).named_counts();
        // Without a group, these metrics are not written.
        for (at, (name, help, _)) in names.into_iter().enumerate().filter(|_| !self.groups.is_empty()) {
            text.write_metric(&format!("group_{name}"), help, |samples| {
                self.groups.iter().for_each(|group| {
                    samples.add_sample(&[("group", &group.group)], group.named_counts()[at].2);
                });
            });
        }
        text.write_metric(
            "group_meter_lacking_packets",
            "Packets of a group's link that this meter did not see or report.",
            |samples| {
                for group in &self.groups {
                    for meter in group.counts.meters.keys() {
                        samples.add_sample(
                            &[("group", &group.group), ("meter", &meter.to_string())],
                            group.lacking_packets(*meter),
                        );
                    }
                }
            },
        );
    }

    fn write_connection_metrics(&self, text: &mut MetricsText) {
        text.write_metric("connections_total", "Connections accepted.", |samples| {
            self.intake
                .iter()
                .for_each(|intake| samples.add_sample(&[("listen", &intake.place)], intake.connections));
        });
        text.write_metric("connections_open", "Connections open now.", |samples| {
            self.intake
                .iter()
                .for_each(|intake| samples.add_sample(&[("listen", &intake.place)], intake.open));
        });
        text.write_metric(
            "connections_closed_total",
            "Connections refused or closed, by cause.",
            |samples| {
                for intake in &self.intake {
                    for (cause, value) in intake.closed_by_cause() {
                        samples.add_sample(&[("listen", &intake.place), ("cause", cause)], value);
                    }
                }
            },
        );
    }

    /// Writes the counts of messages that were not decoded and of removed exporters, and the memory in use.
    fn write_refusal_and_memory_metrics(&self, text: &mut MetricsText) {
        text.write_metric("refused_total", "Messages that were not decoded, by cause.", |samples| {
            self.refused_by_cause()
                .iter()
                .for_each(|(cause, value)| samples.add_sample(&[("cause", cause)], *value));
        });
        text.write_metric(
            "forgotten_exporters_total",
            "Exporters whose state was removed to make room, by cause.",
            |samples| {
                self.forgotten_by_cause()
                    .iter()
                    .for_each(|(cause, value)| samples.add_sample(&[("cause", cause)], *value));
            },
        );
        text.write_metric("memory_bytes", "Memory for the state of exporters and groups.", |samples| {
            samples.add_sample(&[], self.memory);
        });
    }
}
