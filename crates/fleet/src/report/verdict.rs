//! PASS, FAIL or INCONCLUSIVE: one pure function from the accounts of a run and the user's criteria.
//!
//! FAIL: a criterion is not met, and the rig did not do it. PASS: every criterion is met, and there is no doubt that matters.
//! INCONCLUSIVE: the rig cannot tell. A proven failure stays one whatever else is in doubt. docs/book/verdicts.md has the table.

use super::judgement::{
    CriterionLine, CriterionResult, MeasuredRange, StreamFinding, SubjectJudgement, allowed, count_in_words,
    time_in_words,
};
use super::{
    AcceptanceCriteria, LatencyFigure, LatencyLimit, LatencyReport, ProbesReport, ReportCoverage, SkewReport,
    StreamReport,
};
use crate::outcome::RunOutcome;
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_stats::ledger::LedgerImbalance;
use packetrig_stats::result::CaptureResult;
use packetrig_units::{Nanos, Ratio, Share};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Whether what was sent arrived as wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE", tag = "verdict", content = "reasons")]
pub enum RunVerdict {
    /// It did, and nothing is in doubt.
    Pass,
    /// It did not. The reasons.
    Fail(Vec<String>),
    /// The rig cannot tell. The reasons.
    Inconclusive(Vec<String>),
}

impl RunVerdict {
    /// The word for tables and the catalogue.
    pub const fn word(&self) -> &'static str {
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
        f.pad(self.word())
    }
}

/// What a verdict rests on.
#[derive(Debug)]
pub(super) struct VerdictEvidence<'a> {
    pub(super) streams: &'a [StreamReport],
    pub(super) imbalances: &'a [LedgerImbalance],
    pub(super) caveats: &'a [Caveat],
    pub(super) captures: &'a [CaptureResult],
    pub(super) coverage: ReportCoverage,
    pub(super) outcome: &'a RunOutcome,
    pub(super) skew: Option<&'a SkewReport>,
    pub(super) probes: Option<&'a ProbesReport>,
}

/// The verdict with the line of each criterion.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct VerdictReasons {
    pub(super) verdict: RunVerdict,
    pub(super) lines: Vec<CriterionLine>,
}

pub(super) fn judge(evidence: &VerdictEvidence<'_>, criteria: &AcceptanceCriteria) -> VerdictReasons {
    let lines = lines(evidence, criteria);
    let failures: Vec<String> = lines.iter().flat_map(|line| line.reasons(CriterionResult::Fail)).collect();
    let mut doubts: Vec<String> =
        lines.iter().flat_map(|line| line.reasons(CriterionResult::Unknown)).collect();
    doubts.extend(doubts_of(evidence));
    let verdict = match (failures.is_empty(), doubts.is_empty()) {
        (true, true) => RunVerdict::Pass,
        (true, false) => RunVerdict::Inconclusive(doubts),
        (false, _) => RunVerdict::Fail(failures),
    };
    VerdictReasons { verdict, lines }
}

/// The lines of criteria on streams, in the order in which they are added.
struct CriterionLines<'a> {
    streams: &'a [StreamReport],
    lines: Vec<CriterionLine>,
}

impl CriterionLines<'_> {
    fn add(&mut self, name: &str, limit: String, judge: impl Fn(&StreamReport) -> Option<StreamFinding>) {
        let judged = self.streams.iter().filter_map(|stream| {
            let StreamFinding { result, measured } = judge(stream)?;
            Some(SubjectJudgement { subject: format!("stream {}", stream.name), result, measured })
        });
        self.lines.extend(CriterionLine::of(name, limit, judged.collect()));
    }

    /// Criteria that every run has.
    fn add_counts(&mut self, criteria: &AcceptanceCriteria) {
        let limit = criteria.max_loss;
        self.add("loss", at_most(limit), |stream| stream.judge_loss(limit));
        let limit = criteria.max_duplicates;
        self.add("duplicates", at_most(limit), |stream| stream.judge_duplicates(limit));
        let limit = criteria.max_damaged;
        self.add("damage", at_most(limit), |stream| stream.judge_damage(limit));
        let limit = criteria.max_misdelivered;
        self.add("misdelivery", at_most(limit), |stream| stream.judge_misdelivery(limit));
    }

    /// Criteria that the user has to name.
    fn add_optional(&mut self, criteria: &AcceptanceCriteria) {
        if let Some(limit) = criteria.max_reordered {
            self.add("reordering", at_most(limit), |stream| {
                stream.judge_count(limit, |got| got.sequence.reordered, "arrived after a later one")
            });
        }
        if let Some(limit) = criteria.max_altered {
            self.add("alteration", at_most(limit), |stream| {
                stream.judge_count(limit, |got| got.altered, "arrived with other headers")
            });
        }
        for limit in &criteria.latency {
            let name = format!("latency {}", limit.figure);
            self.add(&name, at_most(limit.limit), |stream| stream.judge_latency(*limit));
        }
        if let Some(limit) = criteria.max_jitter {
            self.add("jitter", at_most(limit), |stream| stream.judge_jitter(limit));
        }
        if let Some(limit) = criteria.max_outage {
            self.add("outage", at_most(limit), |stream| stream.judge_outage(limit));
        }
        if let Some(limit) = criteria.min_rate {
            let words = format!("at least {limit} of the rate asked for");
            self.add("rate", words, |stream| stream.judge_rate(limit));
        }
    }
}

