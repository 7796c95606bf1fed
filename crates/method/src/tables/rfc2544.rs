//! The tables of RFC 2544 and RFC 9004.

use super::{
    ResultTable, format_decimals, format_microseconds, format_milliseconds, format_optional_cell,
    format_rate_cell, format_size_cell,
};
use crate::line_rate::{load_percent_or_zero, megabits_per_second};
use crate::rfc2544::{
    BackToBackBenchmark, LatencyBenchmark, LatencyDefinition, PartOutcome, RecoveryBenchmark, Rfc2544Result,
    SizeBenchmark, ThroughputBasis,
};
use crate::{BoundCause, TrialLatency};
use packetrig_units::FrameSize;

pub(super) fn tabulate_rfc2544(result: &Rfc2544Result) -> Vec<ResultTable> {
    let tables = [
        tabulate_throughput(result),
        tabulate_latency(result),
        tabulate_samples(result),
        tabulate_frame_loss(result),
        tabulate_bursts(result),
        tabulate_recovery(result),
        tabulate_reset(result),
    ];
    let tables = tables.into_iter().filter_map(ResultTable::none_if_empty);
    tables.map(|table| add_shortfall_notes(table, &result.shortfalls)).collect()
}

/// Marks a table if the options ask for less than the RFCs require, so that nobody takes it for a conformant result.
fn add_shortfall_notes(mut table: ResultTable, shortfalls: &[String]) -> ResultTable {
    if !shortfalls.is_empty() {
        table.title += ", not conformant";
        table.notes.push(format!(
            "This result does not conform to RFC 2544, which requires more: {}.",
            shortfalls.join("; ")
        ));
    }
    table
}

fn tabulate_throughput(result: &Rfc2544Result) -> ResultTable {
    let mut table = ResultTable::new(
        "throughput",
        "Throughput (RFC 2544, 26.1)",
        &[
            "Frame size [B]",
            "Theoretical [frames/s]",
            "Throughput [frames/s]",
            "Throughput [Mbit/s]",
            "Of the line [%]",
            "Loss at [frames/s]",
            "Trials",
            "Limited by",
        ],
    );
    for row in &result.sizes {
        let Some(bounds) = &row.throughput else { continue };
        let size = row.frame_size_bytes;
        let theoretical = row.theoretical_frames_per_second;
        let carried = bounds.frames_per_second;
        let limit = match bounds.limited_by {
            // The cause is final only after the search has ended.
            _ if !bounds.is_complete => "not complete",
            BoundCause::Device => "device",
            BoundCause::Rig => "rig: the device may carry more",
            BoundCause::Range => "highest load",
        };
        table.push_row(vec![
            format_size_cell(size),
            format_rate_cell(theoretical),
            format_optional_cell(carried, format_rate_cell),
            format_optional_cell(carried, |load| format_decimals(megabits_per_second(load, size), 3)),
            format_optional_cell(carried, |load| format_decimals(load_percent_or_zero(load, theoretical), 3)),
            format_optional_cell(bounds.lost_at_frames_per_second, format_rate_cell),
            bounds.trials.to_string(),
            limit.to_owned(),
        ]);
    }
    if !table.rows.is_empty() {
        table
            .notes
            .push("Mbit/s: counted over frames with FCS, without preamble and inter-frame gap.".to_owned());
    }
    table
}

fn tabulate_latency(result: &Rfc2544Result) -> ResultTable {
    let mut table = ResultTable::new(
        "latency",
        "Latency at the throughput (RFC 2544, 26.2)",
        &[
            "Frame size [B]",
            "Load [frames/s]",
            "Mean [us]",
            "Standard deviation [us]",
            "Least [us]",
            "Greatest [us]",
            "Bound of the mean [us]",
            "Trials",
            "Definition",
        ],
    );
    for row in &result.sizes {
        if let Some(latency) = measured_or_note(row.frame_size_bytes, row.latency.as_ref(), &mut table.notes)
        {
            add_basis_note(row.frame_size_bytes, latency.basis, &mut table.notes);
            add_uncounted_trials_note(row.frame_size_bytes, latency, &mut table.notes);
            table.push_row(build_latency_row(row.frame_size_bytes, latency));
        }
    }
    table
}

fn build_latency_row(size: FrameSize, latency: &LatencyBenchmark) -> Vec<String> {
    let definition = match latency.definition {
        LatencyDefinition::BitForwarding => "first bit in to first bit out",
        LatencyDefinition::StoreAndForward => "last bit in to first bit out",
    };
    vec![
        format_size_cell(size),
        format_rate_cell(latency.basis.frames_per_second),
        format_optional_cell(latency.mean_latency_ns, |means| format_decimals(means.mean / 1e3, 3)),
        format_optional_cell(latency.mean_latency_ns, |means| {
            format_decimals(means.standard_deviation / 1e3, 3)
        }),
        format_optional_cell(latency.min_latency_ns, format_microseconds),
        format_optional_cell(latency.max_latency_ns, format_microseconds),
        format_optional_cell(latency.bound_ns, format_microseconds),
        format!("{} of {}", latency.counted_trials(), latency.repetitions),
        definition.to_owned(),
    ]
}

