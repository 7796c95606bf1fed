//! Checks that our collector reads everything our exporter sends, over a channel that loses, duplicates and displaces messages,
//! with every loss counted.

use packetrig_flow::collect::{
    CollectorOptions, FlowCollector, FlowGatherer, GatherOptions, MessageSource, MessageTransport,
    ReceivedMessage, SessionCounts,
};
use packetrig_flow::export::{
    ExportFormat, ExportMessage, ExportOptions, MessageExporter, MessageSink, TemplateRefresh,
};
use packetrig_flow::sim::{SimEncoder, SimEvent, SimOptions};
use packetrig_flow::{
    CountTotals, DirectionHistory, EndReason, FlowHalf, FlowHistory, FlowKey, FlowRecord, ForeignFields,
    GroupMembership, IPV4_MAPPED_PREFIX, Landmark, LandmarkKind, MeterLedger, PacketCounts, RecordOriginMark,
    TunnelKind,
};
use packetrig_units::Nanos;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

const NOW: u64 = 1_800_000_000_000_000_000;

/// Messages as they were sent.
#[derive(Default)]
struct Sent(Vec<(Vec<u8>, u32)>);

impl MessageSink for Sent {
    fn on_message(&mut self, message: ExportMessage<'_>) {
        self.0.push((message.bytes.to_vec(), message.step));
    }
}

#[derive(Default)]
struct Read {
    records: Vec<FlowRecord>,
    events: Vec<SimEvent>,
    ledgers: Vec<MeterLedger>,
    memberships: Vec<GroupMembership>,
    counts: SessionCounts,
}

fn read<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> Read {
    let mut collector = FlowCollector::new(CollectorOptions::default());
    let source =
        MessageSource { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 9, transport: MessageTransport::Udp };
    let mut read = Read::default();
    for message in messages {
        let taken = collector.receive_message(source, message, NOW, &mut |_, received| match received {
            ReceivedMessage::Record(record) => read.records.push(record),
            ReceivedMessage::Sim(event) => read.events.push(event),
            ReceivedMessage::Statistics(said) => {
                read.ledgers.extend(said.ledger);
                read.memberships.extend(said.membership);
            }
            _ => {}
        });
        taken.expect("our own messages are well formed");
    }
    read.counts = collector.total_counts();
    read
}

fn half() -> impl Strategy<Value = FlowHalf> {
    (1..1_u64 << 40, any::<u32>(), 0..60_000_000_000_u64, 0..60_000_000_000_u64, any::<u8>()).prop_map(
        |(packets, bytes, before, length, tcp_flags)| FlowHalf {
            packets,
            bytes: u64::from(bytes),
            frame_bytes: u64::from(bytes) + 14,
            first_ns: NOW - 200_000_000_000 - before,
            last_ns: NOW - 200_000_000_000 - before + length,
            tcp_flags: u16::from(tcp_flags),
        },
    )
}

fn address(v6: bool) -> impl Strategy<Value = [u8; 16]> {
    any::<[u8; 16]>().prop_map(move |mut bytes| {
        bytes[0] |= 0x20;
        if v6 {
            return bytes;
        }
        bytes[..12].copy_from_slice(&IPV4_MAPPED_PREFIX);
        bytes[12] = 198;
        bytes
    })
}

fn key() -> impl Strategy<Value = FlowKey> {
    let tunnel = prop_oneof![
        Just(TunnelKind::None),
        Just(TunnelKind::Gre),
        Just(TunnelKind::Vxlan),
        Just(TunnelKind::Gtp),
        Just(TunnelKind::Geneve)
    ];
    let addresses = any::<bool>().prop_flat_map(|v6| (address(v6), address(v6)));
    let protocol = prop_oneof![Just(1_u8), Just(6), Just(17), Just(58), any::<u8>()];
    (addresses, any::<(u16, u16)>(), protocol, tunnel, (0..4096_u16, 0..4096_u16), any::<u32>()).prop_map(
        |((source, destination), ports, protocol, tunnel, vlans, tunnel_id)| FlowKey {
            source,
            destination,
            source_port: ports.0,
            destination_port: ports.1,
            protocol,
            tunnel,
            vlan: vlans.0,
            inner_vlan: vlans.1,
            tunnel_id: if tunnel == TunnelKind::None { 0 } else { tunnel_id },
        },
    )
}

