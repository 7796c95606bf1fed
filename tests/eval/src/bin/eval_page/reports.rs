//! How large report pages are and how long they take to write: the report of a real run whose seconds are repeated until it is long.

use anyhow::ensure;
use packetrig_eval::output::{Output, Table};
use packetrig_eval::{Effort, median};
use packetrig_page::report::{RunPage, render_run};
use packetrig_report::RunReport;
use packetrig_sys::clock;
use packetrig_testkit::Lab;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::program::Running;
use serde_json::Value;

/// Streams, seconds, and the most bytes of the page.
const PAGES: [(u16, usize, Option<f64>); 4] =
    [(1, 10, None), (64, 600, Some(1e6)), (256, 60, None), (1024, 10, None)];

pub(super) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    output.say(
        "## Report pages\n\nA run of two seconds makes a report; its full seconds are repeated for longer ones. `write` is the time of \
         `render_run`, the middle of several, without reading the JSON.\n",
    )?;
    let rounds = if effort.quick { 3 } else { 9 };
    let mut table = Table::new(&["streams", "seconds", "report.json, B", "report.html, B", "write, ms"]);
    for (streams, seconds, most) in PAGES {
        let (mut json, document) = short_run(streams)?;
        stretch(&mut json, seconds);
        let report: RunReport = serde_json::from_value(json.clone())?;
        let mut times = Vec::new();
        let mut bytes = 0;
        for _ in 0..rounds {
            let begun = clock::monotonic_ns();
            bytes = render_run(RunPage { report: &report, document: &document }).len();
            times.push((clock::monotonic_ns() - begun) as f64 / 1e6);
        }
        let milliseconds = median(&times).unwrap_or_default();
        table.rows.push(vec![
            streams.to_string(),
            seconds.to_string(),
            json.to_string().len().to_string(),
            bytes.to_string(),
            format!("{milliseconds:.1}"),
        ]);
        if let Some(most) = most {
            output.goal(
                &format!("report of {streams} streams and {seconds} s"),
                &format!("{:.2} MB, written in {milliseconds:.0} ms", bytes as f64 / 1e6),
                "under 1 MB",
                &((bytes as f64) < most).into(),
            );
        }
    }
    output.table("reports", &table)
}

/// The report and the plan of a run with so many streams.
fn short_run(streams: u16) -> anyhow::Result<(Value, String)> {
    let lab = Lab::cabled_pair()?;
    let flows = (0..streams).map(|n| {
        Flow::new(format!("stream {n:04}"), n)
            .pps(20_000 / u64::from(streams))
            .packets(40_000 / u64::from(streams))
    });
    let document = Document::new(&[lab.location(0), lab.location(1)]).flows(flows);
    let finished = Running::run(&document, &["--max-late", "10s"]).finish();
    ensure!(matches!(finished.code, Some(0 | 1 | 7)), "{}", finished.stderr);
    Ok((finished.report().0, document.text()))
}

/// Repeats the first full second of each series.
fn stretch(value: &mut Value, seconds: usize) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::Array(rows) if name == "seconds" && !rows.is_empty() => {
                        let second = rows[0].clone();
                        while rows.len() < seconds {
                            rows.insert(0, second.clone());
                        }
                    }
                    other => stretch(other, seconds),
                }
            }
        }
        Value::Array(rows) => rows.iter_mut().for_each(|row| stretch(row, seconds)),
        _ => {}
    }
}
