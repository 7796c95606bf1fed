//! Everything that can happen to a pair: each kind of fault many times, at drawn moments. A campaign that was stopped goes on.

use crate::decider::Decider;
use crate::echo::EchoTraffic;
use crate::journal::{TrialCounts, TrialJournal, TrialName};
use crate::rig::{FailoverRig, PlacedMeter};
use packetrig_eval::draw::Draw;
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_eval::{Effort, process};
use rustix::process::Signal;

const TRAFFIC: EchoTraffic = EchoTraffic { every_ns: 2_000_000, at_once: 1, flows: 1000 };
/// A new flow every 100 us: 2^18 in 26 s.
const LOAD: EchoTraffic = EchoTraffic { every_ns: 100_000, at_once: 1, flows: 1 << 18 };
const LOAD_MS: u64 = 27_000;

type Meters = Vec<PlacedMeter>;
type Fault = fn(&FailoverRig, [PlacedMeter; 2], &mut Draw) -> anyhow::Result<Meters>;

const FAULTS: [(&str, EchoTraffic, Fault); 8] = [
    ("killed", TRAFFIC, killed),
    ("frozen, and goes on", TRAFFIC, frozen),
    ("do not hear each other", TRAFFIC, apart),
    ("one does not hear the other", TRAFFIC, half_apart),
    ("copy of the link cut", TRAFFIC, copy_cut),
    ("way to the collector cut", TRAFFIC, export_cut),
    ("both restarted in turn", TRAFFIC, restarted),
    ("killed, with 2^18 flows", LOAD, killed_under_load),
];

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let trials: u64 = number("EVAL_TRIALS").unwrap_or(if effort.quick { 1 } else { 20 });
    let seed = number("EVAL_SEED").unwrap_or(1);
    output.say(&format!(
        "## Faults\n\nA pair of meters with 3 × 10 ms. Each fault {trials} times, at moments drawn from seed {seed}.\n"
    ))?;
    let mut journal = TrialJournal::open(seed)?;
    let mut table = Table::new(&[
        "fault of the exporting meter",
        "trials",
        "packets sent",
        "missing",
        "twice",
        "records sent twice",
    ]);
    let mut wrong = 0;
    let only = std::env::var("EVAL_FAULT").ok();
    for fault in FAULTS.iter().filter(|fault| only.as_deref().is_none_or(|only| fault.0.contains(only))) {
        let name = fault.0;
        let sum = sum_trials(fault, trials, seed, &mut journal)?;
        wrong += sum.missing + sum.surplus;
        let cells = [trials, sum.sent, sum.missing, sum.surplus, sum.repeated];
        let cells = cells.into_iter().map(|number| number.to_string());
        table.rows.push([name.to_owned()].into_iter().chain(cells).collect());
    }
    output.table("faults", &table)?;
    output.goal("faults", &format!("{wrong} packets missing or twice"), "0", &(wrong == 0).into());
    let why = "the clock of this machine is that of everything on it; `make test-vm` sets that of a guest (tests/tests/guest/failover.rs)".to_owned();
    output.goal("clock steps", "nothing", "0 missing", &Goal::Unsupported(why));
    Ok(())
}

