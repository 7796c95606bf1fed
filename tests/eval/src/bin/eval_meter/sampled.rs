//! E1.1 and E1.2: loss against the rate of packets and against the rate of flows, rates going on until there is loss.

use crate::metered::{self, Load, Metered, Sample};
use packetrig_eval::output::{Output, Table};
use packetrig_eval::plot::{self, Titles};
use packetrig_eval::{Effort, median};
use packetrig_tests::document::{Flow, ethernet};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// R1's rates, and what comes behind them.
const RATES: [u64; 11] = [1000, 5000, 10_000, 15_000, 20_000, 25_000, 30_000, 35_000, 40_000, 45_000, 50_000];
const BEYOND: [u64; 7] = [100_000, 200_000, 400_000, 800_000, 1_600_000, 3_200_000, 6_400_000];
/// R1's hosts, and what comes behind them; each opens 2000 flows a second.
const HOSTS: [u64; 11] = [1, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50];
const MORE_HOSTS: [u64; 6] = [100, 200, 400, 800, 1600, 3200];
const FLOWS_PER_HOST: u64 = 2000;
/// Where R1 began to lose.
const R1_PACKETS: u64 = 25_000;
const R1_FLOWS: u64 = 20_000;
/// A prime: hosts and ports that count up together meet again only after all pairs.
const PORTS: u64 = 49_999;
const SIZE: u32 = 64;
const SOURCES: [&str; 2] = ["packet", "headers"];

/// The highest rate without loss, of one source.
struct Reached {
    source: &'static str,
    rate: u64,
    end: String,
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let packets = sweep(effort, output, &PACKETS)?;
    goal(output, "loss_packets", "packets/s", &packets, R1_PACKETS);
    let flows = sweep(effort, output, &FLOWS)?;
    goal(output, "loss_flows", "new flows/s", &flows, R1_FLOWS);
    Ok(())
}