fn at_most(limit: impl fmt::Display) -> String {
    format!("at most {limit}")
}

fn lines(evidence: &VerdictEvidence<'_>, criteria: &AcceptanceCriteria) -> Vec<CriterionLine> {
    let mut lines = CriterionLines { streams: evidence.streams, lines: Vec::new() };
    lines.add_counts(criteria);
    lines.add_optional(criteria);
    let limit = criteria.min_verified;
    lines.add("verified", format!("at least {limit}"), |stream| stream.judge_verified(limit));
    let limit = criteria.max_late;
    lines.add("lateness", at_most(limit), |stream| stream.judge_lateness(limit));
    let mut lines = lines.lines;
    let captures = evidence.captures.iter().map(judge_capture).collect();
    lines.extend(CriterionLine::of("capture", "complete".to_owned(), captures));
    lines.extend(evidence.probes.and_then(ProbesReport::judge));
    lines
}

fn judge_capture(capture: &CaptureResult) -> SubjectJudgement {
    // Not a fault of the device, but not what the user asked for: never FAIL, and no PASS.
    let is_whole = capture.dropped == 0;
    let frames = capture.written.saturating_add(capture.dropped);
    SubjectJudgement {
        subject: format!("capture {}", capture.file),
        result: if is_whole { CriterionResult::Pass } else { CriterionResult::Unknown },
        measured: format!("{} of {frames} frames are in the file", capture.written),
    }
}

impl StreamReport {
    /// The criteria on its frames that have this result here, in words.
    pub fn judged_as(&self, wanted: CriterionResult, criteria: &AcceptanceCriteria) -> Vec<String> {
        let judged = [
            self.judge_loss(criteria.max_loss),
            self.judge_duplicates(criteria.max_duplicates),
            self.judge_damage(criteria.max_damaged),
            self.judge_misdelivery(criteria.max_misdelivered),
        ];
        let found = judged.into_iter().flatten().filter(|finding| finding.result == wanted);
        found.map(|finding| format!("stream {}: {}", self.name, finding.measured)).collect()
    }

    fn judge_loss(&self, limit: Share) -> Option<StreamFinding> {
        let loss = self.loss?;
        let contents = self.contents.unwrap_or_default();
        // Numbered frames and those compared by content are disjoint, so one limit holds for their sum.
        let expected = loss.expected.saturating_add(contents.compared);
        let most = loss.lost.saturating_add(contents.lost);
        let in_doubt = loss.in_doubt.saturating_add(contents.in_doubt);
        let range = MeasuredRange { least: most - in_doubt.min(most), most };
        let stale = self.received.as_ref().map_or(0, |got| got.sequence.stale);
        let lost = count_in_words(range, expected, "lost");
        let measured = match stale {
            0 => lost,
            _ => format!("{lost}; {stale} frames came more than 65536 frames late and count as lost"),
        };
        Some(StreamFinding { result: range.within(allowed(limit, expected)), measured })
    }

    fn judge_count(
        &self,
        limit: Share,
        count: fn(&super::ArrivedFrames) -> u64,
        what: &str,
    ) -> Option<StreamFinding> {
        let received = self.received.as_ref().filter(|_| self.measured)?;
        Some(self.judge_frames(limit, MeasuredRange::exactly(count(received)), what))
    }

    fn judge_frames(&self, limit: Share, frames: MeasuredRange, what: &str) -> StreamFinding {
        let received = self.received.as_ref().map_or(0, |received| received.frames);
        let expected = self.loss.map_or(received, |loss| loss.expected);
        let measured = count_in_words(frames, expected, what);
        StreamFinding { result: frames.within(allowed(limit, expected)), measured }
    }

