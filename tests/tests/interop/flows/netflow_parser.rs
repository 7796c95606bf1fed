//! `netflow_parser`, a reader of another Rust library, on all fields it knows. It gives NTP times as seconds since 1900, which is
//! said here once, and enterprise elements as bytes.

use super::{PROFILES, Profile, datagrams, records, shown};
use netflow_parser::NetflowParser;
use packetrig_flow::export::ExportFormat;
use packetrig_flow::{FlowHalf, FlowRecord};
use serde_json::{Value, json};

/// Seconds from 1900 to 1970.
const EPOCH: u64 = 2_208_988_800;

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
            if profile.format == ExportFormat::NetFlow5 {
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
        ("own 60", json!([if record.merged { 1 } else { 2 }])),
    ];
    let (source, destination) = (json!(shown(key.source)), json!(shown(key.destination)));
    if key.is_ipv4() {
        wanted.extend([("SourceIpv4address", source), ("DestinationIpv4address", destination)]);
    } else {
        wanted.extend([("SourceIpv6address", source), ("DestinationIpv6address", destination)]);
    }
    if biflow {
        let FlowHalf { packets, bytes, frame_bytes, tcp_flags, .. } = record.reverse;
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
    records()
        .iter()
        .flat_map(|record| [Some(record.split_directions().0), record.split_directions().1])
        .flatten()
        .collect()
}

#[test]
fn another_library_agrees_on_every_field_of_ipfix() {
    for profile in PROFILES.into_iter().filter(|profile| profile.format == ExportFormat::Ipfix) {
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
    for profile in PROFILES.into_iter().filter(|profile| profile.format != ExportFormat::Ipfix) {
        let five = profile.format == ExportFormat::NetFlow5;
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
