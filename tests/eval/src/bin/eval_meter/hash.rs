//! E1.3: flows whose numbers meet, and how fast numbers are made, beside SuperFastHash on the same keys of 37 bytes.

use anyhow::Context;
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_eval::plot::{self, Titles};
use packetrig_flow::FlowKey;
use packetrig_flow::hash::{FlowIds, super_fast_hash};
use std::collections::BTreeSet;
use std::hint::black_box;

use crate::machine::processor_ns;

const BINS: usize = 100;
const PREFIXES: [u32; 3] = [8, 16, 24];
/// What R1 made, in millions per second.
const REFERENCE: f64 = 2.5;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let counts =
        if effort.quick { &[250_000, 1_000_000][..] } else { &[250_000, 500_000, 750_000, 1_000_000] };
    output.say(
        "## Numbers of flows (E1.3)\n\nUnique flows, sources inside one prefix, random destinations; flows whose number \
         another flow had before. \"Chance\" is what an ideal hash of 32 bits does.\n",
    )?;
    let mut table =
        Table::new(&["sources", "flows", "chance", "ours, 32 bits", "ours, 64 bits", "SuperFastHash"]);
    let (mut furthest, mut long) = (0.0_f64, 0);
    for &prefix in &PREFIXES {
        for &count in counts {
            let keys = keys(count, prefix);
            let ids = FlowIds::new([0; 2]);
            let numbers: Vec<u64> = keys.iter().map(|key| ids.flow_id(key)).collect();
            let chance = (count as f64).powi(2) / 2_f64.powi(33);
            let short = met(numbers.iter().map(|number| number & 0xffff_ffff));
            let whole = met(numbers.iter().copied());
            long += whole;
            furthest = furthest.max((short as f64 - chance).abs() / chance.sqrt());
            let theirs = met(keys.iter().map(|key| super_fast_hash(&bytes(key)).into()));
            let row = [
                format!("/{prefix}"),
                count.to_string(),
                format!("{chance:.0}"),
                short.to_string(),
                whole.to_string(),
                theirs.to_string(),
            ];
            table.rows.push(row.to_vec());
        }
    }
    output.table("hash", &table)?;
    let measured = format!("{furthest:.1} deviations from chance at most, {long} meet in 64 bits");
    output.goal("hash_collisions", &measured, "<= 4 deviations; 0", &(furthest <= 4.0 && long == 0).into());
    histogram(output)?;
    speed(output)
}

/// Flows whose number another one had before.
fn met(numbers: impl Iterator<Item = u64>) -> usize {
    let mut numbers: Vec<u64> = numbers.collect();
    let all = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    all - numbers.len()
}

/// Unique keys, always the same.
#[expect(clippy::cast_possible_truncation, reason = "parts of a random number")]
fn keys(count: usize, prefix: u32) -> Vec<FlowKey> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(prefix);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    let host = u32::MAX >> prefix;
    let mut known = BTreeSet::new();
    let mut keys = Vec::with_capacity(count);
    while keys.len() < count {
        let (hosts, ports) = (next(), next());
        let source = 0x0a12_0300 & !host | hosts as u32 & host;
        let ends = (source, (hosts >> 32) as u32, ports as u16, (ports >> 16) as u16);
        if known.insert(ends) {
            keys.push(FlowKey {
                source: mapped(ends.0),
                destination: mapped(ends.1),
                source_port: ends.2,
                destination_port: ends.3,
                protocol: 17,
                ..FlowKey::default()
            });
        }
    }
    keys
}

fn mapped(address: u32) -> [u8; 16] {
    (0xffff_0000_0000 | u128::from(address)).to_be_bytes()
}