    fn judge_duplicates(&self, limit: Share) -> Option<StreamFinding> {
        let received = self.received.as_ref().filter(|_| self.measured)?;
        let loss = self.loss.filter(|loss| loss.extra > 0);
        // Frames beyond those expected count as copies. A frame that came too late to be told from a copy may
        // be one.
        let extra = loss.map_or(0, |loss| loss.extra);
        let copies = received.sequence.duplicates.saturating_add(extra);
        let in_doubt = loss.map_or(0, |loss| loss.extra_in_doubt);
        let frames = MeasuredRange {
            least: copies.saturating_sub(in_doubt),
            most: copies.saturating_add(received.sequence.stale),
        };
        let what = match (loss, received.sequence.stale) {
            (Some(_), _) => {
                "arrived more than once, or more than expected (is rx_tx_ratio right?)".to_owned()
            }
            (None, 0) => "arrived more than once".to_owned(),
            (None, stale) => {
                format!("arrived more than once, if the {stale} that came over 65536 frames late are copies")
            }
        };
        let expected = self.loss.map_or(received.frames, |loss| loss.expected);
        let ratio = Ratio::new(frames.most, expected);
        let measured = format!("{} of {expected} frames {what} ({ratio})", frames.most);
        Some(StreamFinding { result: frames.within(allowed(limit, expected)), measured })
    }

    fn judge_damage(&self, limit: Share) -> Option<StreamFinding> {
        let what = "arrived with a damaged payload or tag";
        self.judge_count(limit, |received| received.corrupt.saturating_add(received.unnumbered), what)
    }

    fn judge_misdelivery(&self, limit: Share) -> Option<StreamFinding> {
        let loss = self.loss?;
        let Some(astray) = &self.misdelivery else {
            let measured = format!("0 of {} frames at other ports", loss.expected);
            return Some(StreamFinding { result: CriterionResult::Pass, measured });
        };
        // A flood brings a frame to several wrong ports; it is one frame all the same.
        let range = MeasuredRange::exactly(astray.frames.saturating_sub(astray.to_groups).min(loss.expected));
        let result = range.within(allowed(limit, loss.expected));
        Some(StreamFinding { result, measured: astray.to_string() })
    }

    fn judge_latency(&self, limit: LatencyLimit) -> Option<StreamFinding> {
        self.received.as_ref().filter(|got| got.frames > 0)?;
        let Some(latency) = &self.latency else {
            return Some(StreamFinding::unknown(format!("latency {} was not measured", limit.figure)));
        };
        let value = latency.figure(limit.figure).as_u64();
        // Stamps make a latency look longer than it is; two clocks make it look longer or shorter.
        let clock = latency.error.clock.unwrap_or(Nanos::ZERO).as_u64();
        let least = latency.error.p99().map_or(0, |error| value.saturating_sub(error.as_u64()));
        let range = MeasuredRange { least, most: value.saturating_add(clock) };
        let measured = format!("{} {}", limit.figure, time_in_words(range));
        Some(StreamFinding { result: range.within(limit.limit.as_u64()), measured })
    }

    fn judge_jitter(&self, limit: Nanos) -> Option<StreamFinding> {
        self.received.as_ref().filter(|got| got.frames > 1)?;
        let Some(jitter) = &self.jitter else {
            return Some(StreamFinding::unknown("jitter was not measured".to_owned()));
        };
        let range = MeasuredRange::exactly(jitter.rfc3550.as_u64());
        Some(StreamFinding { result: range.within(limit.as_u64()), measured: time_in_words(range) })
    }

    fn judge_outage(&self, limit: Nanos) -> Option<StreamFinding> {
        self.loss?;
        let Some(outages) = &self.outages else {
            let measured = "outages are not known where receivers share a stream".to_owned();
            return Some(StreamFinding::unknown(measured));
        };
        let range = MeasuredRange {
            least: outages.longest_certain.map_or(0, Nanos::as_u64),
            most: outages.longest.map_or(0, Nanos::as_u64),
        };
        let measured = format!("longest {}", time_in_words(range));
        Some(StreamFinding { result: range.within(limit.as_u64()), measured })
    }

