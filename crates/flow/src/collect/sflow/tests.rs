//! Datagrams as agents send them, written word by word.

use super::super::{
    CollectorOptions, ExporterIdentity, FlowCollector, MalformedMessage, MessageSource, MessageTransport,
    ReceivedMessage, SessionOptions,
};
use super::InterfaceCounters;
use crate::packet::ipv4_mapped;
use crate::{FlowRecord, OtherFields};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};

const EPOCH: u64 = 1_795_266_000_000_000_000;
const AGENT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 9);

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A sample or a part behind its kind and length, filled up to whole words.
fn framed(kind: u32, content: &[u8]) -> Vec<u8> {
    let mut content = content.to_vec();
    content.resize(content.len().next_multiple_of(4), 0);
    [words(&[kind, u32::try_from(content.len()).unwrap()]), content].concat()
}

fn datagram(number: u32, uptime_ms: u32, samples: &[Vec<u8>]) -> Vec<u8> {
    let count = u32::try_from(samples.len()).unwrap();
    let head = words(&[5, 1, AGENT.to_bits(), 7, number, uptime_ms, count]);
    [head, samples.concat()].concat()
}

/// A UDP packet from 198.18.0.1 to 198.18.0.2, of which the header was captured.
fn raw_header() -> Vec<u8> {
    let ethernet = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0, 0, 100, 8, 0][..]].concat();
    let ip = [0x45, 0xb8, 2, 0, 0, 1, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
    let udp = [0x9c, 0x40, 0, 53, 1, 0xec, 0, 0];
    let header = [&ethernet[..], &ip, &udp].concat();
    let captured = u32::try_from(header.len()).unwrap();
    // 18 bytes below IP, 512 of IP, 4 of the frame check sequence.
    let content = [words(&[1, 18 + 512 + 4, 4, captured]), header].concat();
    framed(1, &content)
}

fn flow_sample(number: u32, drops: u32, parts: &[Vec<u8>]) -> Vec<u8> {
    let count = u32::try_from(parts.len()).unwrap();
    let head = words(&[number, 3, 512, 4096, drops, 3, 4, count]);
    framed(1, &[head, parts.concat()].concat())
}

fn counter_sample(index: u32) -> Vec<u8> {
    let generic = words(&[
        index,
        6,
        2,
        0x540b_e400,
        1,
        3,
        0,
        1000,
        10,
        20,
        u32::MAX,
        5,
        6,
        7,
        1,
        2,
        100,
        200,
        300,
        8,
        9,
        0,
    ]);
    let ethernet = framed(2, &words(&[0; 13]));
    framed(2, &[words(&[1, index, 2]), ethernet, framed(1, &generic)].concat())
}

struct World {
    collector: FlowCollector,
    records: Vec<FlowRecord>,
    exporters: Vec<ExporterIdentity>,
    now_ns: u64,
}

impl World {
    fn new() -> Self {
        let session = SessionOptions { epoch_ns: EPOCH, ..SessionOptions::default() };
        let collector = FlowCollector::new(CollectorOptions { session, ..CollectorOptions::default() });
        Self { collector, records: Vec::new(), exporters: Vec::new(), now_ns: 0 }
    }

    fn receive(&mut self, message: &[u8]) -> Result<(), MalformedMessage> {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let source = MessageSource { address, port: 9, transport: MessageTransport::Udp };
        self.now_ns += 1_000_000_000;
        let Self { collector, records, exporters, now_ns } = self;
        collector.receive_message(source, message, *now_ns, &mut |exporter, received| {
            if let ReceivedMessage::Record(record) = received {
                records.push(record);
                exporters.push(*exporter);
            }
        })
    }

    /// The record of a datagram with one sample of these parts.
    fn record_of(parts: &[Vec<u8>]) -> FlowRecord {
        let mut world = Self::new();
        world.receive(&datagram(1, 1000, &[flow_sample(1, 0, parts)])).unwrap();
        world.records.remove(0)
    }

    fn interfaces(&self) -> Vec<InterfaceCounters> {
        let exporters = self.collector.exporters();
        exporters.flat_map(|(exporter, ..)| self.collector.interface_counters(exporter)).collect()
    }
}

