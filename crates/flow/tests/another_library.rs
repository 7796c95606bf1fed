//! A reader of another Rust library, `netflow_parser`, on all fields it knows. It gives NTP times as seconds since 1900, which is
//! said here once, and enterprise elements as bytes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use netflow_parser::NetflowParser;
use packetrig_flow::export::{ExportOptions, Exporter, Format, Message, MessageSink};
use packetrig_flow::{EndReason, FlowKey, FlowRecord, Half, MAPPED, Tunnel};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, Ipv6Addr};

/// 2026-09-21T14:13:20.123456789Z.
const NOW: u64 = 1_790_000_000_123_456_789;
const COUNT: u16 = 120;

/// Seconds from 1900 to 1970.
const EPOCH: u64 = 2_208_988_800;

fn address(v6: bool, last: u8) -> [u8; 16] {
    let mut address = [0; 16];
    if v6 {
        address[..4].copy_from_slice(&[0x20, 1, 0, 2]);
        address[15] = last;
    } else {
        address[..12].copy_from_slice(&MAPPED);
        address[12..].copy_from_slice(&[198, 18, 0, last]);
    }
    address
}

fn shown(address: [u8; 16]) -> String {
    let v6 = Ipv6Addr::from(address);
    v6.to_ipv4_mapped().as_ref().map_or_else(|| v6.to_string(), Ipv4Addr::to_string)
}

/// A flow of every kind in turn: IPv4 and IPv6, TCP, UDP and ICMP, one or both directions, plain, tagged twice, labelled, in
/// a tunnel.
fn record(n: u16) -> FlowRecord {
    let v6 = n % 2 == 1;
    let icmp = n % 5 == 4;
    let tunnel = if n % 8 == 7 { Tunnel::Vxlan } else { Tunnel::None };
    let carried = tunnel != Tunnel::None;
    let at = u64::from(n);
    let half = |packets, start, flags| Half {
        packets,
        bytes: packets * 100 + at,
        frame_bytes: packets * 114 + at,
        first_ns: NOW - start + at * 1_000_003,
        last_ns: NOW - start + at * 2_000_005 + 1_000_000_000,
        tcp_flags: if n.is_multiple_of(3) && !icmp { flags } else { 0 },
    };
    FlowRecord {
        key: FlowKey {
            source: address(v6, 1),
            destination: address(v6, 2),
            source_port: if icmp { 0 } else { 1000 + n },
            destination_port: if icmp { 0 } else { 53 },
            protocol: match (icmp, v6) {
                (true, false) => 1,
                (true, true) => 58,
                (false, _) if n.is_multiple_of(3) => 6,
                (false, _) => 17,
            },
            vlan: if n % 4 >= 2 { 100 + n } else { 0 },
            inner_vlan: if n % 4 == 3 { 7 } else { 0 },
            tunnel,
            tunnel_id: if carried { 4242 } else { 0 },
        },
        forward: half(10 + at, 5_000_000_000, 0x1b),
        reverse: if n % 7 < 4 { half(5 + at, 4_000_000_000, 0x12) } else { Half::default() },
        flow_id: 0xdead_beef_0000_0000 + at,
        part: n % 3,
        end: EndReason::Active,
        ttl_min: 60,
        ttl_max: 64,
        tos: 0x28,
        icmp: if icmp { 0x0803 } else { 0 },
        mpls: if n.is_multiple_of(6) { [0x0006_40ff, 0x0006_51fe, 0] } else { [0; 3] },
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        outer_source: if carried { address(false, 11) } else { [0; 16] },
        outer_destination: if carried { address(true, 12) } else { [0; 16] },
        sampling: 1,
        input: 3,
        loss: n == 3,
    }
}

fn records() -> Vec<FlowRecord> {
    (0..COUNT).map(record).collect()
}

/// What is exported how.
#[derive(Clone, Copy, Debug)]
struct Profile {
    format: Format,
    biflow: bool,
}

const PROFILES: [Profile; 4] = [
    Profile { format: Format::Ipfix, biflow: false },
    Profile { format: Format::Ipfix, biflow: true },
    Profile { format: Format::NetFlow9, biflow: false },
    Profile { format: Format::NetFlow5, biflow: false },
];

#[derive(Default)]
struct Sent(Vec<Vec<u8>>);

impl MessageSink for Sent {
    fn message(&mut self, message: Message<'_>) {
        self.0.push(message.bytes.to_vec());
    }
}

fn datagrams(profile: Profile) -> Vec<Vec<u8>> {
    let options =
        ExportOptions { format: profile.format, biflow: profile.biflow, ..ExportOptions::default() };
    let mut exporter = Exporter::new(options);
    let mut sent = Sent::default();
    for record in records() {
        exporter.record(&record, NOW, &mut sent);
    }
    exporter.flush(NOW, &mut sent);
    sent.0
}

