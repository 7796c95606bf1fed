//! Output of a test: its progress on standard error, and its result as tables, JSON, CSV, JUnit XML and Markdown.

use super::MethodHead;
use super::trial_runner::TrialRunner;
use super::watch::TrialToBegin;
use crate::args::MethodRunOptions;
use crate::exit::CommandExit;
use crate::numbers::{format_count, format_count_with_unit, format_percent};
use crate::output::{CommandOutput, print_remark};
use crate::table::format_fitted_table;
use packetrig_method::journal::MethodJournalEntry;
use packetrig_method::tables::{ResultTable, tabulate_plan};
use packetrig_method::{
    CostRange, MethodOptions, MethodOptionsError, MethodReport, MethodResult, MethodSession, MethodVerdict,
    StartedMethod, TestMethod, TrialRequest, TrialResult,
};
use packetrig_page::report::{MethodPage, render_method};
use packetrig_program::wrap::wrap_text;
use packetrig_stats::port::PortInfo;
use packetrig_store::files;
use packetrig_store::methods::{
    RESULT_CSV_FILE, RESULT_FILE_NAME, RESULT_JUNIT_FILE, RESULT_MARKDOWN_FILE, RESULT_TEXT_FILE,
};
use packetrig_sys::kernel;
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Number of columns, the first ones of a table, that are shown at any width.
const ALWAYS_SHOWN_COLUMNS: usize = 3;

/// Format of a printed result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MethodResultFormat {
    Tables,
    Json,
    Csv,
    Junit,
    Markdown,
}

