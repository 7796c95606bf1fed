use super::*;
use crate::account::LEDGER_ACCOUNTS;
use crate::export::{ExportMessage, MessageSink};
use crate::ledger::{CarriedRecords, MeterLedger};
use crate::packet::{IPV4_MAPPED_PREFIX, TunnelKind};
use packetrig_units::Nanos;
use proptest::prelude::*;

const NOW: u64 = 1_700_000_000_000_000_000;

#[derive(Default)]
struct SimulatedWireTest {
    datagrams: Vec<Vec<u8>>,
    carried: CarriedRecords,
    own: u64,
}

impl MessageSink for SimulatedWireTest {
    fn on_message(&mut self, message: ExportMessage<'_>) {
        self.datagrams.push(message.bytes.to_vec());
        self.carried.add_records(message.carried);
        self.own += message.own_records;
    }
}

impl SimulatedWireTest {
    fn items(&self) -> Vec<SimItem> {
        let mut items = Vec::new();
        let mut events = 0;
        for (index, datagram) in (0..).zip(&self.datagrams) {
            let before = items.len();
            let header = SimDecoder::decode_datagram(datagram, &mut |item| items.push(item)).unwrap();
            assert_eq!((header.datagram_sequence, header.event_sequence), (index, events));
            assert_eq!(usize::from(header.length), datagram.len());
            let new = &items[before..];
            assert_eq!(usize::from(header.items), new.len());
            events += new.iter().filter(|item| matches!(item, SimItem::Event(_))).count() as u64;
        }
        items
    }

    fn events(&self) -> Vec<SimEvent> {
        let events = self.items().into_iter();
        events.filter_map(|item| if let SimItem::Event(event) = item { Some(event) } else { None }).collect()
    }
}

fn packet(n: u64) -> SimEvent {
    SimEvent::Packet {
        flow_id: n ^ 0x1234_5678_9abc_def0,
        bytes: 46 + (n % 1400) as u32,
        at_ns: NOW + n * 1000,
    }
}

fn flow(v4: bool, n: u64) -> SimEvent {
    let mut source = [0x20; 16];
    let mut destination = [0x21; 16];
    if v4 {
        source[..12].copy_from_slice(&IPV4_MAPPED_PREFIX);
        destination[..12].copy_from_slice(&IPV4_MAPPED_PREFIX);
    }
    let key = FlowKey {
        source,
        destination,
        source_port: 1024,
        destination_port: 53,
        protocol: 17,
        tunnel: TunnelKind::Vxlan,
        vlan: 100,
        inner_vlan: 4000,
        tunnel_id: 0x00ab_cdef,
    };
    SimEvent::Flow { flow_id: n, key, at_ns: NOW + n * 1000 }
}

fn encoded(events: &[SimEvent], options: SimOptions) -> SimulatedWireTest {
    let mut encoder = SimEncoder::new(options);
    let mut wire = SimulatedWireTest::default();
    for event in events {
        encoder.add_event(event, NOW, &mut wire);
    }
    encoder.flush_datagram(&mut wire);
    assert_eq!(encoder.waiting_records(), CarriedRecords::default());
    wire
}

/// The first release of R1's meter closed a full datagram with the packet that no longer fitted, and lost it: of 98, one.
#[test]
fn overflowing_packet_starts_next_sim_datagram() {
    let per_datagram = (MAX_PAYLOAD_V4 - HEADER) / item::PACKET_ITEM_LAYOUT.length;
    let events: Vec<_> = (0..10_000).map(packet).collect();
    let wire = encoded(&events, SimOptions::default());
    assert_eq!(wire.events(), events);
    assert_eq!(wire.datagrams.len(), events.len().div_ceil(per_datagram));
    // Datagrams are filled exactly: 1500 bytes of IP with 90 packets, except the last.
    let (last, full) = wire.datagrams.split_last().unwrap();
    assert_eq!(per_datagram, 90);
    assert!(full.iter().all(|datagram| datagram.len() + 28 == 1500));
    assert_eq!(last.len(), HEADER + 16 * (events.len() % per_datagram));
    assert_eq!((wire.carried.records, wire.carried.packets), (10_000, 10_000));
}

/// It also forgot the datagram that was not full when it was stopped.
#[test]
fn partial_sim_datagram_flushes_at_deadline_and_end() {
    for count in [1, 89, 90, 91] {
        let events: Vec<_> = (0..count).map(packet).collect();
        assert_eq!(encoded(&events, SimOptions::default()).events(), events, "{count}");
    }
    let mut encoder = SimEncoder::new(SimOptions::default());
    let mut wire = SimulatedWireTest::default();
    encoder.add_event(&packet(0), NOW, &mut wire);
    encoder.flush_if_due(NOW + 199_999_999, &mut wire);
    assert_eq!((wire.datagrams.len(), encoder.waiting_records().packets), (0, 1));
    encoder.flush_if_due(NOW + 200_000_000, &mut wire);
    assert_eq!((wire.events(), encoder.waiting_records().packets), (vec![packet(0)], 0));
    encoder.flush_if_due(NOW + 900_000_000, &mut wire);
    encoder.flush_datagram(&mut wire);
    assert_eq!(wire.datagrams.len(), 1, "nothing is no datagram");
}