/// The 37 bytes of R1: the lower end, the upper end, the protocol.
fn bytes(key: &FlowKey) -> [u8; 37] {
    let (from, to) = ((key.source, key.source_port), (key.destination, key.destination_port));
    let (low, high) = if from > to { (to, from) } else { (from, to) };
    let mut bytes = [0; 37];
    for (at, end) in [(0, low), (18, high)] {
        bytes[at..at + 16].copy_from_slice(&end.0);
        bytes[at + 16..at + 18].copy_from_slice(&end.1.to_be_bytes());
    }
    bytes[36] = key.protocol;
    bytes
}

/// A million flows of one /24 in 100 bins of their numbers.
fn histogram(output: &mut Output) -> anyhow::Result<()> {
    let keys = keys(1_000_000, 24);
    let ids = FlowIds::new([0; 2]);
    let bins = |number: &dyn Fn(&FlowKey) -> u64| {
        let mut bins = [0_u32; BINS];
        for key in &keys {
            let bin = ((number(key) & 0xffff_ffff) * BINS as u64) >> 32;
            bins[usize::try_from(bin).unwrap_or(0)] += 1;
        }
        bins
    };
    let ours = bins(&|key| ids.flow_id(key));
    let theirs = bins(&|key| super_fast_hash(&bytes(key)).into());
    let csv: Vec<String> = (0..BINS).map(|bin| format!("{bin},{},{}", ours[bin], theirs[bin])).collect();
    output.save("hash_histogram.csv", &format!("bin,ours,SuperFastHash\n{}\n", csv.join("\n")))?;
    let expected = keys.len() as f64 / BINS as f64;
    let chi =
        |bins: &[u32; BINS]| bins.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum::<f64>();
    let groups: Vec<(String, Vec<f64>)> = (0..BINS)
        .map(|bin| {
            let label = if bin % 10 == 0 { bin.to_string() } else { String::new() };
            (label, vec![f64::from(ours[bin]), f64::from(theirs[bin])])
        })
        .collect();
    let titles = Titles { plot: "A million flows of one /24 in 100 bins", x: "bin", y: "flows" };
    output.plot("hash_histogram", titles.plot, &plot::bars(titles, &["ours", "SuperFastHash"], &groups))?;
    let (ours, theirs) = (chi(&ours), chi(&theirs));
    output.say(&format!(
        "100 bins of a million flows: chi-square {ours:.0}, SuperFastHash {theirs:.0} (99 +- 14 by chance).\n"
    ))?;
    // Five deviations of chi-square with 99 degrees of freedom.
    output.goal("hash_histogram", &format!("chi-square {ours:.0}"), "<= 170", &(ours <= 170.0).into());
    Ok(())
}

fn speed(output: &mut Output) -> anyhow::Result<()> {
    let keys = keys(4096, 16);
    let ids = FlowIds::new([0; 2]);
    let ours = millions(&keys, |key| ids.flow_id(key))?;
    let theirs = millions(&keys, |key| super_fast_hash(&bytes(key)).into())?;
    output.say(&format!(
        "With ordering of addresses: {ours:.0} M numbers/s, SuperFastHash {theirs:.0} M/s.\n"
    ))?;
    let measured = format!("{:.1}x SuperFastHash, {ours:.0} M/s", ours / theirs);
    output.goal("hash_speed", &measured, ">= 1x, >= 2.5 M/s", &(ours >= theirs && ours >= REFERENCE).into());
    Ok(())
}

fn millions(keys: &[FlowKey], number: impl Fn(&FlowKey) -> u64) -> anyhow::Result<f64> {
    const TURNS: usize = 500;
    let round = || -> anyhow::Result<f64> {
        let start = processor_ns()?;
        for _ in 0..TURNS {
            for key in keys {
                black_box(number(black_box(key)));
            }
        }
        Ok((TURNS * keys.len()) as f64 * 1e3 / (processor_ns()? - start) as f64)
    };
    let rates: Vec<f64> = (0..5).map(|_| round()).collect::<Result<_, _>>()?;
    rates.into_iter().reduce(f64::max).context("a round")
}
