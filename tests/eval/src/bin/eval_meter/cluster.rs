//! R1's cluster: several meters see one load, each meters its share of the flows, and all report to one collector. Nothing is twice; what a
//! killed meter takes with it is known from the others.

use crate::metered;
use crate::sampler::{self, Threads};
use anyhow::Context;
use packetrig_eval::output::{Output, Table};
use packetrig_eval::{Effort, process};
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::document::Flow;
use packetrig_tests::program::{Finished, Running};
use rustix::process::Signal;
use serde_json::{Value, json};

const METERS: usize = 3;
/// Which one is killed.
const VICTIM: usize = 1;
const HOSTS: u64 = 4093;
/// Flows of the first half are reported before the second; those of the second are not when a meter is killed.
const IDLE: &str = "300ms";

/// What came of one load.
struct Clustered {
    arrived: u64,
    /// Packets in flows, of each meter that came to its own end.
    metered: Vec<u64>,
    elsewhere: Vec<u64>,
    /// Lost before the tables, as these say.
    lost: u64,
    stored: u64,
    /// Packets of the victim's records that the collector has.
    from_victim: u64,
    flows: u64,
    /// Processor time of workers per packet that arrived; the greatest of all meters.
    most_ns: f64,
    is_balanced: bool,
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let packets = if effort.quick { 400_000 } else { 3_000_000 };
    output.say(&format!(
        "## A cluster (R1)\n\n{packets} packets of {HOSTS} hosts, 200 000 a second, to one interface that {METERS} meters listen at (`--share 1/{METERS}` and so on), all reporting to one \
         collector over TCP. Once more with the second one killed (SIGKILL) while they are metering. Stored is what another program run finds in the files.\n"
    ))?;
    let alone = run(1, packets, false)?;
    let whole = run(METERS, packets, false)?;
    let killed = run(METERS, packets, true)?;
    output.table("cluster", &table([("1", &alone), ("3", &whole), ("3, one killed", &killed)]))?;
    whole_goal(&alone, &whole, output);
    killed_goal(&killed, output);
    Ok(())
}

fn table(runs: [(&str, &Clustered); 3]) -> Table {
    let mut table = Table::new(&[
        "meters",
        "arrived",
        "metered by each",
        "stored",
        "lost by ledgers",
        "lost with the killed one",
        "busiest worker, ns/packet",
    ]);
    for (name, run) in runs {
        table.rows.push(vec![
            name.to_owned(),
            run.arrived.to_string(),
            run.metered.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
            run.stored.to_string(),
            run.lost.to_string(),
            run.lost_with_victim().to_string(),
            format!("{:.0}", run.most_ns),
        ]);
    }
    table
}

fn whole_goal(alone: &Clustered, whole: &Clustered, output: &mut Output) {
    let missing = (whole.arrived - whole.lost).cast_signed() - whole.stored.cast_signed();
    let measured = format!(
        "{missing} packets missing at the collector (below 0: double), {} flows; ledgers balanced: {}; the busiest meter's worker takes {:.2} of what one meter's takes",
        whole.flows,
        whole.is_balanced,
        whole.most_ns / alone.most_ns
    );
    let is_met = missing == 0 && whole.is_balanced && whole.flows == HOSTS;
    let wanted = format!("0 missing, {HOSTS} flows, none in two meters");
    output.goal("cluster", &measured, &wanted, &is_met.into());
}

fn killed_goal(killed: &Clustered, output: &mut Output) {
    let survivors: u64 = killed.metered.iter().sum();
    let unstated = killed.stored.cast_signed() - (survivors + killed.from_victim).cast_signed();
    let measured = format!(
        "{} packets lost with the killed meter, all of its own share ({} arrived for it, {} of them stored before); {unstated} of the others'",
        killed.lost_with_victim(),
        killed.for_victim(),
        killed.from_victim
    );
    let is_met = unstated == 0 && killed.is_balanced && killed.agrees();
    let wanted = "what is lost is stated to the packet, and is of the killed meter's share";
    output.goal("cluster_killed", &measured, wanted, &is_met.into());
}

impl Clustered {
    /// What arrived and no other meter was to meter.
    fn for_victim(&self) -> u64 {
        self.arrived - self.metered.iter().sum::<u64>() - self.lost
    }

    fn lost_with_victim(&self) -> u64 {
        self.for_victim() - self.from_victim.min(self.for_victim())
    }

    /// Whether all who came to their end saw the same traffic.
    fn agrees(&self) -> bool {
        let seen = self.metered.iter().zip(&self.elsewhere).map(|(own, others)| own + others);
        self.lost > 0 || seen.into_iter().all(|seen| seen == self.arrived)
    }
}

struct Cluster {
    meters: Vec<Running>,
    collector: Running,
}

