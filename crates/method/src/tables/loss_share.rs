//! The table of the shares of runs with loss.

use super::{ResultTable, format_decimals, format_optional_cell, format_rate_cell};
use crate::loss_share::LossShareResult;

pub(super) fn tabulate_loss_share(result: &LossShareResult) -> Vec<ResultTable> {
    let mut table = ResultTable::new(
        "loss-share",
        format!("Runs with loss ({} frames per run)", result.frames_per_run),
        &[
            "Load [frames/s]",
            "Runs",
            "With loss",
            "Share [%]",
            "95 % from [%]",
            "95 % to [%]",
            "Lost [frames]",
            "Worst run [%]",
            "Not sustained by the rig",
        ],
    );
    for rate in &result.rates {
        table.push_row(vec![
            format_rate_cell(rate.frames_per_second),
            rate.runs.to_string(),
            rate.runs_with_loss.to_string(),
            format_optional_cell(rate.share_with_loss, format_percent_cell),
            format_optional_cell(rate.confidence_95, |interval| format_percent_cell(interval.low)),
            format_optional_cell(rate.confidence_95, |interval| format_percent_cell(interval.high)),
            rate.lost_frames.to_string(),
            format_decimals(rate.worst_run_loss_percent, 4),
            rate.unknown_runs.to_string(),
        ]);
    }
    let highest = result.highest_lossless_frames_per_second.iter();
    table.notes.extend(highest.map(|rate| format!("No run at {rate} or a lower rate lost a frame.")));
    table.notes.push(
        "95 % from and to: the confidence interval of the share (Wilson). Runs that the rig could not \
        sustain do not count."
            .to_owned(),
    );
    vec![table]
}

/// Shows a share from 0 to 1 in percent.
fn format_percent_cell(share: f64) -> String {
    format_decimals(share * 100.0, 1)
}
