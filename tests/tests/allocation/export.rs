//! Encoders of flow records.

use super::allocations;
use packetrig_flow::export::{ExportFormat, ExportMessage, ExportOptions, MessageExporter, MessageSink};
use packetrig_flow::sim::{SimEncoder, SimEvent, SimOptions};
use packetrig_flow::{FlowHalf, FlowKey, FlowRecord, IPV4_MAPPED_PREFIX};

const NOW: u64 = 1_790_000_000_000_000_000;

/// Counts messages and forgets them.
struct Counted(u64);

impl MessageSink for Counted {
    fn on_message(&mut self, _: ExportMessage<'_>) {
        self.0 += 1;
    }
}

fn record(n: u16) -> FlowRecord {
    let mut address = [n.to_be_bytes()[1]; 16];
    if n.is_multiple_of(2) {
        address[..12].copy_from_slice(&IPV4_MAPPED_PREFIX);
    }
    let half = FlowHalf { packets: 1, bytes: 46, first_ns: NOW, last_ns: NOW, ..FlowHalf::default() };
    FlowRecord {
        key: FlowKey {
            source: address,
            destination: address,
            protocol: if n.is_multiple_of(5) { 1 } else { 17 },
            vlan: n % 3,
            ..FlowKey::default()
        },
        forward: half,
        reverse: half,
        mpls: [u32::from(n.is_multiple_of(7)); 3],
        ..FlowRecord::default()
    }
}

#[test]
fn records_of_all_shapes_are_encoded_without_allocating() {
    let records: Vec<FlowRecord> = (0..1000).map(record).collect();
    for format in [ExportFormat::Ipfix, ExportFormat::NetFlow9, ExportFormat::NetFlow5] {
        for biflow in [false, true] {
            let mut exporter =
                MessageExporter::new(ExportOptions { format, biflow, ..ExportOptions::default() });
            let mut sink = Counted(0);
            // Templates are announced with the first one.
            exporter.add_record(&records[0], NOW, &mut sink);
            let asked = allocations(|| {
                for record in &records {
                    exporter.add_record(record, NOW, &mut sink);
                    exporter.send_due_messages(NOW, &mut sink);
                }
                exporter.flush_message(NOW, &mut sink);
            });
            assert_eq!(asked, 0, "{format:?}");
            assert!(sink.0 > 15, "{format:?}: {}", sink.0);
        }
    }
}

#[test]
fn events_of_sim_are_encoded_without_allocating() {
    let mut encoder = SimEncoder::new(SimOptions::default());
    let mut sink = Counted(0);
    let asked = allocations(|| {
        for n in 0..10_000 {
            let key = record(n).key;
            encoder.add_event(&SimEvent::Flow { flow_id: 1, key, at_ns: NOW }, NOW, &mut sink);
            encoder.add_event(&SimEvent::Packet { flow_id: 1, bytes: 46, at_ns: NOW }, NOW, &mut sink);
        }
        encoder.flush_datagram(&mut sink);
    });
    assert_eq!(asked, 0);
    assert!(sink.0 > 400);
}
