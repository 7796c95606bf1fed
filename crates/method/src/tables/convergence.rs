//! The tables of convergence.

use super::{ResultTable, format_decimals, format_milliseconds, optional_cell};
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
        table.push_row(vec![
            stream.stream.clone(),
            format!("{} of {count}", stream.affected_trials),
            format_decimals(min / 1e6, 3),
            format_decimals(mean / 1e6, 3),
            format_decimals(max / 1e6, 3),
            optional_cell(stream.longest_outage_ns, |outages| format_decimals(outages.max / 1e6, 3)),
        ]);
    }
    if let Some(SampleStatistics { count, min, mean, max, .. }) = result.convergence_ns {
        let [min, mean, max] = [min, mean, max].map(|ns| format_decimals(ns / 1e6, 3));
        table
            .notes
            .push(format!("Slowest stream of {count} trials: {min} to {max} ms, {mean} ms on average."));
        table.notes.push(
            "The loss of connectivity of a trial is known within bounds; these are the upper ones."
                .to_owned(),
        );
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
            table.push_row(describe_row(trial, number, row));
        }
    }
    table
}

fn describe_row(trial: &ConvergenceTrial, number: u32, row: &StreamConnectivity) -> Vec<String> {
    let outcome = match (trial.outcome, row.most_lost_frames) {
        (ConvergenceOutcome::Measured, 0) => "nothing was lost".to_owned(),
        (ConvergenceOutcome::Measured, _) => "measured".to_owned(),
        _ => trial.reason.clone().unwrap_or_default(),
    };
    vec![
        number.to_string(),
        optional_cell(trial.event_at_ns, format_milliseconds),
        row.stream.clone(),
        row.sent_frames.to_string(),
        row.most_lost_frames.to_string(),
        optional_cell(row.least_loss_of_connectivity_ns, format_milliseconds),
        optional_cell(row.loss_of_connectivity_ns, format_milliseconds),
        optional_cell(row.least_longest_outage_ns, format_milliseconds),
        optional_cell(row.longest_outage_ns, format_milliseconds),
        outcome,
    ]
}
