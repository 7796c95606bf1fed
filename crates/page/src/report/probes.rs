//! The probes of a run: a grid of all pairs, a list of all lines, and the ranges of their times.

use super::elements::{ColumnHeading, NamedFigure, TableCell, tabulate_rows, word_column};
use super::probe_columns::{PROBE_PAGE_COLUMNS, ProbeColumn, ProbeValue};
use super::{probe_grid, probe_ranges};
use crate::markup::Markup;
use crate::quantity;
use packetrig_report::{CriterionResult, ProbeFindings, ProbeLineReport, ProbesReport};
use packetrig_stats::probe::ProbeCounts;
use std::cmp::Reverse;

/// Maximum number of rows of the complete list: a mesh of 20 nodes has 380.
const MAX_ROWS: usize = 400;
/// Number of rows if there are more than [`MAX_ROWS`] lines: the list then has only the worst lines.
const MAX_WORST_ROWS: usize = 200;

/// Writes the section of the probes.
pub(super) fn write_probes_section(page: &mut Markup, probes: &ProbesReport) {
    page.add_element("p", &[("class", "muted")], &describe_request(probes));
    probe_grid::write_probe_grid(page, probes);
    page.open_element("div", &[("class", "wide-box")]).add_element(
        "h3",
        &[("class", "after-figures")],
        "All pairs",
    );
    write_list(page, probes);
    page.close_element("div");
    probe_ranges::write_range_pictures(page, probes);
}

/// Describes in one sentence which probes the plan requests.
fn describe_request(probes: &ProbesReport) -> String {
    let (most, what, pause) = match probes.method.as_str() {
        "send" => ("", "train", "one every"),
        // A measurement of the capacity ends as soon as the pairs agree, so the plan has only their largest number.
        "capacity" => ("at most ", "packet pair", "with pauses of at least"),
        _ => ("", "probe", "one every"),
    };
    format!(
        "Method {}: {most}{} for each of {}, {pause} {}, frames of {}.",
        probes.method,
        quantity::format_count_with_unit(probes.count.into(), what),
        quantity::format_count_with_unit(probes.lines.len() as u64, "pair"),
        quantity::format_time(probes.interval),
        quantity::format_bytes(probes.size.into())
    )
}

/// The name of a line in messages and drawings.
pub(super) fn line_name(line: &ProbeLineReport) -> String {
    format!("{} → {}", line.from, line.to)
}

/// Number of probes without a valid answer, including probes that a host refused.
pub(super) const fn unanswered_count(counts: &ProbeCounts) -> u64 {
    // A refusal comes from a host that received the probe, but it is not an answer of the target.
    counts.lost.saturating_add(counts.refused)
}

/// The figures of all lines together.
pub(super) fn list_probe_figures(probes: &ProbesReport) -> Vec<NamedFigure> {
    let sent = sum_line_counts(probes, |found| found.counts.sent);
    let mut figures = vec![build_lines_figure(probes), build_probes_figure("sent", sent)];
    if !probes.is_answered() {
        return figures;
    }
    // Without sent probes the share is undefined.
    let lost = sum_line_counts(probes, |found| unanswered_count(&found.counts)).filter(|_| sent > Some(0));
    let share =
        lost.zip(sent).map(|(lost, sent)| format!("{} of sent", quantity::format_percent(lost, sent)));
    figures.extend([
        build_probes_figure("answered", sum_line_counts(probes, |found| found.counts.answered)),
        build_probes_figure("lost or refused", lost).with_addition(share.unwrap_or_default()),
        build_slowest_figure(probes),
    ]);
    figures
}

/// Sum over all lines with a result; `None` if there are none.
fn sum_line_counts(probes: &ProbesReport, of: fn(&ProbeFindings) -> u64) -> Option<u64> {
    let found = probes.lines.iter().filter_map(|line| line.found.as_ref());
    // `reduce` and not `sum`: without a line there is no sum, and zero would be a measured value.
    found.map(of).reduce(u64::saturating_add)
}

fn build_probes_figure(name: &'static str, value: Option<u64>) -> NamedFigure {
    let text = value.map(|value| quantity::format_count_with_unit(value, "probe"));
    NamedFigure { name, text, value, addition: String::new() }
}

fn build_slowest_figure(probes: &ProbesReport) -> NamedFigure {
    let timed = probes.lines.iter().filter_map(|line| Some((line.found.as_ref()?.round_trip?.p99_ns?, line)));
    // Lines with fewer than 100 answers have no p99, and do not take part.
    let slowest = timed.max_by_key(|(p99, _)| *p99);
    NamedFigure {
        name: "round trip p99, slowest pair",
        text: slowest.map(|(p99, _)| quantity::format_delay(p99)),
        value: None,
        addition: slowest.map_or_else(String::new, |(_, line)| format!("pair {}", line_name(line))),
    }
}

fn build_lines_figure(probes: &ProbesReport) -> NamedFigure {
    let missing = probes.lines.iter().filter(|line| line.found.is_none()).count();
    let figure = NamedFigure::new("pairs", quantity::format_count(probes.lines.len() as u64));
    if missing > 0 {
        figure.with_addition(format!("{} missing", quantity::format_count(missing as u64)))
    } else {
        figure
    }
}

/// A line with the facts that its columns need.
pub(super) struct ProbeRow<'a> {
    pub(super) line: &'a ProbeLineReport,
    pub(super) found: Option<&'a ProbeFindings>,
    pub(super) result: CriterionResult,
    pub(super) is_answered: bool,
}

