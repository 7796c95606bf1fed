//! Computes the verdict PASS, FAIL or INCONCLUSIVE from the results of a run and the user's criteria,
//! in a pure function.
//!
//! FAIL: a criterion is not met, and the rig is not the cause. PASS: every criterion is met, and there is no
//! doubt that matters. INCONCLUSIVE: the rig cannot tell. A proven failure stays a FAIL, whatever else is in
//! doubt. docs/book/verdicts.md has the table.

use super::doubt::PortEventReport;
use super::judgement::{CriterionLine, CriterionResult, StreamFinding, SubjectJudgement};
use super::{AcceptanceCriteria, PortReport, ProbesReport, ReportCoverage, SkewReport, StreamReport};
use crate::outcome::RunOutcome;
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_stats::ledger::LedgerImbalance;
use packetrig_stats::port_event::PortEventKind;
use packetrig_stats::result::{CaptureResult, NodeResult};
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum number of ports that a verdict names.
const MAX_NAMED: usize = 8;

/// Verdict on a run, according to its criteria.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE", tag = "verdict", content = "reasons")]
pub enum RunVerdict {
    /// Every criterion is met, and no doubt matters.
    Pass,
    /// A criterion is not met; with the reasons.
    Fail(Vec<String>),
    /// The rig cannot decide; with the reasons.
    Inconclusive(Vec<String>),
}

impl RunVerdict {
    /// Word for tables and the catalogue.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail(_) => "FAIL",
            Self::Inconclusive(_) => "INCONCLUSIVE",
        }
    }
    pub fn reasons(&self) -> &[String] {
        match self {
            Self::Pass => &[],
            Self::Fail(reasons) | Self::Inconclusive(reasons) => reasons,
        }
    }
}

impl fmt::Display for RunVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Evidence on which a verdict rests.
#[derive(Debug)]
pub(super) struct VerdictEvidence<'a> {
    pub(super) streams: &'a [StreamReport],
    pub(super) ports: &'a [PortReport],
    pub(super) imbalances: &'a [LedgerImbalance],
    pub(super) caveats: &'a [Caveat],
    pub(super) results: &'a [NodeResult],
    pub(super) coverage: ReportCoverage,
    pub(super) outcome: &'a RunOutcome,
    pub(super) skew: Option<&'a SkewReport>,
    pub(super) probes: Option<&'a ProbesReport>,
}

/// The verdict with the line of each criterion.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct VerdictWithCriterionLines {
    pub(super) verdict: RunVerdict,
    pub(super) lines: Vec<CriterionLine>,
}

pub(super) fn judge_run(
    evidence: &VerdictEvidence<'_>,
    criteria: &AcceptanceCriteria,
) -> VerdictWithCriterionLines {
    let lines = judge_all_criteria(evidence, criteria);
    let failures: Vec<String> =
        lines.iter().flat_map(|line| line.reasons_for_result(CriterionResult::Fail)).collect();
    let mut doubts: Vec<String> = describe_lost_links(evidence);
    doubts.extend(lines.iter().flat_map(|line| line.reasons_for_result(CriterionResult::Unknown)));
    doubts.extend(list_doubts(evidence));
    // FAIL takes precedence over doubts, because a fault of the rig never causes a FAIL.
    let verdict = match (failures.is_empty(), doubts.is_empty()) {
        (true, true) => RunVerdict::Pass,
        (true, false) => RunVerdict::Inconclusive(doubts),
        (false, _) => RunVerdict::Fail(failures),
    };
    VerdictWithCriterionLines { verdict, lines }
}

/// The lines of criteria on streams, in the order in which they are added.
struct CriterionLines<'a> {
    streams: &'a [StreamReport],
    lines: Vec<CriterionLine>,
}

