//! Traffic of published mixes: every flow's counts against the truth, and how speed depends on flow lengths, header stacks, sizes
//! and packets that differ inside a flow.

use crate::machine::{Machine, processor_ns};
use anyhow::Context;
use packetrig_eval::mix::{MadeTraffic, Mix, make};
use packetrig_eval::output::{Output, Table};
use packetrig_eval::traffic::EVERY_NS;
use packetrig_eval::{Effort, mix};
use packetrig_flow::parse::{FrameParser, ParseOptions};
use packetrig_flow::{
    FlowEventReceiver, FlowKey, FlowRecord, FlowTable, MemoryHints, PacketInfo, TableOptions,
};
use packetrig_tests::program::Running;
use packetrig_units::Nanos;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

const BATCH: usize = 32;
const BEGAN_NS: u64 = 1_700_000_000_000_000_000;
/// A mix may cost this many times what the plain one does.
const WANTED: f64 = 4.0;

/// What became of one mix.
struct Judged {
    flows: usize,
    /// Flows whose counts are not the truth's.
    wrong: usize,
    /// Of the whole program's ledger: packets that are not in records.
    missing: i64,
    rate: f64,
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let seed = std::env::var("EVAL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let packets = if effort.quick { 300_000 } else { 2_000_000 };
    output.say(&format!(
        "## Mixes\n\n{packets} packets of each, from seed {seed}, {} flows under way at a time. Every flow's packets and bytes in both directions, \
         bytes of frames, TCP flags and least and greatest time to live against the generator's list; the program itself reads the same frames \
         from a file. Speed: from a frame's first {} bytes in memory to an updated flow, beside the plain mix in the same run.\n",
        mix::ACTIVE,
        mix::HEADERS_KEPT
    ))?;
    for mix in Mix::PUBLISHED {
        output.say(&format!("* {}: {}.", mix.name, mix.source))?;
    }
    output.say("\nWhich part of the flows has which headers is not published: every stack has an eighth of them. \"Differ\" is ours, too: lengths, TCP flags, TTL.\n")?;
    let mut table = Table::new(&[
        "mix",
        "flows",
        "flows with a wrong count",
        "packets the program misses",
        "M packets/s and core",
        "cost : plain",
    ]);
    let mut plain = None;
    let (mut wrong, mut missing, mut dearest) = (0, 0, (0.0_f64, ""));
    for mix in [Mix::PLAIN].into_iter().chain(Mix::changed_one_by_one()).chain(Mix::PUBLISHED) {
        let judged = judge(&make(&mix, seed, packets), effort)?;
        let cost = *plain.get_or_insert(judged.rate) / judged.rate;
        wrong += judged.wrong;
        missing += judged.missing.abs();
        if cost > dearest.0 {
            dearest = (cost, mix.name);
        }
        table.rows.push(vec![
            mix.name.to_owned(),
            judged.flows.to_string(),
            judged.wrong.to_string(),
            judged.missing.to_string(),
            format!("{:.1}", judged.rate),
            format!("{cost:.2}x"),
        ]);
    }
    output.table("mixes", &table)?;
    let measured = format!("{wrong} flows with a wrong count, {missing} packets missing");
    output.goal("mixes_exact", &measured, "0; 0", &(wrong == 0 && missing == 0).into());
    let measured = format!("{:.2}x the cost of a packet of the plain mix at most ({})", dearest.0, dearest.1);
    output.goal("mixes_speed", &measured, &format!("<= {WANTED:.0}x"), &(dearest.0 <= WANTED).into());
    Ok(())
}

fn judge(made: &MadeTraffic, effort: Effort) -> anyhow::Result<Judged> {
    let mut bench = Bench::new();
    bench.run(made)?;
    bench.table.finish_flows(&mut bench.records);
    let wrong = wrong_flows(made, &bench.records);
    let missing = program_misses(made)?;
    let mut rate = 0.0_f64;
    let mut timed = Bench::new();
    for _ in 0..if effort.quick { 2 } else { 4 } {
        rate = rate.max(timed.run(made)?);
    }
    Ok(Judged { flows: made.truth.len(), wrong, missing, rate })
}

/// Records, added up by flow.
#[derive(Debug, Default)]
struct Recorded(BTreeMap<FlowKey, mix::FlowTruth>);

impl FlowEventReceiver for Recorded {
    fn on_record(&mut self, record: &FlowRecord) {
        let canonical = record.key.to_canonical();
        let mut halves = [record.forward, record.reverse];
        if canonical != record.key {
            halves.reverse();
        }
        let sum = self.0.entry(canonical).or_default();
        for (at, half) in halves.into_iter().enumerate() {
            sum.packets[at] += half.packets;
            sum.bytes[at] += half.bytes;
            sum.frame_bytes += half.frame_bytes;
            sum.tcp_flags |= half.tcp_flags;
        }
        sum.ttl_min = sum.ttl_min.min(record.ttl_min);
        sum.ttl_max = sum.ttl_max.max(record.ttl_max);
    }
}

/// Flows that are in one of both and not the same in the other.
fn wrong_flows(made: &MadeTraffic, records: &Recorded) -> usize {
    let differs = made.truth.iter().filter(|(key, truth)| records.0.get(key) != Some(truth)).count();
    differs + records.0.keys().filter(|key| !made.truth.contains_key(key)).count()
}

struct Bench {
    parser: FrameParser,
    table: FlowTable<Machine>,
    records: Recorded,
    now_ns: u64,
}

impl Bench {
    fn new() -> Self {
        let options = TableOptions {
            capacity: 1 << 20,
            idle: Nanos::from_secs(3600),
            active: Nanos::from_secs(36_000),
            hash_key: [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210],
            ..TableOptions::default()
        };
        Self {
            parser: FrameParser::new(ParseOptions::default()),
            table: FlowTable::new(&options),
            records: Recorded::default(),
            now_ns: BEGAN_NS,
        }
    }