const COMPLETE_STATUS: &str = "complete";

impl<'a> ProbeRow<'a> {
    fn from_line(probes: &'a ProbesReport, line: &'a ProbeLineReport) -> Self {
        Self {
            line,
            found: line.found.as_ref(),
            result: probes.result_of_line(line),
            is_answered: probes.is_answered(),
        }
    }

    /// Describes how the line ended, or why values are missing.
    pub(super) fn describe_outcome(&self) -> String {
        let Some(found) = self.found else {
            let why = self.line.missing.as_deref().unwrap_or("the report does not say why");
            return format!("missing: {why}");
        };
        let unsent = found.counts.planned.saturating_sub(found.counts.sent);
        let no_rate = found.capacity.as_ref().filter(|capacity| capacity.rate.is_none());
        // A capacity measurement plans as many trains as it may need at most, so it often sends fewer.
        let is_short = unsent > 0 && found.capacity.is_none();
        found
            .end
            .describe_end()
            // The reasons are ordered from the strongest to the weakest: each explains missing values better
            // than the next.
            .or_else(|| no_rate?.why_not.clone())
            .or_else(|| {
                is_short.then(|| format!("{} not sent", quantity::format_count_with_unit(unsent, "probe")))
            })
            .or_else(|| (self.is_answered && found.counts.answered == 0).then(|| "no answer".to_owned()))
            .unwrap_or_else(|| COMPLETE_STATUS.to_owned())
    }

    /// Sort key for lists that are not complete; the worst line has the largest key. Lines without a result are the
    /// worst, then failed and then unknown ones; among equals those with the largest loss, then the slowest.
    fn worst_first_sort_key(&self) -> impl Ord + use<> {
        let rank = match self.result {
            // A line without a result must not be left out, because only the list contains the reason.
            _ if self.found.is_none() => 3,
            CriterionResult::Fail => 2,
            CriterionResult::Unknown => 1,
            CriterionResult::Pass => 0,
        };
        // The share is in billionths, with 128 bits: the product overflows 64.
        let lost = self.found.map(|found| {
            u128::from(unanswered_count(&found.counts)) * 1_000_000_000 / u128::from(found.counts.sent.max(1))
        });
        let times = self.found.and_then(|found| found.delay_there.or(found.round_trip));
        // `None` is below every value, so lines without times come last among equals.
        (rank, lost, times.map(|times| times.p99_ns.unwrap_or(times.max_ns)))
    }
}

fn write_list(page: &mut Markup, probes: &ProbesReport) {
    let mut rows: Vec<ProbeRow<'_>> =
        probes.lines.iter().map(|line| ProbeRow::from_line(probes, line)).collect();
    let count = rows.len();
    page.open_element("p", &[("class", "muted")])
        .add_text("A dash means that a value was not measured or is not known. ");
    page.add_text(
        "Loss is the share of sent probes that were refused, or lost on the way there or back. All pairs are in ",
    );
    page.add_element("a", &[("href", "probes.csv")], "probes.csv").add_text(".").close_element("p");
    let mut label = "All pairs".to_owned();
    if count > MAX_ROWS {
        // The list is sorted only if some lines are left out: a complete list keeps the order of the plan.
        rows.sort_by_key(|row| Reverse(row.worst_first_sort_key()));
        rows.truncate(MAX_WORST_ROWS);
        label = format!("The {MAX_WORST_ROWS} worst of {} pairs", quantity::format_count(count as u64));
        let order = "first pairs without a result, then pairs that failed, then pairs with an unknown result; among equals, \
                     those with the largest loss, then the slowest";
        page.add_element("p", &[("class", "notice")], &format!("{label}: {order}."));
    }
    let columns: Vec<ListColumn> =
        PROBE_PAGE_COLUMNS.iter().filter_map(|column| ListColumn::from_column(column, &rows)).collect();
    let headings: Vec<ColumnHeading> = columns.iter().map(|column| column.heading).collect();
    let cells = (0..rows.len()).map(|row| columns.iter().map(|column| column.column_cell_at(row)).collect());
    let cells: Vec<Vec<TableCell>> = cells.collect();
    tabulate_rows(page, &label, Some("probes-table"), &headings, &cells);
}

/// A column of the list, with its values in the order of the rows.
struct ListColumn {
    heading: ColumnHeading,
    values: Vec<Option<ProbeValue>>,
}

impl ListColumn {
    fn from_column(column: &ProbeColumn, rows: &[ProbeRow<'_>]) -> Option<Self> {
        let values: Vec<Option<ProbeValue>> = rows.iter().map(column.value).collect();
        let mut known = values.iter().flatten();
        // `all` of nothing is true, so a column without a known value is left out, too.
        if known.all(|value| column.is_exception && *value == ProbeValue::Count(0)) {
            return None;
        }
        // Sentences need more width than a single word.
        let word = ProbeValue::Text(COMPLETE_STATUS.to_owned());
        let has_sentences = column.heading.is_prose && values.iter().flatten().any(|value| *value != word);
        let heading = if column.heading.is_prose && !has_sentences {
            word_column(column.heading.name)
        } else {
            column.heading
        };
        Some(Self { heading, values })
    }

    fn column_cell_at(&self, row: usize) -> TableCell {
        TableCell::from_optional(self.values[row].as_ref().map(ProbeValue::to_cell))
    }
}

#[cfg(test)]
mod tests;