#[test]
fn sampled_header_becomes_record_of_one_packet() {
    let mut world = World::new();
    world.receive(&datagram(1, 1000, &[flow_sample(1, 0, &[raw_header()])])).unwrap();
    let record = &world.records[0];
    assert_eq!(record.key.source, ipv4_mapped([198, 18, 0, 1]));
    assert_eq!((record.key.source_port, record.key.destination_port, record.key.protocol), (40_000, 53, 17));
    let half = record.forward;
    assert_eq!((half.packets, half.bytes, half.frame_bytes), (1, 512, 530));
    assert_eq!((half.first_ns, half.last_ns), (EPOCH + 1_000_000_000, EPOCH + 1_000_000_000));
    assert_eq!((record.key.vlan, record.tos, record.ttl_min, record.sampling), (100, 0xb8, 64, 512));
    assert_eq!((record.source_mac[5], record.destination_mac[5]), (1, 2));
    assert_eq!((record.input, record.foreign.as_ref().unwrap().output), (3, 4));
    let exporter = world.exporters[0];
    assert_eq!((exporter.domain, exporter.address()), (7, IpAddr::V4(AGENT)), "the agent has metered it");
    assert!(record.foreign.as_ref().unwrap().others.is_empty());
}

#[test]
fn extended_parts_fill_their_columns() {
    let route = words(&[1, 0xc612_0005, 24, 16]);
    let path = [words(&[2]), words(&[2, 2, 64_500, 64_501]), words(&[1, 2, 64_502, 64_503])].concat();
    let gateway =
        [words(&[1, 0xc612_0006, 64_496, 64_497, 64_498]), path, words(&[1, 0x00fc_00fd, 150])].concat();
    let switch = words(&[200, 0, 300, 0]);
    let parts = [raw_header(), framed(1001, &switch), framed(1002, &route), framed(1003, &gateway)];
    let record = World::record_of(&parts);
    let foreign = record.foreign.as_deref().unwrap();
    assert_eq!((record.key.vlan, foreign.post_vlan), (100, 300), "the tag of the packet counts");
    let hops = [foreign.next_hop, foreign.bgp_next_hop];
    assert_eq!(hops, [ipv4_mapped([198, 18, 0, 5]), ipv4_mapped([198, 18, 0, 6])]);
    assert_eq!((foreign.source_as, foreign.destination_as), (64_497, 64_503));
    let mut json = String::new();
    foreign.others.append_json(&mut json);
    let expected = r#"{"bgpNextAdjacentAsNumber":64500,"bgpPrevAdjacentAsNumber":64498,"bgpAsPath":"64500 64501 {64502,64503}","bgpLocalPreference":150,"sourceIPv4PrefixLength":24,"destinationIPv4PrefixLength":16}"#;
    assert_eq!(json, expected);
}

#[test]
fn own_system_stands_for_zero_and_empty_path() {
    let gateway = words(&[1, 0xc612_0006, 64_496, 0, 0, 0, 0, 100]);
    let record = World::record_of(&[raw_header(), framed(1003, &gateway)]);
    let foreign = record.foreign.as_deref().unwrap();
    assert_eq!((foreign.source_as, foreign.destination_as), (64_496, 64_496));
}

#[test]
fn stated_fields_count_without_a_header() {
    let ipv4 = words(&[120, 6, 0xc612_0001, 0xc612_0002, 1234, 80, 0x18, 0xb8]);
    let ethernet =
        [words(&[138]), vec![2, 0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 2, 0, 0], words(&[0x800])].concat();
    let switch = words(&[200, 0, u32::MAX, 0]);
    let record = World::record_of(&[framed(3, &ipv4), framed(2, &ethernet), framed(1001, &switch)]);
    assert_eq!((record.forward.bytes, record.forward.tcp_flags, record.tos), (120, 0x18, 0xb8));
    assert_eq!((record.key.source_port, record.key.destination_port, record.key.vlan), (1234, 80, 200));
    assert_eq!((record.source_mac[5], record.destination_mac[5]), (1, 2));
    let ipv6 = [words(&[60, 17]), vec![1; 16], vec![2; 16], words(&[5, 6, 0, 0])].concat();
    let record = World::record_of(&[framed(4, &ipv6)]);
    assert_eq!((record.key.source, record.key.destination, record.forward.bytes), ([1; 16], [2; 16], 60));
}

#[test]
fn expanded_sample_has_wide_interface_numbers() {
    let head = words(&[1, 0, 0x0100_0001, 100, 0, 0, 0, 0x0100_0001, 0, 0x0200_0002, 1]);
    let sample = framed(3, &[head, raw_header()].concat());
    let mut world = World::new();
    world.receive(&datagram(1, 1000, &[sample])).unwrap();
    let record = &world.records[0];
    assert_eq!((record.input, record.foreign.as_ref().unwrap().output), (0x0100_0001, 0x0200_0002));
}

