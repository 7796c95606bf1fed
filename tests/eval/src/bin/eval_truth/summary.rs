//! The table of verdicts by kind of scenario, and the goals.

use crate::scenario::Kind;
use packetrig_eval::output::{Output, Table};
use serde_json::Value;

/// Scenarios that may be unknown although no fault of the rig overlaps a loss, per thousand.
const MOST_UNKNOWN: usize = 20;

pub(crate) fn show(output: &mut Output, records: &[&Value]) -> anyhow::Result<()> {
    output.table("verdicts", &verdicts(records))?;
    let repeats: u64 = records.iter().filter_map(|record| record["repeated"].as_u64()).sum();
    output.say(&format!(
        "{repeats} runs were repeated because the machine held up the sender, by the judge's log.\n"
    ))?;
    let problems = records.iter().filter(|record| is_problem(record));
    for record in problems {
        output.say(&format!("- {record}"))?;
    }
    verdict_goals(output, records);
    measurement_goals(output, records);
    Ok(())
}

fn of<'a>(records: &'a [&Value], name: &'a str, value: &'a str) -> impl Iterator<Item = &'a Value> {
    records.iter().copied().filter(move |record| record[name] == value)
}

fn list<'a>(record: &'a Value, name: &str) -> &'a [Value] {
    record[name].as_array().map_or(&[], Vec::as_slice)
}

/// Results that are no sound judgement of the product are not right either.
fn is_problem(record: &Value) -> bool {
    record["class"] != "Right"
        || ["counts", "latency", "outages_missed"].iter().any(|name| !list(record, name).is_empty())
}

fn verdicts(records: &[&Value]) -> Table {
    let mut table = Table::new(&["scenario", "back end", "runs", "right", "unknown", "wrong", "broken"]);
    for kind in Kind::ALL {
        let kind = format!("{kind:?}");
        for back_end in ["packet", "xdp", "af-xdp"] {
            let rows: Vec<&Value> =
                of(records, "kind", &kind).filter(|row| row["back_end"] == back_end).collect();
            let count = |class: &str| of(&rows, "class", class).count().to_string();
            let counts = ["Right", "Unknown", "Wrong", "Broken"].map(count);
            let head = [kind.clone(), back_end.to_owned(), rows.len().to_string()];
            table.rows.push(head.into_iter().chain(counts).collect());
        }
    }
    table
}

fn verdict_goals(output: &mut Output, records: &[&Value]) {
    let wrong = of(records, "class", "Wrong").count();
    output.goal("wrong_verdicts", &format!("{wrong} of {}", records.len()), "0", &(wrong == 0).into());
    let broken = of(records, "class", "Broken").count();
    output.goal("broken_runs", &format!("{broken} of {}", records.len()), "0", &(broken == 0).into());
    let apart = of(records, "kind", "NoRigFault").chain(of(records, "kind", "Apart")).count();
    let unknown = of(records, "class", "Unknown").count();
    let measured = format!("{unknown} of {apart}");
    let is_met = unknown * 1000 <= apart * MOST_UNKNOWN;
    output.goal("unknown_without_overlap", &measured, "<= 2 %", &is_met.into());
}

fn measurement_goals(output: &mut Output, records: &[&Value]) {
    let mut all = |goal: &str, right: u64, whole: u64| {
        output.goal(goal, &format!("{right} of {whole}"), "all", &(right == whole).into());
    };
    let without = |name: &str| records.iter().filter(|record| list(record, name).is_empty()).count() as u64;
    all("counts_equal_the_log", without("counts"), records.len() as u64);
    all("latency_in_bounds", without("latency"), records.len() as u64);
    let outages: u64 = records.iter().map(|record| record["outages"].as_u64().unwrap_or(0)).sum();
    let missed: u64 = records.iter().map(|record| list(record, "outages_missed").len() as u64).sum();
    all("outages_found", outages - missed, outages);
}
