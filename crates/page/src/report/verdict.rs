//! The verdict of a run with its reasons, and each criterion with the measured values.

use super::elements::{
    NamedFigure, ResultSign, TableCell, describe_omitted_entries, number_column, prose_column, tabulate_rows,
    word_column, write_figure_list, write_verdict_sign,
};
use super::probes;
use crate::markup::Markup;
use crate::quantity;
use packetrig_report::outcome::RunOutcome;
use packetrig_report::{CriterionLine, CriterionResult, RunReport, RunVerdict, SubjectJudgement};

/// Maximum number of reasons that are shown unfolded.
const MAX_UNFOLDED_REASONS: usize = 12;

pub(super) const fn choose_verdict_sign(verdict: &RunVerdict) -> ResultSign {
    match verdict {
        RunVerdict::Pass => ResultSign::Pass,
        RunVerdict::Fail(_) => ResultSign::Fail,
        RunVerdict::Inconclusive(_) => ResultSign::Unknown,
    }
}

pub(super) const fn sign_of(result: CriterionResult) -> ResultSign {
    match result {
        CriterionResult::Pass => ResultSign::Pass,
        CriterionResult::Unknown => ResultSign::Unknown,
        CriterionResult::Fail => ResultSign::Fail,
    }
}

/// The meaning of the verdict, in a sentence.
const fn describe_verdict_meaning(verdict: &RunVerdict) -> &'static str {
    match verdict {
        RunVerdict::Pass => {
            "Every criterion is met, even in the worst case of the measurement's uncertainty."
        }
        RunVerdict::Fail(_) => {
            "At least one criterion is not met, even in the best case of the measurement's uncertainty."
        }
        RunVerdict::Inconclusive(_) => {
            "The measurement does not decide: its uncertainty is larger than the distance to a limit, or some values are missing."
        }
    }
}

/// Writes the verdict with its reasons, its figures and its criteria.
pub(super) fn write_verdict(page: &mut Markup, report: &RunReport) {
    page.open_element("p", &[("class", "verdict-line")]);
    write_verdict_sign(page, choose_verdict_sign(&report.verdict), report.verdict.as_str(), true);
    page.add_text(" ").add_element("span", &[], describe_verdict_meaning(&report.verdict)).close_element("p");
    write_verdict_reasons(page, report.verdict.reasons());
    write_figure_list(page, &run_figures(report));
    page.add_element("h3", &[("class", "after-figures")], "Criteria");
    if report.judged.is_empty() {
        page.add_element(
            "p",
            &[("class", "absent")],
            "No criterion could be judged, because nothing was measured.",
        );
        return;
    }
    write_criteria(page, &report.judged);
}

fn write_verdict_reasons(page: &mut Markup, reasons: &[String]) {
    if reasons.is_empty() {
        return;
    }
    // All reasons are on the page. Those beyond the limit are folded, because a reader may need any of them.
    let (shown, folded) = reasons.split_at(reasons.len().min(MAX_UNFOLDED_REASONS));
    write_list(page, shown);
    if !folded.is_empty() {
        page.open_element("details", &[]);
        page.add_element("summary", &[], &format!("More reasons: {}", folded.len()));
        write_list(page, folded);
        page.close_element("details");
    }
}

fn write_list(page: &mut Markup, lines: &[String]) {
    page.open_element("ul", &[("class", "reasons")]);
    for line in lines {
        page.add_element("li", &[], line);
    }
    page.close_element("ul");
}

fn run_figures(report: &RunReport) -> Vec<NamedFigure> {
    let mut figures = match &report.probes {
        // A plan has flows or probes, so figures of frames would all be missing for probes.
        Some(probes) if report.streams.is_empty() => probes::list_probe_figures(probes),
        _ => list_stream_figures(report),
    };
    figures.push(NamedFigure {
        name: "sending took",
        text: report.sending.map(quantity::format_time),
        value: None,
        addition: String::new(),
    });
    figures.push(NamedFigure::new("state", describe_outcome(&report.outcome)));
    figures
}

