//! The result of a test method as CSV, JUnit XML and Markdown.

use super::comparison::markdown_cell;
use super::csv::csv_field;
use super::junit::{JunitCounts, append_case, junit_suite, reason_element};
use packetrig_method::tables::ResultTable;
use packetrig_method::{JudgedCriterion, MethodJudgement, MethodVerdict};
use packetrig_units::Nanos;

/// The tables of a result as one CSV file, one below the other. The first column names the table.
pub fn method_csv(tables: &[ResultTable]) -> String {
    let mut text = String::new();
    for table in tables {
        text.push_str(&csv_line("table", &table.column_headings()));
        table.rows.iter().for_each(|row| text.push_str(&csv_line(&table.title, row)));
    }
    text
}

fn csv_line(first: &str, cells: &[String]) -> String {
    let cells = std::iter::once(first).chain(cells.iter().map(String::as_str));
    let quoted: Vec<String> = cells.map(csv_field).collect();
    format!("{}\n", quoted.join(","))
}

/// The result as a JUnit test suite: one test case for each criterion, and one for values that are not
/// known. `took` is the time of all trials.
pub fn method_junit(title: &str, judgement: &MethodJudgement, took: Nanos) -> String {
    let mut cases = String::new();
    let mut counts = JunitCounts::default();
    for judged in &judgement.criteria {
        let reasons = std::slice::from_ref(&judged.reason);
        let inner = outcome_element(judged.verdict, reasons, &mut counts);
        append_case(&mut cases, "criteria", &judged.criterion, &inner);
    }
    // Unknown values have a separate test case, so that they are visible on a build server. If the criteria
    // hold without them, they are no error there: the exit code is that of PASS, too.
    let inner = if judgement.unknown.is_empty() {
        outcome_element(MethodVerdict::Pass, &[], &mut counts)
    } else if judgement.verdict == Some(MethodVerdict::Pass) {
        counts.tests += 1;
        counts.skipped += 1;
        reason_element("skipped", &judgement.unknown)
    } else {
        outcome_element(MethodVerdict::Unknown, &judgement.unknown, &mut counts)
    };
    append_case(&mut cases, "test", "all requested values are known", &inner);
    junit_suite(title, counts, took.as_secs_f64(), &cases)
}

fn outcome_element(verdict: MethodVerdict, reasons: &[String], counts: &mut JunitCounts) -> String {
    counts.tests += 1;
    match verdict {
        MethodVerdict::Pass => String::new(),
        MethodVerdict::Fail => {
            counts.failures += 1;
            reason_element("failure", reasons)
        }
        MethodVerdict::Unknown => {
            counts.errors += 1;
            reason_element("error", reasons)
        }
    }
}

/// The result as Markdown: a heading with the verdict, the criteria, and all tables.
pub fn method_markdown(
    title: &str,
    verdict: &str,
    judgement: &MethodJudgement,
    tables: &[ResultTable],
) -> String {
    let criteria = judgement.criteria.iter().map(|judged| {
        let JudgedCriterion { criterion, verdict, reason } = judged;
        format!("* {verdict}: {}: {}\n", markdown_cell(criterion), markdown_cell(reason))
    });
    let unknown = judgement.unknown.iter().map(|reason| format!("* not known: {}\n", markdown_cell(reason)));
    let heading = format!("## {verdict}: {}\n\n", markdown_cell(title));
    let parts = std::iter::once(heading).chain(criteria).chain(unknown);
    parts.chain(tables.iter().map(markdown_table)).collect()
}

fn markdown_table(table: &ResultTable) -> String {
    let heading = format!("\n### {}\n\n", markdown_cell(&table.title));
    let notes = table.notes.iter().map(|note| format!("\n{}\n", markdown_cell(note)));
    if table.rows.is_empty() {
        return std::iter::once(format!("\n### {}\n", markdown_cell(&table.title))).chain(notes).collect();
    }
    let line = markdown_row(&vec!["--:".to_owned(); table.columns.len()]);
    let rows = table.rows.iter().map(|row| markdown_row(row));
    [heading, markdown_row(&table.column_headings()), line].into_iter().chain(rows).chain(notes).collect()
}

fn markdown_row(cells: &[String]) -> String {
    format!("| {} |\n", cells.iter().map(|text| markdown_cell(text)).collect::<Vec<_>>().join(" | "))
}
