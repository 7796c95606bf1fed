//! What a report says of a stream and of the run.

use super::table::{Verdict, Wanted};
use packetrig_tests::program::Report;

/// What the criteria say of a stream: the verdict if there were no other, and the criteria that are not met.
pub(super) fn judgement(report: &Report, stream: &str) -> (Verdict, Vec<String>) {
    let (mut verdict, mut broken) = (Verdict::Pass, Vec::new());
    let subject = format!("stream {stream}");
    for line in report.0["judged"].as_array().unwrap() {
        let subjects = line["subjects"].as_array().unwrap();
        match subjects
            .iter()
            .find(|row| row["subject"] == *subject)
            .map(|row| row["result"].as_str().unwrap())
        {
            Some("FAIL") => {
                verdict = Verdict::Fail;
                broken.push(line["criterion"].as_str().unwrap().to_owned());
            }
            Some("UNKNOWN") if verdict == Verdict::Pass => verdict = Verdict::Inconclusive,
            _ => {}
        }
    }
    (verdict, broken)
}

/// Whether a port of the run has this event.
pub(super) fn has_event(report: &Report, kind: &str, cause: &str) -> bool {
    let ports = report.0["ports"].as_array().unwrap();
    let mut events = ports.iter().flat_map(|port| port["events"].as_array().unwrap());
    events.any(|event| event["kind"] == kind && event["cause"] == cause)
}

/// What is wrong with the verdict, with its reasons.
pub(super) fn wrong_verdict(
    code: Option<i32>,
    report: &Report,
    wanted: Wanted,
    is_whole: bool,
) -> Option<String> {
    let got = verdict_of(code, report);
    let is_kept = got.as_ref().is_ok_and(|verdict| wanted.is_kept(*verdict, is_whole));
    (!is_kept).then(|| format!("verdict: {got:?}, wanted {wanted:?}: {}", report.0["verdict"]))
}

/// The verdict that the exit code tells, and whether the report says the same.
fn verdict_of(code: Option<i32>, report: &Report) -> Result<Verdict, String> {
    let verdict = match code {
        Some(0) => Verdict::Pass,
        Some(1) => Verdict::Fail,
        Some(7) => Verdict::Inconclusive,
        other => return Err(format!("exit code {other:?}")),
    };
    let word = format!("{verdict:?}").to_uppercase();
    if report.verdict() == word {
        Ok(verdict)
    } else {
        Err(format!("{word} by its code, {}", report.verdict()))
    }
}
