//! E1.1 and E1.2: loss against the rate of packets and against the rate of flows, at R1's rates as shares of what this machine carries.
//!
//! R1's greatest rate was twice what its machine carried without loss. Here the greatest is what the sender makes beside the meter,
//! measured first; the others are the same parts of it as R1's were of 50 000 packets a second.

use crate::metered::{self, Load, Metered};
use crate::sampler::{self, Sample};
use packetrig_eval::output::{Output, Table};
use packetrig_eval::plot::{self, Titles};
use packetrig_eval::{Effort, Quartiles};
use packetrig_tests::document::{Flow, ethernet};
use serde_json::{Value, json};

/// R1's rates in packets a second; in E1.2 its hosts, of 2000 flows a second each, were a thousandth of these, and 1 host for 1000.
const RATES: [u64; 11] = [1000, 5000, 10_000, 15_000, 20_000, 25_000, 30_000, 35_000, 40_000, 45_000, 50_000];
const QUICK: [u64; 4] = [1000, 25_000, 35_000, 50_000];
const GREATEST: u64 = 50_000;
/// What one of R1's hosts makes.
const FLOWS_PER_HOST: u64 = 2000;
/// A prime: hosts and ports that count up together meet again only after all pairs.
const PORTS: u64 = 49_999;
const SIZE: u32 = 64;
const SOURCES: [&str; 2] = ["packet", "headers"];
/// More than any sender makes.
const TOP_SPEED: u64 = 20_000_000;

/// A series of rising rates.
struct Series {
    name: &'static str,
    text: &'static str,
    unit: &'static str,
    flow: fn(u64) -> Flow,
    room: u32,
    /// Where R1 began to lose, in its own packets or flows a second.
    r1_lossless: u64,
    /// R1's unit of a rate of [`RATES`].
    r1: fn(u64) -> u64,
}

const PACKETS: Series = Series {
    name: "loss_packets",
    text: "## Loss against packet rate (E1.1)\n\nOne UDP flow, 64 B, over a veth pair; sender, meter and kernel share the processors. \
           R1 lost nothing up to 25 000 packets/s, 13 % at 30 000 and half at 50 000.",
    unit: "packets/s",
    flow: |_| {
        Flow::new("one", 1).packet([
            ethernet(1),
            addresses(json!({"choice": "value", "value": "198.18.0.1"})),
            ports(1),
        ])
    },
    room: 1 << 16,
    r1_lossless: 25_000,
    r1: |rate| rate,
};

const FLOWS: Series = Series {
    name: "loss_flows",
    text: "## Loss against flow rate (E1.2)\n\nHosts with 2000 packets/s each, every packet of another flow of its host; 64 B. R1 \
           lost nothing up to 20 000 flows/s, 15 % at 30 000 and 80 % at 100 000.",
    unit: "new flows/s",
    flow: |rate| {
        let hosts = (rate / FLOWS_PER_HOST).max(1);
        let sources = json!({"choice": "increment", "increment": {"start": "198.18.0.1", "step": "0.0.0.1", "count": hosts}});
        Flow::new("many", 1).packet([ethernet(1), addresses(sources), ports(PORTS)])
    },
    room: 1 << 21,
    r1_lossless: 20_000,
    r1: |rate| 2 * rate,
};

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    sweep(effort, output, &PACKETS)?;
    sweep(effort, output, &FLOWS)
}

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

/// How long and how often.
struct Plan {
    rates: &'static [u64],
    runs: u32,
    seconds: u64,
}

impl Plan {
    const fn of(effort: Effort) -> Self {
        if effort.quick {
            Self { rates: &QUICK, runs: 1, seconds: 2 }
        } else {
            Self { rates: &RATES, runs: 3, seconds: 3 }
        }
    }
}

/// What one source did at one rate.
struct Step {
    source: &'static str,
    /// One of [`RATES`].
    rate: u64,
    runs: Vec<Metered>,
}

