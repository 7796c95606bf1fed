//! Formats the problems of a plan for people: the source line with a mark, the JSON path, and a hint.

use crate::output::TextStyle;
use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, NamedSource, Report};
use packetrig_plan::{PlanProblem, ProblemSeverity};

/// Maximum number of problems in the text output; JSON output has all of them.
const MAX_SHOWN_PROBLEMS: usize = 50;
/// Lines with more bytes than this are not quoted: only programs write such documents, and the path says
/// where the problem is.
const MAX_QUOTED_LINE_BYTES: usize = 400;

/// A document and its name, for messages that quote its lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuotedDocument<'a> {
    /// File name, or a description such as `standard input`.
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
}

/// Renders the first `MAX_SHOWN_PROBLEMS` problems, each with its source line if that can be quoted, then the number
/// of the other problems.
pub(crate) fn render_problems(
    source: QuotedDocument<'_>,
    problems: &[PlanProblem],
    style: TextStyle,
) -> String {
    let theme =
        if style.is_coloured() { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    let handler = GraphicalReportHandler::new_themed(theme).with_links(false).with_wrap_lines(false);
    let mut text = String::new();
    for problem in problems.iter().take(MAX_SHOWN_PROBLEMS) {
        let report = problem_report(source, problem);
        // If the source line cannot be drawn, the problem is still printed.
        if handler.render_report(&mut text, report.as_ref()).is_err() {
            text.push_str(&format_problem_in_one_line(source.name, problem));
        }
        text.push('\n');
    }
    if problems.len() > MAX_SHOWN_PROBLEMS {
        let more = problems.len() - MAX_SHOWN_PROBLEMS;
        text.extend([format!("… and {more} more problems (`packetrig plan check --json` lists all)\n")]);
    }
    text
}

/// Describes the numbers of errors and warnings.
pub(crate) fn describe_problem_counts(problems: &[PlanProblem]) -> String {
    let errors = count_severity(problems, ProblemSeverity::Error);
    let warnings = count_severity(problems, ProblemSeverity::Warning);
    format!("{}, {}", format_plural(errors, "error"), format_plural(warnings, "warning"))
}

fn count_severity(problems: &[PlanProblem], severity: ProblemSeverity) -> usize {
    problems.iter().filter(|problem| problem.severity == severity).count()
}

fn format_plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn problem_report(source: QuotedDocument<'_>, problem: &PlanProblem) -> Report {
    let severity = match problem.severity {
        ProblemSeverity::Warning => miette::Severity::Warning,
        ProblemSeverity::Error => miette::Severity::Error,
    };
    let mut diagnostic = MietteDiagnostic::new(problem_title(problem)).with_severity(severity);
    if let Some(hint) = &problem.hint {
        diagnostic = diagnostic.with_help(hint);
    }
    let Some((start, end)) = problem.span.filter(|span| are_span_lines_quotable(source.text, *span)) else {
        let place = problem.position.map_or_else(String::new, |(line, column)| format!(":{line}:{column}"));
        return Report::new(diagnostic.with_code(format!("{}{place}", source.name)));
    };
    let label = LabeledSpan::new_with_span(None, (start, end - start));
    Report::new(diagnostic.with_label(label))
        .with_source_code(NamedSource::new(source.name, source.text.to_owned()))
}

fn problem_title(problem: &PlanProblem) -> String {
    if problem.path.is_empty() {
        problem.message.clone()
    } else {
        format!("{}: {}", problem.path, problem.message)
    }
}

fn format_problem_in_one_line(name: &str, problem: &PlanProblem) -> String {
    let place = problem.position.map_or_else(String::new, |(line, column)| format!(":{line}:{column}"));
    format!("{name}{place}: {}\n", problem_title(problem))
}

/// Returns true if the lines around the span can be quoted: the span lies in the text, and the lines are short enough.
fn are_span_lines_quotable(text: &str, (start, end): (usize, usize)) -> bool {
    // `get` is `None` also for a span that begins or ends within a character.
    let Some((before, after)) = text.get(..start).zip(text.get(end..)).filter(|_| start <= end) else {
        return false;
    };
    // miette shows one line of context on each side.
    let lines_before = before.rsplit('\n').take(2).map(str::len);
    let lines_after = after.split('\n').take(2).map(str::len);
    let longest = lines_before.chain(lines_after).max().unwrap_or(0);
    longest + text[start..end].split('\n').map(str::len).max().unwrap_or(0) <= MAX_QUOTED_LINE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "ports:\n  - name: tx\n    location: 7\n";

    fn problem(span: Option<(usize, usize)>) -> PlanProblem {
        PlanProblem {
            severity: ProblemSeverity::Error,
            path: "ports[0].location".into(),
            message: "7 is not a location".into(),
            hint: Some("write eth1".into()),
            span,
            position: Some((3, 15)),
        }
    }

    fn rendered(text: &str, problems: &[PlanProblem]) -> String {
        render_problems(QuotedDocument { name: "plan.yaml", text }, problems, TextStyle::PLAIN)
    }

    #[test]
    fn a_problem_shows_path_message_line_and_hint() {
        let start = TEXT.find('7').unwrap();
        let shown = rendered(TEXT, &[problem(Some((start, start + 1)))]);
        for part in ["ports[0].location: 7 is not a location", "plan.yaml:3:15", "location: 7", "write eth1"]
        {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        assert!(!shown.contains('\u{1b}'));
    }

    #[test]
    fn without_a_span_the_position_is_named() {
        let shown = rendered(TEXT, &[problem(None)]);
        assert!(shown.contains("plan.yaml:3:15") && shown.contains("write eth1"), "{shown}");
    }

    #[test]
    fn invalid_or_oversized_span_is_not_quoted() {
        assert!(rendered(TEXT, &[problem(Some((900, 901)))]).contains("ports[0]"));
        assert!(rendered("ü", &[problem(Some((1, 1)))]).contains("ports[0]"));
        let huge = "x".repeat(1_000_000);
        assert!(rendered(&huge, &[problem(Some((500, 501)))]).len() < 1_000);
    }

    #[test]
    fn many_problems_are_cut_short_and_counted() {
        let many = vec![problem(None); 70];
        assert!(rendered(TEXT, &many).contains("and 20 more"));
        assert_eq!(describe_problem_counts(&many), "70 errors, 0 warnings");
        assert_eq!(describe_problem_counts(&many[..1]), "1 error, 0 warnings");
    }
}
