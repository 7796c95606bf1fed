//! Our own path, from a frame in memory to an updated flow, on one processor or on several.

use crate::machine::{Machine, Sink, processor_ns};
use packetrig_eval::Effort;
use packetrig_eval::traffic::{EVERY_NS, Form, Traffic};
use packetrig_flow::parse::{FrameParser, ParseOptions, unified};
use packetrig_flow::{FlowTable, MemoryHints, PacketInfo, TableOptions};
use packetrig_units::Nanos;
use std::sync::Barrier;

/// Packets that are read together.
const BATCH: usize = 32;
/// Bytes of Ethernet, IPv4 and UDP.
const HEADERS: usize = 42;

/// Millions of packets per second of processor time: the best of some rounds. A round is as long as the idle timeout, so every
/// flow's timer rings in it.
pub(crate) fn rate(traffic: &Traffic, form: Form, bits: u32, effort: Effort) -> anyhow::Result<f64> {
    let (rounds, packets) = if effort.quick { (2, 6_000_000) } else { (3, 30_000_000) };
    let mut worker = Worker::new(bits, packets as u64 * EVERY_NS);
    worker.run(traffic, form, traffic.bytes.len() / traffic.each)?;
    let mut best = 0.0_f64;
    for _ in 0..rounds {
        best = best.max(worker.run(traffic, form, packets)?);
    }
    worker.check()?;
    Ok(best)
}

/// The same on several processors at once, each with a table of its own: the sum.
pub(crate) fn together(
    count: usize,
    traffic: &Traffic,
    form: Form,
    bits: u32,
    effort: Effort,
) -> anyhow::Result<f64> {
    let start = Barrier::new(count);
    std::thread::scope(|scope| {
        let one = || {
            start.wait();
            rate(traffic, form, bits, effort)
        };
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(one)).collect();
        let rates = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?);
        rates.sum()
    })
}

/// Asks for the headers of the next batch: frames lie further apart than memory is read ahead.
fn ahead(bytes: &[u8], each: usize) {
    for frame in bytes.chunks_exact(each).take(BATCH) {
        Machine::prefetch(&frame[0]);
        Machine::prefetch(&frame[HEADERS.min(each) - 1]);
    }
}

struct Worker {
    parser: FrameParser,
    table: FlowTable<Machine>,
    sink: Sink,
    now: u64,
    given: u64,
}

impl Worker {
    fn new(bits: u32, idle_ns: u64) -> Self {
        let options = TableOptions {
            capacity: 1 << bits,
            idle: Nanos::new(idle_ns),
            active: Nanos::new(10 * idle_ns),
            hash_key: [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210],
            ..TableOptions::default()
        };
        Self {
            parser: FrameParser::new(ParseOptions::default()),
            table: FlowTable::new(&options),
            sink: Sink::default(),
            now: 1_700_000_000_000_000_000,
            given: 0,
        }
    }

    /// Meters so many packets, from the first frame on again and again.
    fn run(&mut self, traffic: &Traffic, form: Form, packets: usize) -> anyhow::Result<f64> {
        let start = processor_ns()?;
        let mut left = packets;
        while left > 0 {
            let frames = left.min(traffic.bytes.len() / traffic.each);
            self.pass(&traffic.bytes[..frames * traffic.each], traffic, form);
            left -= frames;
        }
        self.given += packets as u64;
        Ok(packets as f64 * 1e3 / (processor_ns()? - start) as f64)
    }

    fn pass(&mut self, bytes: &[u8], traffic: &Traffic, form: Form) {
        let mut packets = [PacketInfo::default(); BATCH];
        let size = BATCH * traffic.each;
        for (at, batch) in bytes.chunks(size).enumerate() {
            ahead(&bytes[(at * size + batch.len()).min(bytes.len())..], traffic.each);
            let mut count = 0;
            for frame in batch.chunks_exact(traffic.each) {
                self.now += EVERY_NS;
                let packet = &mut packets[count];
                let read = match form {
                    Form::Unified => unified::read_record(frame, traffic.length, self.now, 0, packet),
                    _ => self.parser.parse_frame(frame, traffic.length, self.now, 0, packet).is_ok(),
                };
                count += usize::from(read);
            }
            self.table.meter_packets(&packets[..count], self.now, &mut self.sink);
        }
    }

    /// A rate is worth nothing if packets are missing.
    fn check(&self) -> anyhow::Result<()> {
        let counts = self.table.counts();
        anyhow::ensure!(counts.metered == self.given, "{} of {} packets metered", counts.metered, self.given);
        anyhow::ensure!(
            counts.metered == counts.live + self.sink.packets,
            "packets are in no flow: {counts:?}"
        );
        Ok(())
    }
}