fn sweep(effort: Effort, output: &mut Output, series: &Series) -> anyhow::Result<()> {
    let plan = Plan::of(effort);
    let mut steps = Vec::new();
    let mut carried = Vec::new();
    for source in SOURCES {
        let most = run(series, source, TOP_SPEED, plan.seconds)?.rate();
        carried.push(format!("{most:.0} beside source `{source}`"));
        for &rate in plan.rates {
            let asked = whole(most * rate as f64 / GREATEST as f64).max(1);
            let runs =
                (0..plan.runs).map(|_| run(series, source, asked, plan.seconds)).collect::<Result<_, _>>()?;
            steps.push(Step { source, rate, runs });
        }
    }
    output.say(&format!(
        "{} Rates are the same parts of what the sender makes here ({} {}) as R1's were of its greatest; {} runs of {} s each, lost: \
         of all runs. Processor shares and memory were taken every second: first quartile / median / third.\n",
        series.text,
        carried.join(", "),
        series.unit,
        plan.runs,
        plan.seconds
    ))?;
    output.table(series.name, &table(series, &steps))?;
    samples(output, series, &steps)?;
    draw(output, series, &steps)?;
    goals(output, series, &steps);
    Ok(())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate of millions")]
const fn whole(rate: f64) -> u64 {
    rate as u64
}

fn run(series: &Series, source: &'static str, rate: u64, seconds: u64) -> anyhow::Result<Metered> {
    let lasts = json!({"choice": "fixed_seconds", "fixed_seconds": {"seconds": seconds}});
    let flow = (series.flow)(rate).size(SIZE).pps(rate).with("duration", lasts);
    metered::meter(Load { is_exported: true, ..Load::of(source, series.room, flow) })
}

impl Step {
    /// The sum over all runs.
    fn sum(&self, of: impl Fn(&Metered) -> u64) -> u64 {
        self.runs.iter().map(of).sum()
    }

    /// Furthest from none of all runs.
    fn unaccounted(&self) -> i64 {
        self.runs.iter().map(Metered::unaccounted).max_by_key(|count| count.abs()).unwrap_or_default()
    }

    fn is_lossless(&self) -> bool {
        self.runs.iter().all(|run| run.missing() == 0 && run.lost_in_export() == 0)
    }

    fn arrived_per_second(&self) -> f64 {
        self.runs.iter().map(Metered::rate).fold(0.0, f64::max)
    }

    fn quartiles(&self, of: impl Fn(&Sample) -> f64) -> Option<Quartiles> {
        let figures: Vec<f64> = self.runs.iter().flat_map(|run| run.samples.iter().map(&of)).collect();
        Quartiles::of(&figures)
    }

    fn worker(&self) -> Option<Quartiles> {
        self.quartiles(|sample| 100.0 * sample.busiest(sampler::is_worker))
    }

    fn exporter(&self) -> Option<Quartiles> {
        self.quartiles(|sample| 100.0 * sample.busiest(sampler::is_exporter))
    }

    fn memory(&self) -> Option<Quartiles> {
        self.quartiles(|sample| sample.memory_mib)
    }
}

fn table(series: &Series, steps: &[Step]) -> Table {
    let mut table = Table::new(&[
        "source",
        "R1's rate",
        series.unit,
        "lost in capture",
        "in the table",
        "in export",
        "unaccounted",
        "worker, % of a processor",
        "exporter, %",
        "memory, MiB",
    ]);
    for step in steps {
        let arrived = step.sum(|run| run.arrived).max(1) as f64;
        let share = |lost: u64| format!("{:.4} %", lost as f64 * 100.0 / arrived);
        let text = |quartiles: Option<Quartiles>| quartiles.map_or_else(|| "-".to_owned(), |q| q.text(1.0));
        table.rows.push(vec![
            step.source.to_owned(),
            (series.r1)(step.rate).to_string(),
            format!("{:.0}", step.arrived_per_second()),
            share(step.sum(Metered::lost_in_capture)),
            share(step.sum(Metered::lost_in_table)),
            share(step.sum(Metered::lost_in_export)),
            step.unaccounted().to_string(),
            text(step.worker()),
            text(step.exporter()),
            text(step.memory()),
        ]);
    }
    table
}

fn samples(output: &Output, series: &Series, steps: &[Step]) -> anyhow::Result<()> {
    let mut lines = "source,R1's rate,run,second,thread,share,memory MiB\n".to_owned();
    for step in steps {
        for (number, run) in step.runs.iter().enumerate() {
            for (second, sample) in run.samples.iter().enumerate() {
                let (source, rate, memory) = (step.source, (series.r1)(step.rate), sample.memory_mib);
                lines.extend(sample.threads.iter().map(|(name, share)| {
                    format!("{source},{rate},{number},{second},{name},{share:.4},{memory:.1}\n")
                }));
            }
        }
    }
    output.save(&format!("{}_samples.csv", series.name), &lines)
}

type OneBox = fn(&Step) -> Option<Quartiles>;

fn draw(output: &mut Output, series: &Series, steps: &[Step]) -> anyhow::Result<()> {
    let mut rates: Vec<u64> = steps.iter().map(|step| step.rate).collect();
    rates.sort_unstable();
    rates.dedup();
    let groups = |boxes: &[OneBox]| -> Vec<(String, Vec<Option<Quartiles>>)> {
        let of_rate = |rate: &u64| {
            let at: Vec<&Step> = steps.iter().filter(|step| step.rate == *rate).collect();
            let drawn = at.iter().flat_map(|step| boxes.iter().map(|of| of(step))).collect();
            (format!("{} %", rate * 100 / GREATEST), drawn)
        };
        rates.iter().map(of_rate).collect()
    };
    let x = "part of the greatest rate";
    let processor = Titles { plot: "Processor time of each thread, every second", x, y: "% of a processor" };
    let names = ["packet: worker", "packet: export", "headers: worker", "headers: export"];
    let svg = plot::boxes(processor, &names, &groups(&[Step::worker, Step::exporter]));
    output.plot(&format!("{}_processor", series.name), processor.plot, &svg)?;
    let memory = Titles { plot: "Memory of the meter, every second", x, y: "MiB" };
    let svg = plot::boxes(memory, &SOURCES, &groups(&[Step::memory]));
    output.plot(&format!("{}_memory", series.name), memory.plot, &svg)
}

fn goals(output: &mut Output, series: &Series, steps: &[Step]) {
    let mut words = Vec::new();
    let mut best = 0.0_f64;
    let mut best_part = 0;
    for source in SOURCES {
        let own: Vec<&Step> = steps.iter().filter(|step| step.source == source).collect();
        let lossless = own.iter().take_while(|step| step.is_lossless()).last();
        let part = lossless.map_or(0, |step| step.rate * 100 / GREATEST);
        let rate = lossless.map_or(0.0, |step| step.arrived_per_second());
        words.push(format!(
            "{source}: no loss in any run up to {part} % of what the sender makes, {rate:.0} {}",
            series.unit
        ));
        best = best.max(rate);
        best_part = best_part.max(part);
    }
    let r1_part = series.r1_lossless * 100 / (series.r1)(GREATEST);
    let wanted = format!("> {r1_part} % and > {} {} (R1)", series.r1_lossless, series.unit);
    let is_met = best_part > r1_part && best > series.r1_lossless as f64;
    output.goal(series.name, &words.join("; "), &wanted, &is_met.into());
    let worst = steps.iter().map(Step::unaccounted).max_by_key(|count| count.abs()).unwrap_or_default();
    let measured = format!(
        "{worst} packets at most, signed, of {} runs",
        steps.iter().map(|step| step.runs.len()).sum::<usize>()
    );
    output.goal(&format!("{}_unaccounted", series.name), &measured, "0", &(worst == 0).into());
}
