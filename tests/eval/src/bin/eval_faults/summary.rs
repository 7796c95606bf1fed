//! The table of trials and the goals.

use crate::judge::USABLE_MS;
use packetrig_eval::output::{Output, Table};
use serde_json::Value;

/// Kinds of fault, by how their names begin.
const KINDS: [&str; 12] = [
    "kill",
    "stop",
    "cut",
    "round trip",
    "loss",
    "jitter",
    "disk full",
    "reboot",
    "12 join",
    "96 join",
    "second controller",
    "serve beside",
];

pub(crate) fn show(output: &mut Output, records: &[&Value]) -> anyhow::Result<()> {
    output.table("kinds", &kinds(records))?;
    let mut table = Table::new(&[
        "seed",
        "trial",
        "commit",
        "fault",
        "phase",
        "node",
        "the run said",
        "frames left -> arrived",
        "usable, ms",
        "verdict",
    ]);
    table.rows.extend(records.iter().map(|record| row(record)));
    output.table("trials", &table)?;
    let missed = records.iter().filter(|record| record["was_hit"] != true).count();
    output.say(&format!("{missed} trials ended before their phase, without a fault.\n"))?;
    goals(output, records);
    Ok(())
}

/// What runs came to and how many trials were judged right, by kind of fault.
fn kinds(records: &[&Value]) -> Table {
    let mut table = Table::new(&["fault", "trials", "PASS", "other report", "no report", "right"]);
    for kind in KINDS {
        let of_kind = begins_with(records, kind);
        let passed = of_kind.iter().filter(|record| has_trial_passed(record)).count();
        let silent = of_kind.iter().filter(|record| !has_report(record)).count();
        let right = of_kind.iter().filter(|record| list(record, "verdict").is_empty()).count();
        let counts = [of_kind.len(), passed, of_kind.len() - passed - silent, silent, right];
        table.rows.push([vec![kind.to_owned()], counts.map(|count| count.to_string()).to_vec()].concat());
    }
    table
}

/// Trials whose fault is called so.
fn begins_with<'a>(records: &[&'a Value], kind: &str) -> Vec<&'a Value> {
    let named =
        records.iter().filter(|record| record["fault"].as_str().is_some_and(|fault| fault.starts_with(kind)));
    named.copied().collect()
}

fn has_trial_passed(record: &Value) -> bool {
    record["run"]["exit"] == 0
}

fn has_report(record: &Value) -> bool {
    has_trial_passed(record) || !record["run"]["printed"].is_null() || !record["run"]["final"].is_null()
}

/// Words of a record for a cell of the table.
fn cell(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text.replace('|', "/").replace('\n', " ")
}

pub(crate) fn row(record: &Value) -> Vec<String> {
    let verdict: Vec<String> = list(record, "verdict").iter().map(cell).collect();
    let verdict = if verdict.is_empty() { "right".to_owned() } else { verdict.join("; ") };
    let usable = record["usable_after_ms"].as_u64().map_or_else(|| "never".to_owned(), |ms| ms.to_string());
    let mut cells: Vec<String> =
        ["seed", "trial", "of", "fault", "phase", "node"].iter().map(|key| cell(&record[*key])).collect();
    cells.extend([said(&record["run"]), truth(record), usable, verdict]);
    cells
}

/// `partial INCONCLUSIVE 3/4`, and what changed when all was collected.
fn said(run: &Value) -> String {
    let printed = if run["printed"].is_null() {
        format!("exit {}: {}", run["exit"], shortened(&cell(&run["why"])))
    } else {
        in_short(&run["printed"])
    };
    if run["final"].is_null() || in_short(&run["final"]) == printed {
        printed
    } else {
        format!("{printed}, later {}", in_short(&run["final"]))
    }
}

fn shortened(words: &str) -> String {
    const MOST: usize = 200;
    words.chars().take(MOST).collect()
}

fn in_short(report: &Value) -> String {
    let coverage = &report["coverage"];
    let outcome = cell(&report["outcome"]["state"]);
    let verdict = cell(&report["verdict"]["verdict"]);
    format!("{outcome} {verdict} {}/{}", coverage["reported"], coverage["expected"])
}

fn truth(record: &Value) -> String {
    let frames: Vec<String> = list(&record["truth"], "frames").iter().map(cell).collect();
    if frames.is_empty() {
        return "-".to_owned();
    }
    let (sent, received) = frames.split_at(frames.len() / 2);
    format!("{} -> {}", sent.join("+"), received.join("+"))
}

fn list<'a>(record: &'a Value, name: &str) -> &'a [Value] {
    record[name].as_array().map_or(&[], Vec::as_slice)
}

fn goals(output: &mut Output, records: &[&Value]) {
    let all = records.len();
    let kinds = [
        ("wrong_reports", "wrong"),
        ("wrong_culprits", "culprit"),
        ("results_lost", "lost"),
        ("results_doubled", "doubled"),
        ("last_frame", "late"),
        ("turned_away", "turned_away"),
    ];
    for (goal, key) in kinds {
        let count = records.iter().filter(|record| !list(record, key).is_empty()).count();
        output.goal(goal, &format!("{count} of {all} trials"), "0", &(count == 0).into());
    }
    usability_goal(output, records);
    passing_goal(output, "delayed_runs_pass", &begins_with(records, "round trip"));
    let bystanders =
        ["12 join", "second controller", "serve beside"].map(|kind| begins_with(records, kind)).concat();
    passing_goal(output, "bystanders_pass", &bystanders);
    let broken = records.iter().filter(|record| record["broken"].is_string()).count();
    output.goal("broken_trials", &format!("{broken} of {all} trials"), "0", &(broken == 0).into());
}

/// Runs that nothing happened to that should keep them from passing.
fn passing_goal(output: &mut Output, goal: &str, records: &[&Value]) {
    let passed = records.iter().filter(|record| has_trial_passed(record)).count();
    let all = records.len();
    output.goal(goal, &format!("{passed} of {all} runs"), "all", &(passed == all).into());
}

fn is_usable(record: &Value) -> bool {
    record["usable_after_ms"].is_u64() && list(record, "unusable").is_empty()
}

fn usability_goal(output: &mut Output, records: &[&Value]) {
    let all = records.len();
    let usable = records.iter().filter(|record| is_usable(record)).count();
    let mut times: Vec<u64> =
        records.iter().filter_map(|record| record["usable_after_ms"].as_u64()).collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    let slowest = times.last().copied().unwrap_or_default();
    let measured = format!(
        "{usable} of {all} trials (median {median} ms, slowest of those that became usable {slowest} ms, {USABLE_MS} allowed)"
    );
    output.goal("usable_within_5s", &measured, "all", &(usable == all).into());
}