/// Flow records, each a list of names and values.
fn flows(profile: Profile) -> Vec<Vec<(String, Value)>> {
    let mut parser = NetflowParser::default();
    let mut flows = Vec::new();
    for datagram in datagrams(profile) {
        let read = parser.parse_bytes(&datagram);
        assert!(read.error.is_none() && read.packets.len() == 1, "{:?}", read.error);
        let packet = serde_json::to_value(&read.packets[0]).unwrap();
        assert!(!packet.to_string().contains("NoTemplate"), "{packet}");
        let (_, message) = packet.as_object().unwrap().iter().next().unwrap();
        for set in message["flowsets"].as_array().unwrap() {
            if profile.format == Format::NetFlow5 {
                let fields = set.as_object().unwrap().iter();
                flows.push(fields.map(|(name, value)| (name.clone(), value.clone())).collect());
            }
            for record in set["body"]["Data"]["fields"].as_array().into_iter().flatten() {
                flows.push(record.as_array().unwrap().iter().map(field).collect());
            }
        }
    }
    flows
}

/// The name without its enterprise, the value without its type.
fn field(field: &Value) -> (String, Value) {
    let inner = |value: &Value| match value.as_object().and_then(|one| one.iter().next()) {
        Some((_, value)) => value.clone(),
        None => value.clone(),
    };
    let name = match &field[0] {
        Value::String(name) => name.clone(),
        Value::Object(_) if field[0]["Enterprise"].is_object() => {
            format!("own {}", field[0]["Enterprise"]["field_number"])
        }
        name => inner(name).as_str().map_or_else(|| inner(name).to_string(), str::to_owned),
    };
    let value = inner(&field[1]);
    (name, if value.is_object() && value["secs"].is_null() { inner_number(&value) } else { value })
}

/// `{"U64": 5}`, or flags each by its name.
fn inner_number(value: &Value) -> Value {
    if let Some(flags) = value.as_object().filter(|flags| flags.contains_key("syn")) {
        let names = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];
        let bits = names.iter().rev().fold(0, |bits, name| bits << 1 | u8::from(flags[*name] == true));
        return json!(bits);
    }
    value.as_object().and_then(|one| one.values().next().cloned()).unwrap_or(Value::Null)
}

fn millis(ns: u64) -> Value {
    json!({"secs": ns / 1_000_000_000, "nanos": ns / 1_000_000 % 1000 * 1_000_000})
}

fn ntp(ns: u64) -> Value {
    json!({"secs": ns / 1_000_000_000 + EPOCH, "nanos": ns % 1_000_000_000})
}

fn mac(address: [u8; 6]) -> Value {
    json!(address.map(|byte| format!("{byte:02x}")).join(":"))
}

/// What it should say of a record of IPFIX, some of it in its own words.
fn wanted(record: &FlowRecord, biflow: bool) -> Vec<(String, Value)> {
    let (key, forward) = (&record.key, &record.forward);
    let mut wanted = vec![
        ("FlowStartMilliseconds", millis(forward.first_ns)),
        ("FlowEndMilliseconds", millis(forward.last_ns)),
        ("FlowStartNanoseconds", ntp(forward.first_ns)),
        ("FlowEndNanoseconds", ntp(forward.last_ns)),
        ("SourceTransportPort", json!(key.source_port)),
        ("DestinationTransportPort", json!(key.destination_port)),
        ("TcpControlBits", json!(forward.tcp_flags)),
        ("PacketDeltaCount", json!(forward.packets)),
        ("OctetDeltaCount", json!(forward.bytes)),
        ("Layer2octetDeltaCount", json!(forward.frame_bytes)),
        ("IpClassOfService", json!(record.tos)),
        ("FlowId", json!(record.flow_id)),
        ("IngressInterface", json!(record.input)),
        ("SamplingInterval", json!(record.sampling)),
        ("SourceMacaddress", mac(record.source_mac)),
        ("DestinationMacaddress", mac(record.destination_mac)),
        ("MinimumTtl", json!(record.ttl_min)),
        ("MaximumTtl", json!(record.ttl_max)),
        ("FlowEndReason", json!("ActiveTimeout")),
        ("own 1", json!(record.part.to_be_bytes())),
        ("own 2", json!([if record.loss { 1 } else { 2 }])),
    ];
    let (source, destination) = (json!(shown(key.source)), json!(shown(key.destination)));
    if key.is_ipv4() {
        wanted.extend([("SourceIpv4address", source), ("DestinationIpv4address", destination)]);
    } else {
        wanted.extend([("SourceIpv6address", source), ("DestinationIpv6address", destination)]);
    }
    if biflow {
        let Half { packets, bytes, frame_bytes, tcp_flags, .. } = record.reverse;
        let times = if packets > 0 { record.reverse } else { record.forward };
        wanted.extend([
            ("ReversePacketDeltaCount", json!(packets)),
            ("ReverseOctetDeltaCount", json!(bytes)),
            ("ReverseLayer2OctetDeltaCount", json!(frame_bytes)),
            ("ReverseTcpControlBits", json!(tcp_flags)),
            ("ReverseFlowStartMilliseconds", millis(times.first_ns)),
            ("ReverseFlowEndMilliseconds", millis(times.last_ns)),
            ("ReverseFlowStartNanoseconds", ntp(times.first_ns)),
            ("ReverseFlowEndNanoseconds", ntp(times.last_ns)),
        ]);
    }
    let mut wanted: Vec<_> = wanted.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    wanted.extend(layers(record));
    wanted
}

