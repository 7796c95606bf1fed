//! The page of a test method: verdict, results, the search with its bounds, all trials.

use super::elements::{
    ColumnHeading, ResultSign, TableCell, tabulate_rows, write_fact, write_verdict_sign, write_wall_time,
};
use super::shell::{self, PageParts};
use super::{method_charts, setup};
use crate::markup::Markup;
use crate::quantity;
use packetrig_method::journal::MethodJournalEntry;
use packetrig_method::tables::{ResultTable, tabulate_trials};
use packetrig_method::{MethodReport, MethodVerdict};
use packetrig_stats::port::PortInfo;

/// A column with a longer text is laid out as prose.
const MIN_PROSE_CHARACTERS: usize = 24;
/// Maximum number of trials in the table.
const MAX_TRIALS: usize = 500;

/// The contents of the page of a method.
#[derive(Clone, Copy, Debug)]
pub struct MethodPage<'a> {
    pub id: &'a str,
    pub name: &'a str,
    pub version: &'a str,
    /// Nanoseconds since 1970 (UTC).
    pub started_wall_ns: u64,
    pub kernel: &'a str,
    /// PASS, FAIL or INCONCLUSIVE.
    pub verdict: &'a str,
    pub report: &'a MethodReport,
    /// All trials in their order.
    pub trials: &'a [MethodJournalEntry],
    /// The ports of the last trial.
    pub ports: &'a [PortInfo],
    /// The plans, one for each device.
    pub documents: &'a [String],
}

const METHOD_FILES: [(&str, &str); 5] = [
    ("result.json", "the result, for programs"),
    ("result.csv", "the tables of the result"),
    ("journal.jsonl", "one line for each trial"),
    ("junit.xml", "the verdict for build servers"),
    ("result.md", "the result for merge requests"),
];

/// Renders the page of a method as one complete HTML file.
pub fn render_method(page: MethodPage<'_>) -> String {
    let mut parts = PageParts::default();
    // The order of the page: the verdict, the evidence for it, and the facts that are needed to repeat the test.
    parts.add_section("verdict", "Verdict", "Verdict", |part| write_verdict(part, page));
    parts.add_section("charts", "Charts", "Charts", |part| {
        method_charts::write_charts(part, page.report, page.trials);
    });
    parts.add_section("results", "Results", "Results", |part| write_method_results(part, page.report));
    parts.add_section("trials", "Trials", "Trials", |part| write_trial_list(part, page.trials));
    parts.add_section("caveats", "Caveats", "Caveats of the trials", |part| write_caveats(part, page.trials));
    parts.add_section("setup", "Environment", "Environment", |part| write_method_setup(part, page));
    parts.add_section("plan", "Plan", "Options, plan and files", |part| write_plan(part, page));
    let title = format!("{}: {} – packetrig", page.verdict, format_method_heading(page));
    shell::render_page(&title, &build_page_head(page), &parts, page.version)
}

fn format_method_heading(page: MethodPage<'_>) -> String {
    let method = page.report.options.name();
    if page.name.is_empty() { format!("{method} {}", page.id) } else { format!("{} – {method}", page.name) }
}

fn build_page_head(page: MethodPage<'_>) -> Markup {
    let mut head = Markup::new();
    head.open_element("div", &[("class", "head-line")]).add_element("h1", &[], &format_method_heading(page));
    write_verdict_sign(&mut head, choose_sign_by_text(page.verdict), page.verdict, false);
    head.close_element("div").open_element("p", &[("class", "muted")]);
    head.add_text("Test ").add_element("code", &[], page.id).add_text(", started ");
    write_wall_time(&mut head, page.started_wall_ns);
    head.add_text(&format!(", {}", quantity::format_count_with_unit(page.trials.len() as u64, "trial")))
        .close_element("p");
    head
}

fn choose_sign_by_text(word: &str) -> ResultSign {
    match word {
        "PASS" => ResultSign::Pass,
        "FAIL" => ResultSign::Fail,
        _ => ResultSign::Unknown,
    }
}

const fn sign_of(verdict: MethodVerdict) -> ResultSign {
    match verdict {
        MethodVerdict::Pass => ResultSign::Pass,
        MethodVerdict::Fail => ResultSign::Fail,
        MethodVerdict::Unknown => ResultSign::Unknown,
    }
}

