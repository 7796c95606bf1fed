//! Captures of public projects, as they are and shuffled, against a reading of them that shares no code (`eval/flow_oracle.py`).

use anyhow::Context;
use packetrig_eval::Effort;
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_tests::program::binary;
use serde_json::Value;
use std::process::Command;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    output.say(
        "## Captures of others\n\nEvery record that `meter --uniflow --depth 0` exports to a file and `collect` stores, against `eval/flow_oracle.py`, which sorts the \
         packets: addresses, ports, protocol, packets, bytes, first and last time. Captures with fragments, MPLS or other link types are beyond the oracle.\n",
    )?;
    let wanted = "every record of every capture";
    let Some(captures) = std::env::var_os("EVAL_CAPTURES") else {
        let why = "EVAL_CAPTURES names no directory; scripts/captures.sh gets one".to_owned();
        output.goal("captures", "-", wanted, &Goal::Unsupported(why));
        return Ok(());
    };
    let every = if effort.quick { "5" } else { "1" };
    let oracle = concat!(env!("CARGO_MANIFEST_DIR"), "/../../eval/flow_oracle.py");
    let said = Command::new("python3").arg(oracle).arg(binary()).arg(captures).arg(every).output()?;
    anyhow::ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let result: Value = serde_json::from_slice(&said.stdout)?;
    let mut table = Table::new(&["order", "captures", "packets", "records", "captures that differ"]);
    let (mut captures, mut differ) = (0, 0);
    for (order, row) in result["orders"].as_object().context("orders")? {
        let number = |name: &str| row[name].as_u64().unwrap_or_default();
        captures += number("captures");
        differ += number("differ");
        let numbers = ["captures", "packets", "records", "differ"].map(|name| number(name).to_string());
        table.rows.push([order.clone()].into_iter().chain(numbers).collect());
    }
    output.table("captures", &table)?;
    for line in result["differing"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        output.say(&format!("* {line}"))?;
    }
    output.say(&format!("{} captures were beyond the oracle.\n", result["beyond"]))?;
    let measured = format!("{} of {captures} as wanted", captures - differ);
    output.goal("captures", &measured, wanted, &(captures > 0 && differ == 0).into());
    Ok(())
}
