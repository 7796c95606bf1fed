//! Time per frame of the parser, everything in the nearest cache. Best of several rounds: the machine is shared.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement is taken here and printed"
)]

use packetrig_flow::PacketInfo;
use packetrig_flow::parse::{FrameParser, ParseOptions, unified};
use std::hint::black_box;
use std::time::Instant;

const FRAMES: u16 = 64;
const TURNS: u32 = 200;
const ROUNDS: u32 = 1500;

fn v4(protocol: u8, inside: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(20 + inside.len()).unwrap_or(0).to_be_bytes();
    let head = [0x45, 0, high, low, 0, 1, 0, 0, 64, protocol, 0, 0, 198, 18, 0, 1, 198, 19, 0, 1];
    [&head[..], inside].concat()
}

fn v6(next: u8, inside: &[u8]) -> Vec<u8> {
    let mut head = [0; 40];
    let [high, low] = u16::try_from(inside.len()).unwrap_or(0).to_be_bytes();
    head[..8].copy_from_slice(&[0x60, 0, 0, 0, high, low, next, 64]);
    (head[8], head[9], head[11], head[23], head[24], head[25], head[27], head[39]) =
        (32, 1, 2, 1, 32, 1, 2, 2);
    [&head[..], inside].concat()
}

fn eth(kind: u16, inside: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], &kind.to_be_bytes(), inside].concat()
}

fn transport(port: u16, to: u16, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[..2].copy_from_slice(&port.to_be_bytes());
    bytes[2..4].copy_from_slice(&to.to_be_bytes());
    bytes
}

type Kind = (&'static str, fn(u16) -> Vec<u8>);

const KINDS: &[Kind] = &[
    ("IPv4/UDP", |n| eth(0x0800, &v4(17, &transport(n, 53, 26)))),
    ("IPv6/TCP", |n| eth(0x86dd, &v6(6, &transport(n, 443, 20)))),
    ("IPv4/UDP in a VLAN", |n| eth(0x8100, &[&[0, 5, 8, 0][..], &v4(17, &transport(n, 53, 26))].concat())),
    ("IPv4/ICMP", |n| eth(0x0800, &v4(1, &transport(n, 1, 40)))),
    ("IPv4/SCTP", |n| eth(0x0800, &v4(132, &transport(n, 1, 40)))),
    ("IPv4/UDP in QinQ", |n| {
        eth(0x88a8, &[&[0, 5, 0x81, 0, 0, 6, 8, 0][..], &v4(17, &transport(n, 53, 26))].concat())
    }),
    ("IPv4/UDP in GRE", |n| {
        eth(0x0800, &v4(47, &[&[0, 0, 8, 0][..], &v4(17, &transport(n, 53, 26))].concat()))
    }),
];

fn main() {
    for (name, make) in KINDS {
        let frames: Vec<Vec<u8>> = (1..=FRAMES).map(make).collect();
        let mut parser = FrameParser::new(ParseOptions::default());
        let mut packets = [PacketInfo::default(); 16];
        let best = best_of(|| {
            for batch in frames.chunks(packets.len()) {
                for (frame, packet) in batch.iter().zip(&mut packets) {
                    let parsed = parser.parse_frame(black_box(frame), frame.len(), 1, 0, packet);
                    assert_eq!(parsed, Ok(()));
                }
                black_box(&packets);
            }
        });
        println!("parse, {name}: {best:.1} ns");
    }
    records();
}

fn records() {
    for (name, version, len) in
        [("IPv4", 4, unified::UNIFIED_RECORD_LENGTHS[0]), ("IPv6", 6, unified::UNIFIED_RECORD_LENGTHS[1])]
    {
        let mut record = vec![1; len];
        record[0] = version;
        let records = vec![record; FRAMES.into()];
        let mut packets = [PacketInfo::default(); 16];
        let best = best_of(|| {
            for batch in records.chunks(packets.len()) {
                for (record, packet) in batch.iter().zip(&mut packets) {
                    assert!(unified::read_record(black_box(record), 64, 1, 0, packet));
                }
                black_box(&packets);
            }
        });
        println!("unified header, {name}: {best:.1} ns");
    }
}

/// Nanoseconds per frame of the best round.
fn best_of(mut turn: impl FnMut()) -> f64 {
    let rounds = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        for _ in 0..TURNS {
            turn();
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(TURNS) / f64::from(FRAMES)
    });
    rounds.fold(f64::INFINITY, f64::min)
}
