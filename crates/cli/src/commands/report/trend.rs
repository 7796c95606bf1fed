//! `packetrig report trend`: the figures of all results with one name, over time.

use super::{diff, open_catalogue_to_list};
use crate::args::TrendArgs;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::identity;
use crate::output::{CommandOutput, TextStyle, print_warning};
use crate::sparkline::render_sparkline;
use crate::table::format_fitted_table;
use packetrig_stats::figure::{ComparedFigure, FigureLimits, FigureTrend, format_figure_value};
use packetrig_store::results::{ComparableResult, TrendReport, TrendResult};
use packetrig_store::{RunCatalogue, StoredSummary, files};

/// Largest number of figures that have a column in the table of results.
const MAX_FIGURE_COLUMNS: usize = 4;
/// Largest number of values in a sparkline: the newest ones.
const SPARKLINE_POINTS: usize = 24;

pub(super) fn show_trend(arguments: &TrendArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let catalogue = open_catalogue_to_list(arguments.store.directory.as_deref())?;
    let results =
        catalogue.as_ref().map_or_else(|| Ok(Vec::new()), |catalogue| read_results(catalogue, arguments))?;
    if results.is_empty() {
        let name = &arguments.name;
        return Err(Error::Usage(format!(
            "found no result with the name `{name}`; `packetrig report` lists the results, and --name of a \
            run or test sets its name"
        )));
    }
    let limits = FigureLimits::new(arguments.limits.max_worse.clone());
    let report = TrendReport::from_results(arguments.name.clone(), results, &limits);
    let form = &arguments.form;
    if form.json {
        output.write_json(&report)?;
    } else if form.csv {
        output.write_text(files::trend_csv(&report));
    } else if form.markdown {
        output.write_text(files::trend_markdown(&report));
    } else {
        let text = render_trend(&report, output.style());
        output.write_text(text);
    }
    Ok(report.comparison.map_or(CommandExit::Ok, |compared| diff::verdict_exit(compared.verdict)))
}

/// Reads the results with the name of the trend, the oldest first. Reads only results of the same kind as the newest
/// one: a run and a method have no common figure.
fn read_results(catalogue: &RunCatalogue, arguments: &TrendArgs) -> Result<Vec<TrendResult>, Error> {
    let mut found = catalogue.list_all_stored_results()?;
    let since_ns = arguments.since.since_ns();
    found.retain(|stored| stored.name() == arguments.name && stored.started_wall_ns() >= since_ns);
    let kind = found.first().map(|newest| newest.kind().to_owned());
    let all = found.len();
    found.retain(|stored| Some(stored.kind()) == kind.as_deref());
    if found.len() < all {
        let others = all - found.len();
        print_warning(
            "report",
            format_args!("results left out, because they are of another kind than the newest: {others}"),
        );
    }
    // The catalogue lists the newest result first, a trend the oldest. The list is truncated before it is reversed, so
    // that the newest results remain.
    found.truncate(arguments.most);
    found.reverse();
    let read: Result<Vec<_>, Error> =
        found.iter().map(|stored| Ok((stored, stored.read_comparable_result()?))).collect();
    let read = read?;
    warn_of_different_plans(&read);
    read.into_iter().map(|(stored, result)| trend_result(stored, result, arguments)).collect()
}

fn warn_of_different_plans(results: &[(&StoredSummary, ComparableResult)]) {
    let Some((_, newest)) = results.last() else { return };
    // It is a warning and not an error, because results of a plan that grew over the months still have a trend.
    let others = results.iter().filter(|(_, result)| result.difference_to(newest).is_some()).count();
    if others > 0 {
        let what = format_args!(
            "{others} of {} results have another plan or other options than the newest, so their figures \
            may differ for that reason",
            results.len()
        );
        print_warning("report", what);
    }
}

fn trend_result(
    stored: &StoredSummary,
    result: ComparableResult,
    arguments: &TrendArgs,
) -> Result<TrendResult, Error> {
    let mut label = result.label();
    // The verdict comes from the catalogue: a file of figures has no verdict.
    stored.verdict().clone_into(&mut label.verdict);
    Ok(TrendResult {
        label,
        started_wall_ns: stored.started_wall_ns(),
        figures: diff::retain_named_figures(result.figures, &arguments.limits.figure)?,
    })
}

fn render_trend(report: &TrendReport, style: TextStyle) -> String {
    let mut text = format!("Trend of \"{1}\" (results: {0})\n\n", report.results.len(), report.name);
    text.push_str(&format_results_table(report, style));
    text.push('\n');
    text.push_str(&format_figures_table(&report.figures, style));
    if let Some(compared) = &report.comparison {
        text.push_str("\nThe newest result compared with the medians of the earlier ones:\n");
        text.push_str(&diff::format_comparison_table(&compared.figures, style));
        let mut reasons: Vec<String> = compared.figures.iter().filter_map(ComparedFigure::reason).collect();
        reasons.extend(compared.missing.iter().map(|name| format!("no result has the figure {name}")));
        // A trend of one result has no median to be compared with.
        if report.results.len() < 2 {
            reasons.push("there is no earlier result to compare the newest one with".to_owned());
        }
        text.push_str(&diff::format_verdict(compared.verdict, &reasons, style));
    }
    text
}

fn format_results_table(report: &TrendReport, style: TextStyle) -> String {
    let columns: Vec<&FigureTrend> = report.figures.iter().take(MAX_FIGURE_COLUMNS).collect();
    let titles: Vec<String> = columns.iter().copied().map(FigureTrend::title).collect();
    let mut header = vec!["id", "started (UTC)", "verdict"];
    header.extend(titles.iter().map(String::as_str));
    let rows: Vec<Vec<String>> = report
        .results
        .iter()
        .enumerate()
        .map(|(index, result)| {
            let mut row = vec![
                result.label.id.clone().unwrap_or_default(),
                identity::format_utc_date_time(result.started_wall_ns),
                result.label.verdict.clone(),
            ];
            row.extend(
                columns.iter().map(|trend| format_value(trend, trend.values.get(index).copied().flatten())),
            );
            row
        })
        .collect();
    // Id, verdict and the first figure are always shown: without them a row says nothing about a trend.
    let least_important: Vec<&str> = header.iter().skip(4).rev().copied().chain(["started (UTC)"]).collect();
    format_fitted_table(style.width(), &header, &rows, &least_important, "`--csv`")
}

fn format_figures_table(figures: &[FigureTrend], style: TextStyle) -> String {
    let header = ["figure", "first", "last", "least", "median", "most", "trend"];
    let rows: Vec<Vec<String>> = figures
        .iter()
        .map(|trend| {
            let values = [trend.first, trend.last, trend.min, trend.median, trend.max];
            let mut row = vec![trend.title()];
            row.extend(values.map(|found| format_value(trend, found)));
            row.push(render_sparkline(&trend.values, SPARKLINE_POINTS));
            row
        })
        .collect();
    format_fitted_table(style.width(), &header, &rows, &["least", "most", "first"], "`--markdown`")
}

fn format_value(trend: &FigureTrend, value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format_figure_value(value, &trend.unit))
}