/// What only some records have.
fn layers(record: &FlowRecord) -> Vec<(String, Value)> {
    let key = &record.key;
    let mut wanted = Vec::new();
    if record.icmp != 0 {
        wanted
            .push((if key.is_ipv4() { "IcmpTypeCodeIpv4" } else { "IcmpTypeCodeIpv6" }, json!(record.icmp)));
    }
    let carried = key.tunnel_id != 0 || record.mpls != [0; 3];
    if carried || key.vlan != 0 {
        wanted.push(("VlanId", json!(key.vlan)));
        wanted.push(("Dot1qVlanId", json!(key.vlan)));
        wanted.push(("Dot1qCustomerVlanId", json!(key.inner_vlan)));
    }
    if carried {
        let vxlan = if key.tunnel_id == 0 { 0 } else { 1_u64 << 56 | u64::from(key.tunnel_id) };
        wanted.extend([
            ("Layer2segmentId", json!(vxlan)),
            ("own 3", json!([key.tunnel as u8])),
            ("own 4", json!(key.tunnel_id.to_be_bytes())),
            ("own 5", json!(record.outer_source)),
            ("own 6", json!(record.outer_destination)),
            ("own 7", json!([record.mpls[1].to_be_bytes()[3]])),
            ("own 8", json!([record.mpls[2].to_be_bytes()[3]])),
            ("MplsTopLabelTtl", json!(record.mpls[0].to_be_bytes()[3])),
        ]);
    }
    wanted.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn halves() -> Vec<FlowRecord> {
    records().iter().flat_map(|record| [Some(record.split().0), record.split().1]).flatten().collect()
}

#[test]
fn another_library_agrees_on_every_field_of_ipfix() {
    for profile in PROFILES.into_iter().filter(|profile| profile.format == Format::Ipfix) {
        let read = flows(profile);
        let records = if profile.biflow { records() } else { halves() };
        assert_eq!(read.len(), records.len());
        for (read, record) in read.iter().zip(&records) {
            let wanted = wanted(record, profile.biflow);
            for (name, value) in &wanted {
                let found = read.iter().find(|(read, _)| read == name);
                assert_eq!(found.map(|(_, value)| value), Some(value), "{name} of {record:?} in {read:?}");
            }
            // Besides: the protocol, in a word, and three labels.
            let more = read.len() - wanted.len();
            assert!(more == 1 || more == 4, "{more}: {read:?}");
        }
    }
}

#[test]
fn another_library_agrees_on_netflow() {
    for profile in PROFILES.into_iter().filter(|profile| profile.format != Format::Ipfix) {
        let five = profile.format == Format::NetFlow5;
        let names = if five {
            ["src_port", "d_pkts", "d_octets", "tcp_flags", "input", "tos"]
        } else {
            ["L4SrcPort", "InPkts", "InBytes", "TcpFlags", "InputSnmp", "SrcTos"]
        };
        let read = flows(profile);
        let records: Vec<_> = halves().into_iter().filter(|record| !five || record.key.is_ipv4()).collect();
        assert_eq!(read.len(), records.len());
        for (read, record) in read.iter().zip(&records) {
            let half = &record.forward;
            let values = [
                u64::from(record.key.source_port),
                half.packets,
                half.bytes,
                u64::from(half.tcp_flags),
                u64::from(record.input),
                u64::from(record.tos),
            ];
            for (name, value) in names.iter().zip(values) {
                let found = read.iter().find(|(read, _)| read == name).map(|(_, value)| value.as_u64());
                assert_eq!(found, Some(Some(value)), "{name} of {record:?} in {read:?}");
            }
        }
    }
}
