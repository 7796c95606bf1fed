//! What a test shows: its progress on standard error, and its result as tables, JSON, CSV, JUnit XML and Markdown.

use super::bench::TrialBench;
use super::{MethodHead, SCHEMA_VERSION};
use crate::args::MethodTerms;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::numbers::{count, percent};
use crate::output::{CommandOutput, remark};
use crate::table::table;
use packetrig_method::tables::ResultTable;
use packetrig_method::{
    JudgedCriterion, MethodReport, MethodSession, MethodVerdict, TestMethod, TrialOrder, TrialResult,
};
use packetrig_stats::port::PortInfo;
use packetrig_store::files::{JunitCase, JunitOutcome, junit_cases};
use packetrig_store::methods::{RESULT, RESULT_CSV, RESULT_JUNIT, RESULT_MARKDOWN, RESULT_TEXT};
use packetrig_sys::kernel;
use packetrig_units::Nanos;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MethodForm {
    Tables,
    Json,
    Csv,
    Junit,
    Markdown,
}

impl MethodForm {
    pub(super) const fn of(terms: &MethodTerms) -> Self {
        if terms.json {
            Self::Json
        } else if terms.csv {
            Self::Csv
        } else if terms.junit {
            Self::Junit
        } else if terms.markdown {
            Self::Markdown
        } else {
            Self::Tables
        }
    }
}

/// A finished test: the file `result.json`.
#[derive(Debug, Serialize)]
pub(super) struct StoredTest {
    schema_version: u32,
    packetrig_version: String,
    id: String,
    name: String,
    /// Nanoseconds since 1970 (UTC).
    started_wall_ns: u64,
    kernel: String,
    ports: Vec<PortInfo>,
    trials: u32,
    /// PASS, FAIL or INCONCLUSIVE.
    verdict: &'static str,
    #[serde(flatten)]
    report: MethodReport,
    figures: Vec<packetrig_stats::figure::ReportFigure>,
    #[serde(skip)]
    tables: Vec<ResultTable>,
}

impl StoredTest {
    pub(super) fn new(
        head: &MethodHead,
        session: &MethodSession<Box<dyn packetrig_method::AnyMethod>>,
        bench: &TrialBench,
    ) -> Self {
        let report = session.method().report();
        Self {
            schema_version: SCHEMA_VERSION,
            packetrig_version: head.packetrig_version.clone(),
            id: head.id.clone(),
            name: head.name.clone(),
            started_wall_ns: head.started_wall_ns,
            kernel: kernel::release(),
            ports: bench.ports.clone(),
            trials: session.trials(),
            verdict: word(report.judgement.verdict),
            figures: report.figures(),
            tables: report.tables(),
            report,
        }
    }

    pub(super) const fn verdict_word(&self) -> &'static str {
        self.verdict
    }

    pub(super) fn exit(&self) -> CommandExit {
        match self.report.judgement.verdict {
            Some(MethodVerdict::Fail) => CommandExit::Fail,
            Some(MethodVerdict::Unknown) => CommandExit::Inconclusive,
            Some(MethodVerdict::Pass) | None => CommandExit::Ok,
        }
    }

    /// All files of the result, with their names.
    pub(super) fn files(&self) -> Vec<(&'static str, String)> {
        vec![
            (RESULT, self.json()),
            (RESULT_CSV, self.csv()),
            (RESULT_JUNIT, self.junit()),
            (RESULT_MARKDOWN, self.markdown()),
            (RESULT_TEXT, self.text()),
        ]
    }

    pub(super) fn print(
        &self,
        form: MethodForm,
        directory: &Path,
        output: &mut CommandOutput,
    ) -> Result<(), Error> {
        match form {
            MethodForm::Json => output.text(self.json()),
            MethodForm::Csv => output.text(self.csv()),
            MethodForm::Junit => output.text(self.junit()),
            MethodForm::Markdown => output.text(self.markdown()),
            MethodForm::Tables => {
                output.text(self.text());
                output.line(format_args!("Files: {}", directory.display()));
            }
        }
        Ok(())
    }

    fn json(&self) -> String {
        // Everything in it can be written as JSON: numbers, texts, lists.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    fn text(&self) -> String {
        let mut text = format!("Test {} ({}), {} trials\n", self.id, self.report.options.name(), self.trials);
        for part in &self.tables {
            write_table(&mut text, part);
        }
        text.push('\n');
        text.push_str(&self.verdict_lines());
        text
    }

    /// The verdict with its criteria, one line each.
    fn verdict_lines(&self) -> String {
        let judgement = &self.report.judgement;
        let mut lines = format!("Verdict: {}\n", self.verdict);
        for JudgedCriterion { criterion, verdict, reason } in &judgement.criteria {
            lines.push_str(&format!("  {}: {criterion}: {reason}\n", word(Some(*verdict))));
        }
        for reason in &judgement.unknown {
            lines.push_str(&format!("  not known: {reason}\n"));
        }
        lines
    }

    fn csv(&self) -> String {
        let mut text = String::new();
        for part in &self.tables {
            let title = [vec!["table".to_owned()], part.columns.clone()].concat();
            text.push_str(&csv_line(&title));
            for row in &part.rows {
                text.push_str(&csv_line(&[vec![part.title.clone()], row.clone()].concat()));
            }
        }
        text
    }

    fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n", self.title());
        text.push_str(&format!("**{}**, {} trials\n", self.verdict, self.trials));
        for JudgedCriterion { criterion, verdict, reason } in &self.report.judgement.criteria {
            text.push_str(&format!("\n* {}: {criterion}: {reason}", word(Some(*verdict))));
        }
        for reason in &self.report.judgement.unknown {
            text.push_str(&format!("\n* not known: {reason}"));
        }
        text.push('\n');
        for part in &self.tables {
            text.push_str(&format!("\n## {}\n\n", part.title));
            text.push_str(&markdown_line(&part.columns));
            text.push_str(&markdown_line(&vec!["---".to_owned(); part.columns.len()]));
            part.rows.iter().for_each(|row| text.push_str(&markdown_line(row)));
            part.notes.iter().for_each(|note| text.push_str(&format!("\n{note}\n")));
        }
        text
    }

    fn title(&self) -> String {
        if self.name.is_empty() {
            self.report.options.name().to_owned()
        } else {
            format!("{}: {}", self.report.options.name(), self.name)
        }
    }

    fn junit(&self) -> String {
        let judgement = &self.report.judgement;
        let mut cases: Vec<JunitCase> = judgement
            .criteria
            .iter()
            .map(|judged| JunitCase {
                class: "criteria".to_owned(),
                name: judged.criterion.clone(),
                outcome: match judged.verdict {
                    MethodVerdict::Pass => JunitOutcome::Passed,
                    MethodVerdict::Fail => JunitOutcome::Failed(vec![judged.reason.clone()]),
                    MethodVerdict::Unknown => JunitOutcome::Error(vec![judged.reason.clone()]),
                },
            })
            .collect();
        cases.push(JunitCase {
            class: "test".to_owned(),
            name: "everything that was asked for is known".to_owned(),
            outcome: match judgement.unknown.as_slice() {
                [] => JunitOutcome::Passed,
                reasons => JunitOutcome::Error(reasons.to_vec()),
            },
        });
        junit_cases(&self.title(), &cases)
    }
}