    /// Meters all frames once; millions per second of processor time.
    fn run(&mut self, made: &MadeTraffic) -> anyhow::Result<f64> {
        let start_ns = processor_ns()?;
        let mut packets = [PacketInfo::default(); BATCH];
        let mut filled = 0;
        let mut metered = 0;
        for (frame, length) in made.frames() {
            self.now_ns += EVERY_NS;
            let read = self.parser.parse_frame(frame, length, self.now_ns, 0, &mut packets[filled]);
            filled += usize::from(read.is_ok());
            if filled == BATCH {
                self.table.meter_packets(&packets, self.now_ns, &mut self.records);
                metered += filled;
                filled = 0;
                // Frames lie further apart than memory is read ahead.
                let next = (metered * mix::HEADERS_KEPT).min(made.bytes.len());
                for ahead in made.bytes[next..].chunks_exact(mix::HEADERS_KEPT).take(BATCH) {
                    Machine::prefetch(&ahead[0]);
                    Machine::prefetch(&ahead[mix::HEADERS_KEPT - 1]);
                }
            }
        }
        self.table.meter_packets(&packets[..filled], self.now_ns, &mut self.records);
        metered += filled;
        let all = made.lengths.len();
        anyhow::ensure!(metered == all, "{metered} of {all} packets were read");
        Ok(all as f64 * 1e3 / (processor_ns()? - start_ns) as f64)
    }
}

/// Frames of a file that are in no record of the program, by its own ledger and the number that was made.
fn program_misses(made: &MadeTraffic) -> anyhow::Result<i64> {
    let files = tempfile::tempdir_in("/var/tmp")?;
    let file = files.path().join("frames.pcap");
    write(made, &file)?;
    let file = file.display().to_string();
    let finished = Running::start(&["meter", &file, "--json", "--quiet", "--idle", "3600s"], "").finish();
    let said = || format!("the meter said: {}{}", finished.stdout, finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout).with_context(said)?;
    let recorded = report.pointer("/ledger/packets/recorded").and_then(Value::as_u64).with_context(said)?;
    Ok(i64::try_from(made.lengths.len())? - recorded.cast_signed())
}

/// As a capture with a snap length.
fn write(made: &MadeTraffic, path: &Path) -> anyhow::Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, u32::try_from(mix::HEADERS_KEPT)?, 1] {
        file.write_all(&word.to_le_bytes())?;
    }
    for (at_ns, (frame, length)) in (BEGAN_NS..).step_by(1000).zip(made.frames()) {
        let second = u32::try_from(at_ns / 1_000_000_000)?;
        let rest = u32::try_from(at_ns % 1_000_000_000)?;
        for word in [second, rest, u32::try_from(frame.len())?, u32::try_from(length)?] {
            file.write_all(&word.to_le_bytes())?;
        }
        file.write_all(frame)?;
    }
    file.flush()?;
    Ok(())
}
