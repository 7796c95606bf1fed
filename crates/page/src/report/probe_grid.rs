//! The grid of probe lines: a row for each sending end, a column for each receiving one.
//!
//! Invariant: every line of the report is in a cell, and a cell without a number contains the reason as a word.

use super::elements::{ResultSign, write_verdict_sign};
use super::probes::unanswered_count;
use super::verdict::sign_of;
use crate::markup::Markup;
use crate::quantity;
use packetrig_report::{ProbeFindings, ProbeLineReport, ProbesReport};
use packetrig_stats::probe::{ProbeLineEndReason, ProbeTimes};
use std::collections::{HashMap, HashSet};

/// Maximum number of ends of a grid.
const MAX_ENDS: usize = 40;
/// Maximum number of columns of a grid that is printed within the text; a wider grid gets its own sheet and small type.
const MAX_NARROW_GRID_COLUMNS: usize = 8;
/// Maximum number of columns of a grid that fits on paper.
const MAX_PRINTED_GRID_COLUMNS: usize = 24;

/// Writes the grid, or the reason for its absence.
pub(super) fn write_probe_grid(page: &mut Markup, probes: &ProbesReport) {
    let ends = list_line_ends(probes);
    if ends.len() > MAX_ENDS {
        let text = format!(
            "There is no grid: the probes have {} different ends, but a grid is drawn for at most \
             {MAX_ENDS}. The list has all results.",
            quantity::format_count(ends.len() as u64)
        );
        page.add_element("p", &[("class", "notice")], &text);
        return;
    }
    // A single line needs no grid: the list shows it.
    if probes.lines.len() > 1 {
        ProbeGrid::from_report(probes, &ends).write_table(page);
    }
}

/// Lists the ends of all lines: senders first, in plan order, so that a port has the same position in rows and columns.
fn list_line_ends(probes: &ProbesReport) -> Vec<&str> {
    let from = probes.lines.iter().map(|line| line.from.as_str());
    let to = probes.lines.iter().map(|line| line.to.as_str());
    // The set only finds repetitions. The order is that of the lines.
    let mut known = HashSet::new();
    from.chain(to).filter(|end| known.insert(*end)).collect()
}

/// The probe lines, by their sending and their receiving ends.
struct ProbeGrid<'a> {
    probes: &'a ProbesReport,
    rows: Vec<&'a str>,
    columns: Vec<&'a str>,
    /// Usually one line; several if only the UDP ports of their targets differ.
    cells: HashMap<(&'a str, &'a str), Vec<&'a ProbeLineReport>>,
}

