//! The live state in the text format of Prometheus. Values that were not measured are absent. There are no metrics of
//! single streams: a run may have thousands of streams, and each would be a time series.

use crate::live_columns::{LiveColumn, PORT_COLUMNS, TOTAL_COLUMNS};
use crate::transport::rejections::{RejectionCause, RejectionCounts};
use crate::viewing::{LivePort, LiveRun, LiveState};
use packetrig_units::exposition::MetricsText;

/// A metric of the whole run that is not in the column lists: name, help text, and the function that reads it.
type RunMetric = (&'static str, &'static str, fn(&LiveRun) -> f64);

const RUN_METRICS: [RunMetric; 4] = [
    ("elapsed_seconds", "Time since the first counters of the run.", |run| run.elapsed.as_secs_f64()),
    ("streams", "Streams of the configuration.", |run| run.streams.len() as f64),
    (
        "in_flight_or_lost_frames",
        "Sent frames that may still be on their way: no receiver has seen a later frame.",
        |run| run.losses.loss.in_flight_or_lost as f64,
    ),
    ("findings", "Number of remarks on the run; the server keeps the latest 20.", |run| {
        run.findings.len() as f64
    }),
];

/// Renders all metrics as text.
pub(super) fn render_metrics(state: Option<&LiveState>, viewers: usize, refused: &RejectionCounts) -> String {
    let mut text = MetricsText::with_prefix("packetrig_");
    // A value in Prometheus cannot be text, so a label has the text and the value is always 1.
    text.write_metric("build_info", "Version of the program that serves these metrics.", |samples| {
        samples.add_sample(&[("version", env!("CARGO_PKG_VERSION"))], 1_u64);
    });
    text.write_value("serve_viewers", "Present number of viewers of the live page or its events.", viewers);
    text.write_metric(
        "serve_refused_total",
        "Requests that the server refused, and connections that it closed.",
        |samples| {
            // Causes that have not occurred are listed, too: a rate needs a first value to begin from.
            for cause in RejectionCause::ALL {
                samples.add_sample(&[("cause", cause.label())], refused.count_of_cause(cause));
            }
        },
    );
    if let Some(run) = state.and_then(|state| state.run.as_ref()) {
        write_run_metrics(&mut text, run);
    }
    text.into_text()
}

fn write_run_metrics(text: &mut MetricsText, run: &LiveRun) {
    let (id, state) = (run.id.as_deref().unwrap_or_default(), run.state.as_deref().unwrap_or_default());
    text.write_metric("run_info", "The run in progress: its id and its state.", |samples| {
        samples.add_sample(&[("run", id), ("state", state)], 1_u64);
    });
    for (name, help, value) in RUN_METRICS {
        text.write_value(&format!("run_{name}"), help, value(run));
    }
    write_column_metrics(text, "run", TOTAL_COLUMNS, &[(Labels::new(), &run.totals)]);
    text.write_metric("run_ledger_frames", "Frames of the run in each account of the ledger.", |samples| {
        for (account, frames) in run.ledger.accounts() {
            // The account's name in JSON is that of the report, so that metrics and reports can be compared.
            let name = serde_json::to_value(account).ok().and_then(|name| name.as_str().map(str::to_owned));
            samples.add_sample(&[("account", &name.unwrap_or_default())], frames);
        }
    });
    let losses = &run.losses;
    text.write_metric(
        "run_lost_frames",
        "Lost frames of the run, by the place where they were lost.",
        |samples| {
            samples.add_sample(&[("place", "sender")], losses.sender);
            samples.add_sample(&[("place", "receiver")], losses.receiver);
            samples.add_sample(&[("place", "path_or_in_doubt")], losses.path_or_in_doubt);
        },
    );
    let ports: Vec<_> = run.ports.iter().map(|port| (port_labels(port), port)).collect();
    write_column_metrics(text, "port", PORT_COLUMNS, &ports);
}

/// Names and values of labels.
type Labels<'a> = Vec<(&'static str, &'a str)>;

fn port_labels(port: &LivePort) -> Labels<'_> {
    vec![("port", &port.row.name), ("node", port.node.as_deref().unwrap_or_default())]
}

/// Writes a metric for each column that is one, with one sample for each row. Each row comes with its labels.
fn write_column_metrics<R>(
    text: &mut MetricsText,
    prefix: &str,
    columns: &[LiveColumn<R>],
    rows: &[(Labels<'_>, &R)],
) {
    for (column, metric) in columns.iter().filter_map(|column| Some((column, column.metric?))) {
        text.write_metric(&format!("{prefix}_{metric}"), column.meaning, |samples| {
            for (labels, row) in rows {
                samples.add_sample(labels, column.metric_value(row));
            }
        });
    }
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