fn record() -> impl Strategy<Value = FlowRecord> {
    let rest = (any::<(u64, u16, u8, u8, u8)>(), 1..=5_u8, any::<[u32; 3]>(), any::<([u8; 6], [u8; 6])>());
    let icmp = prop_oneof![Just(0_u16), Just(0x0800), Just(0x8000), Just(0x8100), any::<u16>()];
    let own = (1..100_u32, any::<u32>(), any::<[bool; 2]>(), any::<bool>(), icmp);
    (key(), half(), prop::option::of(half()), rest, own).prop_map(
        |(mut key, forward, reverse, (numbers, end, mpls, macs), own)| {
            let (sampling, input, [loss, merged], carried, icmp) = own;
            let is_icmp = matches!(key.protocol, 1 | 58);
            if is_icmp {
                // Type and code are in the key or they are not.
                (key.source_port, key.destination_port) = (0, if key.vlan % 2 == 0 { icmp } else { 0 });
            }
            let ends = [EndReason::Idle, EndReason::Active, EndReason::EndOfFlow, EndReason::Forced];
            FlowRecord {
                key,
                forward,
                reverse: reverse.unwrap_or_default(),
                flow_id: numbers.0,
                part: numbers.1,
                end: ends.get(usize::from(end) - 1).copied().unwrap_or(EndReason::LackOfResources),
                ttl_min: numbers.2,
                ttl_max: numbers.3,
                tos: numbers.4,
                icmp: if is_icmp { icmp } else { 0 },
                mpls: if carried { mpls } else { [0; 3] },
                source_mac: macs.0,
                destination_mac: macs.1,
                outer_source: if carried { [0x20; 16] } else { [0; 16] },
                outer_destination: if carried { [0x21; 16] } else { [0; 16] },
                sampling,
                input,
                loss,
                merged,
                foreign: None,
                history: None,
            }
        },
    )
}

fn export(records: &[FlowRecord], options: ExportOptions) -> Vec<(Vec<u8>, u32)> {
    let mut exporter = MessageExporter::new(options);
    let mut sent = Sent::default();
    for record in records {
        exporter.add_record(record, NOW, &mut sent);
    }
    exporter.flush_message(NOW, &mut sent);
    sent.0
}

fn biflow() -> ExportOptions {
    ExportOptions { biflow: true, ..ExportOptions::default() }
}

/// Splits records as one-way formats do.
fn split(records: &[FlowRecord]) -> Vec<FlowRecord> {
    records
        .iter()
        .flat_map(|record| {
            let (there, back) = record.split_directions();
            [Some(there), back]
        })
        .flatten()
        .collect()
}

