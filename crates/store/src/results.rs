//! Stored results, reduced to the data for a comparison: their figures and the subject of the test.
//!
//! A result comes from the catalogue or from a file that the user keeps elsewhere: the `report.json` of a
//! run, or the `result.json` of a method. From a method's result, this crate reads only `options`, `figures`,
//! the id, the name and the verdict.

use crate::Error;
use crate::catalogue::RUN_KIND;
use packetrig_report::{RunReport, SCHEMA_VERSION, run_figures};
use packetrig_stats::figure::{
    ComparedFigure, FigureComparison, FigureLimits, FigureTrend, FigureVerdict, ReportFigure,
    compare_figures, compute_figure_trends, compute_median_figures,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The data of a result that a comparison needs.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparableResult {
    /// Absent if the file has none.
    pub id: Option<String>,
    /// Name that the user gave the result; may be empty.
    pub name: String,
    /// `run`, or the name of the method.
    pub kind: String,
    /// PASS, FAIL or INCONCLUSIVE; empty for a file without a verdict.
    pub verdict: String,
    pub subject: TestSubject,
    pub figures: Vec<ReportFigure>,
}

/// Subject of a test: the plan or the options. A comparison of different subjects is INCONCLUSIVE unless the user
/// asks for it explicitly.
#[derive(Clone, Debug, PartialEq)]
pub enum TestSubject {
    /// Hash of the plan.
    Plan(String),
    /// Options of the method.
    Options(Value),
}

impl ComparableResult {
    pub(crate) fn from_report(report: &RunReport, figures: Vec<ReportFigure>) -> Self {
        Self {
            id: Some(report.run.0.clone()),
            name: report.name.clone(),
            kind: RUN_KIND.to_owned(),
            verdict: report.verdict.as_str().to_owned(),
            subject: TestSubject::Plan(report.plan_sha256.as_str().to_owned()),
            figures,
        }
    }

    pub fn label(&self) -> ResultLabel {
        ResultLabel {
            id: self.id.clone(),
            name: self.name.clone(),
            kind: self.kind.clone(),
            verdict: self.verdict.clone(),
        }
    }

    /// Reason why this result and `other` do not belong to the same test; `None` if they do.
    pub fn difference_to(&self, other: &Self) -> Option<String> {
        if self.kind != other.kind {
            return Some(format!(
                "the first result is of the kind `{}`, the second of the kind `{}`",
                self.kind, other.kind
            ));
        }
        if self.subject == other.subject {
            return None;
        }
        Some(match &self.subject {
            TestSubject::Plan(_) => "their plans differ".to_owned(),
            TestSubject::Options(_) => "their options differ".to_owned(),
        })
    }
}

/// Version of the JSON format of comparisons and trends. A reader refuses a higher one.
pub const COMPARISON_VERSION: u32 = 1;

/// Identity of a result in a comparison or a trend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ResultLabel {
    /// Absent if the file has none.
    pub id: Option<String>,
    pub name: String,
    /// `run`, or the name of the method.
    pub kind: String,
    /// PASS, FAIL or INCONCLUSIVE; empty if it is not known.
    pub verdict: String,
}

/// Two results side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparisonReport {
    pub schema_version: u32,
    pub before: ResultLabel,
    pub after: ResultLabel,
    /// Reason why the two results are not of the same test; absent if they are, or if the user compares them anyway.
    pub difference: Option<String>,
    #[serde(flatten)]
    pub comparison: FigureComparison,
}

impl ComparisonReport {
    /// Compares two results. Results of different tests are INCONCLUSIVE unless `anyway`.
    pub fn from_results(
        before: &ComparableResult,
        after: &ComparableResult,
        limits: &FigureLimits,
        anyway: bool,
    ) -> Self {
        let mut comparison = compare_figures(&before.figures, &after.figures, limits);
        let difference = before.difference_to(after).filter(|_| !anyway);
        // Figures of different tests can be shown side by side, but none of them is better or worse.
        if difference.is_some() {
            comparison.verdict = FigureVerdict::Unknown;
        }
        Self {
            schema_version: COMPARISON_VERSION,
            before: before.label(),
            after: after.label(),
            difference,
            comparison,
        }
    }

    /// Reasons why the verdict is not PASS: one for different tests, and one for each figure that does not pass.
    pub fn reasons(&self) -> Vec<String> {
        let judged = self.comparison.figures.iter().filter_map(ComparedFigure::reason);
        let missing =
            self.comparison.missing.iter().map(|name| format!("neither result has the figure {name}"));
        let difference =
            self.difference.iter().map(|why| format!("the results are not of the same test: {why}"));
        difference.chain(judged).chain(missing).collect()
    }
}

/// The results with one name, the oldest first, and the trend of each figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrendReport {
    pub schema_version: u32,
    pub name: String,
    pub results: Vec<TrendResult>,
    pub figures: Vec<FigureTrend>,
    /// The newest result against the medians of earlier results; absent if nothing is judged.
    pub comparison: Option<FigureComparison>,
}

