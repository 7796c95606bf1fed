//! Results of the probes of a fleet, to its nodes or to other hosts: a matrix with a row for each sender and a column
//! for each target, or a list.
//!
//! A cell without a number has the reason; it never shows a zero for something that was not measured.

use super::{MAX_ROWS, format_omitted_rows_line, shorten_name};
use crate::table::format_table;
use packetrig_program::numbers::{format_count_with_unit, format_scaled};
use packetrig_report::{ProbeFindings, ProbeLineReport, ProbesReport, RunReport};
use packetrig_stats::probe::{CapacityRange, ProbeTimes};
use packetrig_units::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// Largest number of columns at which a cell still has the median, the 99th percentile and the error bound.
const MAX_FULL_COLUMNS: usize = 5;
/// Largest number of columns of a matrix. With more targets, the pairs are shown as a list.
const MAX_COLUMNS: usize = 24;

/// Formats the tables of the probes; empty for a run without probes.
pub(super) fn format_probes(report: &RunReport) -> String {
    let Some(probes) = &report.probes else { return String::new() };
    let (most, what, each) = match probes.method.as_str() {
        "send" => ("", "trains", "one every"),
        "capacity" => ("at most ", "packet pairs", "pauses of at least"),
        _ => ("", "probes", "one every"),
    };
    let mut text = format!(
        "  {}: {most}{} {what} for each of {}, {each} {}, {} B\n",
        probes.method,
        probes.count,
        format_count_with_unit(probes.lines.len() as u64, "pair"),
        probes.interval,
        probes.size
    );
    let matrix = ProbeMatrix::from_report(probes);
    // A matrix with a single column would only be a list, and a matrix that does not fit a terminal cannot be read.
    let is_matrix = matrix.columns.len() > 1 && matrix.columns.len() <= MAX_COLUMNS;
    match probes.method.as_str() {
        "oneway" | "stamp" if is_matrix => text.push_str(&format_one_way_delay_tables(&matrix)),
        "ping" if is_matrix => text.push_str(&format_ping_tables(&matrix)),
        "capacity" if is_matrix => text.push_str(&format_capacity_table(&matrix)),
        "capacity" => text.push_str(&format_capacity_list(probes)),
        "send" => text.push_str(&format_sending_list(probes)),
        _ => text.push_str(&format_pairs_list(probes)),
    }
    text.push_str(&format_missing_lines(probes));
    text
}

/// Results of pairs, by sender and receiver.
struct ProbeMatrix<'a> {
    rows: Vec<&'a str>,
    columns: Vec<&'a str>,
    cells: BTreeMap<(&'a str, &'a str), &'a ProbeLineReport>,
}

impl<'a> ProbeMatrix<'a> {
    fn from_report(probes: &'a ProbesReport) -> Self {
        // The names are sorted, so that a node has the same position in rows and columns.
        let rows: BTreeSet<&str> = probes.lines.iter().map(|line| line.from.as_str()).collect();
        let columns: BTreeSet<&str> = probes.lines.iter().map(|line| line.to.as_str()).collect();
        let cells = probes.lines.iter().map(|line| ((line.from.as_str(), line.to.as_str()), line));
        Self {
            rows: rows.into_iter().collect(),
            columns: columns.into_iter().collect(),
            cells: cells.collect(),
        }
    }

    /// Formats the matrix: senders are rows, receivers are columns, and `cell` formats the findings of a pair.
    fn format_matrix_table(&self, corner: &str, cell: impl Fn(&ProbeFindings) -> String) -> String {
        let names: Vec<String> = self.columns.iter().map(|name| short_name(name)).collect();
        let header: Vec<&str> = std::iter::once(corner).chain(names.iter().map(String::as_str)).collect();
        let rows = self.rows.iter().map(|from| {
            let cells = self.columns.iter().map(|to| match self.cells.get(&(from, to)) {
                // The plan has no such pair: a node does not probe itself.
                None => "·".to_owned(),
                Some(line) => line.found.as_ref().map_or_else(|| "missing".to_owned(), &cell),
            });
            std::iter::once(short_name(from)).chain(cells).collect::<Vec<String>>()
        });
        format_table(&header, rows)
    }

    fn all_findings(&self) -> impl Iterator<Item = &'a ProbeFindings> {
        self.cells.values().filter_map(|line| line.found.as_ref())
    }
}

fn short_name(name: &str) -> String {
    shorten_name(name)
}