fn list_stream_figures(report: &RunReport) -> Vec<NamedFigure> {
    let sum = |of: fn(&packetrig_report::StreamReport) -> Option<u64>| {
        let values: Vec<u64> = report.streams.iter().filter_map(of).collect();
        // Without any report the sum is unknown. A zero would look like a measured value.
        (!values.is_empty()).then(|| values.into_iter().fold(0, u64::saturating_add))
    };
    let sent = sum(|stream| stream.sent.as_ref().map(|sent| sent.frames));
    let received = sum(|stream| stream.received.as_ref().map(|received| received.frames));
    let expected = sum(|stream| stream.loss.map(|loss| loss.expected));
    let lost = sum(|stream| stream.loss.map(|loss| loss.lost));
    let share = lost
        .zip(expected)
        .map(|(lost, expected)| format!("{} of expected", quantity::format_percent(lost, expected)));
    let worst = report
        .streams
        .iter()
        .filter_map(|stream| Some((stream.latency?.p99, stream)))
        .max_by_key(|(p99, _)| *p99);
    let latency = worst.map(|(p99, stream)| (quantity::format_time(p99), format!("stream {}", stream.name)));
    let (p99, of) = latency.unzip();
    vec![
        NamedFigure::frame_count("sent", sent),
        NamedFigure::frame_count("received", received),
        NamedFigure::frame_count("lost", lost).with_addition(share.unwrap_or_default()),
        NamedFigure {
            name: "latency p99, worst stream",
            text: p99,
            value: None,
            addition: of.unwrap_or_default(),
        },
        NamedFigure::new("streams", quantity::format_count(report.streams.len() as u64)),
    ]
}

fn describe_outcome(outcome: &RunOutcome) -> String {
    let state = outcome.state().to_string();
    if outcome.was_stopped() { format!("{state}, stopped by the user") } else { state }
}

fn write_criteria(page: &mut Markup, lines: &[CriterionLine]) {
    let headings = [
        word_column("criterion"),
        word_column("verdict"),
        word_column("wanted"),
        prose_column("measured"),
        number_column("judged", "subjects"),
    ];
    let rows: Vec<Vec<TableCell>> = lines
        .iter()
        .map(|line| {
            vec![
                TableCell::text(line.criterion.clone()),
                TableCell::verdict(sign_of(line.result), &line.result.to_string()),
                TableCell::text(line.limit.clone()),
                TableCell::text(line.subjects.first().map(describe_judgement).unwrap_or_default()),
                TableCell::number(line.judged as u64, describe_judged_subjects(line)),
            ]
        })
        .collect();
    tabulate_rows(page, "Criteria with their verdicts", None, &headings, &rows);
    let several = lines.iter().filter(|line| line.subjects.len() > 1);
    for line in several {
        write_judged_subjects(page, line);
    }
}

fn describe_judgement(subject: &SubjectJudgement) -> String {
    format!("{}: {}", subject.subject, subject.measured)
}

fn describe_judged_subjects(line: &CriterionLine) -> String {
    match (line.failed, line.unknown) {
        (0, 0) => quantity::format_count(line.judged as u64),
        (failed, 0) => format!("{}, {failed} failed", line.judged),
        (0, unknown) => format!("{}, {unknown} unknown", line.judged),
        (failed, unknown) => format!("{}, {failed} failed, {unknown} unknown", line.judged),
    }
}

fn write_judged_subjects(page: &mut Markup, line: &CriterionLine) {
    page.open_element("details", &[]);
    page.add_element(
        "summary",
        &[],
        &format!("{}: {} subjects that decide the result", line.criterion, line.subjects.len()),
    );
    page.open_element("ul", &[("class", "subjects")]);
    for subject in &line.subjects {
        page.open_element("li", &[]);
        write_verdict_sign(page, sign_of(subject.result), &subject.result.to_string(), false);
        page.add_text(" ").add_text(&describe_judgement(subject)).close_element("li");
    }
    page.close_element("ul");
    let named = line.subjects.len();
    // If every subject meets the criterion, the line shows only the first subject as an example.
    let deciding = (line.failed + line.unknown).max(1);
    if deciding > named {
        page.add_element("p", &[("class", "muted")], &describe_omitted_entries(deciding - named));
    }
    page.close_element("details");
}