#[test]
fn discarded_and_internal_outputs_are_no_interface() {
    let others = |output: u32| {
        let head = words(&[1, 3, 512, 0, 0, 0x3fff_ffff, output, 1]);
        let mut world = World::new();
        world.receive(&datagram(1, 1000, &[framed(1, &[head, raw_header()].concat())])).unwrap();
        let record = world.records.remove(0);
        let foreign = record.foreign.unwrap_or_default();
        let mut json = String::new();
        OtherFields::append_json(&foreign.others, &mut json);
        (record.input, foreign.output, json)
    };
    assert_eq!(others(0x3fff_ffff), (0, 0, "{}".into()));
    assert_eq!(others(0x8000_0005), (0, 0, "{}".into()));
    assert_eq!(others(0x4000_0007), (0, 0, r#"{"forwardingStatus":131}"#.into()));
}

#[test]
fn missing_datagrams_samples_and_drops_are_counted() {
    let mut world = World::new();
    let sample = |number, drops| flow_sample(number, drops, &[raw_header()]);
    world.receive(&datagram(10, 1000, &[sample(100, 5), sample(101, 5)])).unwrap();
    world.receive(&datagram(13, 4000, &[sample(106, 9)])).unwrap();
    let counts = world.collector.total_counts();
    assert_eq!((counts.lost, counts.lost_samples, counts.sampler_drops), (2, 4, 4));
    // One of the missing datagrams was only late.
    world.receive(&datagram(11, 2000, &[sample(102, 6), sample(103, 7)])).unwrap();
    let counts = world.collector.total_counts();
    assert_eq!((counts.lost, counts.lost_samples, counts.sampler_drops), (1, 2, 4));
    assert_eq!((counts.records, counts.late_units), (5, 1));
    // The same once more is no record.
    world.receive(&datagram(11, 2000, &[sample(102, 6), sample(103, 7)])).unwrap();
    assert_eq!((world.collector.total_counts().records, world.collector.total_counts().duplicates), (5, 1));
}

#[test]
fn restarted_agent_loses_nothing() {
    let mut world = World::new();
    let sample = |number| flow_sample(number, 0, &[raw_header()]);
    world.receive(&datagram(500, 500_000, &[sample(900)])).unwrap();
    for second in 1..10 {
        world.receive(&datagram(500 + second, 500_000 + 1000 * second, &[])).unwrap();
    }
    // Two samples of the former run are missing, and stay so.
    world.receive(&datagram(510, 510_000, &[sample(903)])).unwrap();
    world.receive(&datagram(1, 1000, &[sample(1)])).unwrap();
    world.receive(&datagram(2, 2000, &[sample(2)])).unwrap();
    let counts = world.collector.total_counts();
    assert_eq!((counts.restarts, counts.lost, counts.lost_samples), (1, 0, 2));
    assert_eq!(counts.records, 4);
}

#[test]
fn sampler_that_begins_anew_erases_no_losses() {
    let mut world = World::new();
    let sample = |number| flow_sample(number, 0, &[raw_header()]);
    for (number, of_sample) in (1..).zip([100_000, 100_010, 1, 2, 3, 5]) {
        world.receive(&datagram(number, 1000 * number, &[sample(of_sample)])).unwrap();
    }
    let counts = world.collector.total_counts();
    assert_eq!((counts.restarts, counts.lost, counts.lost_samples), (0, 0, 9 + 1));
}

#[test]
fn agents_behind_one_sender_are_sessions() {
    let mut world = World::new();
    for agent in [1, 2, 1] {
        let head = words(&[5, 1, 0xc612_0000 + agent, 7, 1, 1000, 0]);
        world.receive(&head).unwrap();
    }
    let mut named: Vec<_> =
        world.collector.exporters().map(|(exporter, ..)| exporter.agent.unwrap()).collect();
    named.sort();
    assert_eq!(named, [IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)), IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2))]);
    let own = words(&[5, 1, Ipv4Addr::LOCALHOST.to_bits(), 7, 1, 1000, 0]);
    world.receive(&own).unwrap();
    assert!(
        world.collector.exporters().any(|(exporter, ..)| exporter.agent.is_none()),
        "it sends for itself"
    );
}

