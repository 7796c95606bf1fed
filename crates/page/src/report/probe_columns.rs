//! The columns of the list of probe lines.

use super::elements::{ColumnHeading, ResultSign, TableCell, number_column, prose_column, word_column};
use super::probes::{ProbeRow, line_name, unanswered_count};
use super::verdict::sign_of;
use crate::quantity;
use packetrig_report::ProbeFindings;
use packetrig_stats::probe::{ProbeCounts, ProbeTimes};

/// An exact value in a cell of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProbeValue {
    Text(String),
    Verdict(ResultSign, String),
    Count(u64),
    Time(i64),
    Bound(u64),
    Share {
        part: u64,
        whole: u64,
    },
    /// Bits per second, with its text.
    Rate(u64, String),
}

use ProbeValue::{Bound, Count, Rate, Share, Text, Time, Verdict};

/// A column of the list.
pub(super) struct ProbeColumn {
    pub(super) heading: ColumnHeading,
    /// `None` for a line without this value.
    pub(super) value: fn(&ProbeRow<'_>) -> Option<ProbeValue>,
    /// True if the column is left out when all of its values are zero.
    pub(super) is_exception: bool,
}

const fn probe_column(heading: ColumnHeading, value: fn(&ProbeRow<'_>) -> Option<ProbeValue>) -> ProbeColumn {
    ProbeColumn { heading, value, is_exception: false }
}

/// A column of counts that is left out if all of them are zero.
const fn column_unless_all_zero(
    name: &'static str,
    value: fn(&ProbeRow<'_>) -> Option<ProbeValue>,
) -> ProbeColumn {
    ProbeColumn { heading: number_column(name, "probes"), value, is_exception: true }
}

/// A count of probes; `None` for methods without answers, and for lines that sent nothing.
fn count_value(row: &ProbeRow<'_>, of: fn(&ProbeCounts) -> u64) -> Option<ProbeValue> {
    let found = row.found?;
    // A zero would look like a line without loss.
    (row.is_answered && found.counts.sent > 0).then(|| Count(of(&found.counts)))
}

fn time_value(
    row: &ProbeRow<'_>,
    of: fn(&ProbeFindings) -> Option<ProbeTimes>,
    figure: fn(&ProbeTimes) -> Option<i64>,
) -> Option<ProbeValue> {
    figure(&of(row.found?)?).map(Time)
}

fn bound_value(row: &ProbeRow<'_>, of: fn(&ProbeFindings) -> Option<ProbeTimes>) -> Option<ProbeValue> {
    Some(Bound(of(row.found?)?.bound_ns))
}

/// All columns, in their order.
pub(super) const PROBE_PAGE_COLUMNS: &[ProbeColumn] = &[
    probe_column(word_column("pair"), |row| Some(Text(line_name(row.line)))),
    probe_column(word_column("result"), |row| Some(Verdict(sign_of(row.result), row.result.to_string()))),
    probe_column(prose_column("outcome"), |row| Some(Text(row.describe_outcome()))),
    probe_column(number_column("sent", "probes"), |row| Some(Count(row.found?.counts.sent))),
    probe_column(number_column("answered", "probes"), |row| count_value(row, |counts| counts.answered)),
    probe_column(number_column("lost", "probes"), |row| count_value(row, |counts| counts.lost)),
    probe_column(number_column("loss", ""), |row| {
        let counts = &row.found?.counts;
        // Refused probes count as lost here, as in the grid, so that the two never differ.
        let share = Share { part: unanswered_count(counts), whole: counts.sent };
        (row.is_answered && counts.sent > 0).then_some(share)
    }),
    probe_column(number_column("lost there", "probes"), |row| row.found?.lost_there.map(Count)),
    probe_column(number_column("lost back", "probes"), |row| row.found?.lost_back.map(Count)),
    probe_column(number_column("delay there p50", ""), |row| {
        time_value(row, |found| found.delay_there, |times| Some(times.p50_ns))
    }),
    probe_column(number_column("delay there p99", ""), |row| {
        time_value(row, |found| found.delay_there, |times| times.p99_ns)
    }),
    probe_column(number_column("delay there max", ""), |row| {
        time_value(row, |found| found.delay_there, |times| Some(times.max_ns))
    }),
    probe_column(number_column("delay there bound", ""), |row| bound_value(row, |found| found.delay_there)),
    probe_column(number_column("delay back p50", ""), |row| {
        time_value(row, |found| found.delay_back, |times| Some(times.p50_ns))
    }),
    probe_column(number_column("delay back p99", ""), |row| {
        time_value(row, |found| found.delay_back, |times| times.p99_ns)
    }),
    probe_column(number_column("delay back max", ""), |row| {
        time_value(row, |found| found.delay_back, |times| Some(times.max_ns))
    }),
    probe_column(number_column("delay back bound", ""), |row| bound_value(row, |found| found.delay_back)),
    probe_column(word_column("clocks related by"), |row| Some(Text(row.found?.clocks?.name().to_owned()))),
    probe_column(number_column("round trip p50", ""), |row| {
        time_value(row, |found| found.round_trip, |times| Some(times.p50_ns))
    }),
    probe_column(number_column("round trip p99", ""), |row| {
        time_value(row, |found| found.round_trip, |times| times.p99_ns)
    }),
    probe_column(number_column("variation there p99", ""), |row| {
        time_value(row, |found| found.variation_there, |times| times.p99_ns)
    }),
    probe_column(number_column("variation back p99", ""), |row| {
        time_value(row, |found| found.variation_back, |times| times.p99_ns)
    }),
    probe_column(number_column("capacity", ""), |row| {
        let rate = row.found?.capacity_rate()?;
        let [best, low, high] = [rate.bits_per_s, rate.low, rate.high].map(format_bit_rate);
        Some(Rate(rate.bits_per_s, format!("{best} ({low} to {high})")))
    }),
    probe_column(word_column("trains used"), |row| {
        let capacity = row.found?.capacity.as_ref()?;
        Some(Text(format!("{} of {}", capacity.used, capacity.trains)))
    }),
    column_unless_all_zero("reordered", |row| count_value(row, |counts| counts.reordered)),
    column_unless_all_zero("duplicates", |row| count_value(row, |counts| counts.duplicates)),
    column_unless_all_zero("refused", |row| count_value(row, |counts| counts.refused)),
    column_unless_all_zero("corrupted", |row| count_value(row, |counts| counts.corrupted)),
    column_unless_all_zero("uncertain", |row| Some(Count(row.found?.counts.doubtful))),
    probe_column(word_column("mechanism"), |row| {
        let mechanism = &row.found?.mechanism;
        (!mechanism.is_empty()).then(|| Text(mechanism.clone()))
    }),
    probe_column(number_column("release error p99", ""), |row| {
        time_value(row, |found| found.release_error, |times| times.p99_ns)
    }),
    probe_column(word_column("from"), |row| {
        Some(Text(format_end_name(&row.line.from, Some(&row.line.from_node))))
    }),
    probe_column(word_column("to"), |row| {
        Some(Text(format_end_name(&row.line.to, row.line.to_node.as_deref())))
    }),
    probe_column(word_column("target"), |row| {
        let target = &row.line.target;
        (!target.is_empty()).then(|| Text(target.clone()))
    }),
];

fn format_bit_rate(bits_per_s: u64) -> String {
    quantity::format_scaled(bits_per_s as f64, "bit/s")
}

/// The name of an end, with its node if that has another name.
fn format_end_name(port: &str, node: Option<&str>) -> String {
    match node {
        // Most ports of a mesh have the name of their node, which need not be read twice.
        Some(node) if node != port => format!("{port} ({node})"),
        _ => port.to_owned(),
    }
}

impl ProbeValue {
    /// The cell that shows this value.
    pub(super) fn to_cell(&self) -> TableCell {
        match self {
            Text(text) => TableCell::text(text.clone()),
            Verdict(sign, word) => TableCell::verdict(*sign, word),
            Count(count) => TableCell::count(*count),
            Time(ns) => TableCell::with_value(ns.to_string(), quantity::format_delay(*ns)),
            Bound(ns) => {
                let text = quantity::format_time(packetrig_units::Nanos::new(*ns));
                TableCell::number(*ns, format!("± {text}"))
            }
            Share { part, whole } => {
                TableCell::with_value(format!("{part}/{whole}"), quantity::format_percent(*part, *whole))
            }
            Rate(bits, text) => TableCell::number(*bits, text.clone()),
        }
    }
}
