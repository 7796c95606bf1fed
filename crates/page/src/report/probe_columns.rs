//! The columns of the list of probe lines.

use super::elements::{Cell, Heading, Sign, number, prose, words};
use super::probes::{ProbeRow, name_of, unanswered};
use super::verdict::sign_of;
use crate::quantity;
use packetrig_fleet::report::ProbeFindings;
use packetrig_stats::probe::{ProbeCounts, ProbeTimes};

/// An exact value of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProbeValue {
    Text(String),
    Verdict(Sign, String),
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
    pub(super) heading: Heading,
    /// `None` for a line without this value.
    pub(super) value: fn(&ProbeRow<'_>) -> Option<ProbeValue>,
    /// True if the column is left out when all of its values are zero.
    pub(super) is_exception: bool,
}

const fn column(heading: Heading, value: fn(&ProbeRow<'_>) -> Option<ProbeValue>) -> ProbeColumn {
    ProbeColumn { heading, value, is_exception: false }
}

/// A count that is rarely above zero.
const fn exception(name: &'static str, value: fn(&ProbeRow<'_>) -> Option<ProbeValue>) -> ProbeColumn {
    ProbeColumn { heading: number(name, "probes"), value, is_exception: true }
}

/// A count of probes, for a line that sent some.
fn counted(row: &ProbeRow<'_>, of: fn(&ProbeCounts) -> u64) -> Option<ProbeValue> {
    let found = row.found?;
    (row.is_answered && found.counts.sent > 0).then(|| Count(of(&found.counts)))
}

fn time(
    row: &ProbeRow<'_>,
    of: fn(&ProbeFindings) -> Option<ProbeTimes>,
    figure: fn(&ProbeTimes) -> Option<i64>,
) -> Option<ProbeValue> {
    figure(&of(row.found?)?).map(Time)
}

fn bound(row: &ProbeRow<'_>, of: fn(&ProbeFindings) -> Option<ProbeTimes>) -> Option<ProbeValue> {
    Some(Bound(of(row.found?)?.bound_ns))
}

/// All columns, in their order.
pub(super) const COLUMNS: &[ProbeColumn] = &[
    column(words("line"), |row| Some(Text(name_of(row.line)))),
    column(words("result"), |row| Some(Verdict(sign_of(row.result), row.result.to_string()))),
    column(prose("outcome"), |row| Some(Text(row.outcome()))),
    column(number("sent", "probes"), |row| Some(Count(row.found?.counts.sent))),
    column(number("answered", "probes"), |row| counted(row, |counts| counts.answered)),
    column(number("lost", "probes"), |row| counted(row, |counts| counts.lost)),
    column(number("loss", ""), |row| {
        let counts = &row.found?.counts;
        let share = Share { part: unanswered(counts), whole: counts.sent };
        (row.is_answered && counts.sent > 0).then_some(share)
    }),
    column(number("lost there", "probes"), |row| row.found?.lost_there.map(Count)),
    column(number("lost back", "probes"), |row| row.found?.lost_back.map(Count)),
    column(number("delay there p50", ""), |row| {
        time(row, |found| found.delay_there, |times| Some(times.p50_ns))
    }),
    column(number("delay there p99", ""), |row| time(row, |found| found.delay_there, |times| times.p99_ns)),
    column(number("delay there max", ""), |row| {
        time(row, |found| found.delay_there, |times| Some(times.max_ns))
    }),
    column(number("delay there bound", ""), |row| bound(row, |found| found.delay_there)),
    column(number("delay back p50", ""), |row| {
        time(row, |found| found.delay_back, |times| Some(times.p50_ns))
    }),
    column(number("delay back p99", ""), |row| time(row, |found| found.delay_back, |times| times.p99_ns)),
    column(number("delay back max", ""), |row| {
        time(row, |found| found.delay_back, |times| Some(times.max_ns))
    }),
    column(number("delay back bound", ""), |row| bound(row, |found| found.delay_back)),
    column(words("clocks related by"), |row| Some(Text(row.found?.clocks?.name().to_owned()))),
    column(number("round trip p50", ""), |row| {
        time(row, |found| found.round_trip, |times| Some(times.p50_ns))
    }),
    column(number("round trip p99", ""), |row| time(row, |found| found.round_trip, |times| times.p99_ns)),
    column(number("variation there p99", ""), |row| {
        time(row, |found| found.variation_there, |times| times.p99_ns)
    }),
    column(number("variation back p99", ""), |row| {
        time(row, |found| found.variation_back, |times| times.p99_ns)
    }),
    column(number("capacity", ""), |row| {
        let rate = row.found?.capacity_rate()?;
        let [best, low, high] = [rate.bits_per_s, rate.low, rate.high].map(bit_rate);
        Some(Rate(rate.bits_per_s, format!("{best} ({low} to {high})")))
    }),
    column(words("trains used"), |row| {
        let capacity = row.found?.capacity.as_ref()?;
        Some(Text(format!("{} of {}", capacity.used, capacity.trains)))
    }),
    exception("reordered", |row| counted(row, |counts| counts.reordered)),
    exception("duplicates", |row| counted(row, |counts| counts.duplicates)),
    exception("refused", |row| counted(row, |counts| counts.refused)),
    exception("corrupted", |row| counted(row, |counts| counts.corrupted)),
    exception("uncertain", |row| Some(Count(row.found?.counts.doubtful))),
    column(words("mechanism"), |row| {
        let mechanism = &row.found?.mechanism;
        (!mechanism.is_empty()).then(|| Text(mechanism.clone()))
    }),
    column(number("release error p99", ""), |row| {
        time(row, |found| found.release_error, |times| times.p99_ns)
    }),
    column(words("from"), |row| Some(Text(end_name(&row.line.from, Some(&row.line.from_node))))),
    column(words("to"), |row| Some(Text(end_name(&row.line.to, row.line.to_node.as_deref())))),
    column(words("target"), |row| {
        let target = &row.line.target;
        (!target.is_empty()).then(|| Text(target.clone()))
    }),
];

fn bit_rate(bits_per_s: u64) -> String {
    quantity::scaled(bits_per_s as f64, "bit/s")
}

/// The name of an end, with its node if that has another name.
fn end_name(port: &str, node: Option<&str>) -> String {
    match node {
        Some(node) if node != port => format!("{port} ({node})"),
        _ => port.to_owned(),
    }
}

impl ProbeValue {
    /// The cell that shows this value.
    pub(super) fn cell(&self) -> Cell {
        match self {
            Text(text) => Cell::text(text.clone()),
            Verdict(sign, word) => Cell::verdict(*sign, word),
            Count(count) => Cell::count(*count),
            Time(ns) => Cell::valued(ns.to_string(), quantity::delay(*ns)),
            Bound(ns) => {
                let text = quantity::time(packetrig_units::Nanos::new(*ns));
                Cell::number(*ns, format!("± {text}"))
            }
            Share { part, whole } => {
                Cell::valued(format!("{part}/{whole}"), quantity::percent(*part, *whole))
            }
            Rate(bits, text) => Cell::number(*bits, text.clone()),
        }
    }
}
