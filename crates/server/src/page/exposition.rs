//! The live state in the text format of Prometheus. Unknown values are absent. There is no metric for single streams: thousands of
//! them would be thousands of time series.

use crate::live_columns::{LiveColumn, PORT_COLUMNS, TOTAL_COLUMNS};
use crate::transport::rejections::{RejectionCause, RejectionCounts};
use crate::viewing::{LivePort, LiveRun, LiveState};
use std::fmt::Write;

pub(super) const MEDIA: &str = "text/plain; version=0.0.4; charset=utf-8";

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

/// A number of the whole run that is in no list: name, help text, and how to read it.
type RunMetric = (&'static str, &'static str, fn(&LiveRun) -> f64);

const RUN: [RunMetric; 4] = [
    ("elapsed_seconds", "Time since the first counters of the run.", |run| run.elapsed.as_secs_f64()),
    ("streams", "Streams of the configuration.", |run| run.streams.len() as f64),
    ("in_flight_or_lost_frames", "Frames sent of which no receiver has seen a later one.", |run| {
        run.losses.loss.in_flight_or_lost as f64
    }),
    ("findings", "Remarks of the run that are kept.", |run| run.findings.len() as f64),
];

/// All metrics as text.
pub(super) fn render_metrics(state: Option<&LiveState>, viewers: usize, refused: &RejectionCounts) -> String {
    let mut text = MetricsText(String::with_capacity(8192));
    text.write_head("build_info", "The program that answers.", GAUGE);
    // Prometheus has no values of text, so a label has the text and the value is always 1.
    text.write_value("build_info", &[("version", env!("CARGO_PKG_VERSION"))], Some(1.0));
    text.write_head("serve_viewers", "Viewers of the live page or its events.", GAUGE);
    text.write_value("serve_viewers", &[], Some(viewers as f64));
    text.write_head("serve_refused_total", "Refused requests and closed connections.", COUNTER);
    // Causes that have not occurred are listed, too: a rate needs a first value to begin from.
    for cause in RejectionCause::ALL {
        text.write_value(
            "serve_refused_total",
            &[("cause", cause.label())],
            Some(refused.count_of(cause) as f64),
        );
    }
    if let Some(run) = state.and_then(|state| state.run.as_ref()) {
        run_metrics(&mut text, run);
    }
    text.0
}

fn run_metrics(text: &mut MetricsText, run: &LiveRun) {
    text.write_head("run_info", "The run in progress: its id and its state.", GAUGE);
    let (id, state) = (run.id.as_deref().unwrap_or_default(), run.state.as_deref().unwrap_or_default());
    text.write_value("run_info", &[("run", id), ("state", state)], Some(1.0));
    for (name, help, value) in RUN {
        let name = format!("run_{name}");
        text.write_head(&name, help, GAUGE);
        text.write_value(&name, &[], Some(value(run)));
    }
    text.write_columns("run", TOTAL_COLUMNS, &[(Labels::new(), &run.totals)]);
    text.write_head("run_ledger_frames", "Frames of the run in each account of the ledger.", GAUGE);
    for (account, frames) in run.ledger.accounts() {
        // The account's name in JSON is that of the report, so that metrics and reports can be compared.
        let name = serde_json::to_value(account).ok().and_then(|name| name.as_str().map(str::to_owned));
        text.write_value("run_ledger_frames", &[("account", &name.unwrap_or_default())], Some(frames as f64));
    }
    text.write_head("run_lost_frames", "Frames that receivers have seen to be lost, by place.", GAUGE);
    let places = [
        ("sender", run.losses.sender),
        ("receiver", Some(run.losses.receiver)),
        ("path_or_in_doubt", run.losses.path_or_in_doubt),
    ];
    for (place, frames) in places {
        text.write_value("run_lost_frames", &[("place", place)], frames.map(|frames| frames as f64));
    }
    let ports: Vec<_> = run.ports.iter().map(|port| (port_labels(port), port)).collect();
    text.write_columns("port", PORT_COLUMNS, &ports);
}

/// Names and values of labels.
type Labels<'a> = Vec<(&'static str, &'a str)>;

fn port_labels(port: &LivePort) -> Labels<'_> {
    vec![("port", &port.row.name), ("node", port.node.as_deref().unwrap_or_default())]
}

/// Text under construction. Every name begins with `packetrig_`.
struct MetricsText(String);

impl MetricsText {
    fn write_head(&mut self, name: &str, help: &str, kind: &str) {
        self.write_line(format_args!("# HELP packetrig_{name} {help}\n# TYPE packetrig_{name} {kind}\n"));
    }

    fn write_value(&mut self, name: &str, labels: &[(&str, &str)], value: Option<f64>) {
        // An unknown value has no line, because a 0 would look measured.
        let Some(value) = value else { return };
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape_label(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        self.write_line(format_args!("packetrig_{name}{labels} {value}\n"));
    }

    /// Writes the columns that are metrics, of these rows with their labels.
    fn write_columns<R>(&mut self, prefix: &str, columns: &[LiveColumn<R>], rows: &[(Labels<'_>, &R)]) {
        for (column, metric) in columns.iter().filter_map(|column| Some((column, column.metric?))) {
            let name = format!("{prefix}_{metric}");
            // Names of counters end like this by the rules of Prometheus.
            let kind = if metric.ends_with("_total") { COUNTER } else { GAUGE };
            self.write_head(&name, column.meaning, kind);
            // All rows behind one head: the format allows one TYPE line for each name.
            for (labels, row) in rows {
                self.write_value(&name, labels, column.metric_value(row));
            }
        }
    }

    fn write_line(&mut self, line: std::fmt::Arguments<'_>) {
        self.0.write_fmt(line).expect("writing to text cannot fail");
    }
}

/// A value of a label: ports have names that users choose.
fn escape_label(value: &str) -> String {
    // The text format escapes exactly these three in values of labels. The backslash comes first, or it would escape its own escapes.
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tester::PortRow;
    use packetrig_stats::ledger::LedgerAccount;

    #[test]
    fn unknown_metric_is_absent_and_labels_are_escaped() {
        let port = PortRow { name: "a\"b\\".to_owned(), frames_tx: 7, ..PortRow::default() };
        let mut run =
            LiveRun { ports: vec![LivePort { row: port, ..LivePort::default() }], ..LiveRun::default() };
        run.ledger.add_frames(LedgerAccount::OnWire, 5);
        let state = LiveState { run: Some(run), ..LiveState::default() };
        let text = render_metrics(Some(&state), 2, &RejectionCounts::default());
        for line in [
            "packetrig_serve_viewers 2",
            "packetrig_port_sent_frames_total{port=\"a\\\"b\\\\\",node=\"\"} 7",
            "packetrig_run_ledger_frames{account=\"on_wire\"} 5",
            "packetrig_run_lost_frames{place=\"receiver\"} 0",
            "packetrig_serve_refused_total{cause=\"origin\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        for absent in
            ["packetrig_port_link_up{", "place=\"path_or_in_doubt\"", "packetrig_run_latency_mean_seconds "]
        {
            assert!(!text.lines().any(|line| line.contains(absent) && !line.starts_with('#')), "{absent}");
        }
        assert!(!render_metrics(None, 0, &RejectionCounts::default()).contains("packetrig_run_"));
    }
}
