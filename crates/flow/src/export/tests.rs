//! Properties that collectors cannot see: sequence numbers, times of templates, waiting records. `tests/both_ends.rs` checks
//! that every field arrives; the system tests check that other collectors read it.

use super::*;
use crate::key::FlowKey;
use crate::ledger::MeterLedger;
use crate::packet::IPV4_MAPPED_PREFIX;
use crate::record::{FlowHalf, FlowRecord};
use packetrig_units::Nanos;

const NOW: u64 = 1_790_000_000_000_000_000;
const SECOND: u64 = 1_000_000_000;

#[derive(Default)]
struct ExportWire {
    messages: Vec<Vec<u8>>,
    steps: Vec<u32>,
    carried: CarriedRecords,
}

impl MessageSink for ExportWire {
    fn on_message(&mut self, message: ExportMessage<'_>) {
        self.messages.push(message.bytes.to_vec());
        self.steps.push(message.step);
        self.carried.add_records(message.carried);
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Numbers of the sets of an IPFIX message.
fn sets(message: &[u8]) -> Vec<u16> {
    assert_eq!((be16(message, 0), usize::from(be16(message, 2))), (10, message.len()));
    let mut found = Vec::new();
    let mut rest = &message[16..];
    while !rest.is_empty() {
        found.push(be16(rest, 0));
        rest = &rest[usize::from(be16(rest, 2))..];
    }
    found
}

impl ExportWire {
    fn sequences(&self) -> Vec<u32> {
        self.messages.iter().map(|message| be32(message, 8)).collect()
    }

    /// Returns the number of messages with templates.
    fn with_templates(&self) -> usize {
        self.messages.iter().filter(|message| sets(message).contains(&2)).count()
    }
}

fn v4() -> [u8; 16] {
    let mut address = [1; 16];
    address[..12].copy_from_slice(&IPV4_MAPPED_PREFIX);
    address
}

fn record() -> FlowRecord {
    let half = |packets| FlowHalf {
        packets,
        bytes: 100,
        first_ns: NOW - SECOND,
        last_ns: NOW,
        ..FlowHalf::default()
    };
    FlowRecord {
        key: FlowKey { source: v4(), destination: v4(), protocol: 17, ..FlowKey::default() },
        forward: half(3),
        reverse: half(2),
        sampling: 1,
        ..FlowRecord::default()
    }
}

fn exporter(format: ExportFormat) -> MessageExporter {
    MessageExporter::new(ExportOptions { format, ..ExportOptions::default() })
}

#[test]
fn ipfix_sequence_counts_data_and_options_not_templates() {
    let mut exporter = exporter(ExportFormat::Ipfix);
    let mut wire = ExportWire::default();
    for n in 0..1000 {
        exporter.add_record(&record(), NOW, &mut wire);
        if n % 100 == 0 {
            exporter.add_statistics(&MeterLedger::default(), NOW, &mut wire);
        }
    }
    exporter.flush_message(NOW, &mut wire);
    let mut expected = 0;
    for (sequence, step) in wire.sequences().into_iter().zip(&wire.steps) {
        assert_eq!(sequence, expected);
        expected += step;
    }
    // The records are two directions of 1000 flows, four records of the ledger each time, and the names of our own elements.
    let types = section::own::ALL.len() + crate::account::LEDGER_ACCOUNTS.len();
    assert_eq!(expected as usize, 2000 + 4 * 10 + types);
    assert_eq!((wire.carried.records, wire.carried.packets), (1000, 5000));
    assert!(wire.messages.iter().all(|message| message.len() <= ExportOptions::DATAGRAM_BYTES));
    // Full: the next record would not have fitted.
    let plain = wire.messages.iter().filter(|message| sets(message) == [256]);
    assert!(plain.clone().count() > 100);
    assert!(plain.clone().take(100).all(|message| message.len() + 105 > ExportOptions::DATAGRAM_BYTES));
}

#[test]
fn netflow9_counts_messages_and_pads_sets() {
    let mut exporter = exporter(ExportFormat::NetFlow9);
    let mut wire = ExportWire::default();
    for _ in 0..100 {
        exporter.add_record(&record(), NOW + 2 * SECOND, &mut wire);
    }
    exporter.flush_message(NOW + 5 * SECOND, &mut wire);
    for (index, message) in (0..).zip(&wire.messages) {
        assert_eq!((be16(message, 0), be32(message, 12)), (9, index));
        let mut rest = &message[20..];
        while !rest.is_empty() {
            let length = usize::from(be16(rest, 2));
            assert_eq!(length % 4, 0);
            rest = &rest[length..];
        }
    }
    assert_eq!(be32(wire.messages.last().unwrap(), 4), 3000, "milliseconds since the first message");
}

#[test]
fn netflow9_uptime_starts_with_first_template_message() {
    let mut exporter = exporter(ExportFormat::NetFlow9);
    let mut wire = ExportWire::default();
    exporter.announce_templates_first(NOW, &mut wire);
    exporter.add_record(&record(), NOW + 3 * SECOND, &mut wire);
    exporter.flush_message(NOW + 5 * SECOND, &mut wire);
    let up_ms: Vec<_> = wire.messages.iter().map(|message| be32(message, 4)).collect();
    assert_eq!((up_ms.first(), up_ms.last()), (Some(&0), Some(&5000)));
}

#[test]
fn templates_repeat_over_udp_but_once_in_streams() {
    let refresh = TemplateRefresh::Every { time: Nanos::from_secs(60), messages: 1000 };
    let by = |refresh, step_ns: u64| {
        let mut exporter = MessageExporter::new(ExportOptions { refresh, ..ExportOptions::default() });
        let mut wire = ExportWire::default();
        for n in 0..121 {
            exporter.add_record(&record(), NOW + n * step_ns, &mut wire);
            exporter.flush_message(NOW + n * step_ns, &mut wire);
        }
        wire.messages.iter().filter(|message| sets(message).contains(&3)).count()
    };
    assert_eq!(by(refresh, 0), 1);
    assert_eq!(by(refresh, SECOND), 3, "at 0, 60 and 120 s");
    assert_eq!(by(TemplateRefresh::Every { time: Nanos::MAX, messages: 60 }, 0), 3);
    assert_eq!(by(TemplateRefresh::OnConnection, SECOND), 1);
    // The templates are sent also when nothing is metered.
    let mut exporter = exporter(ExportFormat::Ipfix);
    let mut wire = ExportWire::default();
    for second in 0..=120 {
        exporter.send_due_messages(NOW + second * SECOND, &mut wire);
    }
    exporter.flush_message(NOW, &mut wire);
    assert_eq!(wire.messages.iter().filter(|message| sets(message).contains(&3)).count(), 13);
}

#[test]
fn buffered_message_is_sent_within_its_deadline() {
    for format in [ExportFormat::Ipfix, ExportFormat::NetFlow9, ExportFormat::NetFlow5] {
        let mut exporter = exporter(format);
        let mut wire = ExportWire::default();
        exporter.add_record(&record(), NOW, &mut wire);
        let before = wire.messages.len();
        exporter.send_due_messages(NOW + SECOND - 1, &mut wire);
        assert_eq!((wire.messages.len(), exporter.waiting_records().packets), (before, 5), "{format:?}");
        exporter.send_due_messages(NOW + SECOND, &mut wire);
        assert_eq!((wire.messages.len(), exporter.waiting_records().packets), (before + 1, 0), "{format:?}");
        exporter.flush_message(NOW + SECOND, &mut wire);
        assert_eq!(wire.messages.len(), before + 1, "nothing is no message");
    }
}

#[test]
fn new_connection_sends_templates_first_and_renumbers() {
    let options = ExportOptions { refresh: TemplateRefresh::OnConnection, ..ExportOptions::default() };
    let mut exporter = MessageExporter::new(options);
    let mut first = ExportWire::default();
    (0..100).for_each(|_| exporter.add_record(&record(), NOW, &mut first));
    let (mut lost, step) = (first.messages.pop().unwrap(), first.steps.pop().unwrap());
    let waiting = exporter.waiting_records();
    assert!(waiting.records > 0);
    let mut second = ExportWire::default();
    exporter.on_reconnect(NOW, &mut second);
    exporter.renumber_message(&mut lost, step);
    second.on_message(ExportMessage {
        bytes: &lost,
        carried: CarriedRecords::default(),
        own_records: 0,
        step,
    });
    exporter.flush_message(NOW, &mut second);
    assert_eq!(sets(&second.messages[0])[0], 2);
    let mut expected = 0;
    for (sequence, step) in second.sequences().into_iter().zip(&second.steps) {
        assert_eq!(sequence, expected);
        expected += step;
    }
    assert_eq!(second.carried, waiting, "what was open is in the new connection, behind its templates");
    assert_eq!(sets(second.messages.last().unwrap()), [256]);
    assert_eq!(second.with_templates(), 2, "twelve templates take two messages");
}

#[test]
fn netflow5_splits_large_counts_and_counts_unfit() {
    let mut exporter = exporter(ExportFormat::NetFlow5);
    let mut wire = ExportWire::default();
    let v6 =
        FlowRecord { key: FlowKey { source: [1; 16], destination: [2; 16], ..record().key }, ..record() };
    exporter.add_record(&v6, NOW, &mut wire);
    assert_eq!((exporter.unfit_records().records, exporter.unfit_records().packets), (1, 5));
    // Counts of more than 32 bits go into several lines that add up.
    let mut large = record();
    large.reverse = FlowHalf::default();
    large.forward.bytes = 3 * u64::from(u32::MAX) - 1;
    large.forward.packets = 7;
    exporter.add_record(&large, NOW, &mut wire);
    exporter.flush_message(NOW, &mut wire);
    let lines = || wire.messages[0][24..].chunks(48);
    assert_eq!((lines().count(), be16(&wire.messages[0], 2)), (3, 3));
    assert_eq!(lines().map(|line| u64::from(be32(line, 20))).sum::<u64>(), large.forward.bytes);
    assert_eq!(lines().map(|line| u64::from(be32(line, 16))).sum::<u64>(), 7);
    assert_eq!((wire.carried.records, wire.carried.packets), (1, 7));
}

#[test]
fn netflow_5_tells_times_of_any_year() {
    let mut exporter = exporter(ExportFormat::NetFlow5);
    let mut wire = ExportWire::default();
    let year = 365 * 86_400 * SECOND;
    let starts = [NOW - SECOND, NOW - 20 * year, NOW - 20 * year + 30 * 86_400 * SECOND, NOW - 40 * year];
    for first_ns in starts {
        let forward =
            FlowHalf { packets: 1, bytes: 1, first_ns, last_ns: first_ns + 1_000_000, ..FlowHalf::default() };
        exporter.add_record(
            &FlowRecord { forward, reverse: FlowHalf::default(), ..record() },
            NOW,
            &mut wire,
        );
    }
    exporter.flush_message(NOW, &mut wire);
    let mut told = Vec::new();
    for message in &wire.messages {
        let at_ms = u64::from(be32(message, 8)) * 1000 + u64::from(be32(message, 12)) / 1_000_000;
        let began_ms = at_ms - u64::from(be32(message, 4));
        told.extend(message[24..].chunks(48).map(|line| (began_ms + u64::from(be32(line, 24))) * 1_000_000));
    }
    assert_eq!(told, starts);
    assert_eq!(wire.messages.len(), 3, "two of them are less than 49 days apart");
    let sequences: Vec<u32> = wire.messages.iter().map(|message| be32(message, 16)).collect();
    assert_eq!(sequences, [0, 1, 3]);
}
