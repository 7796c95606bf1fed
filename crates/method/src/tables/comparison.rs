//! The tables of a comparison.

use super::{ResultTable, format_decimals, format_optional_cell, format_rate_cell, format_size_cell};
use crate::comparison::{
    ComparedMeasure, ComparisonResult, DifferenceFinding, LoadComparison, MeasureComparison,
};
use crate::confidence::sample_count_to_exclude;

pub(super) fn tabulate_comparison(result: &ComparisonResult) -> Vec<ResultTable> {
    let mut table = ResultTable::new(
        "comparison",
        "Comparison of two devices",
        &[
            "Frame size [B]",
            "Load [frames/s]",
            "Measure",
            "Unit",
            "First",
            "Second",
            "Second - first",
            "95 % from",
            "95 % to",
            "Pairs",
            "Finding",
        ],
    );
    for load in &result.loads {
        for row in &load.measures {
            table.push_row(build_measure_row(load, row));
        }
        table.notes.extend(load.measures.iter().filter_map(|row| advise_more_pairs(load, row)));
        if load.unusable_pairs > 0 {
            let of = load.load.frames_per_second;
            table.notes.push(format!(
                "{of}: pairs that do not count, because the rig could not sustain them: {}.",
                load.unusable_pairs
            ));
        }
    }
    table.notes.push(
        "95 % from and to: the confidence interval of the mean difference within pairs (Student's t)."
            .to_owned(),
    );
    vec![table]
}

/// Says how many pairs would show the difference, if the devices really differ as much as they seem to.
fn advise_more_pairs(load: &LoadComparison, row: &MeasureComparison) -> Option<String> {
    let pairs = match row.finding {
        DifferenceFinding::NoDifferenceShown => sample_count_to_exclude(&row.difference, 0.0)?,
        _ => return None,
    };
    let (name, of) = (row.measure.name(), load.load.frames_per_second);
    Some(format!(
        "{of}: if the {name} really differs as much as measured, about {pairs} pairs would show it (--pairs {pairs})."
    ))
}

fn build_measure_row(load: &LoadComparison, row: &MeasureComparison) -> Vec<String> {
    let digits = match row.measure {
        ComparedMeasure::LossPercent => 4,
        ComparedMeasure::ReceivedFramesPerSecond => 1,
        _ => 0,
    };
    let show = |value: f64| format_decimals(value, digits);
    let finding = match row.finding {
        DifferenceFinding::Differs => "differs",
        DifferenceFinding::NoDifferenceShown => "no difference shown",
        DifferenceFinding::TooFewPairs => "too few pairs",
    };
    vec![
        format_optional_cell(load.load.frame_size_bytes, format_size_cell),
        format_rate_cell(load.load.frames_per_second),
        row.measure.name().to_owned(),
        row.measure.unit().to_owned(),
        show(row.first.mean),
        show(row.second.mean),
        show(row.difference.mean),
        format_optional_cell(row.confidence_95, |interval| show(interval.low)),
        format_optional_cell(row.confidence_95, |interval| show(interval.high)),
        row.difference.count.to_string(),
        finding.to_owned(),
    ]
}
