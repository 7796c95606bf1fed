//! Recordings of sFlow agents: are the records what the samples state? `eval/sflow_judge.py` reads the samples by itself.

use anyhow::Context;
use packetrig_eval::Effort;
use packetrig_eval::output::{Goal, Output};
use packetrig_tests::program;
use std::path::{Path, PathBuf};
use std::process::Command;

const WANTED: &str = "every record is what its sample states";

pub(crate) fn evaluate(_: Effort, output: &mut Output) -> anyhow::Result<()> {
    let files = recordings();
    if files.is_empty() {
        let why = "no recordings: EVAL_SFLOW names files, EVAL_CAPTURES the captures of nDPI";
        output.goal("sflow", "nothing", WANTED, &Goal::Unsupported(why.into()));
        return Ok(());
    }
    let judge = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../eval/sflow_judge.py");
    let judged = Command::new("python3").arg(judge).arg(program::binary()).args(&files).output()?;
    anyhow::ensure!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stderr));
    let found: serde_json::Value = serde_json::from_slice(&judged.stdout)?;
    let number = |name: &str| found[name].as_u64().context("a number");
    let [datagrams, samples] = [number("datagrams")?, number("samples")?];
    let differ = found["differ"].as_array().context("a list")?.len();
    output.say(&format!(
        "## sFlow of real agents\n\n{} recordings with {datagrams} datagrams and {samples} samples of IPv4 packets.\n",
        files.len()
    ))?;
    let measured = format!("{differ} of {samples} differ");
    output.goal("sflow", &measured, WANTED, &Goal::from(differ == 0 && samples > 0));
    Ok(())
}

/// `EVAL_SFLOW`, or the recording among nDPI's captures.
fn recordings() -> Vec<PathBuf> {
    if let Some(files) = std::env::var_os("EVAL_SFLOW") {
        return files.to_string_lossy().split_whitespace().map(PathBuf::from).collect();
    }
    let captures = std::env::var_os("EVAL_CAPTURES").map(PathBuf::from);
    captures.map(|captures| captures.join("sflow.pcap")).filter(|file| file.exists()).into_iter().collect()
}