impl MethodResultFormat {
    pub(super) const fn from_terms(terms: &MethodRunOptions) -> Self {
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
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct StoredTest {
    packetrig_version: String,
    id: String,
    name: String,
    /// Time of the start, in nanoseconds since 1970 (UTC).
    started_wall_ns: u64,
    kernel: String,
    ports: Vec<PortInfo>,
    trials: u32,
    /// Total time of all trials, with their waits and the time that the rig needs between them.
    #[serde(default)]
    took_ns: Nanos,
    /// PASS, FAIL or INCONCLUSIVE; NOT JUDGED without a criterion.
    verdict: String,
    #[serde(flatten)]
    report: MethodReport,
    #[serde(default)]
    figures: Vec<packetrig_stats::figure::ReportFigure>,
    #[serde(skip)]
    tables: Vec<ResultTable>,
}

impl StoredTest {
    pub(super) fn new(
        head: &MethodHead,
        session: &MethodSession<StartedMethod>,
        runner: &TrialRunner,
        trials: &[MethodJournalEntry],
    ) -> Self {
        let report = session.method().build_report(&head.options).with_senders(runner.loaded_senders());
        Self {
            packetrig_version: head.packetrig_version.clone(),
            id: head.id.clone(),
            name: head.name.clone(),
            started_wall_ns: head.started_wall_ns,
            kernel: kernel::kernel_release_name(),
            ports: runner.ports.clone(),
            trials: session.trial_count(),
            took_ns: sum_trial_times(&head.options, trials),
            // The verdict is stored as a word, so that later versions show it unchanged.
            verdict: verdict_name(report.judgement.verdict).to_owned(),
            figures: report.result.report_figures(),
            tables: report.to_tables(),
            report,
        }
    }

    pub(super) const fn result(&self) -> &MethodResult {
        &self.report.result
    }

    pub(super) const fn verdict_word(&self) -> &'static str {
        verdict_name(self.report.judgement.verdict)
    }

    pub(super) fn verdict_exit(&self) -> CommandExit {
        match self.report.judgement.verdict {
            Some(MethodVerdict::Fail) => CommandExit::Fail,
            Some(MethodVerdict::Unknown) => CommandExit::Inconclusive,
            // Without a criterion the test cannot fail: a complete test is a success.
            Some(MethodVerdict::Pass) | None => CommandExit::Ok,
        }
    }

    /// Renders the files of the result, except its page. Returns the name and the text of each.
    pub(super) fn result_files(&self) -> Vec<(&'static str, String)> {
        vec![
            (RESULT_FILE_NAME, self.to_json()),
            (RESULT_CSV_FILE, self.to_csv()),
            (RESULT_JUNIT_FILE, self.to_junit()),
            (RESULT_MARKDOWN_FILE, self.to_markdown()),
            (RESULT_TEXT_FILE, self.to_text(None)),
        ]
    }

    /// Renders the result as a web page. `documents` are the plans of the devices.
    pub(super) fn render_page(&self, trials: &[MethodJournalEntry], documents: &[String]) -> String {
        render_method(MethodPage {
            id: &self.id,
            name: &self.name,
            version: &self.packetrig_version,
            started_wall_ns: self.started_wall_ns,
            kernel: &self.kernel,
            verdict: &self.verdict,
            report: &self.report,
            trials,
            ports: &self.ports,
            documents,
        })
    }

    pub(super) fn print_result(
        &self,
        form: MethodResultFormat,
        directory: &Path,
        output: &mut CommandOutput,
    ) {
        match form {
            MethodResultFormat::Json => output.write_text(self.to_json()),
            MethodResultFormat::Csv => output.write_text(self.to_csv()),
            MethodResultFormat::Junit => output.write_text(self.to_junit()),
            MethodResultFormat::Markdown => output.write_text(self.to_markdown()),
            MethodResultFormat::Tables => {
                output.write_text(self.to_text(output.style().width()));
                output.write_line(format_args!("Files: {}", directory.display()));
            }
        }
    }

    fn to_json(&self) -> String {
        // The value has only numbers, texts and lists, which JSON can always represent.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Formats the tables in lines of at most `width` characters; `None` means no limit.
    fn to_text(&self, width: Option<usize>) -> String {
        let trials = format_count_with_unit(u64::from(self.trials), "trial");
        let heading = format!("Test {} ({}), {trials}\n", self.id, self.report.options.name());
        // If a criterion judges something, a table shows the verdict. Otherwise the verdict gets a line of its own.
        let is_judged = self.report.judgement.verdict.is_some();
        let verdict = if is_judged { String::new() } else { format!("\nVerdict: {}\n", self.verdict) };
        let tables = self.tables.iter().map(|table| format_result_table(table, width));
        std::iter::once(heading).chain(tables).chain([verdict]).collect()
    }

    fn to_csv(&self) -> String {
        files::method_csv(&self.tables)
    }

    fn to_markdown(&self) -> String {
        files::method_markdown(&self.title(), &self.verdict, &self.report.judgement, &self.tables)
    }

    fn to_junit(&self) -> String {
        files::method_junit(&self.title(), &self.report.judgement, self.took_ns)
    }

    fn title(&self) -> String {
        if self.name.is_empty() {
            self.report.options.name().to_owned()
        } else {
            format!("{}: {}", self.report.options.name(), self.name)
        }
    }
}

fn sum_trial_times(options: &MethodOptions, trials: &[MethodJournalEntry]) -> Nanos {
    // Start and end of the test are not used: a resumed test has a pause before each resume.
    trials.iter().fold(Nanos::ZERO, |sum, MethodJournalEntry { order, result, .. }| {
        sum + options.trial_waits(order).total_wait() + result.sending + result.overhead
    })
}

/// Returns the name of the verdict, as for runs. Without a criterion there is no PASS, even if every value is known.
const fn verdict_name(verdict: Option<MethodVerdict>) -> &'static str {
    match verdict {
        None => "NOT JUDGED",
        Some(MethodVerdict::Pass) => "PASS",
        Some(MethodVerdict::Fail) => "FAIL",
        Some(MethodVerdict::Unknown) => "INCONCLUSIVE",
    }
}

fn format_result_table(part: &ResultTable, width: Option<usize>) -> String {
    let headings = part.column_headings();
    let head: Vec<&str> = headings.iter().map(String::as_str).collect();
    // The first columns say what was measured and how much, so the last ones are left out first.
    let least_important: Vec<&str> = head.iter().skip(ALWAYS_SHOWN_COLUMNS).rev().copied().collect();
    let notes: String = part.notes.iter().map(|note| wrap_text(&format!(" {note}\n"), width)).collect();
    // A table without rows has only notes: they explain why there are no rows.
    if part.rows.is_empty() {
        return format!("\n{}\n{notes}", part.title);
    }
    let all = format!("`{RESULT_TEXT_FILE}`");
    let table = format_fitted_table(width, &head, &part.rows, &least_important, &all);
    format!("\n{}\n{table}{notes}", part.title)
}

/// Prints the next trial, the findings so far, and an estimate of the remaining trials' time.
pub(super) fn announce_trial(trial: &TrialToBegin<'_>) {
    let TrialToBegin { number, order, options, method } = trial;
    print_remark(format_args!("trial {number}: {}", describe_trial_request(order)));
    let known = method.describe_progress();
    // A failed estimate is left out: it must not end a test.
    match options.remaining_cost(method) {
        Ok(cost) => print_remark(format_args!("  {known}; {} to go", describe_trial_time(&cost))),
        Err(_) => print_remark(format_args!("  {known}")),
    }
}

fn describe_trial_request(order: &TrialRequest) -> String {
    let size = order.size.map(|size| format!("{size}, ")).unwrap_or_default();
    let then = order.then.map(|step| format!(", then {}", step.load)).unwrap_or_default();
    format!("{size}{} for {}{then}", order.load, order.sending_time())
}

/// Prints the loss in a trial, and why the rig could not sustain the trial, if so.
pub(super) fn report_trial(result: &TrialResult) {
    let lost = result.lost.most;
    let share = format_percent(lost, result.sent.max(1));
    let unsent = match result.unsent_frames() {
        0 => String::new(),
        unsent => format!(", {} unsent", format_count(unsent)),
    };
    print_remark(format_args!(
        "  lost {} of {} ({share}){unsent}",
        format_count(lost),
        format_count(result.sent)
    ));
    if let Some(fault) = &result.rig_fault {
        print_remark(format_args!("  the rig could not sustain the trial: {fault}"));
    }
}

/// Describes the trials of a test and the time that they take.
pub(super) fn describe_cost(options: &MethodOptions) -> Result<String, MethodOptionsError> {
    let held = options.estimate_cost()?;
    let all = held.with_repeats();
    let (name, trials, time) = (options.name(), describe_trial_count(&all), describe_trial_time(&all));
    let of_held = format!("{} in {}", describe_trial_count(&held), describe_trial_time(&held));
    Ok(format!(
        "{name}: {trials} trials in {time}; {of_held} if the rig sustains each trial. A trial that the rig \
        does not sustain is run at most 3 times."
    ))
}

fn describe_trial_count(CostRange { least, most }: &CostRange) -> String {
    // The faster case of the estimate can have more trials than the slower one, so the numbers are sorted here.
    let fewest = least.trials.min(most.trials);
    let trials = least.trials.max(most.trials);
    if fewest == trials { trials.to_string() } else { format!("{fewest} to {trials}") }
}

fn describe_trial_time(cost: &CostRange) -> String {
    let shortest = format_duration(cost.least.total_time());
    let longest = format_duration(cost.most.total_time());
    if shortest == longest { longest } else { format!("{shortest} to {longest}") }
}

/// Formats a time for planning. A time below two hours is rounded up to seconds or minutes.
fn format_duration(time: Nanos) -> String {
    // It is rounded up, because a test should rather end earlier than planned than later.
    let seconds = time.as_u64().div_ceil(1_000_000_000);
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Prints trials and time for `--dry-run`.
pub(super) fn print_dry_run(
    options: &MethodOptions,
    output: &mut CommandOutput,
) -> Result<(), MethodOptionsError> {
    output.write_line(describe_cost(options)?);
    // The answers of a real device decide which trials follow; here an example device answers.
    let orders = options.rehearse_trials(&options.half_load_device()?)?;
    output.write_line("Trials with an example device that carries half of the highest load:");
    output.write_text(format_result_table(&tabulate_plan(options, &orders), None));
    Ok(())
}
