//! Flow records as we export them, read by others: every flow, every field that both know.

mod netflow_parser;
mod nfdump;
mod sim;
mod tshark;

use packetrig_flow::export::{AnnouncedInterface, ExportFormat};
use packetrig_flow::{EndReason, FlowHalf, FlowKey, FlowRecord, IPV4_MAPPED_PREFIX, MeterLedger, TunnelKind};
use packetrig_flow_io::BackpressurePolicy;
use packetrig_flow_io::export::{
    ExportContent, ExportDestination, MeterExport, RunningExport, open_export_queue, spawn_export,
};
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;

/// 2026-09-21T14:13:20.123456789Z.
const NOW: u64 = 1_790_000_000_123_456_789;
/// The beginning of that day.
const DAY: u64 = 1_790_000_000 - (14 * 3600 + 13 * 60 + 20);
const COUNT: u16 = 120;

/// A direction of a flow, as any reader shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    source: String,
    destination: String,
    ports: (u16, u16),
    protocol: u8,
    packets: u64,
    bytes: u64,
    /// Milliseconds since 1970.
    times: (u64, u64),
    flags: u16,
    vlan: u16,
    /// Type and code.
    icmp: u16,
    /// Packets and bytes the other way, where they are in the same record.
    back: (u64, u64),
}

fn address(v6: bool, last: u8) -> [u8; 16] {
    let mut address = [0; 16];
    if v6 {
        address[..4].copy_from_slice(&[0x20, 1, 0, 2]);
        address[15] = last;
    } else {
        address[..12].copy_from_slice(&IPV4_MAPPED_PREFIX);
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
    let tunnel = if n % 8 == 7 { TunnelKind::Vxlan } else { TunnelKind::None };
    let carried = tunnel != TunnelKind::None;
    let at = u64::from(n);
    let half = |packets, start, flags| FlowHalf {
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
        reverse: if n % 7 < 4 { half(5 + at, 4_000_000_000, 0x12) } else { FlowHalf::default() },
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
        merged: n == 2,
        foreign: None,
        history: None,
    }
}

fn records() -> Vec<FlowRecord> {
    (0..COUNT).map(record).collect()
}

fn line(record: &FlowRecord) -> Line {
    let (key, half) = (&record.key, &record.forward);
    Line {
        source: shown(key.source),
        destination: shown(key.destination),
        ports: (key.source_port, key.destination_port),
        protocol: key.protocol,
        packets: half.packets,
        bytes: half.bytes,
        times: (half.first_ns / 1_000_000, half.last_ns / 1_000_000),
        flags: half.tcp_flags,
        vlan: key.vlan,
        icmp: record.icmp,
        back: (record.reverse.packets, record.reverse.bytes),
    }
}

/// What readers should show, in order.
fn wanted(profile: Profile) -> Vec<Line> {
    let whole = records()
        .into_iter()
        .filter(|record| profile.format != ExportFormat::NetFlow5 || record.key.is_ipv4());
    if profile.biflow {
        return whole.map(|record| line(&record)).collect();
    }
    let halves = whole.flat_map(|record| {
        let (forward, back) = record.split_directions();
        [Some(forward), back]
    });
    let mut lines: Vec<Line> = halves.flatten().map(|record| line(&record)).collect();
    if profile.format == ExportFormat::NetFlow5 {
        for line in &mut lines {
            line.vlan = 0;
        }
    }
    lines
}

/// What is exported how.
#[derive(Clone, Copy, Debug)]
struct Profile {
    format: ExportFormat,
    biflow: bool,
}

const PROFILES: [Profile; 4] = [
    Profile { format: ExportFormat::Ipfix, biflow: false },
    Profile { format: ExportFormat::Ipfix, biflow: true },
    Profile { format: ExportFormat::NetFlow9, biflow: false },
    Profile { format: ExportFormat::NetFlow5, biflow: false },
];

/// Exports all records to a target, and ends.
fn export(profile: Profile, target: &str) {
    let (queue, incoming) = open_export_queue(4 << 20, &BackpressurePolicy::default());
    let destination = ExportDestination {
        target: target.parse().unwrap(),
        content: ExportContent::Records(profile.format),
    };
    let interface =
        AnnouncedInterface { index: 3, name: "eth1".to_owned(), description: "to the lab".to_owned() };
    let options = MeterExport {
        destinations: vec![destination],
        biflow: profile.biflow,
        interfaces: vec![interface],
        ..MeterExport::default()
    };
    let thread: RunningExport = spawn_export(&options, incoming, MeterLedger::default).unwrap();
    let mut outbox = queue.make_outbox();
    for record in records() {
        outbox.add_record(&record);
    }
    drop((outbox, queue));
    let (counts, whole) = thread.join_threads();
    let unfit = if profile.format == ExportFormat::NetFlow5 { u64::from(COUNT / 2) } else { 0 };
    assert!(whole, "no thread panicked");
    assert_eq!((counts.sent.records, counts.refused.records), (u64::from(COUNT) - unfit, unfit));
}

/// The datagrams of an export.
fn datagrams(profile: Profile) -> Vec<Vec<u8>> {
    received(|target| export(profile, target))
}

/// What `send` sends to a target of the loopback interface, which delivers at once.
fn received(send: impl FnOnce(&str)) -> Vec<Vec<u8>> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    send(&format!("udp://{}", socket.local_addr().unwrap()));
    let mut datagrams = Vec::new();
    let mut buffer = [0; 2048];
    while let Ok(length) = socket.recv(&mut buffer) {
        datagrams.push(buffer[..length].to_vec());
    }
    datagrams
}

/// Writes datagrams to this UDP port as a pcap file.
fn write_pcap(path: &Path, port: u16, datagrams: &[Vec<u8>]) {
    let mut file = Vec::new();
    file.extend(0xa1b2_c3d4_u32.to_le_bytes());
    file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0]);
    for datagram in datagrams {
        let length = |more: usize| u16::try_from(datagram.len() + more).unwrap();
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
        frame.extend(length(28).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
        frame.extend(4000_u16.to_be_bytes());
        frame.extend(port.to_be_bytes());
        frame.extend(length(8).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(datagram);
        file.extend(u32::try_from(NOW / 1_000_000_000).unwrap().to_le_bytes());
        file.extend([0; 4]);
        file.extend([u32::from(length(42)).to_le_bytes(); 2].concat());
        file.extend(frame);
    }
    std::fs::write(path, file).unwrap();
}
