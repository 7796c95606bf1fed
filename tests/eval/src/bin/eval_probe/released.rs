//! The same by the program itself: `packetrig probe send` sends trains, and what it writes of them is held against the far end's stamps.

use crate::figures::{Series, difference, micros};
use crate::lab::Cable;
use crate::load::FAR;
use anyhow::{Context, ensure};
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_tests::permit::OWNERS;
use packetrig_tests::program::Running;
use serde_json::Value;
use std::path::Path;

const FRAMES: usize = 50;
/// The last departure stamp is to be this near to the far end's, for 99 of 100 frames.
const NEAR_NS: i64 = 10_000;

/// What was written of a probe.
struct Row {
    train: u64,
    planned: u64,
    /// By its last departure stamp, else when it was let go.
    left: u64,
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let trains: usize = if effort.quick { 5 } else { 50 };
    output.say(&format!(
        "## By the program\n\n`packetrig probe send --train {FRAMES} --gap 1ms --write FILE`, {trains} trains: the records in the file against the far end's \
         stamps, microseconds.\n"
    ))?;
    let mut table = Table::new(&[
        "mechanism",
        "frames",
        "arrived",
        "error between neighbours p50",
        "p99",
        "departure said - arrival p50",
        "p99 of its size",
    ]);
    let mut far_off: Option<i64> = None;
    for mechanism in ["sleep", "spin", "gate"] {
        let (rows, arrivals) = measure(mechanism, trains)?;
        let (mut between, mut said) = (Series::default(), Series::default());
        for (rows, at) in rows.windows(2).zip(arrivals.windows(2)) {
            if rows[0].train == rows[1].train {
                between.push(difference(rows[1].planned - rows[0].planned, at[1].saturating_sub(at[0])));
            }
        }
        said.extend(rows.iter().zip(&arrivals).map(|(row, at)| difference(*at, row.left)));
        let (errors, sizes) = (between.absolute(), said.absolute());
        far_off = far_off.max(sizes.permille(990));
        table.rows.push(vec![
            mechanism.to_owned(),
            rows.len().to_string(),
            arrivals.len().to_string(),
            micros(errors.permille(500)),
            micros(errors.permille(990)),
            micros(said.permille(500)),
            micros(sizes.permille(990)),
        ]);
    }
    output.table("released", &table)?;
    output.goal(
        "records",
        &format!(
            "99 of 100 departures in the files within {} us of the far end's stamp, worst mechanism",
            micros(far_off)
        ),
        &format!("<= {} us", micros(Some(NEAR_NS))),
        &far_off.is_some_and(|far_off| far_off <= NEAR_NS).into(),
    );
    Ok(())
}

fn measure(mechanism: &str, trains: usize) -> anyhow::Result<(Vec<Row>, Vec<u64>)> {
    let mut cable = Cable::new(false)?;
    let directory = tempfile::tempdir()?;
    let [permit, file] = ["owner.toml", "probes.jsonl"].map(|name| directory.path().join(name));
    std::fs::write(&permit, OWNERS)?;
    let (far, count, location) = (FAR.to_string(), trains.to_string(), cable.lab.location(0));
    let [permit, written] = [&permit, &file].map(|path| path.display().to_string());
    let running = Running::start(
        &[
            "probe",
            "send",
            &location,
            "--to",
            &far,
            "--port",
            "7001",
            "--mechanism",
            mechanism,
            "--count",
            &count,
            "--every",
            "100ms",
            "--train",
            &FRAMES.to_string(),
            "--gap",
            "1ms",
            "--permit",
            &permit,
            "--write",
            &written,
            "--json",
        ],
        "",
    );
    let ending = std::thread::spawn(|| running.finish());
    // Meanwhile: the ring holds fewer frames than a long series has.
    let mut arrivals = Vec::new();
    while !ending.is_finished() {
        arrivals.extend(cable.referee.collect_all(FRAMES)?);
    }
    let ended = ending.join().map_err(|_| anyhow::anyhow!("probe send has not ended"))?;
    // 7: some were late, which is what is measured here.
    ensure!(matches!(ended.code, Some(0 | 7)), "probe send: {}", ended.stderr);
    let rows = read(&file)?;
    arrivals.extend(cable.referee.collect_all(rows.len() - arrivals.len().min(rows.len()))?);
    ensure!(
        rows.len() == arrivals.len(),
        "{} probes, {} arrivals: {}",
        rows.len(),
        arrivals.len(),
        ended.stderr
    );
    Ok((rows, arrivals))
}

/// The records of a file, without what else is in it.
fn read(file: &Path) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for line in std::fs::read_to_string(file)?.lines() {
        let record: Value = serde_json::from_str(line)?;
        let number = |path: &str| record.pointer(path).and_then(Value::as_u64);
        if let (Some(train), Some(planned)) = (number("/train"), number("/planned")) {
            let last = record["departures"].as_array().and_then(|all| all.last()).map(|last| &last["stamp"]);
            let stamp = last.unwrap_or_else(|| &record["released"]);
            let bounds = stamp["lo"].as_u64().zip(stamp["hi"].as_u64());
            let (lo, hi) = bounds.with_context(|| format!("neither stamped nor released: {line}"))?;
            rows.push(Row { train, planned, left: lo.midpoint(hi) });
        }
    }
    ensure!(!rows.is_empty(), "no records in {}", file.display());
    Ok(rows)
}
