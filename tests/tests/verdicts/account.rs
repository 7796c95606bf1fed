//! Compares what a run reports of a stream with the log of the judge.

use super::table::{Verdict, Wanted};
use packetrig_tests::judge::JudgedStream;
use packetrig_tests::program::Report;
use packetrig_tests::rig_fault::RigFault;
use serde_json::Value;

/// What is wrong with the report of a stream, in words; nothing if it is right.
pub(super) fn differences(report: &Report, stream: &str, truth: &JudgedStream, rig: RigFault) -> Vec<String> {
    if !has_result(report, stream) {
        return vec![format!("stream {stream}: no result")];
    }
    let number = |path: &str| report.number(stream, path);
    let (lost, in_doubt) = (number("/loss/lost"), number("/loss/in_doubt"));
    let (unique, frames) = (number("/received/sequence/unique"), number("/received/frames"));
    let astray = report.stream(stream).pointer("/misdelivery/frames").and_then(Value::as_u64).unwrap_or(0);
    let mut checks = vec![
        Check::equal("corrupt", number("/received/corrupt"), truth.corrupted()),
        Check::equal("astray", astray, truth.astray()),
        Check::equal("duplicates", number("/received/sequence/duplicates"), truth.left() - truth.delivered()),
        Check::equal("lost", lost + unique, number("/loss/expected")),
        Check::at_most("blamed on the device", lost - in_doubt, truth.lost_by_device()),
    ];
    let is_tx_whole =
        matches!(rig, RigFault::None | RigFault::RxDown | RigFault::RxCarrierLost | RigFault::Stalled);
    let is_rx_whole = !matches!(rig, RigFault::RxDown | RigFault::RxCarrierLost);
    let sent = number("/sent/frames");
    if is_tx_whole {
        checks.push(Check::equal("sent", sent, truth.received()));
    } else {
        checks.push(Check::at_most("at the device", truth.received(), sent));
    }
    if is_rx_whole {
        checks.push(Check::equal("received", frames, truth.left()));
        checks.push(Check::equal("unique", unique, truth.delivered()));
    } else {
        checks.push(Check::at_most("received", frames, truth.left()));
        checks.push(Check::at_most(
            "lost at the receiver and in no doubt",
            truth.delivered() - unique,
            in_doubt,
        ));
    }
    checks.into_iter().filter_map(|check| check.difference(stream)).collect()
}

/// Whether both ends of a stream reported.
pub(super) fn has_result(report: &Report, stream: &str) -> bool {
    !report.stream(stream)["loss"].is_null()
}

/// Whether every planned frame of a stream arrived.
pub(super) fn is_whole(report: &Report, stream: &str) -> bool {
    has_result(report, stream)
        && report.number(stream, "/received/sequence/unique") == report.number(stream, "/sent/planned")
}

struct Check {
    what: &'static str,
    got: u64,
    wanted: u64,
    or_less: bool,
}

impl Check {
    fn equal(what: &'static str, got: u64, wanted: u64) -> Self {
        Self { what, got, wanted, or_less: false }
    }

    fn at_most(what: &'static str, got: u64, wanted: u64) -> Self {
        Self { what, got, wanted, or_less: true }
    }

    fn difference(&self, stream: &str) -> Option<String> {
        let Self { what, got, wanted, or_less } = self;
        let is_right = got == wanted || *or_less && got < wanted;
        let words = if *or_less { "at most " } else { "" };
        (!is_right).then(|| format!("stream {stream}: {what}: {got}, by the judge {words}{wanted}"))
    }
}

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