impl<'a> ProbeGrid<'a> {
    fn from_report(probes: &'a ProbesReport, ends: &[&'a str]) -> Self {
        let mut cells: HashMap<_, Vec<_>> = HashMap::new();
        for line in &probes.lines {
            cells.entry((line.from.as_str(), line.to.as_str())).or_default().push(line);
        }
        // Ends that only receive have no row, and ends that only send have no column.
        let rows = ends.iter().filter(|end| cells.keys().any(|(from, _)| from == *end));
        let columns = ends.iter().filter(|end| cells.keys().any(|(_, to)| to == *end));
        Self { probes, rows: rows.copied().collect(), columns: columns.copied().collect(), cells }
    }

    fn write_table(&self, page: &mut Markup) {
        // Paper does not scroll: a grid is printed beside the text, on a separate sheet, or not at all.
        let (outer, inner) = match self.columns.len() {
            0..=MAX_NARROW_GRID_COLUMNS => ("pairs", "table-box grid-box"),
            columns if columns <= MAX_PRINTED_GRID_COLUMNS => ("pairs wide-box", "table-box grid-box"),
            _ => ("pairs", "table-box grid-box no-print"),
        };
        page.open_element("div", &[("class", outer)]).add_element(
            "p",
            &[],
            describe_cells(&self.probes.method),
        );
        if self.columns.len() > MAX_PRINTED_GRID_COLUMNS {
            let text = "The grid has too many columns for paper. The list has the same values.";
            page.add_element("p", &[("class", "notice print-only")], text);
        }
        let label = "All pairs: from row to column";
        page.open_element(
            "div",
            &[("class", inner), ("tabindex", "0"), ("role", "group"), ("aria-label", label)],
        );
        page.open_element("table", &[("id", "probes-grid")]);
        page.add_element("caption", &[("class", "visually-hidden")], label);
        self.write_grid_head(page);
        page.open_element("tbody", &[]);
        for from in &self.rows {
            self.write_row(page, from);
        }
        page.close_element("tbody").close_element("table").close_element("div").close_element("div");
    }

    fn write_grid_head(&self, page: &mut Markup) {
        page.open_element("thead", &[]).open_element("tr", &[]).add_element(
            "th",
            &[("scope", "col")],
            "from / to",
        );
        for to in &self.columns {
            page.add_element("th", &[("scope", "col"), ("class", "number")], to);
        }
        page.close_element("tr").close_element("thead");
    }

    fn write_row(&self, page: &mut Markup, from: &'a str) {
        page.open_element("tr", &[]).add_element("th", &[("scope", "row")], from);
        for to in &self.columns {
            page.open_element("td", &[("class", "number")]);
            match self.cells.get(&(from, *to)) {
                Some(lines) => lines.iter().for_each(|line| self.write_line(page, line, lines.len() > 1)),
                None => write_unplanned_mark(page),
            }
            page.close_element("td");
        }
        page.close_element("tr");
    }

    /// Writes a line into its cell. `has_target` adds the target, if the cell has several lines.
    fn write_line(&self, page: &mut Markup, line: &ProbeLineReport, has_target: bool) {
        if has_target {
            page.add_element("small", &[("class", "muted")], &line.target).add_text(" ");
        }
        match &line.found {
            // If a node did not report, that does not mean that the path failed.
            None => write_verdict_sign(page, ResultSign::Unknown, "missing", false),
            Some(found) => match self.cell_value_or_reason(found) {
                Ok(value) => {
                    page.add_text(&value);
                }
                // A cell without a number must not be empty: that would look like a pair that is not in the plan.
                Err(word) => write_verdict_sign(page, self.sign_of(line), word, false),
            },
        }
        for addition in line.found.iter().flat_map(|found| self.list_additional_facts(found)) {
            page.add_text(" ").add_element("small", &[], &addition);
        }
    }

    /// The sign of a line without a value. It is never a success, even if its answers pass all criteria.
    fn sign_of(&self, line: &ProbeLineReport) -> ResultSign {
        match sign_of(self.probes.result_of_line(line)) {
            ResultSign::Fail => ResultSign::Fail,
            ResultSign::Pass | ResultSign::Unknown => ResultSign::Unknown,
        }
    }

    /// The value that the method measures, or a word that says why it is absent.
    fn cell_value_or_reason(&self, found: &ProbeFindings) -> Result<String, &'static str> {
        let answer = || match found.counts.answered {
            0 => "no answer",
            _ => "unknown",
        };
        match self.probes.method.as_str() {
            // This check comes first for every method: if no probes were sent, missing answers would be blamed on the
            // path.
            _ if found.counts.sent == 0 => Err("not sent"),
            "send" => Ok(format!("{} sent", quantity::format_count(found.counts.sent))),
            "capacity" => match found.capacity_rate() {
                Some(rate) => Ok(format_bit_rate(rate.bits_per_s)),
                None if found.counts.answered == 0 => Err("no answer"),
                None => Err("no rate"),
            },
            "ping" => found.round_trip.map(format_median).ok_or_else(answer),
            _ => found.delay_there.map(format_median).ok_or_else(answer),
        }
    }

    /// Short facts that follow the value.
    fn list_additional_facts(&self, found: &ProbeFindings) -> Vec<String> {
        let counts = &found.counts;
        if counts.sent == 0 {
            return Vec::new();
        }
        let mut additions = Vec::new();
        match self.probes.method.as_str() {
            "send" if counts.sent < counts.planned => {
                additions.push(format!("of {}", quantity::format_count(counts.planned)));
            }
            "send" => (),
            "capacity" => additions.extend(
                found
                    .capacity_rate()
                    .map(|rate| format!("{} to {}", format_bit_rate(rate.low), format_bit_rate(rate.high))),
            ),
            "ping" => {
                additions.extend(describe_loss(Some(unanswered_count(counts)), counts.sent));
            }
            _ => {
                additions.extend(found.delay_there.map(describe_bound));
                // Only the loss of this direction: the cell from column to row has the other one.
                additions.extend(describe_loss(found.lost_there, counts.sent));
            }
        }
        if found.end != ProbeLineEndReason::Done {
            additions.push("ended early".to_owned());
        }
        additions
    }
}

/// Marks a pair that the plan does not contain, so that it does not look like a missing measurement.
fn write_unplanned_mark(page: &mut Markup) {
    page.add_element("span", &[("class", "muted"), ("aria-hidden", "true")], "–");
    page.add_element("span", &[("class", "visually-hidden")], "not in the plan");
}

/// The meaning of the cells, as a sentence for readers.
fn describe_cells(method: &str) -> &'static str {
    match method {
        "send" => {
            "From row to column: probes that were sent. No host answers them. A dash marks a pair that is \
             not in the plan."
        }
        "capacity" => {
            "From row to column: the rate of the narrowest link, in bits of frames, and its range. A dash \
             marks a pair that is not in the plan."
        }
        "ping" => {
            "From row to column and back: median round trip, and the share of probes that were lost. A dash \
             marks a pair that is not in the plan."
        }
        _ => {
            "From row to column: median one-way delay with its bound, and the share of probes lost in this \
             direction. A dash marks a pair that is not in the plan."
        }
    }
}

fn format_median(times: ProbeTimes) -> String {
    quantity::format_short_delay(times.p50_ns)
}

fn describe_bound(times: ProbeTimes) -> String {
    format!("± {}", quantity::format_short_delay(i64::try_from(times.bound_ns).unwrap_or(i64::MAX)))
}

/// The loss in words; `None` if nothing was lost. An unknown loss is named, because an empty text would
/// look like no loss.
fn describe_loss(lost: Option<u64>, sent: u64) -> Option<String> {
    match lost {
        None => Some("loss unknown".to_owned()),
        Some(0) => None,
        Some(lost) => Some(format!("{} lost", quantity::format_short_percent(lost, sent))),
    }
}

fn format_bit_rate(bits_per_s: u64) -> String {
    quantity::format_scaled(bits_per_s as f64, "bit/s")
}