/// Of trials that were performed before, and of the others, which are performed now.
fn sum_trials(
    &(name, traffic, fault): &(&'static str, EchoTraffic, Fault),
    trials: u64,
    seed: u64,
    journal: &mut TrialJournal,
) -> anyhow::Result<TrialCounts> {
    let mut sum = TrialCounts::default();
    for number in 0..trials {
        let trial = TrialName { fault: name, number };
        let counts = match journal.finished(trial) {
            Some(counts) => counts,
            None => journal.append(trial, perform(traffic, fault, Draw::of(seed, number))?)?,
        };
        sum.add(counts);
    }
    Ok(sum)
}

fn perform(traffic: EchoTraffic, fault: Fault, mut draw: Draw) -> anyhow::Result<TrialCounts> {
    let rig = FailoverRig::new(Decider::Meters(10))?;
    let (echo, meters) = rig.start_both(traffic)?;
    process::pause(draw.within(200, 1500));
    let meters = fault(&rig, meters, &mut draw)?;
    process::pause(draw.within(500, 1500));
    let sent = echo.stop()?;
    let end = rig.finish(meters, &sent)?;
    let repeated = end.collected.pointer("/groups/0/repeated").and_then(serde_json::Value::as_u64);
    Ok(TrialCounts {
        sent: end.sent,
        missing: end.missing,
        surplus: end.surplus,
        repeated: repeated.unwrap_or_default(),
    })
}

fn await_active(meter: &mut PlacedMeter) -> anyhow::Result<()> {
    let active = meter.active();
    meter.await_said(&active)
}

fn await_standby(meter: &mut PlacedMeter) -> anyhow::Result<()> {
    let standby = meter.standby();
    meter.await_said(&standby)
}

fn killed(_: &FailoverRig, [one, mut two]: [PlacedMeter; 2], _: &mut Draw) -> anyhow::Result<Meters> {
    one.kill();
    await_active(&mut two)?;
    Ok(vec![two])
}

fn frozen(_: &FailoverRig, [mut one, mut two]: [PlacedMeter; 2], draw: &mut Draw) -> anyhow::Result<Meters> {
    one.running.signal(Signal::STOP);
    await_active(&mut two)?;
    process::pause(draw.within(0, 1500));
    one.running.signal(Signal::CONT);
    await_standby(&mut one)?;
    Ok(vec![one, two])
}

fn apart(rig: &FailoverRig, [mut one, mut two]: [PlacedMeter; 2], draw: &mut Draw) -> anyhow::Result<Meters> {
    rig.controls.iter().for_each(|way| way.cut(true));
    await_active(&mut two)?;
    process::pause(draw.within(0, 1500));
    rig.controls.iter().for_each(|way| way.cut(false));
    // The one that took over later stays.
    await_standby(&mut one)?;
    Ok(vec![one, two])
}

fn half_apart(
    rig: &FailoverRig,
    [mut one, mut two]: [PlacedMeter; 2],
    draw: &mut Draw,
) -> anyhow::Result<Meters> {
    rig.controls[0].cut(true);
    await_active(&mut two)?;
    await_standby(&mut one)?;
    process::pause(draw.within(0, 1500));
    rig.controls[0].cut(false);
    Ok(vec![one, two])
}

fn copy_cut(
    rig: &FailoverRig,
    [mut one, mut two]: [PlacedMeter; 2],
    draw: &mut Draw,
) -> anyhow::Result<Meters> {
    rig.cut_copy(1, true)?;
    await_active(&mut two)?;
    await_standby(&mut one)?;
    process::pause(draw.within(0, 1500));
    rig.cut_copy(1, false)?;
    Ok(vec![one, two])
}

fn export_cut(
    rig: &FailoverRig,
    [mut one, mut two]: [PlacedMeter; 2],
    draw: &mut Draw,
) -> anyhow::Result<Meters> {
    rig.exports[0].cut(true);
    await_active(&mut two)?;
    await_standby(&mut one)?;
    process::pause(draw.within(0, 1500));
    rig.exports[0].cut(false);
    Ok(vec![one, two])
}

fn restarted(rig: &FailoverRig, [one, mut two]: [PlacedMeter; 2], _: &mut Draw) -> anyhow::Result<Meters> {
    drop(one.finish()?);
    await_active(&mut two)?;
    let mut one = rig.start(1)?;
    one.await_said("meter 1 is ready")?;
    drop(two.finish()?);
    await_active(&mut one)?;
    let mut two = rig.start(2)?;
    two.await_said("meter 2 is ready")?;
    Ok(vec![one, two])
}

fn killed_under_load(rig: &FailoverRig, meters: [PlacedMeter; 2], draw: &mut Draw) -> anyhow::Result<Meters> {
    process::pause(draw.within(LOAD_MS / 4, LOAD_MS / 2));
    let meters = killed(rig, meters, draw)?;
    process::pause(LOAD_MS / 2);
    Ok(meters)
}