fn format_one_way_delay_tables(matrix: &ProbeMatrix<'_>) -> String {
    // Two tables for a wider matrix: median, percentile and bound in each cell would not fit a terminal.
    let mut text = if matrix.columns.len() <= MAX_FULL_COLUMNS {
        format!(
            "\n  One-way delay from row to column: median / p99 ± bound\n{}",
            matrix.format_matrix_table("from", |found| format_time_cell(
                found,
                found.delay_there,
                format_full_times
            ))
        )
    } else {
        format!(
            "\n  One-way delay from row to column: median\n{}\n  99th percentile\n{}",
            matrix.format_matrix_table("from", |found| format_time_cell(found, found.delay_there, |times| {
                format_rounded_time(times.p50_ns, times.bound_ns)
            })),
            matrix.format_matrix_table("from", |found| format_time_cell(found, found.delay_there, |times| {
                format_duration_or_dash(times.p99_ns, times.bound_ns)
            }))
        )
    };
    text.push_str(&format_error_bounds(matrix.all_findings(), |found| found.delay_there));
    text.extend([format!(
        "\n  Lost on the way from row to column\n{}",
        matrix.format_matrix_table("from", |found| format_lost_cell(found.lost_there, found.counts.sent))
    )]);
    text
}

fn format_ping_tables(matrix: &ProbeMatrix<'_>) -> String {
    let mut text = format!(
        "\n  Round trip from row to column and back: median / p99 ± bound\n{}",
        matrix.format_matrix_table("from", |found| format_time_cell(
            found,
            found.round_trip,
            format_full_times
        ))
    );
    text.extend([format!(
        "\n  Lost there or back\n{}",
        matrix.format_matrix_table("from", |found| format_lost_cell(
            Some(found.counts.lost + found.counts.refused),
            found.counts.sent
        ))
    )]);
    text
}

fn format_capacity_table(matrix: &ProbeMatrix<'_>) -> String {
    format!(
        "\n  Rate of the narrowest link from row to column, in bits of frames: most likely (least to most)\n{}",
        matrix.format_matrix_table("from", format_capacity)
    )
}

/// Formats a table with a row for each pair, for a capacity measurement.
fn format_capacity_list(probes: &ProbesReport) -> String {
    let rows = probes.lines.iter().take(MAX_ROWS).filter_map(|line| {
        let found = line.found.as_ref()?;
        let measured = found.capacity.as_ref();
        let trains = measured.map_or_else(String::new, |one| format!("{} of {}", one.used, one.trains));
        let pair = format!("{} -> {}", short_name(&line.from), short_name(&line.to));
        Some(vec![
            pair,
            format_capacity(found),
            trains,
            found.counts.sent.to_string(),
            found.counts.lost.to_string(),
        ])
    });
    let header = ["pair", "rate of frames (least to most)", "trains used", "probes", "lost"];
    format!(
        "\n{}{}",
        format_table(&header, rows),
        format_omitted_rows_line(probes.lines.len(), "pairs", "report.json")
    )
}

/// Formats the capacity of a pair, or the reason why there is none.
fn format_capacity(found: &ProbeFindings) -> String {
    match found.capacity_rate() {
        Some(CapacityRange { bits_per_s, low, high, .. }) => {
            let [rate, low, high] = [bits_per_s, low, high].map(|bits| format_scaled(bits as f64, "bit/s"));
            format!("{rate} ({low} to {high})")
        }
        None if found.counts.sent == 0 => "not sent".to_owned(),
        None if found.counts.answered == 0 => "no answer".to_owned(),
        None => "no rate".to_owned(),
    }
}

fn format_full_times(times: ProbeTimes) -> String {
    let bound = times.bound_ns;
    format!(
        "{} / {} ± {}",
        format_rounded_time(times.p50_ns, bound),
        format_duration_or_dash(times.p99_ns, bound),
        Nanos::new(bound)
    )
}

/// Formats a percentile; a dash if there are too few samples for it.
fn format_duration_or_dash(ns: Option<i64>, bound_ns: u64) -> String {
    ns.map_or_else(|| "–".to_owned(), |ns| format_rounded_time(ns, bound_ns))
}

