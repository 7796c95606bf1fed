//! A collector that is killed and started again at drawn moments while a meter exports to it.

use crate::collector::{Collected, Collector, records_in};
use crate::whole::capture;
use anyhow::Context;
use packetrig_eval::draw::Draw;
use packetrig_eval::output::{Output, Table};
use packetrig_eval::{Effort, process};
use packetrig_tests::program::Running;
use serde_json::Value;

/// Flows of one packet each, two thousand of them a second.
const FLOWS: u32 = 16_000;
const STEP_NS: u64 = 500_000;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let seed = std::env::var("EVAL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let trials: u64 = if effort.quick { 2 } else { 10 };
    output.say(&format!(
        "## Killed and started again\n\n`packetrig meter --pace 1x` exports {FLOWS} records in 8 s. The collector is killed (SIGKILL) two times, \
         at moments drawn from seed {seed}, and is away for 0 to 2 s. The last one's account: records of the meter = stored by it + missing by place.\n"
    ))?;
    let mut table = Table::new(&[
        "transport",
        "trial",
        "metered",
        "in the files",
        "stored by the last one",
        "missing, stated",
        "unstated",
        "undecoded, B",
    ]);
    let (mut unstated, mut undecoded) = (0, 0);
    for transport in ["udp", "tcp"] {
        for number in 0..trials {
            let trial = perform(transport, Draw::of(seed, number))?;
            unstated += trial.unstated.unsigned_abs();
            undecoded += trial.undecoded;
            let numbers =
                [number, trial.metered, trial.in_files, trial.stored, trial.stated].map(|n| n.to_string());
            let rest = [trial.unstated.to_string(), trial.undecoded.to_string()];
            table.rows.push([transport.to_owned()].into_iter().chain(numbers).chain(rest).collect());
        }
    }
    output.table("restarts", &table)?;
    let measured = format!("{unstated} records unstated, {undecoded} bytes undecoded");
    let met = unstated == 0 && undecoded == 0;
    output.goal("restarts", &measured, "what is lost is stated to the record, and 0 undecoded", &met.into());
    Ok(())
}

struct Trial {
    metered: u64,
    in_files: u64,
    stored: u64,
    stated: u64,
    unstated: i64,
    undecoded: u64,
}

fn perform(transport: &str, mut draw: Draw) -> anyhow::Result<Trial> {
    let directory = tempfile::tempdir_in("/var/tmp")?;
    let records = directory.path().join("records");
    let file = directory.path().join("offered.pcap");
    capture(&file, FLOWS, STEP_NS);
    let mut collector = Collector::start(&format!("{transport}://127.0.0.1:0"), &records, &[])?;
    let place = collector.place.clone();
    let file = file.display().to_string();
    let meter = ["meter", &file, "--json", "--quiet", "--pace", "1x", "--idle", "500ms", "--export", &place];
    let meter = Running::start(&meter, "");
    for _ in 0..2 {
        process::pause(draw.within(700, 2000));
        collector.kill();
        process::pause(draw.within(0, 2000));
        collector = Collector::start(&place, &records, &[])?;
    }
    let finished = meter.finish();
    let metered: Value = serde_json::from_str(&finished.stdout).with_context(|| finished.stderr.clone())?;
    let metered = metered.pointer("/ledger/packets/records").and_then(Value::as_u64).context("records")?;
    let collected = collector.finish()?;
    account(&collected, metered, records_in(&records)?)
}

/// Flows have a packet each: packets are records.
fn account(collected: &Collected, metered: u64, in_files: u64) -> anyhow::Result<Trial> {
    let losses = collected.report.pointer("/balance/losses").and_then(Value::as_array);
    let stated: u64 = losses.into_iter().flatten().filter_map(|loss| loss["packets"].as_u64()).sum();
    let stored = collected.number("/balance/stored")?;
    let newer = collected.number("/balance/newer")?;
    let unstated = (metered + newer).cast_signed() - (stored + stated).cast_signed();
    let undecoded = collected.number("/total/undecoded_bytes")? + collected.number("/total/pending_bytes")?;
    let unstated = unstated + i64::try_from(collected.imbalances())?;
    Ok(Trial { metered, in_files, stored, stated, unstated, undecoded })
}
