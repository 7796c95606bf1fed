//! `packetrig report diff`: compares two results, for people and for build servers that refuse a worse result.

use super::{find_stored_result, open_existing_catalogue};
use crate::args::{DiffArgs, FigureLimitFlags};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::{CommandOutput, TextStyle};
use crate::table::format_fitted_table;
use packetrig_stats::figure::{
    ComparedFigure, FigureChange, FigureLimits, FigureVerdict, ReportFigure, format_figure_difference,
    format_figure_value, format_signed_percent,
};
use packetrig_store::files;
use packetrig_store::results::{ComparableResult, ComparisonReport, ResultLabel, read_result_file};
use std::collections::BTreeSet;
use std::path::Path;

pub(super) fn compare_results(
    arguments: &DiffArgs,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let store = arguments.store.directory.as_deref();
    // The figures are selected in both results, because a figure may exist in only one of them.
    let before = select_named_figures(read_comparable_result(&arguments.before, store)?, &arguments.limits)?;
    let after = select_named_figures(read_comparable_result(&arguments.after, store)?, &arguments.limits)?;
    let limits = FigureLimits::new(arguments.limits.max_worse.clone());
    let report = ComparisonReport::from_results(&before, &after, &limits, arguments.anyway);
    let form = &arguments.form;
    if form.json {
        output.write_json(&report)?;
    } else if form.csv {
        output.write_text(files::comparison_csv(&report));
    } else if form.junit {
        output.write_text(files::comparison_junit(&report));
    } else if form.markdown {
        output.write_text(files::comparison_markdown(&report));
    } else {
        let text = render_comparison(&report, limits.is_empty(), output.style());
        output.write_text(text);
    }
    Ok(verdict_exit(report.comparison.verdict))
}

pub(super) const fn verdict_exit(verdict: FigureVerdict) -> CommandExit {
    match verdict {
        FigureVerdict::Pass => CommandExit::Ok,
        FigureVerdict::Fail => CommandExit::Fail,
        FigureVerdict::Unknown => CommandExit::Inconclusive,
    }
}

/// Reads a result. `text` is an id or name in the catalogue, or the path of a file or directory with a result.
fn read_comparable_result(text: &str, store: Option<&Path>) -> Result<ComparableResult, Error> {
    let path = Path::new(text);
    // The text may be the path of a directory, as `report path` prints it.
    let inside = path.join(files::REPORT_FILE_NAME);
    if inside.is_file() {
        return Ok(read_result_file(&inside)?);
    }
    // An id contains no dot and no slash, so a text with one of them is a path.
    if text.contains(['.', '/']) || path.is_file() {
        return match read_result_file(path) {
            // The user named this file, so a missing file is an error of the command line.
            Err(packetrig_store::Error::File { source, .. }) => Err(Error::unreadable_file(path, source)),
            read => Ok(read?),
        };
    }
    let catalogue = open_existing_catalogue(store, text)?;
    Ok(find_stored_result(&catalogue, text)?.read_comparable_result()?)
}

/// Removes the figures that the user did not name; without names, keeps all figures.
fn select_named_figures(
    mut result: ComparableResult,
    flags: &FigureLimitFlags,
) -> Result<ComparableResult, Error> {
    result.figures = retain_named_figures(result.figures, &flags.figure)?;
    Ok(result)
}

/// Retains the figures with these names; without names, retains all. It is an error if no figure has any of the names:
/// they were probably typed wrong.
pub(super) fn retain_named_figures(
    mut figures: Vec<ReportFigure>,
    names: &[String],
) -> Result<Vec<ReportFigure>, Error> {
    if names.is_empty() {
        return Ok(figures);
    }
    // A set removes repetitions: each stream has figures of the same names.
    let known: BTreeSet<String> = figures.iter().map(|figure| figure.name.clone()).collect();
    figures.retain(|figure| names.contains(&figure.name));
    if figures.is_empty() && !known.is_empty() {
        return Err(Error::Usage(format!(
            "no figure is named {}; the result has the figures {}",
            names.join(" or "),
            Vec::from_iter(known).join(", ")
        )));
    }
    Ok(figures)
}

fn render_comparison(report: &ComparisonReport, is_judged_by_nothing: bool, style: TextStyle) -> String {
    let mut text = format!(
        "before: {}\nnow:    {}\n\n",
        format_result_label(&report.before),
        format_result_label(&report.after)
    );
    text.push_str(&format_comparison_table(&report.comparison.figures, style));
    // Without limits there is no verdict: a PASS would have no meaning.
    if is_judged_by_nothing && report.difference.is_none() {
        text.push_str("\nNothing was judged: `--max-worse` sets limits.\n");
        return text;
    }
    text.push_str(&format_verdict(report.comparison.verdict, &report.reasons(), style));
    if report.difference.is_some() {
        text.push_str("  `--anyway` compares these results nevertheless\n");
    }
    text
}

fn format_result_label(label: &ResultLabel) -> String {
    let name = if label.name.is_empty() { String::new() } else { format!(" \"{}\"", label.name) };
    let id = label.id.as_deref().map(|id| format!(" {id}")).unwrap_or_default();
    let verdict = if label.verdict.is_empty() { String::new() } else { format!(", {}", label.verdict) };
    format!("{}{id}{name}{verdict}", label.kind)
}

/// Formats a table with a row for each figure: its values before and now, the change and the verdict.
pub(super) fn format_comparison_table(figures: &[ComparedFigure], style: TextStyle) -> String {
    if figures.is_empty() {
        return "  neither result has figures\n".to_owned();
    }
    let header = ["figure", "before", "now", "difference", "percent", "change", "allowed", "verdict"];
    let rows: Vec<Vec<String>> = figures.iter().map(build_figure_row).collect();
    let all = "`--markdown`";
    format_fitted_table(style.width(), &header, &rows, &["allowed", "difference", "before"], all)
}

fn build_figure_row(figure: &ComparedFigure) -> Vec<String> {
    let [before, after] = [figure.before, figure.after]
        .map(|value| value.map_or_else(missing_value_dash, |value| format_figure_value(value, &figure.unit)));
    vec![
        figure.title(),
        before,
        after,
        figure.difference.map_or_else(missing_value_dash, |by| format_figure_difference(by, &figure.unit)),
        figure.percent.map_or_else(missing_value_dash, format_signed_percent),
        describe_change(figure).to_owned(),
        figure.limit.clone().unwrap_or_else(missing_value_dash),
        figure.verdict.map_or_else(missing_value_dash, |verdict| verdict.to_string()),
    ]
}

/// Returns the word for the change. Beside a difference that is not 0, `same` would look like a mistake.
fn describe_change(figure: &ComparedFigure) -> &'static str {
    match figure.change {
        FigureChange::Same if figure.difference.is_some_and(|by| by != 0.0) => "within error",
        change => change.word(),
    }
}

fn missing_value_dash() -> String {
    "–".to_owned()
}

/// Formats the verdict in its colour, with a line for each reason.
pub(super) fn format_verdict(verdict: FigureVerdict, reasons: &[String], style: TextStyle) -> String {
    let word = match verdict {
        FigureVerdict::Pass => style.good("PASS"),
        FigureVerdict::Fail => style.bad("FAIL"),
        FigureVerdict::Unknown => style.doubtful("INCONCLUSIVE"),
    };
    let mut text = format!("\nVerdict: {word}\n");
    text.extend(reasons.iter().map(|reason| format!("  {reason}\n")));
    text
}