fn run(count: usize, packets: u64, kills: bool) -> anyhow::Result<Clustered> {
    let lab = Lab::cabled_pair()?;
    EthtoolCalls::open_in(lab.ports()[1].netns())?.set_offload(INTERFACE, Offload::Gro, true)?;
    let mut cluster = start(&lab, count)?;
    let before = metered::settled(&lab.ports()[1])?;
    metered::send(&lab, traffic(packets / 2), "xdp");
    let victim = kills.then(|| cluster.meters.remove(VICTIM));
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| metered::send(&lab, traffic(packets - packets / 2), "xdp"));
        if let Some(mut victim) = victim {
            // While it has flows that nobody has heard of.
            process::pause(700);
            victim.signal(Signal::KILL);
            drop(victim.finish());
        }
        sending.join().map_err(|_| anyhow::anyhow!("the sender panicked"))
    })?;
    let arrived = metered::settled(&lab.ports()[1])? - before;
    finish(cluster, arrived)
}

fn start(lab: &Lab, count: usize) -> anyhow::Result<Cluster> {
    let flags = ["collect", "--json", "--quiet", "--directory", "flows", "--listen", "tcp://127.0.0.1:0"];
    let mut collector = Running::start(&flags, "");
    collector.await_remark("listening at ");
    collector.await_remark("\n");
    let said = collector.remarks();
    let place = said.split("listening at ").nth(1).and_then(|rest| rest.lines().next());
    let place = place.context("where it listens")?.to_owned();
    let location = lab.location(1);
    let meter = |number: usize| {
        let (share, domain) = (format!("{number}/{count}"), number.to_string());
        let flags = ["--json", "--direction", "in", "--idle", IDLE, "--share", &share, "--domain", &domain];
        let mut meter =
            Running::start(&[&["meter", location.as_str(), "--export", &place], &flags[..]].concat(), "");
        meter.await_remark("listening");
        meter
    };
    Ok(Cluster { meters: (1..=count).map(meter).collect(), collector })
}

fn finish(cluster: Cluster, arrived: u64) -> anyhow::Result<Clustered> {
    let Cluster { meters, mut collector } = cluster;
    let mut most_ns = 0.0_f64;
    let mut reports = Vec::new();
    for mut meter in meters {
        if meter.has_ended() {
            let finished = meter.finish();
            anyhow::bail!(
                "a meter ended by itself, code {:?}: {}{}",
                finished.code,
                finished.stdout,
                finished.stderr
            );
        }
        let threads = Threads::of(meter.process())?;
        let workers = threads.times.iter().filter(|(name, _)| sampler::is_worker(name)).map(|(_, time)| time);
        most_ns = most_ns.max(workers.sum::<u64>() as f64 / arrived.max(1) as f64);
        meter.signal(Signal::INT);
        reports.push(kernel_report_from(&meter.finish())?);
    }
    collector.signal(Signal::INT);
    let finished = collector.finish();
    let directory = finished.directory.path().join("flows").display().to_string();
    let stored = by_domain(&directory)?;
    let of = |report: &Value, path: &str| report.pointer(path).and_then(Value::as_u64).unwrap_or_default();
    let all = |path: &str| reports.iter().map(|report| of(report, path)).collect::<Vec<u64>>();
    let sum = |path: &str| all(path).iter().sum::<u64>();
    let stored_packets: u64 = stored.iter().map(|(_, packets)| packets).sum();
    let victim = VICTIM as u64 + 1;
    let has_victim = reports.len() + 1 == METERS;
    let from_victim = stored.iter().find(|(domain, _)| has_victim && *domain == victim);
    Ok(Clustered {
        arrived,
        metered: all("/ledger/packets/metered"),
        elsewhere: all("/ledger/packets/ignored/elsewhere"),
        lost: sum("/ledger/capture/ring_dropped")
            + sum("/ledger/capture/driver_dropped")
            + sum("/ledger/packets/untracked"),
        stored: stored_packets,
        from_victim: from_victim.map_or(0, |(_, packets)| *packets),
        flows: distinct(&directory)?,
        most_ns,
        is_balanced: reports.iter().all(|report| report["imbalances"] == json!([])),
    })
}

fn kernel_report_from(finished: &Finished) -> anyhow::Result<Value> {
    serde_json::from_str(&finished.stdout)
        .with_context(|| format!("the meter said: {}{}", finished.stdout, finished.stderr))
}

/// Packets in the stored records of each meter.
fn by_domain(directory: &str) -> anyhow::Result<Vec<(u64, u64)>> {
    let rows = top(directory, "exporter")?;
    // `127.0.0.1, domain 2`
    let domain = |row: &Value| row["exporter"].as_str()?.rsplit(' ').next()?.parse::<u64>().ok();
    rows.iter()
        .map(|row| Some((domain(row)?, row["packets"].as_u64()?)))
        .collect::<Option<_>>()
        .context("no domain")
}

/// How many sources there are records of.
fn distinct(directory: &str) -> anyhow::Result<u64> {
    Ok(top(directory, "src-ip")?.len() as u64)
}

fn top(directory: &str, by: &str) -> anyhow::Result<Vec<Value>> {
    let finished =
        Running::start(&["flows", "top", "--by", by, "-n", "10000", "--json", directory], "").finish();
    anyhow::ensure!(finished.code == Some(0), "flows top said: {}", finished.stderr);
    Ok(finished.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

fn traffic(packets: u64) -> Flow {
    metered::many_hosts(HOSTS).pps(200_000).packets(packets)
}
