//! A comparison of two results as CSV, JUnit XML and Markdown.

use super::csv::csv_line;
use super::junit::{JunitCounts, append_case, junit_suite, reason_element};
use crate::results::{ComparisonReport, ResultLabel};
use packetrig_stats::figure::{
    ComparedFigure, FigureVerdict, format_figure_difference, format_figure_value, format_signed_percent,
};

const HEADER: [&str; 13] = [
    "figure",
    "subject",
    "unit",
    "better",
    "before",
    "after",
    "difference",
    "percent",
    "uncertainty",
    "change",
    "limit",
    "verdict",
    "reason",
];

/// A comparison as CSV, one line per figure. An unknown value is an empty cell.
pub fn comparison_csv(report: &ComparisonReport) -> String {
    let mut text = csv_line(HEADER.map(str::to_owned).into_iter());
    for figure in &report.comparison.figures {
        text.push_str(&csv_line(figure_cells(figure).into_iter()));
    }
    text
}

fn figure_cells(figure: &ComparedFigure) -> [String; 13] {
    let better = serde_json::to_value(figure.better).ok();
    let verdict = figure.verdict.and_then(|verdict| serde_json::to_value(verdict).ok());
    [
        figure.name.clone(),
        figure.subject.clone(),
        figure.unit.clone(),
        better.and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default(),
        number_cell(figure.before),
        number_cell(figure.after),
        number_cell(figure.difference),
        number_cell(figure.percent),
        number_cell(figure.uncertainty),
        figure.change.word().to_owned(),
        figure.limit.clone().unwrap_or_default(),
        verdict.and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default(),
        figure.reason().unwrap_or_default(),
    ]
}