impl CriterionLines<'_> {
    fn add_criterion(
        &mut self,
        name: &str,
        limit: String,
        judge: impl Fn(&StreamReport) -> Option<StreamFinding>,
    ) {
        let judged = self.streams.iter().filter_map(|stream| {
            let StreamFinding { result, measured, figure } = judge(stream)?;
            let subject = format!("stream {}", stream.name);
            Some(SubjectJudgement { subject, result, measured, figure })
        });
        self.lines.extend(CriterionLine::from_judgements(name, limit, judged.collect()));
    }

    /// Adds the criteria that every run has.
    fn add_default_criteria(&mut self, criteria: &AcceptanceCriteria) {
        let limit = criteria.max_loss;
        self.add_criterion("loss", at_most(limit), |stream| stream.judge_loss(limit));
        let limit = criteria.max_duplicates;
        self.add_criterion("duplicates", at_most(limit), |stream| stream.judge_duplicates(limit));
        let limit = criteria.max_damaged;
        self.add_criterion("damage", at_most(limit), |stream| stream.judge_damage(limit));
        let limit = criteria.max_misdelivered;
        self.add_criterion("misdelivery", at_most(limit), |stream| stream.judge_misdelivery(limit));
    }

    /// Adds the criteria for which the user has set a limit.
    fn add_optional_criteria(&mut self, criteria: &AcceptanceCriteria) {
        if let Some(limit) = criteria.max_reordered {
            self.add_criterion("reordering", at_most(limit), |stream| {
                stream.judge_exact_count(limit, |got| got.sequence.reordered, "arrived after a later frame")
            });
        }
        if let Some(limit) = criteria.max_altered {
            self.add_criterion("alteration", at_most(limit), |stream| {
                stream.judge_exact_count(limit, |got| got.altered, "arrived with changed headers")
            });
        }
        for limit in &criteria.latency {
            let name = format!("latency {}", limit.figure);
            self.add_criterion(&name, at_most(limit.limit), |stream| stream.judge_latency(*limit));
        }
        if let Some(limit) = criteria.max_jitter {
            self.add_criterion("jitter", at_most(limit), |stream| stream.judge_jitter(limit));
        }
        if let Some(limit) = criteria.max_outage {
            self.add_criterion("outage", at_most(limit), |stream| stream.judge_outage(limit));
        }
        if let Some(limit) = criteria.min_rate {
            let words = format!("at least {limit} of the requested rate");
            self.add_criterion("rate", words, |stream| stream.judge_rate(limit));
        }
    }
}

fn at_most(limit: impl fmt::Display) -> String {
    format!("at most {limit}")
}

fn judge_all_criteria(evidence: &VerdictEvidence<'_>, criteria: &AcceptanceCriteria) -> Vec<CriterionLine> {
    let mut lines = CriterionLines { streams: evidence.streams, lines: Vec::new() };
    lines.add_default_criteria(criteria);
    lines.add_optional_criteria(criteria);
    let limit = criteria.min_verified;
    lines.add_criterion("verified", format!("at least {limit}"), |stream| stream.judge_verified(limit));
    let limit = criteria.max_late;
    lines.add_criterion("lateness", at_most(limit), |stream| stream.judge_lateness(limit));
    let mut lines = lines.lines;
    let captures =
        evidence.results.iter().flat_map(|node| node.captures.iter().map(|one| judge_capture(node, one)));
    let captures = captures.collect();
    lines.extend(CriterionLine::from_judgements("capture", "complete".to_owned(), captures));
    lines.extend(evidence.probes.and_then(ProbesReport::judge_lines));
    lines
}

fn judge_capture(node: &NodeResult, capture: &CaptureResult) -> SubjectJudgement {
    // An incomplete capture is a fault of the rig, so it never gives FAIL. But it is not the capture that the
    // user asked for, so it gives no PASS either.
    let failure = find_receive_failure(node, capture.port);
    let is_whole = capture.dropped == 0 && failure.is_none();
    let frames = capture.written.saturating_add(capture.dropped);
    let known = format!("{} of {frames} frames are in the file", capture.written);
    SubjectJudgement {
        subject: format!("capture {}", capture.file),
        result: if is_whole { CriterionResult::Pass } else { CriterionResult::Unknown },
        measured: match failure {
            Some(failure) => format!("{known}; the number of further frames is unknown, because {failure}"),
            None => known,
        },
        figure: None,
    }
}

/// Finds an event because of which the receiver missed an unknown number of frames.
fn find_receive_failure(node: &NodeResult, port: usize) -> Option<PortEventKind> {
    let port = node.ports.iter().find(|row| row.port == port)?;
    let mut events = port.events.iter().filter(|event| !event.only_sending);
    events.find(|event| event.what == PortEventKind::PortFailed).map(|event| event.what)
}

