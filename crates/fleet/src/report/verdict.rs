//! PASS, FAIL or INCONCLUSIVE.
//!
//! PASS: everything sent was counted exactly as wanted, and there is no doubt that matters. FAIL: it was not, and the
//! rig did not do it. INCONCLUSIVE: the rig cannot tell. A proven failure stays one whatever else is in doubt.

use super::{Coverage, LossPlaces, SkewReport, StreamReport};
use crate::outcome::Outcome;
use packetrig_stats::caveat::{Caveat, Doubt};
use packetrig_stats::ledger::Imbalance;
use packetrig_units::{Nanos, Share};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What the user accepts. Reordered frames and rewritten headers are reported, not judged: many devices do both by
/// design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Criteria {
    /// Largest share of a stream's frames that may be lost.
    pub max_loss: Share,
    /// How far apart senders on different nodes may begin at most.
    #[serde(default)]
    pub max_skew: Option<Nanos>,
}

impl Default for Criteria {
    /// Nothing may be lost.
    fn default() -> Self {
        Self { max_loss: Share::from_billionths(0), max_skew: None }
    }
}

/// Whether what was sent arrived as wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE", tag = "verdict", content = "reasons")]
pub enum Verdict {
    /// It did, and nothing is in doubt.
    Pass,
    /// It did not. The reasons.
    Fail(Vec<String>),
    /// The rig cannot tell. The reasons.
    Inconclusive(Vec<String>),
}

impl Verdict {
    /// The word for tables and the catalogue.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail(_) => "FAIL",
            Self::Inconclusive(_) => "INCONCLUSIVE",
        }
    }
    /// Why not PASS.
    pub fn reasons(&self) -> &[String] {
        match self {
            Self::Pass => &[],
            Self::Fail(reasons) | Self::Inconclusive(reasons) => reasons,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// What a verdict rests on.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    pub(super) streams: &'a [StreamReport],
    pub(super) lost: LossPlaces,
    pub(super) imbalances: &'a [Imbalance],
    pub(super) caveats: &'a [Caveat],
    pub(super) coverage: Coverage,
    pub(super) outcome: &'a Outcome,
    pub(super) skew: Option<&'a SkewReport>,
}

pub(super) fn judge(evidence: &Evidence<'_>, criteria: Criteria) -> Verdict {
    let mut failures = Vec::new();
    let mut doubts = doubts(evidence);
    // What our own sender and receiver dropped is no fault of the device under test.
    let rig_lost_it = evidence.lost.path == Some(0);
    for stream in evidence.streams {
        if let Some(reason) = stream.lost_too_much(criteria) {
            if rig_lost_it { &mut doubts } else { &mut failures }.push(reason);
        }
        failures.extend(stream.damage());
    }
    if rig_lost_it && evidence.lost.total > 0 {
        doubts.push("every lost frame was lost in the rig itself, not in the device under test".to_owned());
    }
    match (failures.is_empty(), doubts.is_empty()) {
        (true, true) => Verdict::Pass,
        (true, false) => Verdict::Inconclusive(doubts),
        (false, _) => Verdict::Fail(failures),
    }
}

fn doubts(evidence: &Evidence<'_>) -> Vec<String> {
    let mut doubts = Vec::new();
    match evidence.outcome {
        Outcome::Complete { .. } => {}
        Outcome::Partial { reasons, .. } => doubts.extend(reasons.iter().cloned()),
        Outcome::Aborted => doubts.push("the run was given up".to_owned()),
        Outcome::Failed { fault } => doubts.push(format!("the run failed: {fault}")),
    }
    let Coverage { reported, expected } = evidence.coverage;
    if !evidence.coverage.is_full() {
        doubts.push(format!("only {reported} of {expected} nodes reported"));
    }
    doubts.extend(evidence.skew.and_then(SkewReport::doubt));
    let said = |doubt: Doubt, subject: &str| {
        let same = |caveat: &Caveat| caveat.matters && caveat.doubt == doubt;
        evidence
            .caveats
            .iter()
            .any(|caveat| same(caveat) && (subject.is_empty() || caveat.subject == subject))
    };
    if !said(Doubt::Unbalanced, "") {
        let wrong = evidence.imbalances.iter();
        doubts.extend(wrong.map(|wrong| format!("the ledger does not balance: {wrong}")));
    }
    let matters = evidence.caveats.iter().filter(|caveat| caveat.matters);
    doubts.extend(matters.map(|caveat| format!("{}: {}", caveat.subject, caveat.text)));
    for stream in evidence.streams {
        let short = stream.sent.as_ref().filter(|sent| sent.unsent > 0);
        if let Some(sent) = short.filter(|_| !said(Doubt::SenderShort, &stream.name)) {
            let (name, unsent, planned) = (&stream.name, sent.unsent, sent.planned);
            doubts.push(format!("stream {name}: {unsent} of {planned} planned frames were not sent"));
        }
        doubts.extend(unjudged(stream));
    }
    if !evidence.streams.iter().any(|stream| stream.loss.is_some_and(|loss| loss.expected > 0)) {
        doubts.push("nothing was measured: no stream with metrics was sent to a receiver".to_owned());
    }
    doubts
}

/// What makes it impossible to judge a stream.
fn unjudged(stream: &StreamReport) -> Vec<String> {
    let mut doubts = Vec::new();
    let name = &stream.name;
    if stream.measured && !stream.rx_ports.is_empty() && stream.loss.is_none() {
        doubts.push(format!("stream {name}: a sender or receiver did not report"));
    }
    if let Some(stale) = stream.received.as_ref().map(|got| got.sequence.stale).filter(|stale| *stale > 0) {
        doubts.push(format!("stream {name}: {stale} frames came too late to tell a copy from a late one"));
    }
    doubts
}

impl StreamReport {
    /// What is wrong with this stream by the user's criteria, whoever did it; empty if it is as wanted.
    pub fn faults(&self, criteria: Criteria) -> Vec<String> {
        self.lost_too_much(criteria).into_iter().chain(self.damage()).collect()
    }

    fn lost_too_much(&self, criteria: Criteria) -> Option<String> {
        let loss = self.loss.filter(|loss| loss.lost > 0)?;
        let allowed = u128::from(loss.expected) * u128::from(criteria.max_loss.billionths());
        let too_much = u128::from(loss.lost) * u128::from(Share::WHOLE.billionths()) > allowed;
        let (lost, of) = (loss.lost, loss.expected);
        too_much.then(|| format!("stream {}: {lost} of {of} frames lost ({})", self.name, loss.ratio()))
    }

    /// What arrived, but not as sent.
    fn damage(&self) -> Vec<String> {
        let Some(received) = self.received.as_ref().filter(|_| self.measured) else { return Vec::new() };
        let extra = self.loss.map_or(0, |loss| loss.extra);
        [
            (received.sequence.duplicates, "frames arrived more than once"),
            (extra, "frames more than expected were counted (is rx_tx_ratio right?)"),
            (received.corrupt, "frames arrived with a damaged payload"),
            (received.unnumbered, "frames arrived with a damaged tag"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("stream {}: {count} {what}", self.name))
        .collect()
    }
}