#[test]
fn interface_counters_are_kept_by_interface() {
    let mut world = World::new();
    world.receive(&datagram(1, 1000, &[counter_sample(5), counter_sample(6), counter_sample(5)])).unwrap();
    let interfaces = world.interfaces();
    assert_eq!(interfaces.len(), 2);
    let expected = InterfaceCounters {
        index: 5,
        at_ns: EPOCH + 1_000_000_000,
        speed: 10_000_000_000,
        in_octets: 1000,
        in_packets: 30,
        in_discards: 5,
        in_errors: 6,
        out_octets: 1 << 32 | 2,
        out_packets: 600,
        out_discards: 8,
        out_errors: 9,
    };
    assert_eq!(interfaces[0], expected);
    let counts = world.collector.total_counts();
    assert_eq!((counts.counter_samples, counts.unread_samples, counts.records), (3, 0, 0));
}

#[test]
fn interfaces_beyond_the_bound_are_counted() {
    let mut world = World::new();
    for number in 1..=60_u32 {
        let samples: Vec<_> = (0..20).map(|sample| counter_sample(number * 20 + sample)).collect();
        world.receive(&datagram(number, 1000 * number, &samples)).unwrap();
    }
    assert_eq!(world.interfaces().len(), 1024);
    assert_eq!(world.collector.total_counts().interfaces_no_room, 1200 - 1024);
}

#[test]
fn unknown_samples_and_parts_are_skipped() {
    let unknown = framed(4242 << 12 | 1, &[1, 2, 3, 4]);
    let vendor = framed(4413 << 12 | 1, &[0; 12]);
    let arp = framed(1, &[words(&[1, 64, 4, 14]), vec![0; 12], vec![8, 6, 0, 0]].concat());
    let samples =
        [unknown, flow_sample(1, 0, &[vendor.clone(), raw_header()]), flow_sample(2, 0, &[arp]), vendor];
    let mut world = World::new();
    world.receive(&datagram(1, 1000, &samples)).unwrap();
    let counts = world.collector.total_counts();
    assert_eq!((counts.records, counts.samples_without_ip, counts.unread_samples), (1, 1, 2));
}

#[test]
fn cut_datagram_keeps_what_came_before() {
    let whole = datagram(1, 1000, &[flow_sample(1, 0, &[raw_header()]), counter_sample(5)]);
    for length in 0..whole.len() {
        let mut world = World::new();
        let read = world.receive(&whole[..length]);
        assert!(read.is_err(), "{length} of {}", whole.len());
        let counts = world.collector.total_counts();
        assert_eq!(counts.records, world.records.len() as u64);
        assert!(counts.records == u64::from(length >= whole.len() - counter_sample(5).len()), "{length}");
    }
    assert_eq!(World::new().receive(&whole), Ok(()));
}

proptest! {
    /// Whatever a datagram holds, it is read or refused, and each sample is at most one record.
    #[test]
    fn any_datagram_is_read_or_refused(
        kinds in proptest::collection::vec((0_u32..6, proptest::collection::vec(any::<u8>(), 0..200)), 0..8),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut samples = vec![flow_sample(1, 0, &[raw_header()]), counter_sample(5)];
        samples.extend(kinds.iter().map(|(kind, content)| framed(*kind, content)));
        let mut message = datagram(1, 1000, &samples);
        for (at, value) in flips {
            let at = at.index(message.len() - 28) + 28;
            message[at] ^= value;
        }
        message.truncate(cut.index(message.len() - 28) + 29);
        let mut world = World::new();
        world.receive(&message).unwrap_or(());
        let counts = world.collector.total_counts();
        prop_assert_eq!(counts.records, world.records.len() as u64);
        prop_assert!(counts.records + counts.samples_without_ip <= counts.flow_samples);
        prop_assert!(counts.flow_samples * 8 <= message.len() as u64);
    }

    /// Numbers of a header that was written are those of the record.
    #[test]
    fn sample_numbers_survive(rate in any::<u32>(), input in 0_u32..0x3fff_ffff, output in 0_u32..0x3fff_ffff) {
        let head = words(&[1, 3, rate, 4096, 0, input, output, 1]);
        let mut world = World::new();
        world.receive(&datagram(1, 1000, &[framed(1, &[head, raw_header()].concat())])).unwrap();
        let record = &world.records[0];
        prop_assert_eq!((record.sampling, record.input), (rate.max(1), input));
        prop_assert_eq!(record.foreign.as_ref().map_or(0, |foreign| foreign.output), output);
    }
}