/// One result in a trend.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrendResult {
    #[serde(flatten)]
    pub label: ResultLabel,
    /// When the user started it, nanoseconds since 1970 (UTC).
    pub started_wall_ns: u64,
    pub figures: Vec<ReportFigure>,
}

impl TrendReport {
    /// Computes the trend of results, which are given oldest first. With limits, the newest result is judged.
    pub fn from_results(name: String, results: Vec<TrendResult>, limits: &FigureLimits) -> Self {
        let figures: Vec<Vec<ReportFigure>> = results.iter().map(|result| result.figures.clone()).collect();
        let comparison = figures.split_last().filter(|_| !limits.is_empty()).map(|(newest, before)| {
            let mut compared = compare_figures(&compute_median_figures(before), newest, limits);
            if before.is_empty() {
                // Without an earlier result, there is nothing to compare the newest one with.
                compared.verdict = FigureVerdict::Unknown;
            }
            compared
        });
        Self {
            schema_version: COMPARISON_VERSION,
            name,
            figures: compute_figure_trends(&figures),
            results,
            comparison,
        }
    }
}

/// The members of a method's `result.json` that this crate reads.
#[derive(Deserialize)]
struct MethodResultFile {
    options: Value,
    figures: Vec<ReportFigure>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    name: String,
    #[serde(default)]
    verdict: String,
}

/// Reads the `report.json` of a run or the `result.json` of a method.
pub fn read_result_file(path: &Path) -> Result<ComparableResult, Error> {
    let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
    let value: Value = serde_json::from_str(&text).map_err(Error::damaged_file(path))?;
    // Only results of methods have the member `figures`. The figures of a run are computed from its report.
    if value.get("figures").is_none() {
        let report = read_report_value(path, value)?;
        return Ok(ComparableResult::from_report(&report, run_figures(&report)));
    }
    let found: MethodResultFile = serde_json::from_value(value).map_err(Error::damaged_file(path))?;
    // The name of the method is one of its options.
    let kind = found.options.get("method").and_then(Value::as_str).unwrap_or("method").to_owned();
    Ok(ComparableResult {
        id: found.id,
        name: found.name,
        kind,
        verdict: found.verdict,
        subject: TestSubject::Options(found.options),
        figures: found.figures,
    })
}

fn read_report_value(path: &Path, value: Value) -> Result<RunReport, Error> {
    // Only the version is read, to distinguish a newer report from a damaged one.
    let found = value.get("schema_version").and_then(Value::as_u64).unwrap_or(0);
    if found > u64::from(SCHEMA_VERSION) {
        let found = packetrig_units::clamp_to_u32(found);
        return Err(Error::TooNew { path: path.to_owned(), found, known: SCHEMA_VERSION });
    }
    serde_json::from_value(value).map_err(Error::damaged_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::report;
    use packetrig_stats::figure::BetterDirection;
    use serde_json::json;

    fn write(place: &tempfile::TempDir, name: &str, text: &str) -> std::path::PathBuf {
        let path = place.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn run_and_method_result_files_are_read() {
        let place = tempfile::tempdir().unwrap();
        let stored = report("r");
        let run =
            read_result_file(&write(&place, "report.json", &crate::files::report_json(&stored))).unwrap();
        assert_eq!((run.id.as_deref(), &run.kind[..]), (Some("r"), "run"));
        assert_eq!(run.figures, run_figures(&stored));
        let figure = ReportFigure::new("throughput", "64 B", Some(7.0), "frames/s", BetterDirection::Higher);
        let text = json!({
            "id": "m", "verdict": "PASS", "options": {"method": "rfc2544", "sizes": [64]}, "figures": [figure], "more": 1
        });
        let method = read_result_file(&write(&place, "result.json", &text.to_string())).unwrap();
        assert_eq!((&method.kind[..], &method.figures[..]), ("rfc2544", &[figure][..]));
        assert_eq!((method.id.as_deref(), &method.name[..], &method.verdict[..]), (Some("m"), "", "PASS"));
        assert!(run.difference_to(&method).unwrap().contains("`run`"));
        let mut other = method.clone();
        assert_eq!(method.difference_to(&other), None);
        other.subject = TestSubject::Options(json!({"method": "rfc2544", "sizes": [128]}));
        assert_eq!(method.difference_to(&other).unwrap(), "their options differ");
    }

    #[test]
    fn invalid_result_error_names_the_file() {
        let place = tempfile::tempdir().unwrap();
        for (text, wanted) in
            [("{", "damaged"), ("{}", "damaged"), ("{\"schema_version\": 99}", "version 99")]
        {
            let error = read_result_file(&write(&place, "x.json", text)).unwrap_err().to_string();
            assert!(error.contains("x.json") && error.contains(wanted), "{error}");
        }
        let error = read_result_file(&place.path().join("nothing.json")).unwrap_err();
        assert!(matches!(error, Error::File { .. }));
    }
}