/// Formats a time to three digits; the files have all digits. A negative time within its error bound is shown as 0. A
/// time further below zero keeps its sign: it shows that two clocks are not related as assumed.
fn format_rounded_time(ns: i64, bound_ns: u64) -> String {
    let ns = if ns < 0 && ns.unsigned_abs() <= bound_ns { 0 } else { ns };
    let size = ns.unsigned_abs();
    let digits = size.checked_ilog10().unwrap_or(0);
    let step = 10_u64.pow(digits.saturating_sub(2));
    // Half a step is added, so that the division rounds to the nearest step and not down.
    let rounded = size.saturating_add(step / 2) / step * step;
    format!("{}{}", if ns < 0 { "-" } else { "" }, Nanos::new(rounded))
}

fn format_or_unknown<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "unknown".to_owned(), text)
}

/// Formats a time of a pair, or the reason why there is none.
fn format_time_cell(
    found: &ProbeFindings,
    times: Option<ProbeTimes>,
    words: impl Fn(ProbeTimes) -> String,
) -> String {
    match times {
        Some(times) => words(times),
        None if found.counts.sent == 0 => "not sent".to_owned(),
        None if found.counts.answered == 0 => "no answer".to_owned(),
        None => "unknown".to_owned(),
    }
}

fn format_lost_cell(lost: Option<u64>, sent: u64) -> String {
    match lost {
        // Unsent probes are checked first: `0 of 0` would look like a path without loss.
        _ if sent == 0 => "not sent".to_owned(),
        None => "unknown".to_owned(),
        Some(lost) => format!("{lost} of {sent}"),
    }
}

/// Formats the largest error bound of the times in a table, with a line for each way of relating the clocks of a pair.
fn format_error_bounds<'a>(
    findings: impl Iterator<Item = &'a ProbeFindings>,
    of: fn(&ProbeFindings) -> Option<ProbeTimes>,
) -> String {
    // Each way has its own line: clocks that follow UTC and clocks that the session compares have different errors.
    let mut relations: BTreeMap<&str, u64> = BTreeMap::new();
    for found in findings {
        if let Some((clocks, times)) = found.clocks.zip(of(found)) {
            let largest = relations.entry(clocks.name()).or_default();
            *largest = times.bound_ns.max(*largest);
        }
    }
    let lines = relations
        .into_iter()
        .map(|(clocks, bound)| format!("  time error with {clocks}: ± {} at most\n", Nanos::new(bound)));
    lines.collect::<Vec<_>>().concat()
}

/// Formats a table with a row for each pair, for probes with answers.
fn format_pairs_list(probes: &ProbesReport) -> String {
    // Pairs without a result are not in the table: they are listed below the table, with the reason.
    let header = ["pair", "sent", "lost there", "lost back", "delay there", "delay back", "round trip"];
    let rows = probes.lines.iter().take(MAX_ROWS).filter_map(|line| {
        let found = line.found.as_ref()?;
        let [there, back] = match probes.method.as_str() {
            // A ping cannot tell in which direction a packet was lost.
            "ping" => [format!("{} in all", found.counts.lost + found.counts.refused), "–".to_owned()],
            _ => [found.lost_there, found.lost_back]
                .map(|lost| format_or_unknown(lost, |lost| lost.to_string())),
        };
        let delays = [
            format_time_cell(found, found.delay_there, format_full_times),
            format_time_cell(found, found.delay_back, format_full_times),
        ];
        let [delay_there, delay_back] = delays;
        Some(vec![
            format!("{} -> {}", short_name(&line.from), short_name(&line.to)),
            found.counts.sent.to_string(),
            there,
            back,
            delay_there,
            delay_back,
            format_or_unknown(found.round_trip, format_full_times),
        ])
    });
    let mut text = format!("\n{}", format_table(&header, rows));
    text.push_str(&format_error_bounds(
        probes.lines.iter().filter_map(|line| line.found.as_ref()),
        |found| found.delay_there,
    ));
    text.push_str(&format_omitted_rows_line(probes.lines.len(), "pairs", "report.json"));
    text
}

/// Formats a table with a row for each pair, for probes without answers.
fn format_sending_list(probes: &ProbesReport) -> String {
    let rows = probes.lines.iter().take(MAX_ROWS).filter_map(|line| {
        let found = line.found.as_ref()?;
        Some(vec![
            format!("{} -> {}", short_name(&line.from), short_name(&line.to)),
            format!("{} of {}", found.counts.sent, found.counts.planned),
            format_or_unknown(found.release_error, |times| format_rounded_time(times.p50_ns, 0)),
            format_or_unknown(found.release_error, |times| format_duration_or_dash(times.p99_ns, 0)),
            found.counts.doubtful.to_string(),
            found.mechanism.clone(),
        ])
    });
    let header = ["pair", "sent", "release error p50", "p99", "uncertain", "mechanism"];
    format!(
        "\n{}{}",
        format_table(&header, rows),
        format_omitted_rows_line(probes.lines.len(), "pairs", "report.json")
    )
}

