//! What a group costs: the exporting meter, its standby and a meter without a group, at the same traffic.

use crate::decider::Decider;
use crate::echo::EchoTraffic;
use crate::rig::FailoverRig;
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_eval::{Effort, median, process};
use packetrig_sys::clock;
use packetrig_tests::program::Running;
use serde_json::Value;

/// 200 000 packets each second.
const TRAFFIC: EchoTraffic = EchoTraffic { every_ns: 1_000_000, at_once: 100, flows: 4000 };
/// Most that taking part may cost, in hundredths of a lone meter's processor time.
const MAX_PERCENT: f64 = 10.0;

struct MeterCost {
    seconds: f64,
    mib: f64,
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let (rounds, ms) = if effort.quick { (1, 5_000) } else { (5, 20_000) };
    output.say(&format!(
        "## Cost\n\n200 000 packets per second of 4000 flows for {} s, {rounds} rounds, all meters at once: processor time and memory.\n",
        ms / 1000
    ))?;
    let mut all: [Vec<MeterCost>; 4] = Default::default();
    let mut sent = Vec::new();
    let mut unsteady = 0;
    for _ in 0..rounds {
        let Some((costs, advertisements)) = perform(ms)? else {
            unsteady += 1;
            continue;
        };
        for (place, cost) in all.iter_mut().zip(costs) {
            place.push(cost);
        }
        sent.push(advertisements);
    }
    if unsteady > 0 {
        output.say(&format!(
            "{unsteady} rounds do not count: a role changed, which a busy machine causes.\n"
        ))?;
    }
    let names = ["alone", "alone, --group without --peer", "active, 3 × 10 ms", "standby, 3 × 10 ms"];
    let mut table = Table::new(&["meter", "processor time, s", "of the one alone", "memory, MiB"]);
    let seconds = |costs: &[MeterCost]| median(&costs.iter().map(|cost| cost.seconds).collect::<Vec<_>>());
    let alone = seconds(&all[0]).unwrap_or(f64::NAN);
    for (name, costs) in names.iter().zip(&all) {
        let (time, mib) = (seconds(costs), median(&costs.iter().map(|cost| cost.mib).collect::<Vec<_>>()));
        let time = time.unwrap_or(f64::NAN);
        table.rows.push(vec![
            (*name).to_owned(),
            format!("{time:.2}"),
            format!("{:.0} %", time / alone * 100.0),
            format!("{:.0}", mib.unwrap_or(f64::NAN)),
        ]);
    }
    output.table("cost", &table)?;
    let control = median(&sent).unwrap_or_default();
    output.say(&format!("Control traffic: {control:.0} messages of 120 bytes per second and meter.\n"))?;
    let more = (seconds(&all[2]).unwrap_or(f64::NAN) / seconds(&all[1]).unwrap_or(f64::NAN) - 1.0) * 100.0;
    let verdict =
        if more.is_nan() { Goal::Unsupported("no figures".into()) } else { (more <= MAX_PERCENT).into() };
    output.goal(
        "cost",
        &format!("{more:.1} % more processor time than without a standby"),
        "at most 10 %",
        &verdict,
    );
    Ok(())
}

/// Costs of a lone meter, of one with records of a group, of the active and of the standby; advertisements per second. `None`: a role
/// changed meanwhile.
fn perform(ms: u64) -> anyhow::Result<Option<([MeterCost; 4], f64)>> {
    let rig = FailoverRig::new(Decider::Meters(10))?;
    let location = rig.lab.location(1);
    let target = format!("tcp://{}", rig.exports[0].place());
    let flags = [
        "meter",
        &location,
        "--direction",
        "in",
        "--json",
        "--export",
        &target,
        "--active",
        "2s",
        "--idle",
        "10s",
    ];
    let mut alone = Running::start(&[&flags[..], &["--biflow"]].concat(), "");
    let mut grouped = Running::start(&[&flags[..], &["--group", "other", "--member", "1"]].concat(), "");
    alone.await_remark("listening");
    grouped.await_remark("listening");
    let (echo, [mut one, mut two]) = rig.start_both(TRAFFIC)?;
    let pids = [alone.process(), grouped.process(), one.running.process(), two.running.process()];
    let began_ns = clock::wall_clock_ns();
    let before: Vec<f64> =
        pids.iter().map(|pid| process::processor_time(*pid)).collect::<anyhow::Result<_>>()?;
    process::pause(ms);
    let mut costs = Vec::new();
    // Processor time of the same seconds of the same traffic: only the ratio is of use on a shared machine.
    for (pid, before) in pids.into_iter().zip(before) {
        let seconds = process::processor_time(pid)? - before;
        costs.push(MeterCost { seconds, mib: process::resident_mib(pid)? });
    }
    let ended_ns = clock::wall_clock_ns();
    for mut lone in [alone, grouped] {
        lone.signal(rustix::process::Signal::TERM);
        drop(lone.finish());
    }
    let sent = echo.stop()?;
    let end = rig.finish([one, two], &sent)?;
    let changed =
        |switch: &Value| (began_ns..ended_ns).contains(&switch["at_ns"].as_u64().unwrap_or_default());
    let switches = |meter: &Value| meter.pointer("/group/switches").and_then(Value::as_array).cloned();
    if end.meters.iter().filter_map(switches).flatten().any(|switch| changed(&switch)) {
        return Ok(None);
    }
    // A busy machine may have changed the roles before.
    let was_active =
        |switch: &Value| switch["at_ns"].as_u64() < Some(began_ns) && switch["is_active"] == true;
    let last_before = |meter: &Value| {
        let all = switches(meter).unwrap_or_default();
        all.iter().filter(|switch| was_active(switch)).filter_map(|switch| switch["at_ns"].as_u64()).max()
    };
    let active = usize::from(last_before(&end.meters[0]) < last_before(&end.meters[1]));
    if active == 1 {
        costs.swap(2, 3);
    }
    let of_active = &end.meters[active];
    let number = |path: &str| of_active.pointer(path).and_then(Value::as_f64).unwrap_or_default();
    let per_second = number("/group/advertisements/sent") / (number("/elapsed_ns") / 1e9);
    let costs = costs.try_into().map_err(|_| anyhow::anyhow!("four meters"))?;
    Ok(Some((costs, per_second)))
}
