//! Writes the ledger in the text format of Prometheus. The number of series is bounded, whatever exporters send.

use super::{CollectLedger, ExporterLedger, GroupLedger};
use packetrig_flow::collect::{GroupCounts, MessageTransport, SESSION_COUNTS, SessionCounts};
use std::cmp::Reverse;

impl CollectLedger {
    /// The ledger in the text format of Prometheus.
    pub fn prometheus_text(&self) -> String {
        let mut text = String::new();
        write_metric(&mut text, "collect_messages_total", "Datagrams and messages received.", |row| {
            self.intake.iter().for_each(|intake| row(&[("listen", &intake.place)], intake.messages));
        });
        write_metric(&mut text, "collect_message_bytes_total", "Bytes of these messages.", |row| {
            self.intake.iter().for_each(|intake| row(&[("listen", &intake.place)], intake.bytes));
        });
        write_metric(
            &mut text,
            "collect_socket_dropped_total",
            "Datagrams a socket had no room for.",
            |row| {
                self.intake.iter().for_each(|intake| row(&[("listen", &intake.place)], intake.dropped));
            },
        );
        self.metrics_of_connections(&mut text);
        self.metrics_of_bounds(&mut text);
        self.metrics_of_exporters(&mut text);
        for (name, help, value) in self.handed.named_counts() {
            write_metric(&mut text, &format!("collect_handed_{name}"), help, |row| row(&[], value));
        }
        self.metrics_of_groups(&mut text);
        if let Some(balance) = self.packet_balance() {
            write_metric(
                &mut text,
                "collect_wire_packets_total",
                "Packets that arrived at the meters.",
                |row| {
                    row(&[], balance.arrived);
                },
            );
            write_metric(
                &mut text,
                "collect_wire_lost_packets",
                "Packets that were lost, by place.",
                |row| {
                    balance.losses.iter().for_each(|loss| row(&[("place", loss.place)], loss.packets));
                },
            );
        }
        text
    }
}

/// The exporters with series of their own, and the sum of the others.
struct ExporterSeries<'a> {
    own: Vec<&'a ExporterLedger>,
    others: SessionCounts,
    other_count: usize,
}

impl<'a> ExporterSeries<'a> {
    /// Most exporters with series of their own. A sender with many addresses chooses neither the number of series nor their names.
    const MOST: usize = 256;

    fn from_exporters(exporters: &'a [ExporterLedger]) -> Self {
        let mut own: Vec<_> = exporters.iter().collect();
        let mut rest = Vec::new();
        if own.len() > Self::MOST {
            // Connections cannot be forged, so they come first; then those that have sent most.
            own.sort_by_key(|one| {
                let is_connected = one.is_here && one.exporter.source.transport != MessageTransport::Udp;
                Reverse((is_connected, one.counts.messages))
            });
            rest = own.split_off(Self::MOST);
        }
        let mut others = SessionCounts::default();
        for one in &rest {
            others.add_counts(&one.counts);
        }
        Self { own, others, other_count: rest.len() }
    }
}

impl CollectLedger {
    fn metrics_of_exporters(&self, text: &mut String) {
        let series = ExporterSeries::from_exporters(&self.exporters);
        for count in SESSION_COUNTS {
            let suffix = if count.is_level { "" } else { "_total" };
            write_metric(text, &format!("collect_exporter_{}{suffix}", count.name), count.meaning, |row| {
                for ledger in &series.own {
                    let source = &ledger.exporter.source;
                    let address = source.address.to_string();
                    let domain = ledger.exporter.domain.to_string();
                    let port = source.port.to_string();
                    let labels = [
                        ("exporter", &address[..]),
                        ("port", &port),
                        ("transport", source.transport.name()),
                        ("protocol", ledger.exporter.protocol.name()),
                        ("domain", &domain),
                    ];
                    row(&labels, (count.get)(&ledger.counts));
                }
                if series.other_count > 0 {
                    row(&[("exporter", "others")], (count.get)(&series.others));
                }
            });
        }
        write_metric(text, "collect_other_exporters", "Exporters without series of their own.", |row| {
            row(&[], series.other_count as u64);
        });
    }

    fn metrics_of_groups(&self, text: &mut String) {
        // The header of a metric is written once for all groups, so its name comes from an empty ledger.
        let names = GroupLedger::new(0, &GroupCounts::default()).named_counts();
        // Without any group there are no such metrics.
        for (at, (name, help, _)) in names.into_iter().enumerate().filter(|_| !self.groups.is_empty()) {
            write_metric(text, &format!("collect_group_{name}"), help, |row| {
                self.groups
                    .iter()
                    .for_each(|group| row(&[("group", &group.group)], group.named_counts()[at].2));
            });
        }
        write_metric(
            text,
            "collect_group_meter_lacking_packets",
            "Packets of a group that a meter did not see or report.",
            |row| {
                for group in &self.groups {
                    for meter in group.counts.meters.keys() {
                        row(
                            &[("group", &group.group), ("meter", &meter.to_string())],
                            group.lacking_packets(*meter),
                        );
                    }
                }
            },
        );
    }

    fn metrics_of_connections(&self, text: &mut String) {
        write_metric(text, "collect_connections_total", "Connections accepted.", |row| {
            self.intake.iter().for_each(|intake| row(&[("listen", &intake.place)], intake.connections));
        });
        write_metric(text, "collect_connections_open", "Connections open now.", |row| {
            self.intake.iter().for_each(|intake| row(&[("listen", &intake.place)], intake.open));
        });
        write_metric(
            text,
            "collect_connections_closed_total",
            "Connections refused or closed, by cause.",
            |row| {
                for intake in &self.intake {
                    for (cause, value) in intake.closed_by_cause() {
                        row(&[("listen", &intake.place), ("cause", cause)], value);
                    }
                }
            },
        );
    }

    /// Writes the messages that were not read, and the exporters that were forgotten to stay within the bounds of memory.
    fn metrics_of_bounds(&self, text: &mut String) {
        write_metric(text, "collect_refused_total", "Messages that were not read, by cause.", |row| {
            self.refused_by_cause().iter().for_each(|(cause, value)| row(&[("cause", cause)], *value));
        });
        write_metric(text, "collect_forgotten_exporters_total", "Exporters forgotten for others.", |row| {
            self.forgotten_by_cause().iter().for_each(|(cause, value)| row(&[("cause", cause)], *value));
        });
        write_metric(text, "collect_memory_bytes", "Memory that exporters hold.", |row| {
            row(&[], self.memory);
        });
    }
}

/// Writes a metric. `fill` adds its rows: the labels and the value of each.
fn write_metric(
    text: &mut String,
    name: &str,
    help: &str,
    fill: impl FnOnce(&mut dyn FnMut(&[(&str, &str)], u64)),
) {
    let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
    text.extend(["# HELP packetrig_", name, " ", help, "\n# TYPE packetrig_", name, " ", kind, "\n"]);
    fill(&mut |labels, value| {
        let pairs: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape_label(value))).collect();
        let braces = if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) };
        text.extend(["packetrig_", name, &braces, " ", &value.to_string(), "\n"]);
    });
}

// Exposition format of Prometheus: backslash, double quote and line feed of a label value are escaped. Values here can be
// file names, so they do occur.
fn escape_label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
