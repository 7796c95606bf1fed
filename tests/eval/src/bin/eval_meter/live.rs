//! 2^18 flows as fast as the sender goes: nothing may be lost, or the ledger says where.

use crate::metered::{self, Load};
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_tests::document::{Flow, ethernet};
use serde_json::json;

/// Addresses and ports that count up together: 262 656 pairs.
const SOURCES: u32 = 512;
const PORTS: u32 = 513;
/// More than the sender makes.
const RATE: u64 = 20_000_000;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let seconds = if effort.quick { 2 } else { 10 };
    output.say(&format!(
        "## 2^18 flows live\n\n64 B over a veth pair, {seconds} s as fast as the sender goes beside the meter. Arrived is what the \
         kernel counts at the far end.\n"
    ))?;
    let mut table = Table::new(&[
        "source",
        "arrived/s",
        "arrived",
        "metered",
        "lost, as the ledger says",
        "unaccounted",
        "flows",
    ]);
    let (mut unaccounted, mut lost, mut balanced) = (0, u64::MAX, true);
    for source in ["packet", "xdp", "headers"] {
        let run = metered::meter(Load::of(source, 1 << 19, flow(seconds)))?;
        table.rows.push(vec![
            source.to_owned(),
            format!("{:.0}", run.rate()),
            run.arrived.to_string(),
            run.metered().to_string(),
            run.known_losses().to_string(),
            run.unaccounted().to_string(),
            run.flows().to_string(),
        ]);
        unaccounted = unaccounted.max(run.unaccounted().abs());
        lost = lost.min(run.known_losses());
        balanced &= run.is_balanced();
    }
    output.table("live", &table)?;
    let measured =
        format!("{lost} lost by the best source, {unaccounted} unaccounted, ledgers balanced: {balanced}");
    output.goal(
        "live",
        &measured,
        "0 lost, or all of it in the ledger",
        &(unaccounted == 0 && balanced).into(),
    );
    Ok(())
}

fn flow(seconds: u64) -> Flow {
    let count = |start: &str, step: &str, count: u32| json!({"choice": "increment", "increment": {"start": start, "step": step, "count": count}});
    let ports = json!({"choice": "increment", "increment": {"start": 1024, "step": 1, "count": PORTS}});
    Flow::new("many", 1)
        .packet([
            ethernet(1),
            json!({"choice": "ipv4", "ipv4": {"src": count("198.18.0.1", "0.0.0.1", SOURCES), "dst": {"choice": "value", "value": "198.19.0.1"}}}),
            json!({"choice": "udp", "udp": {"src_port": ports}}),
        ])
        .size(64)
        .pps(RATE)
        .with("duration", json!({"choice": "fixed_seconds", "fixed_seconds": {"seconds": seconds}}))
}