/// Adds a note about trials that were made and do not count.
fn add_uncounted_trials_note(size: FrameSize, latency: &LatencyBenchmark, notes: &mut Vec<String>) {
    let unheld = latency.samples.len() - latency.counted_trials();
    if unheld > 0 {
        let trials = latency.samples.len();
        notes.push(format!(
            "{size}: {unheld} of {trials} trials do not count: not sustained by the rig, or no latency measured."
        ));
    }
}

fn tabulate_samples(result: &Rfc2544Result) -> ResultTable {
    let mut table = ResultTable::new(
        "latency-samples",
        "Latency samples, as measured",
        &[
            "Frame size [B]",
            "Trial",
            "Frames",
            "Least [us]",
            "Mean [us]",
            "p50 [us]",
            "p99 [us]",
            "Greatest [us]",
            "Bound of the mean [us]",
            "Lost [frames]",
            "Note",
        ],
    );
    for row in &result.sizes {
        let latency = row.latency.as_ref().and_then(PartOutcome::measured_value);
        for (sample, number) in latency.iter().flat_map(|latency| &latency.samples).zip(1..) {
            let time = |read: fn(&TrialLatency) -> _| {
                format_optional_cell(sample.latency.as_ref().map(read), format_microseconds)
            };
            table.push_row(vec![
                format_size_cell(row.frame_size_bytes),
                i32::to_string(&number),
                format_optional_cell(sample.latency, |latency| latency.frames.to_string()),
                time(|latency| latency.min),
                time(|latency| latency.mean),
                time(|latency| latency.p50),
                time(|latency| latency.p99),
                time(|latency| latency.max),
                time(|latency| latency.bound),
                sample.lost_frames.to_string(),
                format_optional_cell(sample.rig_fault.as_ref(), |fault| format!("rig: {fault}")),
            ]);
        }
    }
    table
}

fn tabulate_frame_loss(result: &Rfc2544Result) -> ResultTable {
    let mut table = ResultTable::new(
        "frame-loss",
        "Frame loss (RFC 2544, 26.3)",
        &[
            "Frame size [B]",
            "Of the maximum [%]",
            "Load [frames/s]",
            "Sent [frames]",
            "Received [frames]",
            "Unsent [frames]",
            "Least loss [%]",
            "Most loss [%]",
            "Note",
        ],
    );
    for row in &result.sizes {
        let Some(curve) = &row.frame_loss else { continue };
        if !curve.is_complete {
            let size = row.frame_size_bytes;
            table
                .notes
                .push(format!("{size}: the curve is partial: no two successive trials were without loss."));
        }
        for point in &curve.points {
            table.push_row(vec![
                format_size_cell(row.frame_size_bytes),
                format_decimals(point.percent_of_maximum, 2),
                format_rate_cell(point.frames_per_second),
                point.sent_frames.to_string(),
                point.received_frames.to_string(),
                point.unsent_frames.to_string(),
                format_decimals(point.least_loss_percent, 4),
                format_decimals(point.most_loss_percent, 4),
                format_optional_cell(point.rig_fault.as_ref(), |fault| format!("rig: {fault}")),
            ]);
        }
    }
    table
}

fn tabulate_bursts(result: &Rfc2544Result) -> ResultTable {
    let mut table = ResultTable::new(
        "back-to-back",
        "Back-to-back frames (RFC 9004)",
        &[
            "Frame size [B]",
            "Load [frames/s]",
            "Average [frames]",
            "Least [frames]",
            "Greatest [frames]",
            "Standard deviation [frames]",
            "Searches",
            "Step [frames]",
            "Implied buffer time [us]",
            "Corrected buffer time [us]",
        ],
    );
    for row in &result.sizes {
        if let Some(part) =
            measured_or_note(row.frame_size_bytes, row.back_to_back.as_ref(), &mut table.notes)
        {
            add_basis_note(row.frame_size_bytes, part.basis, &mut table.notes);
            let invalid = part.invalid.iter();
            table
                .notes
                .extend(invalid.map(|reason| format!("{}: not valid, {reason}.", row.frame_size_bytes)));
            table.push_row(build_burst_row(row, part));
        }
    }
    table
}

fn format_microseconds_cell(ns: f64) -> String {
    format_decimals(ns / 1e3, 3)
}