/// Formats a line with the reason for each pair that has no result, that ended early, or that has no capacity.
fn format_missing_lines(probes: &ProbesReport) -> String {
    let reasons: Vec<String> = probes
        .lines
        .iter()
        .filter_map(|line| {
            // A pair without a result has no findings, so at most one of the two gives a reason.
            let why = line.missing.clone().or_else(|| {
                let found = line.found.as_ref()?;
                found.end.describe_end().or_else(|| found.capacity.as_ref()?.why_not.clone())
            })?;
            Some(format!("{}: {}", short_name(&line.name()), why))
        })
        .collect();
    let mut text = String::new();
    text.extend(reasons.iter().take(MAX_ROWS).map(|reason| format!("  {reason}\n")));
    text.push_str(&format_omitted_rows_line(reasons.len(), "pairs", "report.json"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_report::ClockRelationSource;
    use packetrig_stats::probe::{ProbeCounts, ProbeLineEndReason};

    fn found(p50_ns: i64, lost_there: u64) -> ProbeFindings {
        let times = ProbeTimes {
            samples: 9,
            min_ns: p50_ns,
            p50_ns,
            p95_ns: Some(p50_ns),
            p99_ns: Some(p50_ns + 10_000),
            max_ns: p50_ns + 10_000,
            bound_ns: 1_500,
        };
        ProbeFindings {
            end: ProbeLineEndReason::Done,
            counts: ProbeCounts {
                planned: 10,
                sent: 10,
                answered: 10 - lost_there,
                ..ProbeCounts::default()
            },
            far_end_reported: true,
            lost_there: Some(lost_there),
            lost_back: Some(0),
            clocks: Some(ClockRelationSource::One),
            delay_there: Some(times),
            delay_back: Some(times),
            variation_there: None,
            variation_back: None,
            round_trip: None,
            path: None,
            capacity: None,
            release_error: None,
            mechanism: "spin".into(),
            why: String::new(),
        }
    }

    /// A mesh of three nodes: c did not report, and the direction from a to b is slow.
    fn mesh() -> ProbesReport {
        let line = |from: &str, to: &str| ProbeLineReport {
            from: from.into(),
            from_node: from.into(),
            to: to.into(),
            to_node: Some(to.into()),
            target: String::new(),
            missing: (from == "c").then(|| "node c did not report".to_owned()),
            found: match (from, to) {
                ("c", _) => None,
                ("a", "b") => Some(found(30_100_000, 2)),
                ("b", "c") => Some(ProbeFindings { lost_there: None, ..found(41_234, 0) }),
                _ => Some(found(41_234, 0)),
            },
        };
        let pairs = [("a", "b"), ("a", "c"), ("b", "a"), ("b", "c"), ("c", "a"), ("c", "b")];
        ProbesReport {
            method: "oneway".into(),
            count: 10,
            interval: Nanos::from_millis(100),
            size: 102,
            lines: pairs.into_iter().map(|(from, to)| line(from, to)).collect(),
        }
    }

    #[test]
    fn probe_matrix_shows_reason_for_missing_values() {
        let mesh = mesh();
        let text =
            [format_one_way_delay_tables(&ProbeMatrix::from_report(&mesh)), format_missing_lines(&mesh)]
                .concat();
        let wanted = "
  One-way delay from row to column: median / p99 ± bound
  from                        a                        b                        c
  a                           ·  30.1ms / 30.1ms ± 1.5us  41.2us / 51.2us ± 1.5us
  b     41.2us / 51.2us ± 1.5us                        ·  41.2us / 51.2us ± 1.5us
  c                     missing                  missing                        ·
  time error with one clock: ± 1.5us at most

  Lost on the way from row to column
  from        a        b        c
  a           ·  2 of 10  0 of 10
  b     0 of 10        ·  unknown
  c     missing  missing        ·
  c -> a: node c did not report
  c -> b: node c did not report
";
        assert_eq!(text, wanted, "{text}");
    }

    #[test]
    fn a_time_is_shown_to_three_digits() {
        for (ns, text) in [(0, "0ns"), (7, "7ns"), (1_234, "1.23us"), (-98_765, "-98.8us"), (999_999, "1ms")]
        {
            assert_eq!(format_rounded_time(ns, 0), text, "{ns}");
        }
    }
}