    fn judge_rate(&self, limit: Share) -> Option<StreamFinding> {
        let asked = self.asked_milli?;
        let received = self.received.as_ref()?.rate.map_or(0, |rate| rate.frames_milli);
        let is_met = received >= allowed(limit, asked);
        // What was not sent, or lost for the rig's sake, could not arrive.
        let is_doubtful = self.sent.as_ref().is_none_or(|sent| sent.unsent > 0)
            || self.loss.is_none_or(|loss| loss.in_doubt > 0);
        let result = match (is_met, is_doubtful) {
            (true, _) => CriterionResult::Pass,
            (false, true) => CriterionResult::Unknown,
            (false, false) => CriterionResult::Fail,
        };
        let measured =
            format!("{} of {} frames/s ({})", received / 1000, asked / 1000, Ratio::new(received, asked));
        Some(StreamFinding { result, measured })
    }

    /// Of the frames sent, those that receivers can know again.
    fn judge_verified(&self, limit: Share) -> Option<StreamFinding> {
        let sent = self.sent.as_ref().filter(|sent| self.loss.is_some() && sent.frames > 0)?;
        let compared = self.contents.map_or(0, |contents| contents.compared);
        let verified = sent.frames.saturating_sub(sent.untagged).saturating_add(compared);
        let is_met = verified >= allowed(limit, sent.frames);
        let result = if is_met { CriterionResult::Pass } else { CriterionResult::Unknown };
        let measured = format!(
            "{verified} of {} frames can be verified, {compared} of them by their content ({})",
            sent.frames,
            Ratio::new(verified, sent.frames)
        );
        Some(StreamFinding { result, measured })
    }

    fn judge_lateness(&self, limit: Nanos) -> Option<StreamFinding> {
        let error = self.sent.as_ref()?.send_error?;
        let is_met = error.max <= limit;
        let result = if is_met { CriterionResult::Pass } else { CriterionResult::Unknown };
        Some(StreamFinding { result, measured: format!("frames left up to {} late", error.max) })
    }
}

impl LatencyReport {
    const fn figure(&self, figure: LatencyFigure) -> Nanos {
        match figure {
            LatencyFigure::P50 => self.p50,
            LatencyFigure::P90 => self.p90,
            LatencyFigure::P99 => self.p99,
            LatencyFigure::P999 => self.p999,
            LatencyFigure::P9999 => self.p9999,
            LatencyFigure::Mean => self.mean,
            LatencyFigure::Max => self.max,
        }
    }
}

fn doubts_of(evidence: &VerdictEvidence<'_>) -> Vec<String> {
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
    doubts.extend(evidence.skew.and_then(SkewReport::doubt));
    let caveats: Vec<&Caveat> = evidence.caveats.iter().filter(|caveat| caveat.matters).collect();
    // A node that has said so names the cause: the same is not told twice.
    if !caveats.iter().any(|caveat| caveat.doubt == CaveatKind::Unbalanced) {
        let wrong = evidence.imbalances.iter();
        doubts.extend(wrong.map(|wrong| format!("the ledger does not balance: {wrong}")));
    }
    doubts.extend(caveats.iter().map(|caveat| format!("{}: {}", caveat.subject, caveat.text)));
    for stream in evidence.streams {
        doubts.extend(unsent_frames(stream, &caveats));
        doubts.extend(missing_report(stream));
    }
    // If a node did not report, its measurements may just be missing.
    doubts.extend(evidence.probes.into_iter().flat_map(ProbesReport::doubts));
    let nothing = evidence.probes.is_none()
        && !evidence.streams.iter().any(|stream| stream.loss.is_some_and(|loss| loss.expected > 0));
    if nothing && evidence.coverage.is_full() {
        doubts.push("nothing was measured: no stream with metrics was sent to a receiver".to_owned());
    }
    doubts
}

/// Frames that a sender did not send, unless a caveat tells that already.
fn unsent_frames(stream: &StreamReport, caveats: &[&Caveat]) -> Option<String> {
    let sent = stream.sent.as_ref().filter(|sent| sent.unsent > 0)?;
    let mut short = caveats.iter().filter(|caveat| caveat.doubt == CaveatKind::SenderShort);
    if short.any(|caveat| caveat.subject == stream.name) {
        return None;
    }
    Some(format!("stream {}: {} of {} planned frames were not sent", stream.name, sent.unsent, sent.planned))
}

/// What makes it impossible to judge a stream.
fn missing_report(stream: &StreamReport) -> Option<String> {
    let is_missing = stream.measured && !stream.rx_ports.is_empty() && stream.loss.is_none();
    is_missing.then(|| format!("stream {}: a sender or receiver did not report", stream.name))
}
