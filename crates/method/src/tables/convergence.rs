//! The tables of convergence.

use super::{ResultTable, format_decimals, format_milliseconds, format_optional_cell};
use crate::SampleStatistics;
use crate::convergence::{ConvergenceOutcome, ConvergenceResult, ConvergenceTrial, StreamConnectivity};

pub(super) fn tabulate_convergence(result: &ConvergenceResult) -> Vec<ResultTable> {
    vec![tabulate_streams(result), tabulate_trials(result)]
}

fn tabulate_streams(result: &ConvergenceResult) -> ResultTable {
    let mut table = ResultTable::new(
        "convergence",
        "Loss-derived convergence (RFC 6413)",
        &[
            "Stream",
            "Affected trials",
            "Least loss of connectivity [ms]",
            "Mean loss of connectivity [ms]",
            "Greatest loss of connectivity [ms]",
            "Longest outage [ms]",
        ],
    );
    for stream in &result.streams {
        let SampleStatistics { count, min, mean, max, .. } = stream.loss_of_connectivity_ns;
        let milliseconds = |ns: f64| format_decimals(ns / 1e6, 3);
        // If a stream lost no frame, its upper bounds only come from times in which the rig itself sent nothing, so
        // there is no meaningful mean.
        let [least, mean, greatest] = if stream.affected_trials == 0 {
            ["0".to_owned(), String::new(), format!("0 to {}", milliseconds(max))]
        } else {
            [min, mean, max].map(milliseconds)
        };
        table.push_row(vec![
            stream.stream.clone(),
            format!("{} of {count}", stream.affected_trials),
            least,
            mean,
            greatest,
            format_optional_cell(stream.longest_outage_ns, |outages| format_decimals(outages.max / 1e6, 3)),
        ]);
    }
    if let Some(SampleStatistics { count, min, mean, max, .. }) = result.convergence_ns {
        // If no stream lost a frame, there is no slowest stream: the upper bounds only come from times in which the
        // rig itself sent nothing.
        let is_affected = result.streams.iter().any(|stream| stream.affected_trials > 0);
        let [min, mean, max] = [min, mean, max].map(|ns| format_decimals(ns / 1e6, 3));
        let trials = if count == 1 { "trial" } else { "trials" };
        table.notes.push(if is_affected {
            format!(
                "Slowest stream of each trial ({count} {trials}): {min} to {max} ms, {mean} ms on average. The loss of \
                connectivity of a trial has two bounds; these are the upper bounds."
            )
        } else {
            format!("No stream lost a frame. A loss of connectivity of up to {max} ms cannot be excluded.")
        });
    }
    if !result.unaffected_streams.is_empty() {
        table.notes.push(format!("Not affected: {}.", result.unaffected_streams.join(", ")));
    }
    table
}

fn tabulate_trials(result: &ConvergenceResult) -> ResultTable {
    let mut table = ResultTable::new(
        "convergence-trials",
        "Trials of the convergence",
        &[
            "Trial",
            "Event at [ms]",
            "Stream",
            "Sent [frames]",
            "Lost [frames]",
            "Loss of connectivity at least [ms]",
            "At most [ms]",
            "Longest outage at least [ms]",
            "At most [ms]",
            "Outcome",
        ],
    );
    for (trial, number) in result.trials.iter().zip(1..) {
        for row in &trial.streams {
            table.push_row(build_stream_row(trial, number, row));
        }
    }
    table
}

fn build_stream_row(trial: &ConvergenceTrial, number: u32, row: &StreamConnectivity) -> Vec<String> {
    let outcome = match (trial.outcome, row.most_lost_frames) {
        (ConvergenceOutcome::Measured, 0) => "nothing was lost".to_owned(),
        (ConvergenceOutcome::Measured, _) => "measured".to_owned(),
        _ => trial.reason.clone().unwrap_or_default(),
    };
    vec![
        number.to_string(),
        format_optional_cell(trial.event_at_ns, format_milliseconds),
        row.stream.clone(),
        row.sent_frames.to_string(),
        row.most_lost_frames.to_string(),
        format_optional_cell(row.least_loss_of_connectivity_ns, format_milliseconds),
        format_optional_cell(row.loss_of_connectivity_ns, format_milliseconds),
        format_optional_cell(row.least_longest_outage_ns, format_milliseconds),
        format_optional_cell(row.longest_outage_ns, format_milliseconds),
        outcome,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convergence::StreamConvergence;

    fn table_of(affected_trials: u32) -> ResultTable {
        let statistics = SampleStatistics::from_values(&[358.694e6]);
        let stream = StreamConvergence {
            stream: "west".to_owned(),
            affected_trials,
            loss_of_connectivity_ns: statistics.expect("one value"),
            longest_outage_ns: None,
        };
        let result = ConvergenceResult {
            convergence_ns: statistics,
            streams: vec![stream],
            ..ConvergenceResult::default()
        };
        tabulate_streams(&result)
    }

    #[test]
    fn stream_without_losses_is_not_the_slowest() {
        let table = table_of(0);
        assert_eq!(table.rows[0], ["west", "0 of 1", "0", "", "0 to 358.694", ""]);
        let notes =
            ["No stream lost a frame. A loss of connectivity of up to 358.694 ms cannot be excluded."];
        assert_eq!(table.notes, notes);
        let table = table_of(1);
        assert_eq!(table.rows[0], ["west", "1 of 1", "358.694", "358.694", "358.694", ""]);
        assert!(table.notes[0].starts_with("Slowest stream of each trial (1 trial):"), "{:?}", table.notes);
    }
}