/// Describes ports that had no link, if losses are in doubt: a cable is more often the cause than the device.
fn describe_lost_links(evidence: &VerdictEvidence<'_>) -> Vec<String> {
    let has_doubtful_loss =
        evidence.streams.iter().any(|stream| stream.loss.is_some_and(|loss| loss.in_doubt > 0));
    if !has_doubtful_loss {
        return Vec::new();
    }
    let of_port = |port: &PortReport| {
        let events = port.events.iter().filter(|event| is_lost_link(event)).count();
        let first = port.events.iter().find(|event| is_lost_link(event))?;
        let more = if events > 1 { format!("; number of such events: {events}") } else { String::new() };
        Some(format!("{}: {}{more}", port.full_name(), describe_lost_link(first)))
    };
    evidence.ports.iter().filter_map(of_port).take(MAX_NAMED).collect()
}

fn is_lost_link(event: &PortEventReport) -> bool {
    let is_link = matches!(event.what, PortEventKind::CarrierLost | PortEventKind::SwitchedDown);
    is_link && !event.cause.is_measured()
}

fn describe_lost_link(event: &PortEventReport) -> String {
    let what = match event.what {
        PortEventKind::SwitchedDown => "its interface was down",
        _ => "no carrier",
    };
    let advice = "check that the other end is connected and up";
    match (event.from, event.until) {
        (Nanos::ZERO, None) => format!("{what} from the start to the end of the run; {advice}"),
        (Nanos::ZERO, Some(until)) => format!("{what} from the start until {until}"),
        (from, None) => format!("{what} from {from} to the end of the run; {advice}"),
        (from, Some(until)) => format!("{what} from {from} to {until}"),
    }
}

fn list_doubts(evidence: &VerdictEvidence<'_>) -> Vec<String> {
    let mut doubts = Vec::new();
    match evidence.outcome {
        RunOutcome::Complete { .. } => {}
        RunOutcome::Partial { reasons, .. } => doubts.extend(reasons.iter().cloned()),
        RunOutcome::Aborted => doubts.push("the run was aborted".to_owned()),
        RunOutcome::Failed { fault } => doubts.push(format!("the run failed: {fault}")),
    }
    let ReportCoverage { reported, expected } = evidence.coverage;
    if !evidence.coverage.is_full() {
        doubts.push(format!("only {reported} of {expected} nodes reported"));
    }
    doubts.extend(evidence.skew.and_then(SkewReport::describe_doubt));
    let caveats: Vec<&Caveat> = evidence.caveats.iter().filter(|caveat| caveat.matters).collect();
    // If a node has a caveat about its ledger, the caveat names the cause, so the imbalance is not reported a
    // second time.
    if !caveats.iter().any(|caveat| caveat.doubt == CaveatKind::Unbalanced) {
        let wrong = evidence.imbalances.iter();
        doubts.extend(wrong.map(|wrong| format!("the ledger does not balance: {wrong}")));
    }
    doubts.extend(caveats.iter().map(|caveat| format!("{}: {}", caveat.subject, caveat.text)));
    for stream in evidence.streams {
        doubts.extend(explain_unsent_frames(stream, &caveats));
        doubts.extend(explain_missing_report(stream));
    }
    doubts.extend(evidence.probes.into_iter().flat_map(ProbesReport::line_doubts));
    let nothing = evidence.probes.is_none()
        && !evidence.streams.iter().any(|stream| stream.loss.is_some_and(|loss| loss.expected > 0));
    // If a node did not report, measurements may exist that are missing here.
    if nothing && evidence.coverage.is_full() {
        doubts.push("nothing was measured: no stream with metrics was sent to a receiver".to_owned());
    }
    doubts
}

/// Describes planned frames that were not sent, unless a caveat reports them already.
fn explain_unsent_frames(stream: &StreamReport, caveats: &[&Caveat]) -> Option<String> {
    let sent = stream.sent.as_ref().filter(|sent| sent.unsent > 0)?;
    let mut short = caveats.iter().filter(|caveat| caveat.doubt == CaveatKind::SenderShort);
    if short.any(|caveat| caveat.subject == stream.name) {
        return None;
    }
    Some(format!("stream {}: {} of {} planned frames were not sent", stream.name, sent.unsent, sent.planned))
}

/// Reason why a measured stream cannot be judged.
fn explain_missing_report(stream: &StreamReport) -> Option<String> {
    // A stream without metrics or receivers is not judged.
    let is_missing = stream.measured && !stream.rx_ports.is_empty() && stream.loss.is_none();
    is_missing.then(|| format!("stream {}: a sender or receiver did not report", stream.name))
}
