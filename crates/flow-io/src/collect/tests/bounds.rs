//! Exporters choose neither how many series the metrics have, nor do their numbers wrap sums.

use super::*;
use packetrig_flow::CarriedRecords;
use packetrig_flow::collect::{
    ForgottenExporters, MessageSource, MessageTransport, RefusedMessages, ReportedLosses, SessionCounts,
};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

fn exporter(number: u32, transport: MessageTransport, messages: u64) -> ExporterLedger {
    let address = IpAddr::from(Ipv4Addr::from_bits(0xc612_0000 + number));
    let source = MessageSource { address, port: 5, transport };
    ExporterLedger {
        exporter: ExporterIdentity { source, protocol: ExportProtocol::Ipfix, domain: 7, agent: None },
        is_here: true,
        counts: SessionCounts { messages, ..SessionCounts::default() },
        reported: None,
        numbers: None,
        interfaces: Vec::new(),
    }
}

fn ledger(exporters: Vec<ExporterLedger>) -> CollectLedger {
    CollectLedger {
        elapsed_ns: 1,
        intake: Vec::new(),
        exporters,
        total: SessionCounts::default(),
        refused: RefusedMessages::default(),
        forgotten: ForgottenExporters::default(),
        memory: 0,
        handed: HandedOverRecords::default(),
        groups: Vec::new(),
        relays: Vec::new(),
    }
}

/// The labels of a metric with their values.
fn samples<'a>(metrics: &'a str, name: &str) -> Vec<(&'a str, u64)> {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
    lines.map(|(labels, value)| (labels, value.parse().unwrap())).collect()
}

#[test]
fn exporter_metric_series_stay_bounded() {
    let mut exporters: Vec<_> = (0..5_000).map(|n| exporter(n, MessageTransport::Udp, 10)).collect();
    // Forged ones that send more than those that are connected.
    exporters.extend((0..20).map(|n| exporter(10_000 + n, MessageTransport::Tcp, 1)));
    let metrics = ledger(exporters).prometheus_text();
    let messages = samples(&metrics, "packetrig_collect_exporter_messages_total");
    assert_eq!(messages.len(), 257, "256 and the others");
    assert_eq!(messages.iter().map(|(_, messages)| messages).sum::<u64>(), 50_020, "none is forgotten");
    let connected = messages.iter().filter(|(labels, _)| labels.contains("transport=\"tcp\""));
    assert_eq!(connected.count(), 20);
    assert_eq!(samples(&metrics, "packetrig_collect_other_exporters"), [("", 5_020 - 256)]);
    let names: BTreeSet<_> = metrics.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
    println!("{} lines of metrics for 5020 exporters", metrics.lines().count());
    assert!(metrics.lines().count() < 257 * names.len(), "{} lines", metrics.lines().count());
}

#[test]
fn few_exporters_have_no_others() {
    let metrics = ledger((0..256).map(|n| exporter(n, MessageTransport::Udp, 1)).collect()).prometheus_text();
    assert_eq!(samples(&metrics, "packetrig_collect_exporter_messages_total").len(), 256);
    assert_eq!(samples(&metrics, "packetrig_collect_other_exporters"), [("", 0)]);
}

#[test]
fn numbers_that_exporters_report_saturate() {
    let huge = MeterLedger {
        capture: CaptureCounts {
            delivered: u64::MAX,
            ring_dropped: u64::MAX,
            arrived: Some(u64::MAX),
            sent: u64::MAX,
            ..CaptureCounts::default()
        },
        export: ExportCounts {
            sent: CarriedRecords { records: u64::MAX, packets: u64::MAX, bytes: u64::MAX },
            ..ExportCounts::default()
        },
        ..MeterLedger::default()
    };
    let reporting = |number| ExporterLedger {
        reported: Some(ReportedLosses { ledger: Some(huge), ..ReportedLosses::default() }),
        ..exporter(number, MessageTransport::Udp, 1)
    };
    let balance = ledger(vec![reporting(1), reporting(2)]).packet_balance().unwrap();
    assert_eq!(balance.arrived, u64::MAX);
    let mut handed = HandedOverRecords::default();
    let mut record = record(1);
    (record.forward.packets, record.forward.bytes) = (u64::MAX, u64::MAX);
    (record.reverse.packets, record.reverse.bytes) = (1, 1);
    handed.add_records(&[record.clone(), record]);
    assert_eq!((handed.records, handed.packets, handed.bytes), (2, u64::MAX, u64::MAX));
}