fn write_verdict(part: &mut Markup, page: MethodPage<'_>) {
    let judgement = &page.report.judgement;
    part.open_element("p", &[("class", "verdict-line")]);
    write_verdict_sign(part, choose_sign_by_text(page.verdict), page.verdict, true);
    let meaning = match (judgement.criteria.is_empty(), judgement.unknown.is_empty()) {
        (true, true) => "The test has no criteria, and all requested values are known.",
        (true, false) => "There are no criteria, and a requested value is not known.",
        (false, true) => "The worst criterion decides.",
        (false, false) => "The worst criterion decides; a requested value is not known.",
    };
    part.add_text(" ").add_element("span", &[], meaning).close_element("p");
    if !page.report.is_complete {
        part.add_element("p", &[("class", "notice")], "The test was not finished: not all trials were made.");
    }
    if !judgement.criteria.is_empty() {
        let headings = [
            super::elements::word_column("criterion"),
            super::elements::word_column("verdict"),
            super::elements::word_column("why"),
        ];
        let rows: Vec<Vec<TableCell>> = judgement
            .criteria
            .iter()
            .map(|judged| {
                vec![
                    TableCell::text(judged.criterion.clone()),
                    TableCell::verdict(sign_of(judged.verdict), &judged.verdict.to_string()),
                    TableCell::text(judged.reason.clone()),
                ]
            })
            .collect();
        tabulate_rows(part, "Criteria with their verdicts", None, &headings, &rows);
    }
    for reason in &judgement.unknown {
        part.add_element("p", &[], &format!("Not known: {reason}"));
    }
}

fn write_method_results(part: &mut Markup, report: &MethodReport) {
    // The section of the verdict already shows this table, with signs.
    for result in report.to_tables().iter().filter(|table| table.name != "verdict") {
        part.add_element("h3", &[], &result.title);
        if !result.rows.is_empty() {
            write_table(part, result, result.rows.len(), None);
        }
        for note in &result.notes {
            part.add_element("p", &[("class", "muted")], note);
        }
    }
}

fn write_trial_list(part: &mut Markup, trials: &[MethodJournalEntry]) {
    if trials.is_empty() {
        part.add_element("p", &[("class", "absent")], "The journal contains no trial.");
        return;
    }
    let all = tabulate_trials(trials);
    if trials.len() > MAX_TRIALS {
        let text =
            format!("The first {MAX_TRIALS} of {} trials; journal.jsonl has all of them.", trials.len());
        part.add_element("p", &[("class", "muted")], &text);
    }
    write_table(part, &all, MAX_TRIALS, Some("trials-table"));
}

fn write_table(part: &mut Markup, result: &ResultTable, most: usize, id: Option<&str>) {
    let headings: Vec<ColumnHeading> = result
        .columns
        .iter()
        .enumerate()
        .map(|(index, column)| ColumnHeading {
            name: column.heading,
            unit: column.unit,
            // A column of numbers only is aligned like a number.
            is_number: is_number_column(result, index),
            is_prose: result.rows.iter().any(|row| row[index].chars().count() > MIN_PROSE_CHARACTERS),
        })
        .collect();
    let rows: Vec<Vec<TableCell>> = result
        .rows
        .iter()
        .take(most)
        .map(|row| headings.iter().zip(row).map(|(heading, text)| build_table_cell(heading, text)).collect())
        .collect();
    tabulate_rows(part, &result.title, id, &headings, &rows);
}

fn is_number_column(result: &ResultTable, column: usize) -> bool {
    let mut cells =
        result.rows.iter().map(|row| row[column].as_str()).filter(|cell| !cell.is_empty()).peekable();
    // Empty cells were not measured, and must not turn a column of numbers into a column of words. Without
    // any number there is nothing to align.
    cells.peek().is_some() && cells.all(|cell| cell.parse::<f64>().is_ok())
}

fn build_table_cell(heading: &ColumnHeading, text: &str) -> TableCell {
    match (heading.is_number, text.is_empty()) {
        // The tables of a method write an absent value as an empty text.
        (_, true) => TableCell::absent(),
        (true, false) => TableCell::with_value(text.to_owned(), quantity::group_digits(text)),
        (false, false) => TableCell::text(text),
    }
}

/// Maximum number of caveats of trials on a page. The page also shows how many more there are.
const MAX_CAVEATS: usize = 100;