/// The verdict as runs have it. A test without criteria whose values are all known passes.
const fn word(verdict: Option<MethodVerdict>) -> &'static str {
    match verdict {
        Some(MethodVerdict::Pass) | None => "PASS",
        Some(MethodVerdict::Fail) => "FAIL",
        Some(MethodVerdict::Unknown) => "INCONCLUSIVE",
    }
}

fn write_table(text: &mut String, part: &ResultTable) {
    let head: Vec<&str> = part.columns.iter().map(String::as_str).collect();
    text.push_str(&format!("\n{}\n{}", part.title, table(&head, part.rows.iter().cloned())));
    part.notes.iter().for_each(|note| text.push_str(&format!(" {note}\n")));
}

fn csv_line(cells: &[String]) -> String {
    let quoted = cells.iter().map(|cell| {
        let needs_quotes = cell.contains([',', '"', '\n']);
        if needs_quotes { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.clone() }
    });
    let mut line = quoted.collect::<Vec<_>>().join(",");
    line.push('\n');
    line
}

fn markdown_line(cells: &[String]) -> String {
    let escaped: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", escaped.join(" | "))
}

/// Says which trial comes next.
pub(super) fn announce(number: u32, order: &TrialOrder, method: &dyn TestMethod) {
    remark(format_args!("trial {number}: {}", in_words(order)));
    let known = method.progress();
    if !known.is_empty() {
        remark(format_args!("  {known}"));
    }
}

fn in_words(order: &TrialOrder) -> String {
    let mut text = String::new();
    if let Some(size) = order.size {
        drop(write!(text, "{size}, "));
    }
    drop(write!(text, "{} for {}", order.load, order.sending()));
    if let Some(step) = order.then {
        drop(write!(text, ", at the end {}", step.load));
    }
    text
}

/// Says what a trial found.
pub(super) fn tell(result: &TrialResult) {
    let lost = result.lost.most;
    let share = percent(lost, result.sent.max(1));
    let unsent = match result.unsent() {
        0 => String::new(),
        unsent => format!(", {} unsent", count(unsent)),
    };
    remark(format_args!("  lost {} of {} ({share}){unsent}", count(lost), count(result.sent)));
    if let Some(fault) = &result.rig_fault {
        remark(format_args!("  the rig could not hold the trial: {fault}"));
    }
}

/// The time that a test takes, on standard error.
pub(super) fn announce_cost(options: &packetrig_method::MethodOptions) {
    remark(format_args!("{}", cost_in_words(options)));
}

fn cost_in_words(options: &packetrig_method::MethodOptions) -> String {
    let cost = options.cost();
    let (least, most) = (duration(cost.least.time), duration(cost.most.time));
    let name = options.name();
    if cost.least == cost.most {
        format!("{name}: {} trials in {least}", cost.least.trials)
    } else {
        format!("{name}: {} to {} trials in {least} to {most}", cost.least.trials, cost.most.trials)
    }
}

/// A long time as a person plans with it.
fn duration(time: Nanos) -> String {
    let seconds = time.as_u64().div_ceil(1_000_000_000);
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// `--dry-run`: trials and time.
pub(super) fn dry_run(options: &packetrig_method::MethodOptions, output: &mut CommandOutput) {
    output.line(format_args!("{}", cost_in_words(options)));
    output.line(format_args!("Trials, if the device carries about half of the highest load:"));
    let head = ["trial", "purpose", "size", "frames/s", "sends for", "waits"];
    let rows = options.example_orders().into_iter().enumerate().map(|(index, order)| {
        let waits = options.waits(&order).sum();
        vec![
            (index + 1).to_string(),
            order.purpose.to_string(),
            order.size.map_or_else(|| "of the plan".to_owned(), |size| size.to_string()),
            count(order.load.frames_per_second() as u64),
            order.sending().to_string(),
            waits.to_string(),
        ]
    });
    output.text(table(&head, rows));
}