/// A series of rising rates.
struct Series {
    name: &'static str,
    text: &'static str,
    unit: &'static str,
    steps: [&'static [u64]; 2],
    quick: &'static [u64],
    /// Packets per second of a step.
    rate: fn(u64) -> u64,
    flow: fn(u64) -> Flow,
    room: u32,
}

const PACKETS: Series = Series {
    name: "loss_packets",
    text: "## Loss against packet rate (E1.1)\n\nOne UDP flow, 64 B, over a veth pair; sender, meter and kernel share the processors. \
           R1 lost nothing up to 25 000 packets/s, 13 % at 30 000 and half at 50 000.\n",
    unit: "packets/s",
    steps: [&RATES, &BEYOND],
    quick: &[1000, 25_000, 50_000, 400_000, 1_600_000, 6_400_000],
    rate: |step| step,
    flow: |_| {
        Flow::new("one", 1).packet([
            ethernet(1),
            addresses(json!({"choice": "value", "value": "198.18.0.1"})),
            ports(1),
        ])
    },
    room: 1 << 16,
};

const FLOWS: Series = Series {
    name: "loss_flows",
    text: "## Loss against flow rate (E1.2)\n\nHosts with 2000 packets/s each, every packet of another flow of its host; 64 B. R1 \
           lost nothing up to 20 000 flows/s, 15 % at 30 000 and 80 % at 100 000.\n",
    unit: "hosts",
    steps: [&HOSTS, &MORE_HOSTS],
    quick: &[1, 10, 50, 200, 800, 3200],
    rate: |hosts| hosts * FLOWS_PER_HOST,
    flow: |hosts| {
        let sources = json!({"choice": "increment", "increment": {"start": "198.18.0.1", "step": "0.0.0.1", "count": hosts}});
        Flow::new("many", 1).packet([ethernet(1), addresses(sources), ports(PORTS)])
    },
    room: 1 << 22,
};

fn addresses(source: Value) -> Value {
    json!({"choice": "ipv4", "ipv4": {"src": source, "dst": {"choice": "value", "value": "198.19.0.1"}}})
}

fn ports(count: u64) -> Value {
    let source = if count == 1 {
        json!({"choice": "value", "value": 4000})
    } else {
        json!({"choice": "increment", "increment": {"start": 1024, "step": 1, "count": count}})
    };
    json!({"choice": "udp", "udp": {"src_port": source, "dst_port": {"choice": "value", "value": 9}}})
}

fn sweep(effort: Effort, output: &mut Output, series: &Series) -> anyhow::Result<Vec<Reached>> {
    let steps = if effort.quick { series.quick.to_vec() } else { series.steps.concat() };
    output.say(series.text)?;
    let mut table = Table::new(&[
        "source",
        series.unit,
        "arrived/s",
        "loss",
        "flows",
        "unaccounted",
        "busiest thread",
        "memory, MiB",
    ]);
    let mut samples = Vec::new();
    let (mut reached, mut plots) = (Vec::new(), Vec::new());
    for source in SOURCES {
        let mut best = Reached { source, rate: 0, end: "no loss at any rate that the sender makes".into() };
        for &step in &steps {
            let runs = runs(effort, series, source, step)?;
            let loss = median(&runs.iter().map(Metered::loss).collect::<Vec<_>>()).unwrap_or(1.0);
            table.rows.push(row(source, step, &runs, loss));
            samples.extend(runs.iter().flat_map(|run| lines(source, step, &run.samples)));
            plots.push((format!("{source} {step}"), vec![loss * 100.0]));
            if let Some(run) = runs.iter().find(|run| run.unaccounted() != 0) {
                best.end = format!("{} unaccounted at {step} {}", run.unaccounted(), series.unit);
                break;
            }
            if runs.iter().any(|run| run.missing() != 0) {
                best.end = format!("{:.3} % lost at {step} {}", loss * 100.0, series.unit);
                break;
            }
            let sent = runs.iter().map(Metered::rate).fold(f64::MAX, f64::min);
            let asked = (series.rate)(step);
            if sent < asked as f64 * 0.9 {
                best.end = format!("the sender makes {sent:.0} packets/s");
                best.rate = best.rate.max(whole(sent));
                break;
            }
            best.rate = asked;
        }
        reached.push(best);
    }
    output.table(series.name, &table)?;
    output.save(
        &format!("{}_samples.csv", series.name),
        &format!("source,step,second,thread,share,memory MiB\n{}", samples.concat()),
    )?;
    let titles = Titles { plot: series.name, x: series.unit, y: "loss, %" };
    output.plot(series.name, titles.plot, &plot::bars(titles, &["loss"], &plots))?;
    Ok(reached)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate of millions")]
const fn whole(rate: f64) -> u64 {
    rate as u64
}

fn runs(effort: Effort, series: &Series, source: &'static str, step: u64) -> anyhow::Result<Vec<Metered>> {
    let (times, seconds) = if effort.quick { (1, 1) } else { (3, 8) };
    let rate = (series.rate)(step);
    // R1 sends 200 000 packets; where that takes long, fewer say as much.
    let packets = if effort.quick { rate * seconds } else { (rate * seconds).min(200_000.max(rate * 2)) };
    let load = || Load {
        source,
        room: series.room,
        flow: (series.flow)(step).size(SIZE).pps(rate).packets(packets),
        back_end: "xdp",
    };
    (0..times).map(|_| metered::meter(load())).collect()
}

fn row(source: &str, step: u64, runs: &[Metered], loss: f64) -> Vec<String> {
    let most = |of: &dyn Fn(&Metered) -> f64| runs.iter().map(of).fold(0.0, f64::max);
    let busiest = most(&|run| {
        run.samples.iter().flat_map(|sample| sample.threads.values().copied()).fold(0.0, f64::max)
    });
    let memory = most(&|run| run.samples.iter().map(|sample| sample.memory_mib).fold(0.0, f64::max));
    let unaccounted =
        runs.iter().map(Metered::unaccounted).max_by_key(|count| count.abs()).unwrap_or_default();
    vec![
        source.to_owned(),
        step.to_string(),
        format!("{:.0}", most(&Metered::rate)),
        format!("{:.4} %", loss * 100.0),
        runs.iter().map(Metered::flows).max().unwrap_or_default().to_string(),
        unaccounted.to_string(),
        format!("{:.0} %", busiest * 100.0),
        format!("{memory:.0}"),
    ]
}

fn lines(source: &str, step: u64, samples: &[Sample]) -> Vec<String> {
    let mut lines = Vec::new();
    for (second, sample) in samples.iter().enumerate() {
        let line = |(name, share): (&String, &f64)| {
            format!("{source},{step},{second},{name},{share:.4},{:.1}\n", sample.memory_mib)
        };
        lines.extend(sample.threads.iter().map(line));
    }
    lines
}

fn goal(output: &mut Output, what: &str, unit: &str, reached: &[Reached], r1: u64) {
    let words: BTreeSet<String> = reached
        .iter()
        .map(|one| format!("{} {} {unit} without loss, then {}", one.source, one.rate, one.end))
        .collect();
    let best = reached.iter().map(|one| one.rate).max().unwrap_or_default();
    let words: Vec<String> = words.into_iter().collect();
    output.goal(what, &words.join("; "), &format!("> {r1} {unit} (R1)"), &(best > r1).into());
}
