//! Memory per flow, as the kernel counts it, from 2^11 to 2^24 flows; and whether it grows once a table has been full.

use crate::machine::{Machine, Sink, processor_ns, resident};
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_eval::plot::{self, Titles};
use packetrig_flow::{FlowTable, PacketInfo, TableOptions};

const BATCH: u32 = 32;
/// Bytes per flow that are wanted at most, where a table's own size no longer matters.
const WANTED: f64 = 256.0;
/// Below 2^16 flows a table is smaller than what else a process may take meanwhile.
const WEIGHTY: u32 = 16;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let bits = if effort.quick { &[11, 18, 21][..] } else { &[11, 14, 16, 18, 20, 21, 22, 23, 24] };
    output.say("## Memory\n\nOf a table and as many flows as it holds, by the kernel's count. Slots are touched when flows need them: \
        a table without flows takes next to nothing, and one that has been full takes no more.\n")?;
    let mut table = Table::new(&[
        "flows",
        "bytes per flow",
        "whole, MiB",
        "without flows, MiB",
        "grown after it was full, MiB",
        "new flows, M/s",
        "known flows, M packets/s",
    ]);
    let (mut points, mut last, mut growth) = (Vec::new(), 0.0, 0.0_f64);
    for &bits in bits {
        let found = measure(bits)?;
        let flows = f64::from(1_u32 << bits);
        let whole = found.full as f64;
        last = whole / flows;
        if bits >= WEIGHTY {
            growth = growth.max(found.again.saturating_sub(found.full) as f64 / whole);
        }
        points.push((flows, last));
        table.rows.push(vec![
            format!("2^{bits}"),
            format!("{last:.0}"),
            mebibytes(found.full),
            mebibytes(found.empty),
            mebibytes(found.again.saturating_sub(found.full)),
            rate(found.opened),
            rate(found.known),
        ]);
    }
    output.table("memory", &table)?;
    let titles = Titles { plot: "Memory per flow", x: "flows", y: "bytes" };
    output.plot("memory", titles.plot, &plot::points(titles, &points))?;
    let at = bits.last().copied().unwrap_or_default();
    let measured = format!("{last:.0} bytes per flow at 2^{at} flows");
    output.goal("memory", &measured, &format!("<= {WANTED:.0}"), &(last <= WANTED).into());
    let measured = format!("{:.1} % after the table was full", growth * 100.0);
    output.goal("memory_growth", &measured, "<= 2 %", &(growth <= 0.02).into());
    Ok(())
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// The processor's time comes in steps: what takes less has no rate.
fn rate(millions: f64) -> String {
    if millions.is_finite() { format!("{millions:.1}") } else { "-".to_owned() }
}

struct Found {
    /// Bytes of the table without flows, full, and after as many packets again.
    empty: u64,
    full: u64,
    again: u64,
    /// Millions per second of opening and of counting.
    opened: f64,
    known: f64,
}

fn measure(bits: u32) -> anyhow::Result<Found> {
    let before = resident()?;
    let options = TableOptions { capacity: 1 << bits, hash_key: [1, 2], ..TableOptions::default() };
    let mut table = FlowTable::<Machine>::new(&options);
    let empty = resident()? - before;
    let mut sink = Sink::default();
    let opened = fill(&mut table, bits, &mut sink)?;
    let full = resident()? - before;
    let known = fill(&mut table, bits, &mut sink)?;
    let again = resident()? - before;
    let counts = table.counts();
    anyhow::ensure!(
        table.flow_count() == 1 << bits && counts.evicted == 0,
        "not every flow is there: {counts:?}"
    );
    Ok(Found { empty, full, again, opened, known })
}

/// A packet for every flow; millions per second.
fn fill(table: &mut FlowTable<Machine>, bits: u32, sink: &mut Sink) -> anyhow::Result<f64> {
    const NOW: u64 = 1_700_000_000_000_000_000;
    let start = processor_ns()?;
    let mut packets = [PacketInfo::default(); BATCH as usize];
    for first in (0..1_u32 << bits).step_by(BATCH as usize) {
        for (packet, n) in packets.iter_mut().zip(first..) {
            // Every number once, in an order that no cache foresees.
            let flow = n.wrapping_mul(0x9e37_79b1) & ((1 << bits) - 1);
            let source = 0xffff_0000_0000_u128 | u128::from(flow);
            *packet = PacketInfo {
                source: source.to_be_bytes(),
                protocol: 17,
                bytes: 46,
                frame_bytes: 60,
                at_ns: NOW,
                ..PacketInfo::default()
            };
            packet.destination = 0xffff_c613_0001_u128.to_be_bytes();
        }
        table.meter_packets(&packets, NOW, sink);
    }
    Ok(f64::from(1_u32 << bits) * 1e3 / (processor_ns()? - start) as f64)
}