/// Writes the doubts of the trials; equal doubts of several trials are one line.
fn write_caveats(part: &mut Markup, trials: &[MethodJournalEntry]) {
    let mut found: Vec<(&str, Vec<u32>)> = Vec::new();
    for entry in trials {
        let faults = entry.result.rig_fault.iter().map(String::as_str);
        for text in entry.result.caveats.iter().map(String::as_str).chain(faults) {
            // Equal doubts are found by their text: a journal has no kinds of doubts, only sentences.
            match found.iter_mut().find(|(known, _)| *known == text) {
                Some((_, numbers)) => numbers.push(entry.number),
                None => found.push((text, vec![entry.number])),
            }
        }
    }
    if found.is_empty() {
        part.add_element("p", &[], "No trial has a caveat.");
        return;
    }
    part.add_element(
        "p",
        &[],
        "A trial that the rig could not sustain proves nothing about the device: \
        the trial was repeated, or the limit that it gave is marked as a limit of the rig.",
    );
    part.open_element("ul", &[]);
    for (text, numbers) in found.iter().take(MAX_CAVEATS) {
        let named: Vec<String> = numbers.iter().take(12).map(u32::to_string).collect();
        let more = if numbers.len() > named.len() {
            format!(" and {} more", numbers.len() - named.len())
        } else {
            String::new()
        };
        part.add_element("li", &[], &format!("Trial {}{more}: {text}", named.join(", ")));
    }
    let rest = found.len().saturating_sub(MAX_CAVEATS);
    if rest > 0 {
        let doubts = quantity::format_count_with_unit(rest as u64, "more doubt");
        part.add_element("li", &[], &format!("Not shown: {doubts}."));
    }
    part.close_element("ul");
}

fn write_method_setup(part: &mut Markup, page: MethodPage<'_>) {
    part.open_element("div", &[("class", "table-box")]).open_element("table", &[("class", "facts")]);
    part.add_element("caption", &[("class", "visually-hidden")], "Facts about the test")
        .open_element("tbody", &[]);
    write_fact(part, "test", |cell| {
        cell.add_element("code", &[], page.id);
    });
    write_fact(part, "started", |cell| write_wall_time(cell, page.started_wall_ns));
    if let Some(last) = page.trials.last() {
        // A test can be resumed days later, so the time of the first trial says little about that of the last.
        write_fact(part, "last trial began", |cell| write_wall_time(cell, last.started_wall_ns));
    }
    write_fact(part, "packetrig", |cell| {
        cell.add_text(page.version);
    });
    write_fact(part, "kernel", |cell| {
        cell.add_text(page.kernel);
    });
    part.close_element("tbody").close_element("table").close_element("div");
    setup::write_port_infos(part, page.ports);
}

fn write_plan(part: &mut Markup, page: MethodPage<'_>) {
    // If the options cannot be written as JSON, that is a bug. The page is still complete without them.
    let options = serde_json::to_string_pretty(&page.report.options).unwrap_or_default();
    setup::write_plan(part, "The options of the method", &options);
    for (index, document) in page.documents.iter().enumerate() {
        let title = if page.documents.len() == 1 {
            "The plan".to_owned()
        } else {
            format!("The plan of device {index}")
        };
        setup::write_plan(part, &title, document);
    }
    part.add_element("h3", &[], "Files beside this page");
    setup::write_file_list(part, &METHOD_FILES);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caveats_beyond_the_listed_are_counted() {
        let shown = |count: u32| {
            let trials: Vec<MethodJournalEntry> = (1..=count).map(doubtful_trial).collect();
            let mut part = Markup::new();
            write_caveats(&mut part, &trials);
            part.as_str().to_owned()
        };
        assert!(shown(100).ends_with("<li>Trial 100: doubt 100</li></ul>"), "{}", shown(100));
        assert!(shown(107).ends_with("<li>Trial 100: doubt 100</li><li>Not shown: 7 more doubts.</li></ul>"));
    }

    fn doubtful_trial(number: u32) -> MethodJournalEntry {
        let (load, length) = (packetrig_method::Load::ZERO, packetrig_method::TrialLength::Frames(1));
        let purpose = packetrig_method::TrialPurpose::Search;
        let order = packetrig_method::TrialRequest::with_constant_load(purpose, None, load, length);
        let caveats = vec![format!("doubt {number}")];
        let result = packetrig_method::TrialResult { caveats, ..packetrig_method::TrialResult::default() };
        MethodJournalEntry { number, started_wall_ns: 0, order, result }
    }
}
