//! The filters of nfdump's own test, asked of packetrig about the same records (`eval/flow_filters.py`).

use anyhow::Context;
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_tests::program;
use std::path::Path;
use std::process::Command;

/// Asks them, if their file can be had: `EVAL_NFTEST`, which `eval/run.sh` fetches.
pub(super) fn ask_nfdumps_filters(place: &Path, output: &mut Output) -> anyhow::Result<()> {
    let source = std::env::var_os("EVAL_NFTEST").filter(|path| Path::new(path).exists());
    let (Some(source), Some(python)) = (source, std::env::var_os("EVAL_READERS")) else {
        let why = "there is no src/test/nftest.c of nfdump 1.7.2 or later (EVAL_NFTEST), or no DuckDB";
        output.goal("nfdump_filters", "nothing", "none differs", &Goal::Unsupported(why.into()));
        return Ok(());
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../eval/flow_filters.py");
    let asked = Command::new(python).arg(script).arg(program::binary()).arg(source).arg(place).output()?;
    anyhow::ensure!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let found: serde_json::Value = serde_json::from_slice(&asked.stdout)?;
    let number = |name: &str| found[name].as_u64().context("a number");
    output.say(&format!(
        "## nfdump's own filters\n\n{} of {} filters of nfdump's test are answered alike.\n",
        number("same")?,
        number("asked")?,
    ))?;
    let mut differing = 0;
    for (name, head) in [
        ("differing", "answers"),
        ("limits", "what the record lacks"),
        ("refused", "why packetrig refuses it"),
    ] {
        let mut table = Table::new(&["filter", head]);
        table.rows = serde_json::from_value(found[name].clone())?;
        if name == "differing" {
            differing = table.rows.len();
        }
        if !table.rows.is_empty() {
            output.table(&format!("filters-{name}"), &table)?;
        }
    }
    output.goal(
        "nfdump_filters",
        &format!("{differing} differ without a known limit of the record"),
        "none differs",
        &(differing == 0).into(),
    );
    Ok(())
}
