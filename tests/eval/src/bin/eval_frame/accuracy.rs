//! Frames per second asked for, and achieved.
//!
//! Achieved is what the kernel counted at the peer, over the time between its stamps on the first frame and on the last:
//! nothing the sender says about itself.

use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_eval::plot::{self, Titles};
use packetrig_sys::link::NamespaceLinks;
use packetrig_testkit::Lab;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::program::run;
use serde_json::Value;

const RATES: [u32; 8] = [1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000];
/// Largest error that is still called the rate asked for: 0.1 %.
const WANTED_PPM: f64 = 1_000.0;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let seconds = if effort.quick { 1 } else { 5 };
    output.say(&format!(
        "## Rate accuracy\n\n64-byte frames for {seconds} s, received and counted by the other port.\n"
    ))?;
    let mut table = Table::new(&[
        "asked, frames/s",
        "planned",
        "sent",
        "arrived",
        "achieved, frames/s",
        "error, ppm",
        "late frames",
        "send error p99, us",
        "send error max, us",
    ]);
    let mut points = Vec::new();
    for rate in RATES {
        let row = measure(rate, seconds)?;
        points.push((f64::from(rate), row.error_ppm));
        table.rows.push(row.cells(rate));
    }
    output.table("rate_accuracy", &table)?;
    let titles = Titles { plot: "Error of the rate", x: "frames per second asked for", y: "error, ppm" };
    output.plot("rate_accuracy", titles.plot, &plot::points(titles, &points))?;
    let worst = points.iter().map(|(_, error)| *error).fold(0.0, f64::max);
    let wanted = format!("<= {WANTED_PPM} ppm from {} to {} frames/s", RATES[0], RATES[RATES.len() - 1]);
    output.goal("rate_accuracy", &format!("{worst:.1} ppm at worst"), &wanted, &(worst <= WANTED_PPM).into());
    Ok(())
}

struct Row {
    planned: u64,
    sent: u64,
    arrived: u64,
    achieved: f64,
    error_ppm: f64,
    late: u64,
    send_error: Value,
}

impl Row {
    fn cells(&self, rate: u32) -> Vec<String> {
        let micros = |name: &str| {
            let ns = self.send_error[name].as_u64();
            ns.map_or_else(|| "–".to_owned(), |ns| format!("{:.1}", ns as f64 / 1e3))
        };
        vec![
            rate.to_string(),
            self.planned.to_string(),
            self.sent.to_string(),
            self.arrived.to_string(),
            format!("{:.2}", self.achieved),
            format!("{:.1}", self.error_ppm),
            self.late.to_string(),
            micros("p99"),
            micros("max"),
        ]
    }
}

fn measure(rate: u32, seconds: u64) -> anyhow::Result<Row> {
    let lab = Lab::cabled_pair()?;
    let flow = Flow::new("paced", 1).size(64).pps(rate.into()).packets(u64::from(rate) * seconds);
    let finished = run(&Document::new(&[lab.location(0), lab.location(1)]).flow(flow));
    let report = finished.report();
    let port = &lab.ports()[1];
    let arrived = NamespaceLinks::open_in(port.netns())?.read_counters(port.link.index)?.rx_frames;
    let span = report.number("paced", "/received/last") - report.number("paced", "/received/first");
    // n frames span n - 1 intervals.
    let achieved = (arrived.saturating_sub(1)) as f64 * 1e9 / span as f64;
    Ok(Row {
        planned: report.number("paced", "/sent/planned"),
        sent: report.number("paced", "/sent/frames"),
        arrived,
        achieved,
        error_ppm: (achieved / f64::from(rate) - 1.0).abs() * 1e6,
        late: report.number("paced", "/sent/late"),
        send_error: report.stream("paced")["sent"]["send_error"].clone(),
    })
}
