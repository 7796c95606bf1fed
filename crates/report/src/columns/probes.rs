//! One row per pair of a run with probes.

use super::ColumnKind::{BitsPerSecond, Frames, Nanoseconds, SignedNanoseconds, Text};
use super::{CellValue, ReportColumn, ReportTable, serialised_variant_name};
use crate::{ProbeFindings, ProbeLineReport, RunReport};
use packetrig_stats::probe::ProbeTimes;

/// The table of `probes.csv`.
#[derive(Clone, Copy, Debug)]
pub struct ProbeTable;

impl ReportTable for ProbeTable {
    const FILE: &'static str = "probes.csv";
    const ABOUT: &'static str = "One row per pair of a run with probes.";
    const COLUMNS: &'static [ReportColumn<Self>] = PROBE_COLUMNS;
    type Row<'a> = &'a ProbeLineReport;

    fn report_rows(report: &RunReport) -> Vec<Self::Row<'_>> {
        report.probes.iter().flat_map(|probes| &probes.lines).collect()
    }
}

type ProbeColumn = ReportColumn<ProbeTable>;

fn count_cell(line: &ProbeLineReport, of: fn(&ProbeFindings) -> Option<u64>) -> Option<CellValue> {
    of(line.found.as_ref()?).map(CellValue::Count)
}

fn time_cell(
    line: &ProbeLineReport,
    of: fn(&ProbeFindings) -> Option<ProbeTimes>,
    figure: fn(&ProbeTimes) -> Option<i64>,
) -> Option<CellValue> {
    of(line.found.as_ref()?).and_then(|times| figure(&times)).map(CellValue::Signed)
}

fn bound_cell(line: &ProbeLineReport, of: fn(&ProbeFindings) -> Option<ProbeTimes>) -> Option<CellValue> {
    of(line.found.as_ref()?).map(|times| CellValue::Count(times.bound_ns))
}

const PROBE_COLUMNS: &[ProbeColumn] = &[
    ProbeColumn::new("from", Text, "The sending port.", |row| Some(CellValue::from(&row.from))),
    ProbeColumn::new("from_node", Text, "Node of the sending port.", |row| {
        Some(CellValue::from(&row.from_node))
    }),
    ProbeColumn::new("to", Text, "The receiving port, or the address of a host.", |row| {
        Some(CellValue::from(&row.to))
    }),
    ProbeColumn::new(
        "to_node",
        Text,
        "Node of the receiving port; absent for a host that is not a node.",
        |row| row.to_node.as_ref().map(CellValue::from),
    ),
    ProbeColumn::new("target", Text, "The address that was probed.", |row| {
        Some(CellValue::from(&row.target))
    }),
    ProbeColumn::new("missing", Text, "Reason why there is no result; absent if there is one.", |row| {
        row.missing.as_ref().map(CellValue::from)
    }),
    ProbeColumn::new("ended_early", Text, "Why the probes of this pair ended early.", |row| {
        row.found.as_ref()?.end.describe_end().as_ref().map(CellValue::from)
    }),
    ProbeColumn::new("planned", Frames, "Probes that the plan asks for.", |row| {
        count_cell(row, |found| Some(found.counts.planned))
    }),
    ProbeColumn::new("sent", Frames, "Probes that were sent.", |row| {
        count_cell(row, |found| Some(found.counts.sent))
    }),
    ProbeColumn::new("answered", Frames, "Probes with a valid answer.", |row| {
        count_cell(row, |found| Some(found.counts.answered))
    }),
    ProbeColumn::new(
        "lost_there",
        Frames,
        "Probes lost on the way to the target; absent if not known.",
        |row| count_cell(row, |found| found.lost_there),
    ),
    ProbeColumn::new("lost_back", Frames, "Answers lost on the way back; absent if not known.", |row| {
        count_cell(row, |found| found.lost_back)
    }),
    ProbeColumn::new("clocks", Text, "How the clocks of both ends were related.", |row| {
        serialised_variant_name(row.found.as_ref()?.clocks?)
    }),
    ProbeColumn::new("delay_there_p50_ns", SignedNanoseconds, "Median one-way delay to the target.", |row| {
        time_cell(row, |found| found.delay_there, |times| Some(times.p50_ns))
    }),
    ProbeColumn::new(
        "delay_there_p99_ns",
        SignedNanoseconds,
        "99th percentile of the one-way delay to the target; absent if there are fewer than 100 values.",
        |row| time_cell(row, |found| found.delay_there, |times| times.p99_ns),
    ),
    ProbeColumn::new(
        "delay_there_bound_ns",
        Nanoseconds,
        "Largest error of the one-way delay to the target.",
        |row| bound_cell(row, |found| found.delay_there),
    ),
    ProbeColumn::new(
        "delay_back_p50_ns",
        SignedNanoseconds,
        "Median one-way delay from the target.",
        |row| time_cell(row, |found| found.delay_back, |times| Some(times.p50_ns)),
    ),
    ProbeColumn::new(
        "delay_back_p99_ns",
        SignedNanoseconds,
        "99th percentile of the one-way delay from the target; absent if there are fewer than 100 values.",
        |row| time_cell(row, |found| found.delay_back, |times| times.p99_ns),
    ),
    ProbeColumn::new(
        "delay_back_bound_ns",
        Nanoseconds,
        "Largest error of the one-way delay from the target.",
        |row| bound_cell(row, |found| found.delay_back),
    ),
    ProbeColumn::new("round_trip_p50_ns", SignedNanoseconds, "Median round trip.", |row| {
        time_cell(row, |found| found.round_trip, |times| Some(times.p50_ns))
    }),
    ProbeColumn::new(
        "round_trip_p99_ns",
        SignedNanoseconds,
        "99th percentile of the round trip; absent if there are fewer than 100 values.",
        |row| time_cell(row, |found| found.round_trip, |times| times.p99_ns),
    ),
    ProbeColumn::new("round_trip_bound_ns", Nanoseconds, "Largest error of the round trip.", |row| {
        bound_cell(row, |found| found.round_trip)
    }),
    ProbeColumn::new(
        "capacity_bits_per_s",
        BitsPerSecond,
        "Rate of the narrowest link on the way to the target, in bits of frames.",
        |row| count_cell(row, |found| found.capacity_rate().map(|rate| rate.bits_per_s)),
    ),
    ProbeColumn::new("capacity_low_bits_per_s", BitsPerSecond, "Lower bound of the capacity.", |row| {
        count_cell(row, |found| found.capacity_rate().map(|rate| rate.low))
    }),
    ProbeColumn::new("capacity_high_bits_per_s", BitsPerSecond, "Upper bound of the capacity.", |row| {
        count_cell(row, |found| found.capacity_rate().map(|rate| rate.high))
    }),
];