fn build_burst_row(row: &SizeBenchmark, part: &BackToBackBenchmark) -> Vec<String> {
    vec![
        format_size_cell(row.frame_size_bytes),
        format_rate_cell(part.burst_frames_per_second),
        format_optional_cell(part.burst_frames, |bursts| format_decimals(bursts.mean, 1)),
        format_optional_cell(part.burst_frames, |bursts| format_decimals(bursts.min, 0)),
        format_optional_cell(part.burst_frames, |bursts| format_decimals(bursts.max, 0)),
        format_optional_cell(part.burst_frames, |bursts| format_decimals(bursts.standard_deviation, 1)),
        format!("{} of {}", part.searches.len(), part.repetitions),
        part.step_frames.to_string(),
        format_optional_cell(part.implied_buffer_time_ns, format_microseconds_cell),
        format_optional_cell(part.corrected_buffer_time_ns, format_microseconds_cell),
    ]
}

fn tabulate_recovery(result: &Rfc2544Result) -> ResultTable {
    let mut table = ResultTable::new(
        "recovery",
        "System recovery (RFC 2544, 26.5)",
        &[
            "Frame size [B]",
            "Trial",
            "Overload [frames/s]",
            "Then [frames/s]",
            "Recovery [ms]",
            "Lost in the overload [frames]",
            "Lost after it [frames]",
            "Note",
        ],
    );
    for row in &result.sizes {
        let size = row.frame_size_bytes;
        if let Some(part) = measured_or_note(size, row.recovery.as_ref(), &mut table.notes) {
            add_basis_note(size, part.basis, &mut table.notes);
            let mean = part.recovery_ns.iter();
            let mean = mean.map(|times| {
                format!(
                    "{size}: {} ms on average; trials in the average: {}.",
                    format_decimals(times.mean / 1e6, 3),
                    times.count
                )
            });
            table.notes.extend(mean);
            add_recovery_trials(&mut table, size, part);
        }
    }
    table
}

fn add_recovery_trials(table: &mut ResultTable, size: FrameSize, part: &RecoveryBenchmark) {
    for (trial, number) in part.trials.iter().zip(1..) {
        table.push_row(vec![
            format_size_cell(size),
            i32::to_string(&number),
            format_rate_cell(part.overload_frames_per_second),
            format_rate_cell(part.after_frames_per_second),
            format_optional_cell(trial.recovery_ns, format_milliseconds),
            trial.overload_lost_frames.to_string(),
            trial.after_lost_frames.to_string(),
            trial.note.clone().unwrap_or_default(),
        ]);
    }
}

fn tabulate_reset(result: &Rfc2544Result) -> ResultTable {
    let mut table = ResultTable::new(
        "reset",
        "Reset (RFC 2544, 26.6)",
        &[
            "Frame size [B]",
            "Load [frames/s]",
            "Reset at [ms]",
            "Outage at least [ms]",
            "At most [ms]",
            "Lost [frames]",
            "Note",
        ],
    );
    // The reset is made with the smallest size. A note about a missing result needs that size, too.
    let smallest = result.sizes.iter().map(|row| row.frame_size_bytes).min().unwrap_or(FrameSize::MIN);
    if let Some(reset) = measured_or_note(smallest, result.reset.as_ref(), &mut table.notes) {
        add_basis_note(smallest, reset.basis, &mut table.notes);
        let note = if reset.is_back { "" } else { "frames were lost until the end of the trial" };
        // An outage without an end has no upper bound.
        let most = if reset.is_back { format_milliseconds(reset.outage_ns) } else { String::new() };
        table.push_row(vec![
            format_size_cell(reset.frame_size_bytes),
            format_rate_cell(reset.basis.frames_per_second),
            format_milliseconds(reset.event_at_ns),
            format_milliseconds(reset.least_outage_ns),
            most,
            reset.lost_frames.to_string(),
            note.to_owned(),
        ]);
    }
    table
}

/// Returns the value of a test with one frame size. If there is none, adds the reason to the notes.
fn measured_or_note<'a, T>(
    size: FrameSize,
    part: Option<&'a PartOutcome<T>>,
    notes: &mut Vec<String>,
) -> Option<&'a T> {
    match part? {
        PartOutcome::Measured(value) => return Some(value),
        PartOutcome::NotApplicable { reason } => notes.push(format!("{size}: not applicable, {reason}.")),
        PartOutcome::NotMeasured { reason } => notes.push(format!("{size}: not measured, {reason}.")),
    }
    None
}

fn add_basis_note(size: FrameSize, basis: ThroughputBasis, notes: &mut Vec<String>) {
    if !basis.is_throughput {
        let load = basis.frames_per_second;
        notes
            .push(format!("{size}: the throughput is unknown; {load} is the highest load that was carried."));
    }
}
