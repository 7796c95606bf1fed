//! Merges remarks of one kind about many streams, ports or nodes into one line. Otherwise the many remarks of one kind
//! would hide those of other kinds. The JSON report has every remark separately.

use crate::numbers::format_count;
use packetrig_report::RunReport;

/// Largest number of remarks of one kind on separate lines, and number of subjects that a merged line names.
const MAX_SEPARATE_REMARKS: usize = 3;

/// A remark about a stream, port or node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReportRemark<'a> {
    pub(super) subject: &'a str,
    pub(super) text: &'a str,
}

/// Returns the lines for these remarks, merged by kind. The kinds are in the order of their first remark.
pub(super) fn merge_remarks(report: &RunReport, remarks: &[ReportRemark<'_>]) -> Vec<String> {
    // This is a list and not a map, because it keeps the order, and a report has few kinds.
    let mut kinds: Vec<(String, Vec<ReportRemark<'_>>)> = Vec::new();
    for remark in remarks {
        let kind = mask_numbers(remark.text);
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, same)) => same.push(*remark),
            None => kinds.push((kind, vec![*remark])),
        }
    }
    kinds.iter().flat_map(|(_, same)| format_lines_of_kind(report, same)).collect()
}

fn format_lines_of_kind(report: &RunReport, same: &[ReportRemark<'_>]) -> Vec<String> {
    if same.len() <= MAX_SEPARATE_REMARKS {
        return same.iter().map(|remark| format!("{}: {}", remark.subject, remark.text)).collect();
    }
    let names: Vec<&str> = same
        .iter()
        .take(MAX_SEPARATE_REMARKS)
        .map(|remark| strip_stream_prefix(report, remark.subject))
        .collect();
    let subjects = format!(
        "{} {} ({} and {} more)",
        format_count(same.len() as u64),
        plural_noun(report, names[0]),
        names.join(", "),
        format_count((same.len() - MAX_SEPARATE_REMARKS) as u64)
    );
    vec![format!("{subjects}: {}", format_summary(report, same))]
}

/// Summarises remarks of one kind: their text if all are equal, the total and the worst if each begins with a
/// count, otherwise an example.
fn format_summary(report: &RunReport, same: &[ReportRemark<'_>]) -> String {
    let ReportRemark { subject, text } = same[0];
    // Equal texts are checked first: one of them says everything, even if it begins with a number.
    if same.iter().all(|remark| remark.text == text) {
        return text.to_owned();
    }
    let counts: Option<Vec<u64>> = same.iter().map(|remark| parse_leading_count(remark.text)).collect();
    match counts {
        None => format!("for example {}: {text}", strip_stream_prefix(report, subject)),
        Some(counts) => {
            let total = counts.iter().fold(0, |sum: u64, number| sum.saturating_add(*number));
            let worst =
                (0..same.len()).max_by_key(|index| counts[*index]).map_or(same[0], |index| same[index]);
            format!(
                "{} in all, most for {}: {}",
                format_count(total),
                strip_stream_prefix(report, worst.subject),
                worst.text
            )
        }
    }
}

/// Returns the name of a subject. Removes the word `stream`, which reasons of a verdict have before a stream's name.
fn strip_stream_prefix<'a>(report: &RunReport, subject: &'a str) -> &'a str {
    let stream = subject.strip_prefix("stream ");
    stream.filter(|name| is_stream(report, name)).unwrap_or(subject)
}

fn is_stream(report: &RunReport, name: &str) -> bool {
    report.streams.iter().any(|stream| stream.name == name)
}

fn plural_noun(report: &RunReport, subject: &str) -> &'static str {
    if is_stream(report, subject) {
        "streams"
    } else if report.ports.iter().any(|port| port.info.name == subject) {
        "ports"
    } else {
        "subjects"
    }
}

/// Returns the number that a text begins with; `None` if its first word is not a number.
fn parse_leading_count(text: &str) -> Option<u64> {
    text.split(' ').next()?.parse().ok()
}

/// Replaces the numbers in a text by `#`, so that remarks of one kind, which differ only in numbers, become equal. A
/// unit that is attached to a number (`1ms`) is replaced with it.
fn mask_numbers(text: &str) -> String {
    let mut kind = String::with_capacity(text.len());
    let mut words = text.split(' ');
    while let Some(word) = words.next() {
        let is_number = word.trim_start_matches('(').starts_with(|c: char| c.is_ascii_digit());
        // `(< 0.0001 %)` has one word more than `(1.5 %)`.
        let is_bound = word == "(<" || word == "(>";
        if is_bound {
            words.next();
        }
        kind.push_str(if is_number || is_bound { "#" } else { word });
        kind.push(' ');
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remark_kind_ignores_numbers() {
        let late = "120 frames (1.2 %) left more than 1ms late";
        assert_eq!(mask_numbers(late), mask_numbers("7 frames (< 0.0001 %) left more than 1ms late"));
        assert_ne!(
            mask_numbers(late),
            mask_numbers("120 frames (1.2 %) seem to arrive before they were sent")
        );
        assert_eq!(parse_leading_count(late), Some(120));
        assert_eq!(parse_leading_count("LRO stays on"), None);
    }
}
