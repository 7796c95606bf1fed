//! The factor k of three transmitters (E3.1): frames received per second over those asked for, at three frame sizes.

use crate::plans::{Load, from_each};
use crate::rig::{Rig, again};
use anyhow::Context;
use packetrig_eval::output::{Output, Table};
use packetrig_eval::{Effort, median, plot};
use serde_json::Value;

const SIZES: [u32; 3] = [64, 512, 1500];
/// Of the three together.
const RATES: [u64; 3] = [30_000, 60_000, 110_000];
const WANTED: f64 = 0.99;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let (seconds, tries) = if effort.quick { (1, 1) } else { (3, 3) };
    output.say(&format!(
        "## Three transmitters\n\nk is what the run's report says: frames received per second over those asked for. Three \
         nodes send to three others for {seconds} s, median of {tries}; rates are of the three together. All nodes share this \
         machine's processors.\n"
    ))?;
    let mut rig = Rig::start(&[])?;
    let mut table = Table::new(&["frame, B", "asked, frames/s", "k", "received, frames/s", "outcome"]);
    let mut groups = Vec::new();
    for size in SIZES {
        let mut bars = Vec::new();
        for rate in RATES {
            let pps = rate / 3;
            let plan = from_each(&[1, 2, 3], Load { size, pps, frames: pps * seconds });
            let (mut ks, mut received, mut outcome) = (Vec::new(), Vec::new(), String::new());
            for _ in 0..tries {
                let (report, k) = again(|| factor(rig.run(&plan, &[])?.report()?))?;
                ks.push(k);
                received.push(report["load"]["received_milli"].as_f64().unwrap_or_default() / 1e3);
                report["outcome"]["state"].as_str().unwrap_or("?").clone_into(&mut outcome);
            }
            let k = median(&ks).unwrap_or_default();
            table.rows.push(vec![
                size.to_string(),
                rate.to_string(),
                format!("{k:.4}"),
                format!("{:.0}", median(&received).unwrap_or_default()),
                outcome,
            ]);
            bars.push(k);
        }
        let (least, most) = (bars.iter().copied().fold(f64::MAX, f64::min), RATES[RATES.len() - 1]);
        output.goal(
            &format!("k_{size}"),
            &format!("{least:.4} (least of {RATES:?} frames/s; {:.4} at {most})", bars[bars.len() - 1]),
            &format!(">= {WANTED}"),
            &(least >= WANTED).into(),
        );
        groups.push((format!("{size} B"), bars));
    }
    let names: Vec<String> = RATES.iter().map(|rate| format!("{rate}/s")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let titles = plot::Titles { plot: "k of three transmitters", x: "frame", y: "k" };
    output.plot("carried", titles.plot, &plot::bars(titles, &names, &groups))?;
    output.table("carried", &table)
}

fn factor(report: Value) -> anyhow::Result<(Value, f64)> {
    let k = report["load"]["k"].as_f64();
    let k = k.with_context(|| format!("no k: {}", report["outcome"]))?;
    Ok((report, k))
}