fn number_cell(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// A comparison as a JUnit test suite: one test case for each judged figure and one for the whole comparison. An
/// undecided case is an error, so that no build server counts it as a success.
pub fn comparison_junit(report: &ComparisonReport) -> String {
    let mut cases = String::new();
    let mut counts = JunitCounts::default();
    for figure in report.comparison.figures.iter().filter(|figure| figure.verdict.is_some()) {
        let reasons: Vec<String> = figure.reason().into_iter().collect();
        let inner = outcome_element(figure.verdict, &reasons, &mut counts);
        append_case(&mut cases, "figures", &figure.title(), &inner);
    }
    let inner = outcome_element(Some(report.comparison.verdict), &report.reasons(), &mut counts);
    append_case(&mut cases, "comparison", "verdict", &inner);
    let name = format!("{} against {}", label_text(&report.after), label_text(&report.before));
    junit_suite(&name, counts, 0.0, &cases)
}

fn outcome_element(verdict: Option<FigureVerdict>, reasons: &[String], counts: &mut JunitCounts) -> String {
    counts.tests += 1;
    match verdict {
        Some(FigureVerdict::Fail) => {
            counts.failures += 1;
            reason_element("failure", reasons)
        }
        Some(FigureVerdict::Unknown) => {
            counts.errors += 1;
            reason_element("error", reasons)
        }
        _ => String::new(),
    }
}

/// A comparison as Markdown: a heading with the verdict, a table of all figures, and the reasons for the verdict.
pub fn comparison_markdown(report: &ComparisonReport) -> String {
    let mut text = format!(
        "## {}: {} against {}\n\n",
        report.comparison.verdict,
        markdown_cell(&label_text(&report.after)),
        markdown_cell(&label_text(&report.before))
    );
    text.push_str(&table_row(["figure", "before", "now", "difference", "", "change", "allowed", "verdict"]));
    text.push_str("|---|--:|--:|--:|--:|---|---|---|\n");
    for figure in &report.comparison.figures {
        let value = |value: Option<f64>| {
            value.map_or_else(missing_value_dash, |value| format_figure_value(value, &figure.unit))
        };
        let difference = figure
            .difference
            .map_or_else(missing_value_dash, |by| format_figure_difference(by, &figure.unit));
        text.push_str(&table_row([
            markdown_cell(&figure.title()).as_str(),
            &value(figure.before),
            &value(figure.after),
            &difference,
            &figure.percent.map(format_signed_percent).unwrap_or_default(),
            figure.change.word(),
            figure.limit.as_deref().unwrap_or_default(),
            figure.verdict.map(FigureVerdict::word).unwrap_or_default(),
        ]));
    }
    let reasons = report.reasons();
    if !reasons.is_empty() {
        text.push('\n');
        text.extend(reasons.iter().map(|reason| format!("* {}\n", markdown_cell(reason))));
    }
    text
}

fn missing_value_dash() -> String {
    "–".to_owned()
}

pub(super) fn table_row<const N: usize>(cells: [&str; N]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// Escapes a text so that Markdown does not read its characters as table marks or as HTML.
pub(super) fn markdown_cell(text: &str) -> String {
    // `&` comes first: otherwise the entities of the other characters would be escaped again.
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('|', "\\|");
    // A line break would end the row of the table.
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Kind, id and name of a result; an id or a name that is not known is left out.
pub(super) fn label_text(label: &ResultLabel) -> String {
    let parts = [Some(label.kind.as_str()), label.id.as_deref()].into_iter().flatten();
    let mut text = parts.collect::<Vec<_>>().join(" ");
    if !label.name.is_empty() {
        text.extend([" \"", &label.name, "\""]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{ComparableResult, TestSubject, TrendReport, TrendResult};
    use packetrig_stats::figure::{BetterDirection, FigureLimits, ReportFigure};

    fn result(id: &str, plan: &str, rate: f64, loss: Option<f64>) -> ComparableResult {
        let figures = vec![
            ReportFigure::new("throughput", "a|b <1>", Some(rate), "frames/s", BetterDirection::Higher),
            ReportFigure::new("loss", "run", loss, "%", BetterDirection::Lower),
        ];
        ComparableResult {
            id: Some(id.into()),
            name: "nightly".into(),
            kind: "run".into(),
            verdict: "PASS".into(),
            subject: TestSubject::Plan(plan.into()),
            figures,
        }
    }

    fn limits() -> FigureLimits {
        FigureLimits::new(vec!["5%".parse().unwrap()])
    }

    fn compared() -> ComparisonReport {
        ComparisonReport::from_results(
            &result("x", "p", 1000.0, Some(0.0)),
            &result("y", "p", 900.0, None),
            &limits(),
            false,
        )
    }

    #[test]
    fn comparison_is_written_as_csv_junit_and_markdown() {
        let report = compared();
        let csv = comparison_csv(&report);
        let rows: Vec<&str> = csv.lines().collect();
        assert_eq!(rows.len(), 3);
        assert!(
            rows[1].starts_with("throughput,a|b <1>,frames/s,higher,1000,900,-100,-10,,worse,5%,FAIL,"),
            "{csv}"
        );
        assert!(rows[2].starts_with("loss,run,%,lower,0,,,,,unknown,5%,UNKNOWN,"), "{csv}");
        let junit = comparison_junit(&report);
        assert!(junit.contains("tests=\"3\" failures=\"2\" errors=\"1\""), "{junit}");
        assert!(junit.contains("name=\"throughput of a|b &lt;1&gt;\""), "{junit}");
        let markdown = comparison_markdown(&report);
        assert!(markdown.starts_with("## FAIL: run y \"nightly\" against run x \"nightly\"\n"), "{markdown}");
        assert!(markdown.contains("| throughput of a\\|b &lt;1> | 1 000 frames/s | 900 frames/s | -100 frames/s | -10 % | worse | 5% | FAIL |"), "{markdown}");
        assert!(
            markdown.contains("| loss of run | 0 % | – | – |  | unknown | 5% | INCONCLUSIVE |"),
            "{markdown}"
        );
    }

    #[test]
    fn comparison_of_different_plans_is_unknown_unless_forced() {
        let [before, after] = ["p", "q"].map(|plan| result("x", plan, 1000.0, Some(0.0)));
        let report = ComparisonReport::from_results(&before, &after, &limits(), false);
        assert_eq!(report.comparison.verdict, FigureVerdict::Unknown);
        assert_eq!(report.reasons(), ["the results are not of the same test: their plans differ"]);
        let anyway = ComparisonReport::from_results(&before, &after, &limits(), true);
        assert_eq!((anyway.comparison.verdict, anyway.difference), (FigureVerdict::Pass, None));
    }

    fn trend(rates: &[f64]) -> TrendReport {
        let results = rates.iter().enumerate().map(|(index, rate)| {
            let found = result(&format!("r{index}"), "p", *rate, Some(0.0));
            TrendResult { label: found.label(), started_wall_ns: index as u64, figures: found.figures }
        });
        TrendReport::from_results("nightly".into(), results.collect(), &limits())
    }

    #[test]
    fn trend_compares_newest_with_median_of_earlier() {
        let verdict = |rates: &[f64]| trend(rates).comparison.map(|compared| compared.verdict);
        assert_eq!(verdict(&[1000.0, 10.0, 1010.0, 960.0]), Some(FigureVerdict::Pass));
        assert_eq!(verdict(&[1000.0, 10.0, 1010.0, 940.0]), Some(FigureVerdict::Fail));
        assert_eq!(verdict(&[1000.0]), Some(FigureVerdict::Unknown), "there is nothing to compare it with");
        assert_eq!(verdict(&[]), None);
    }

    #[test]
    fn a_trend_is_a_table_and_a_page() {
        let report = trend(&[1000.0, 900.0]);
        let csv = super::super::trend_csv(&report);
        assert_eq!(csv.lines().count(), 5);
        assert!(csv.contains("r1,1,run,PASS,throughput,a|b <1>,900,frames/s"), "{csv}");
        let markdown = super::super::trend_markdown(&report);
        assert!(markdown.starts_with("## FAIL: 2 results of nightly\n"), "{markdown}");
        assert!(
            markdown
                .contains("| 1 000 frames/s | 900 frames/s | 900 frames/s | 950 frames/s | 1 000 frames/s |"),
            "{markdown}"
        );
    }
}
