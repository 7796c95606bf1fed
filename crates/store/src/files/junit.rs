//! JUnit XML, so that a build server shows a run as tests: one test case per stream and one for the whole run.

use packetrig_report::{CriterionResult, RunReport, RunVerdict, StreamReport};
use std::fmt::Write as _;

/// The run as a test suite. A stream that fails its criteria is a failure, and an unmeasured stream is skipped. An
/// inconclusive stream or run is an error, so that no build server counts it as a success.
pub fn report_junit(report: &RunReport) -> String {
    let mut cases = String::new();
    let failing = matches!(report.verdict, RunVerdict::Fail(_));
    // The verdict of the whole run is a test case, too.
    let mut counts = JunitCounts { tests: 1, ..JunitCounts::default() };
    for stream in &report.streams {
        counts.tests += 1;
        let inner = stream_case(report, stream, &mut counts);
        append_case(&mut cases, "streams", &stream.name, &inner);
    }
    let run = match &report.verdict {
        RunVerdict::Pass => String::new(),
        RunVerdict::Fail(reasons) => reason_element("failure", reasons),
        RunVerdict::Inconclusive(reasons) => reason_element("error", reasons),
    };
    counts.failures += usize::from(failing);
    counts.errors += usize::from(matches!(report.verdict, RunVerdict::Inconclusive(_)));
    append_case(&mut cases, "run", "verdict", &run);
    junit_suite(&report.name, counts, report.sending.unwrap_or_default().as_secs_f64(), &cases)
}

#[derive(Clone, Copy, Default)]
pub(super) struct JunitCounts {
    pub(super) tests: usize,
    pub(super) failures: usize,
    pub(super) errors: usize,
    pub(super) skipped: usize,
}

/// The whole document with one suite.
pub(super) fn junit_suite(name: &str, counts: JunitCounts, seconds: f64, cases: &str) -> String {
    let name = escape_xml(name);
    let JunitCounts { tests, failures, errors, skipped } = counts;
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"{name}\" tests=\"{tests}\" \
         failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\" time=\"{seconds:.3}\">\n{cases}  </testsuite>\n\
         </testsuites>\n"
    )
}

fn stream_case(report: &RunReport, stream: &StreamReport, counts: &mut JunitCounts) -> String {
    let faults = stream.list_criteria_with_result(CriterionResult::Fail, &report.criteria);
    let doubts = stream.list_criteria_with_result(CriterionResult::Unknown, &report.criteria);
    // A failure is certain, so it goes before criteria that could not be judged.
    if !faults.is_empty() {
        counts.failures += 1;
        reason_element("failure", &faults)
    } else if !doubts.is_empty() {
        counts.errors += 1;
        reason_element("error", &doubts)
    } else if stream.loss.is_none() {
        counts.skipped += 1;
        "      <skipped message=\"not measured\"/>\n".to_owned()
    } else {
        String::new()
    }
}

pub(super) fn append_case(cases: &mut String, class: &str, name: &str, inner: &str) {
    let name = escape_xml(name);
    let written = if inner.is_empty() {
        writeln!(cases, "    <testcase classname=\"packetrig.{class}\" name=\"{name}\"/>")
    } else {
        writeln!(
            cases,
            "    <testcase classname=\"packetrig.{class}\" name=\"{name}\">\n{inner}    </testcase>"
        )
    };
    written.expect("writing to a string does not fail");
}

pub(super) fn reason_element(tag: &str, reasons: &[String]) -> String {
    let first = reasons.first().map(|reason| escape_xml(reason)).unwrap_or_default();
    format!("      <{tag} message=\"{first}\">{}</{tag}>\n", escape_xml(&reasons.join("\n")))
}

/// Escapes a text for XML attributes and content. Characters that XML 1.0 cannot hold at all become U+FFFD.
pub(super) fn escape_xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            // XML parsers turn line breaks and tabs in attributes into spaces, but not their character references.
            '\t' | '\n' | '\r' => {
                write!(out, "&#{};", u32::from(c)).expect("writing to a string does not fail");
            }
            // XML 1.0, section 2.2: not even character references may name these.
            '\0'..'\u{20}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xml_text_is_escaped_and_invalid_characters_replaced() {
        assert_eq!(escape_xml("a<b>&\"'c"), "a&lt;b&gt;&amp;&quot;&apos;c");
        assert_eq!(escape_xml("a\nb\u{0}\u{1b}"), "a&#10;b\u{fffd}\u{fffd}");
    }
}