#[test]
fn large_sim_times_and_lengths_use_long_form() {
    let event = |bytes, at_ns| SimEvent::Packet { flow_id: 7, bytes, at_ns };
    let events = [
        event(46, NOW),
        event(0x00ff_ffff, NOW + 0x7fff_ffff),
        event(0x0100_0000, NOW),
        event(46, NOW + 0x8000_0000),
        event(46, NOW - 0x8000_0000),
        event(46, NOW - 0x8000_0001),
        event(u32::MAX, 0),
        event(46, u64::MAX),
    ];
    let wire = encoded(&events, SimOptions::default());
    assert_eq!(wire.events(), events);
    let length = HEADER + 3 * item::PACKET_ITEM_LAYOUT.length + 5 * item::LONG_PACKET_ITEM_LAYOUT.length;
    assert_eq!(wire.datagrams[0].len(), length);
}

#[test]
fn a_ledger_is_an_item_and_no_event() {
    let mut ledger = MeterLedger::default();
    ledger.capture.driver_dropped = None;
    ledger.capture.arrived = Some(5);
    ledger.packets.ignored[6] = 3;
    ledger.export.own_records = 9;
    let mut encoder = SimEncoder::new(SimOptions::default());
    let mut wire = SimulatedWireTest::default();
    encoder.add_event(&packet(0), NOW, &mut wire);
    encoder.add_ledger(&ledger, NOW + 5, &mut wire);
    encoder.add_event(&packet(1), NOW, &mut wire);
    encoder.flush_datagram(&mut wire);
    let wanted =
        [SimItem::Event(packet(0)), SimItem::Ledger { at_ns: NOW + 5, ledger }, SimItem::Event(packet(1))];
    assert_eq!(wire.items(), wanted);
    assert_eq!((wire.own, wire.carried.records), (1, 2));
}

#[test]
fn truncated_or_foreign_sim_datagram_is_refused() {
    let wire = encoded(&[packet(0), flow(true, 1), flow(false, 2)], SimOptions::default());
    let whole = &wire.datagrams[0];
    let mut ignore = |_| ();
    for length in 0..whole.len() {
        let cut = SimDecoder::decode_datagram(&whole[..length], &mut ignore);
        assert!(matches!(cut, Err(SimError::Cut { .. })), "{length}: {cut:?}");
    }
    let changed = |at: usize, to: u8| {
        let mut bytes = whole.clone();
        bytes[at] = to;
        SimDecoder::decode_datagram(&bytes, &mut |_| ()).unwrap_err()
    };
    assert_eq!(changed(0, 0), SimError::Magic);
    assert_eq!(changed(3, 2), SimError::Version(2));
    assert_eq!(changed(7, 2), SimError::Left { left: item::FLOW_V6_ITEM_LAYOUT.length });
    assert_eq!(changed(HEADER, 99), SimError::Kind { index: 0, kind: 99 });
}

fn any_event() -> impl Strategy<Value = SimEvent> {
    prop_oneof![
        4 => (any::<u64>(), any::<u32>(), any::<u64>())
            .prop_map(|(flow_id, bytes, at_ns)| SimEvent::Packet { flow_id, bytes, at_ns }),
        4 => (any::<u64>(), 0..2000_u32, 0..3_000_000_000_u64)
            .prop_map(|(flow_id, bytes, at)| SimEvent::Packet { flow_id, bytes, at_ns: NOW + at }),
        1 => (any::<bool>(), any::<u64>()).prop_map(|(v4, n)| flow(v4, n % 1_000_000)),
    ]
}

proptest! {
    #[test]
    fn whatever_goes_in_comes_out_in_order(
        events in proptest::collection::vec(any_event(), 0..500), datagram_bytes in 0..2000_usize,
    ) {
        let wire = encoded(&events, SimOptions { datagram_bytes, flush_after: Nanos::ZERO, ..SimOptions::default() });
        prop_assert_eq!(wire.carried.records, events.len() as u64);
        prop_assert_eq!(wire.events(), events);
        prop_assert!(wire.datagrams.iter().all(|datagram| datagram.len() <= datagram_bytes.max(HEADER + 16 + 8 * LEDGER_ACCOUNTS.len())));
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300), headed in any::<bool>(),
    ) {
        if headed && bytes.len() >= HEADER {
            bytes[..4].copy_from_slice(b"SIM\x01");
            let length = u16::try_from(bytes.len()).unwrap();
            bytes[4..6].copy_from_slice(&length.to_be_bytes());
        }
        // An error is an answer.
        let read = SimDecoder::decode_datagram(&bytes, &mut |_| ());
        prop_assert!(headed || read.is_err());
    }
}
