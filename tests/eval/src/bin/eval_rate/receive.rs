//! Frames per second that the receiver takes with every account on, beside a program that only drops, with the same
//! sender; and a minute in which no frame may be unaccounted for.

use crate::send::dropping_lab;
use packetrig_eval::output::{Output, Table};
use packetrig_eval::peers::{self, Tool};
use packetrig_eval::{Effort, median};
use packetrig_testkit::Lab;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::program::Running;
use serde_json::json;

const SIZE: u32 = 64;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let (rounds, window) = if effort.quick { (3, 500_000_000) } else { (7, 1_000_000_000) };
    let (mut dropping, mut accounting) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (_drops, lab) = dropping_lab()?;
        dropping.extend(peers::rate(Tool::Ours("xdp"), SIZE, &lab, window)?);
        drop(lab);
        accounting.push(with_receiver(window)?);
    }
    let [dropping, accounting] = [&dropping, &accounting].map(|rates| median(rates).unwrap_or_default());
    let ratio = accounting / dropping.max(1.0);
    output.say("## Receiving\n\nFrames of 64 B from the same sender, by the peer interface's counter.\n")?;
    let mut table = Table::new(&["receiver", "frames/s"]);
    table.rows.push(vec!["a program that drops".into(), format!("{dropping:.0}")]);
    table.rows.push(vec!["every account on".into(), format!("{accounting:.0}")]);
    output.table("receive", &table)?;
    output.goal("receive_64", &format!("{ratio:.2}x of dropping only"), ">= 0.85x", &(ratio >= 0.85).into());
    soak(effort, output, accounting)
}

fn document(lab: &Lab, pps: u64, duration: serde_json::Value) -> Document {
    let flow = Flow::new("fast", 1).size(SIZE).pps(pps).with("duration", duration);
    let speed = json!([{"name": "layer 1", "port_names": ["port 0", "port 1"], "speed": "speed_400_gbps"}]);
    Document::new(&[lab.location(0), lab.location(1)]).flow(flow).with("layer1", speed)
}

fn with_receiver(window: u64) -> anyhow::Result<f64> {
    let lab = Lab::cabled_pair()?;
    let document = document(&lab, 20_000_000, json!({"choice": "continuous"}));
    let mut running = Running::run(&document, &["--quiet", "--back-end", "xdp"]);
    let rate = peers::count(&lab, window);
    running.signal(rustix::process::Signal::INT);
    running.finish();
    rate
}

/// Three quarters of the rate just reached, for a minute: every frame must be in its account.
fn soak(effort: Effort, output: &mut Output, reached: f64) -> anyhow::Result<()> {
    let seconds = if effort.quick { 3 } else { 60 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate of millions")]
    let pps = (reached * 0.75) as u64;
    let lab = Lab::cabled_pair()?;
    let document =
        document(&lab, pps, json!({"choice": "fixed_seconds", "fixed_seconds": {"seconds": seconds}}));
    let report = Running::run(&document, &["--quiet", "--back-end", "xdp"]).finish().report();
    let sent = report.number("fast", "/sent/frames");
    let counted = report.number("fast", "/received/sequence/unique");
    let balanced = report.0["imbalances"] == json!([]);
    let lost = report.number("fast", "/loss/lost");
    let explained = report.0["ledger"]["counts"]["ring_dropped"].as_u64().unwrap_or_default();
    output.say(&format!(
        "{seconds} s at {pps} frames/s: sent {sent}, counted {counted}, lost {lost}, of them in our ring {explained}, ledger {}.\n",
        if balanced { "balanced" } else { "NOT balanced" }
    ))?;
    let unaccounted = sent - counted - lost;
    output.goal(
        "unaccounted",
        &format!("{unaccounted} of {sent} frames in {seconds} s, {lost} lost, ledger balanced: {balanced}"),
        "= 0",
        &(balanced && unaccounted == 0 && lost == 0).into(),
    );
    Ok(())
}