proptest! {
    #[test]
    fn ipfix_carries_routes_of_other_exporters(
        records in prop::collection::vec((record(), any::<bool>()), 1..60),
        numbers in any::<[u32; 4]>(),
        hops in any::<[u8; 8]>(),
    ) {
        let hop = |at: usize| [&IPV4_MAPPED_PREFIX[..], &[198, 18, hops[at], hops[at + 1] | 1]].concat().try_into().unwrap();
        let [output, source_as, destination_as, small] = numbers;
        let [high, low] = [small >> 16, small & 0xffff].map(|half| u16::try_from(half).unwrap());
        let foreign = ForeignFields {
            output,
            source_as,
            destination_as,
            next_hop: hop(0),
            bgp_next_hop: hop(2),
            nat_source: hop(4),
            nat_destination: hop(6),
            nat_source_port: high,
            nat_destination_port: low,
            post_vlan: high & 0xfff,
            post_tos: hops[0],
            ..ForeignFields::default()
        };
        let with_routes = |(record, is_routed): (FlowRecord, bool)| {
            FlowRecord { foreign: is_routed.then(|| Arc::new(foreign.clone())), ..record }
        };
        let records: Vec<FlowRecord> = records.into_iter().map(with_routes).collect();
        let sent = export(&records, ExportOptions { has_routes: true, ..biflow() });
        prop_assert_eq!(&read(sent.iter().map(|(bytes, _)| &bytes[..])).records, &records);
        // An export of a meter has the templates that it always had.
        let without: Vec<_> =
            records.iter().map(|record| FlowRecord { foreign: None, ..record.clone() }).collect();
        prop_assert_eq!(export(&records, biflow()), export(&without, biflow()));
    }

    #[test]
    fn ipfix_carries_every_field(records in prop::collection::vec(record(), 1..60)) {
        let sent = export(&records, biflow());
        let read_back = read(sent.iter().map(|(bytes, _)| &bytes[..]));
        prop_assert_eq!(&read_back.records, &records);
        prop_assert_eq!((read_back.counts.lost, read_back.counts.timeless), (0, 0));
        let uniflow = export(&records, ExportOptions::default());
        prop_assert_eq!(read(uniflow.iter().map(|(bytes, _)| &bytes[..])).records, split(&records));
    }

    #[test]
    fn group_history_is_exported_and_read_back(
        records in prop::collection::vec(record(), 1..60),
        numbers in prop::collection::vec(any::<u64>(), 22),
        flags in any::<(bool, bool, u32, u16)>(),
    ) {
        let counts = |at: usize| CountTotals { packets: numbers[at], bytes: numbers[at + 1], frame_bytes: numbers[at + 2] };
        let landmark = |at: usize| Landmark {
            content: flags.2,
            kind: if flags.0 { LandmarkKind::First } else { LandmarkKind::Last },
            at_ns: numbers[at].max(1),
            alone_us: u32::MAX >> (numbers[at] % 32),
            since: counts(at + 1),
        };
        let mut forward = DirectionHistory { followed: counts(0), ..DirectionHistory::default() };
        let reverse = DirectionHistory { followed: counts(3), ..forward };
        forward.landmarks[..3].copy_from_slice(&[landmark(6), landmark(10), landmark(14)]);
        let mark = RecordOriginMark { group: numbers[21], meter: flags.2, lane: flags.3 };
        let since_ns = numbers[20];
        let history =
            FlowHistory { mark, flipped: flags.0, is_strange: flags.1, since_ns, forward, reverse, stored: [None; 2] };
        let of_group = |record: FlowRecord| FlowRecord { history: Some(Box::new(history)), ..record };
        let records: Vec<FlowRecord> = records.into_iter().map(of_group).collect();
        let sent = export(&records, ExportOptions { has_history: true, ..biflow() });
        prop_assert_eq!(&read(sent.iter().map(|(bytes, _)| &bytes[..])).records, &records);
    }

    #[test]
    fn netflow9_carries_what_has_a_number_at_iana(records in prop::collection::vec(record(), 1..60)) {
        let sent = export(&records, ExportOptions { format: ExportFormat::NetFlow9, ..ExportOptions::default() });
        let read_back = read(sent.iter().map(|(bytes, _)| &bytes[..]));
        let expected: Vec<FlowRecord> = split(&records).into_iter().map(|record| FlowRecord {
            key: FlowKey {
                tunnel: if record.key.tunnel == TunnelKind::Vxlan { TunnelKind::Vxlan } else { TunnelKind::None },
                tunnel_id: if record.key.tunnel == TunnelKind::Vxlan { record.key.tunnel_id } else { 0 },
                ..record.key
            },
            part: 0,
            loss: false,
            merged: false,
            mpls: [record.mpls[0], record.mpls[1] & !0xff, record.mpls[2] & !0xff],
            outer_source: [0; 16],
            outer_destination: [0; 16],
            ..record
        }).collect();
        prop_assert_eq!(read_back.records, expected);
        prop_assert_eq!(read_back.counts.lost, 0);
    }

    #[test]
    fn netflow5_carries_ipv4(records in prop::collection::vec(record(), 1..60)) {
        let records: Vec<_> = records.into_iter().map(|mut record| {
            record.forward.packets &= 0xffff_ffff;
            record.reverse.packets &= 0xffff_ffff;
            record
        }).collect();
        let sent = export(&records, ExportOptions { format: ExportFormat::NetFlow5, ..ExportOptions::default() });
        let read_back = read(sent.iter().map(|(bytes, _)| &bytes[..]));
        let brief = |record: &FlowRecord| {
            let half = record.forward;
            (record.key.source, record.key.destination, half.packets, half.bytes, half.first_ns / 1_000_000)
        };
        let expected: Vec<_> = split(&records).iter().filter(|record| record.key.is_ipv4()).map(brief).collect();
        prop_assert_eq!(read_back.records.iter().map(brief).collect::<Vec<_>>(), expected);
        prop_assert_eq!(read_back.counts.lost, 0);
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A channel that drops some messages, doubles some, and delays some by a few places.
    #[test]
    fn missing_export_messages_are_accounted_for(
        records in prop::collection::vec(record(), 100..400),
        fates in prop::collection::vec((0_u8..10, 0_usize..8), 400),
    ) {
        let refresh = TemplateRefresh::Every { time: Nanos::from_secs(60), messages: 3 };
        for format in [ExportFormat::Ipfix, ExportFormat::NetFlow9, ExportFormat::NetFlow5] {
            let options = ExportOptions { format, message_bytes: 600, refresh, ..ExportOptions::default() };
            let sent = export(&records, options);
            let last = sent.len() - 1;
            let mut arrivals = Vec::new();
            let mut missing = 0;
            let mut got: Vec<&[u8]> = Vec::new();
            for (at, (bytes, step)) in sent.iter().enumerate() {
                let (fate, delay) = fates[at % fates.len()];
                // Losses before the first or behind the last message cannot be seen from numbers.
                match fate {
                    0 if at > 0 && at < last => {
                        missing += u64::from(*step);
                        continue;
                    }
                    1 if at > 0 => arrivals.extend([(at, bytes), (at + delay, bytes)]),
                    2 if at > 0 => arrivals.push((at + delay, bytes)),
                    _ => arrivals.push((at, bytes)),
                }
                got.push(bytes);
            }
            arrivals.sort_by_key(|arrival| arrival.0);
            let read_back = read(arrivals.iter().map(|(_, bytes)| &bytes[..]));
            let counts = &read_back.counts;
            prop_assert_eq!((format, counts.restarts), (format, 0));
            if counts.pending_bytes == 0 {
                prop_assert_eq!((format, counts.lost, counts.untold), (format, missing, 0));
            } else {
                // If a template never came, the number of its records is unknown.
                prop_assert!(counts.lost <= missing && counts.lost + counts.untold >= missing, "{:?}", counts);
            }
            let undisturbed = read(got.iter().copied());
            let sum = |records: &[FlowRecord]| records.iter().map(FlowRecord::packets).sum::<u64>();
            prop_assert_eq!((format, sum(&read_back.records)), (format, sum(&undisturbed.records)));
        }
    }

    #[test]
    fn sim_carries_every_packet(
        packets in prop::collection::vec((1_u64..20, 20_u32..70_000, 0_u64..5_000_000_000), 1..900),
        dropped in prop::collection::vec(any::<bool>(), 40),
    ) {
        let options = SimOptions { datagram_bytes: 300, ..SimOptions::default() };
        let (mut encoder, mut sent) = (SimEncoder::new(options), Sent::default());
        for (flow_id, bytes, at) in &packets {
            let event = SimEvent::Packet { flow_id: *flow_id, bytes: *bytes, at_ns: NOW + at };
            encoder.add_event(&event, NOW, &mut sent);
        }
        encoder.flush_datagram(&mut sent);
        let last = sent.0.len() - 1;
        let is_kept = |at: usize| at == 0 || at == last || !dropped[at % dropped.len()];
        let kept = sent.0.iter().enumerate().filter(|(at, _)| is_kept(*at));
        let read_back = read(kept.map(|(_, (bytes, _))| &bytes[..]));
        let (heard, lost) = (read_back.events.len() as u64, read_back.counts.lost);
        prop_assert_eq!(heard + lost, packets.len() as u64);
        let mut gather = FlowGatherer::new(GatherOptions::default());
        let mut sum = 0;
        for event in read_back.events {
            gather.add_event((), event, NOW, &mut |(), record| sum += record.packets());
        }
        gather.finish_flows(&mut |(), record| sum += record.packets());
        prop_assert_eq!(sum, heard);
    }
}

#[test]
fn the_ledger_arrives_whole() {
    let mut ledger = MeterLedger {
        packets: PacketCounts { seen: 100, metered: 90, live: 3, recorded: 87, ..PacketCounts::default() },
        ..MeterLedger::default()
    };
    ledger.packets.ignored[1] = 10;
    ledger.capture.arrived = Some(120);
    ledger.capture.ring_dropped = 20;
    ledger.capture.delivered = 100;
    for format in [ExportFormat::Ipfix, ExportFormat::NetFlow9] {
        let mut exporter = MessageExporter::new(ExportOptions { format, ..ExportOptions::default() });
        let mut sent = Sent::default();
        exporter.add_statistics(&ledger, NOW, &mut sent);
        exporter.flush_message(NOW, &mut sent);
        let read_back = read(sent.0.iter().map(|(bytes, _)| &bytes[..]));
        assert!(read_back.counts.options_records >= 3, "{format:?}");
        assert_eq!(read_back.ledgers, if format == ExportFormat::Ipfix { vec![ledger] } else { vec![] });
    }
}

#[test]
fn a_meters_place_in_its_group_arrives() {
    let membership = GroupMembership {
        group: u64::MAX - 5,
        meter: 7,
        term: 3,
        since_ns: NOW - 9,
        silent_ns: 31,
        replay_from_ns: NOW - 70,
        replayed: 12,
        packets: 99,
    };
    for has_history in [true, false] {
        let options = ExportOptions { biflow: true, has_history, ..ExportOptions::default() };
        let mut exporter = MessageExporter::new(options);
        let mut sent = Sent::default();
        exporter.add_statistics(&MeterLedger::default(), NOW, &mut sent);
        exporter.add_membership(&membership, NOW, &mut sent);
        exporter.flush_message(NOW, &mut sent);
        let read_back = read(sent.0.iter().map(|(bytes, _)| &bytes[..]));
        assert_eq!(read_back.memberships, if has_history { vec![membership] } else { vec![] });
    }
}
