//! Packets per second from a frame in memory to an updated flow: parse, look up, count, with timeouts on, on one processor.
//!
//! Run as `table_speed [part of a case's name]`. It measures processor time, so other programs disturb less,
//! and takes the best of several rounds.
#![expect(clippy::print_stdout, reason = "a measurement is printed")]

use packetrig_flow::parse::{FrameParser, ParseOptions};
use packetrig_flow::{FlowEventReceiver, FlowRecord, FlowTable, MemoryHints, PacketInfo, TableOptions};
use packetrig_units::Nanos;
use std::hint::black_box;

/// A frame of 64 bytes without its FCS.
const FRAME: usize = 60;
const BATCH: usize = 32;
const ROUNDS: u32 = 5;
/// Packets of a round: enough of the meter's time for timers to expire.
const ROUND: usize = 20_000_000;
/// The packets' clock: ten million a second.
const EVERY_NS: u64 = 100;

/// Memory operations of this machine.
struct Machine;

impl MemoryHints for Machine {
    #[inline]
    fn prefetch<T>(line: &T) {
        packetrig_sys::memory::prefetch(line);
    }

    fn use_large_pages<T>(memory: &mut [T]) -> bool {
        packetrig_sys::memory::request_large_pages(memory)
    }
}

/// Counts records and keeps none.
#[derive(Default)]
struct Sink(u64);

impl FlowEventReceiver for Sink {
    fn on_record(&mut self, record: &FlowRecord) {
        self.0 += record.packets();
    }
}

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a random number from 0 to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[derive(Clone, Copy)]
enum Order {
    Uniform,
    /// The nth flow has a share of 1/n.
    Zipf,
    /// Every packet opens a flow.
    New,
}

struct Case {
    name: &'static str,
    flows: u32,
    order: Order,
    capacity: u32,
    idle: Nanos,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (uniform, zipf, bits) in [
        ("2^11 flows, uniform", "2^11 flows, Zipf", 11),
        ("2^18 flows, uniform", "2^18 flows, Zipf", 18),
        ("2^21 flows, uniform", "2^21 flows, Zipf", 21),
        ("2^24 flows, uniform", "2^24 flows, Zipf", 24),
    ] {
        for (name, order) in [(uniform, Order::Uniform), (zipf, Order::Zipf)] {
            cases.push(Case {
                name,
                flows: 1 << bits,
                order,
                capacity: 1 << bits,
                idle: Nanos::from_secs(5),
            });
        }
    }
    let new = Case { name: "", flows: 0, order: Order::New, capacity: 1 << 20, idle: Nanos::from_millis(10) };
    cases.push(Case { name: "every packet a new flow, ended in time", ..new });
    cases.push(Case {
        name: "every packet a new flow, table of 2^18 full",
        capacity: 1 << 18,
        idle: Nanos::from_secs(5),
        ..new
    });
    cases
}

fn main() -> std::io::Result<()> {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    for case in cases().iter().filter(|case| case.name.contains(&wanted)) {
        let (rate, bytes) = measure(case)?;
        println!("{}: {rate:.1} Mpackets/s, {bytes:.0} bytes per flow", case.name);
    }
    Ok(())
}

fn measure(case: &Case) -> std::io::Result<(f64, f64)> {
    let mut frames = frames(case);
    let options = TableOptions {
        capacity: case.capacity,
        idle: case.idle,
        active: Nanos::from_secs(60),
        hash_key: [1, 2],
        ..TableOptions::default()
    };
    let mut table = FlowTable::<Machine>::new(&options);
    let mut parser = FrameParser::new(ParseOptions::default());
    let (mut now, mut best, mut sink) = (1_u64 << 60, 0.0_f64, Sink::default());
    let turns = ROUND.div_ceil(frames.len() / FRAME);
    // The first round opens the flows.
    for round in 0..=ROUNDS {
        let (mut packets, mut spent) = (0, 0);
        for _ in 0..turns {
            if matches!(case.order, Order::New) {
                renew(&mut frames);
            }
            let start = processor_ns()?;
            now = turn(&frames, &mut parser, &mut table, now, &mut sink);
            spent += processor_ns()? - start;
            packets += frames.len() / FRAME;
        }
        if round > 0 {
            best = best.max(packets as f64 * 1e3 / spent as f64);
        }
    }
    let counts = table.counts();
    assert_eq!(counts.metered, counts.live + counts.recorded);
    assert_eq!((counts.recorded, counts.untracked), (black_box(sink.0), 0));
    Ok((best, table.memory_bytes() as f64 / f64::from(case.capacity)))
}

fn turn(
    frames: &[u8],
    parser: &mut FrameParser,
    table: &mut FlowTable<Machine>,
    mut now: u64,
    sink: &mut Sink,
) -> u64 {
    let mut packets = [PacketInfo::default(); BATCH];
    for batch in frames.chunks(FRAME * BATCH) {
        let mut count = 0;
        for frame in batch.chunks_exact(FRAME) {
            now += EVERY_NS;
            count += usize::from(parser.parse_frame(frame, FRAME, now, 0, &mut packets[count]).is_ok());
        }
        table.meter_packets(&packets[..count], now, sink);
    }
    now
}

fn frames(case: &Case) -> Vec<u8> {
    let mut numbers = Numbers(88_172_645_463_325_252);
    let count = case.flows.clamp(1 << 22, 1 << 25) as usize;
    let mut frames = Vec::with_capacity(count * FRAME);
    let flows = f64::from(case.flows);
    for n in 0..count {
        let flow = match case.order {
            Order::Uniform => numbers.next() % u64::from(case.flows),
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of a flow")]
            Order::Zipf => flows.powf(numbers.share()) as u64 - 1,
            Order::New => n as u64,
        };
        frames.extend(frame(flow));
    }
    frames
}

/// UDP from one of the flow's own addresses.
fn frame(flow: u64) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    frame[14..26].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0]);
    let [.., a, b, c, d] = flow.to_be_bytes();
    frame[26..38].copy_from_slice(&[198, 18, c, d, 198, 19, a, b, 0x30, 0x39, 0, 53]);
    frame[38..42].copy_from_slice(&[0, 26, 0, 0]);
    frame
}

/// Gives every frame a separate flow.
fn renew(frames: &mut [u8]) {
    for frame in frames.chunks_exact_mut(FRAME) {
        let source = u32::from_be_bytes([frame[26], frame[27], frame[34], frame[35]]);
        let [a, b, c, d] = source.wrapping_add(0x0001_0000).to_be_bytes();
        (frame[26], frame[27], frame[34], frame[35]) = (a, b, c, d);
    }
}

/// Time that this thread has had a processor.
fn processor_ns() -> std::io::Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or_default())
}
