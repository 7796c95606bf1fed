//! Records whose sums are known.

use packetrig_flow::{EndReason, FlowHalf, FlowKey, FlowRecord, IPV4_MAPPED_PREFIX, TunnelKind};
use std::collections::BTreeMap;

/// 2026-11-21 13:00:00 UTC and some nanoseconds, which readers are to keep.
const THIRTEEN: u64 = 1_795_266_000_000_000_123;
const CLIENTS: u16 = 1000;

pub(crate) struct Made {
    pub(crate) records: Vec<FlowRecord>,
    pub(crate) flows: u64,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) bytes_back: u64,
    pub(crate) frame_bytes: u64,
    pub(crate) with_loss: u64,
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    /// By number, as text.
    pub(crate) protocols: BTreeMap<String, u64>,
    /// The client that sent most, and its bytes.
    pub(crate) top_source: (String, u64),
    pub(crate) of_top_source: usize,
}

fn address(low: u16) -> [u8; 16] {
    let mut address = [0; 16];
    address[..12].copy_from_slice(&IPV4_MAPPED_PREFIX);
    address[12..14].copy_from_slice(&[198, 19]);
    address[14..].copy_from_slice(&low.to_be_bytes());
    address
}

fn text(low: u16) -> String {
    format!("198.19.{}.{}", low >> 8, low & 0xff)
}

impl Made {
    /// So many records, over three hours, from a thousand clients to one server.
    pub(crate) fn new(count: u64) -> Self {
        let mut made = Self {
            records: Vec::new(),
            flows: 0,
            packets: 0,
            bytes: 0,
            bytes_back: 0,
            frame_bytes: 0,
            with_loss: 0,
            first_ns: THIRTEEN,
            last_ns: 0,
            protocols: BTreeMap::new(),
            top_source: (String::new(), 0),
            of_top_source: 0,
        };
        let mut sent = BTreeMap::<u16, u64>::new();
        for n in 0..count {
            let start = THIRTEEN + n * 10_800_000_000_000 / count;
            let client = u16::try_from(n * n % u64::from(CLIENTS)).unwrap();
            let (packets, back) = (1 + n % 50, (n % 3) * (n % 70));
            let (bytes, bytes_back) = (packets * (40 + n % 1400), back * 1500);
            made.records.push(record(n, start, client, (packets, bytes), (back, bytes_back)));
            made.flows += u64::from(n % 4 != 1);
            made.packets += packets + back;
            made.bytes += bytes + bytes_back;
            made.bytes_back += bytes_back;
            made.frame_bytes += bytes + bytes_back + 14 * (packets + back);
            made.with_loss += u64::from(n.is_multiple_of(5));
            made.last_ns = made.last_ns.max(start + if back > 0 { 2_000 } else { 1_000 });
            *made.protocols.entry(protocol(n).to_string()).or_default() += 1;
            *sent.entry(client).or_default() += bytes;
        }
        let most = *sent.values().max().unwrap();
        let client =
            *sent.iter().filter(|(_, bytes)| **bytes == most).map(|(client, _)| client).min().unwrap();
        made.top_source = (text(client), most);
        made.of_top_source =
            made.records.iter().filter(|record| record.key.source == address(client)).count();
        made
    }

    pub(crate) fn server() -> String {
        text(CLIENTS)
    }

    /// By the names that `packetrig flows stats` has for them.
    pub(crate) fn sums(&self) -> [(&'static str, u64); 8] {
        [
            ("records", self.records.len() as u64),
            ("flows", self.flows),
            ("packets", self.packets),
            ("bytes", self.bytes),
            ("frame_bytes", self.frame_bytes),
            ("records_with_loss", self.with_loss),
            ("first_ns", self.first_ns),
            ("last_ns", self.last_ns),
        ]
    }
}

fn protocol(n: u64) -> u8 {
    [6, 6, 17, 6, 132][usize::try_from(n % 5).unwrap()]
}

fn record(n: u64, start: u64, client: u16, there: (u64, u64), back: (u64, u64)) -> FlowRecord {
    let half = |(packets, bytes): (u64, u64), offset| FlowHalf {
        packets,
        bytes,
        frame_bytes: bytes + 14 * packets,
        first_ns: if packets > 0 { start + offset } else { 0 },
        last_ns: if packets > 0 { start + offset + 1_000 } else { 0 },
        tcp_flags: 0x13,
    };
    FlowRecord {
        key: FlowKey {
            source: address(client),
            destination: address(CLIENTS),
            source_port: 1024 + u16::try_from(n % 60_000).unwrap(),
            destination_port: 443,
            protocol: protocol(n),
            tunnel: TunnelKind::Vxlan,
            tunnel_id: 4711,
            ..FlowKey::default()
        },
        forward: half(there, 0),
        reverse: half(back, 1_000),
        // A number of 64 bits, different for every record.
        flow_id: (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        part: u16::from(n % 4 == 1),
        end: EndReason::EndOfFlow,
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        sampling: 1,
        loss: n.is_multiple_of(5),
        merged: false,
        ..FlowRecord::default()
    }
}
