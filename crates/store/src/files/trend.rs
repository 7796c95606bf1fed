//! A trend as CSV and Markdown.

use super::comparison::{markdown_cell, table_row};
use super::csv::csv_line;
use crate::results::TrendReport;
use packetrig_stats::figure::{ComparedFigure, format_figure_value};

const HEADER: [&str; 8] = ["id", "started_wall_ns", "kind", "verdict", "figure", "subject", "value", "unit"];

/// A trend as CSV: one line for each figure of each result, the oldest result first. An unknown value is an empty cell.
pub fn trend_csv(report: &TrendReport) -> String {
    let mut text = csv_line(HEADER.map(str::to_owned).into_iter());
    for result in &report.results {
        for figure in &result.figures {
            text.push_str(&csv_line(
                [
                    result.label.id.clone().unwrap_or_default(),
                    result.started_wall_ns.to_string(),
                    result.label.kind.clone(),
                    result.label.verdict.clone(),
                    figure.name.clone(),
                    figure.subject.clone(),
                    figure.value.map(|value| value.to_string()).unwrap_or_default(),
                    figure.unit.clone(),
                ]
                .into_iter(),
            ));
        }
    }
    text
}

/// A trend as Markdown: a table with one line per figure, and the reasons if the newest result was judged.
pub fn trend_markdown(report: &TrendReport) -> String {
    let verdict =
        report.comparison.as_ref().map(|compared| format!("{}: ", compared.verdict)).unwrap_or_default();
    let mut text =
        format!("## {verdict}{} results of {}\n\n", report.results.len(), markdown_cell(&report.name));
    text.push_str(&table_row(["figure", "first", "last", "least", "median", "most"]));
    text.push_str("|---|--:|--:|--:|--:|--:|\n");
    for trend in &report.figures {
        let values = [trend.first, trend.last, trend.min, trend.median, trend.max].map(|value| {
            value.map_or_else(|| "–".to_owned(), |value| format_figure_value(value, &trend.unit))
        });
        let [first, last, min, median, max] = values.each_ref().map(String::as_str);
        text.push_str(&table_row([markdown_cell(&trend.title()).as_str(), first, last, min, median, max]));
    }
    let compared = report.comparison.iter().flat_map(|compared| &compared.figures);
    let reasons: Vec<String> = compared.filter_map(ComparedFigure::reason).collect();
    if !reasons.is_empty() {
        text.push('\n');
        text.extend(reasons.iter().map(|reason| format!("* {}\n", markdown_cell(reason))));
    }
    text
}
