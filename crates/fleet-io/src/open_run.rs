//! State of a run with an incomplete report. When missing results arrive, the report is written again from this state.

use crate::error::Error;
use crate::local::EndedRun;
use packetrig_fleet::controller::RESULT_MISSING;
use packetrig_fleet::packed;
use packetrig_plan::{Plan, PlanParseOptions};
use packetrig_report::outcome::RunOutcome;
use packetrig_report::{NodeName, ReportCoverage, RunFacts, RunReport, RunTimes, assemble_report};
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_stats::result::NodeResult;
use packetrig_sys::clock;
use serde::{Deserialize, Serialize};
use std::io;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpenRun {
    facts: RunFacts,
    /// Attempt that the report is about. Results of other attempts are not added to it.
    attempt: u32,
    outcome: RunOutcome,
    times: RunTimes,
    results: Vec<NodeResult>,
    /// Time at which the report was first written, nanoseconds since 1970 (UTC).
    written_at: u64,
    /// Caveats about earlier starts and about results that came later; they are added to every report that is built.
    notes: Vec<Caveat>,
}

impl OpenRun {
    /// Copies the state of a run that has ended with missing results; `None` if no result is missing. `None` also for
    /// a steered run: its plan does not record the user's actions, so its report stays as it is.
    pub(crate) fn from_ended(ended: &EndedRun) -> Option<Self> {
        let outcome = ended.controller.outcome().filter(|it| matches!(it, RunOutcome::Partial { .. }))?;
        let results: Vec<NodeResult> = ended.controller.results().cloned().collect();
        let is_open = !ended.facts.steered && results.len() < ended.facts.nodes.len();
        is_open.then(|| Self {
            facts: ended.facts.clone(),
            attempt: ended.controller.head().attempt,
            outcome: outcome.clone(),
            times: ended.times.clone(),
            results,
            written_at: clock::wall_clock_ns(),
            notes: Vec::new(),
        })
    }

    /// Makes a run that ended in its first attempt without any result.
    #[cfg(test)]
    pub(crate) fn without_results(facts: RunFacts, outcome: RunOutcome) -> Self {
        let times = RunTimes::default();
        Self { facts, attempt: 1, outcome, times, results: Vec::new(), written_at: 0, notes: Vec::new() }
    }

    /// Writes the state as compressed bytes for the catalogue.
    pub(crate) fn to_bytes(&self) -> io::Result<Vec<u8>> {
        packed::pack_value(self)
    }

    /// Reads the state from the bytes of the catalogue.
    pub(crate) fn from_bytes(bytes: &[u8]) -> io::Result<Self> {
        packed::unpack_value(bytes)
    }

    /// Returns whether the report lacks the result of a node, and is about this attempt.
    pub(crate) fn lacks_result_of(&self, attempt: u32, node: &NodeName) -> bool {
        // A result that arrives twice must not be counted twice.
        let is_here = self.results.iter().any(|result| result.node == node.0);
        attempt == self.attempt && self.facts.nodes.contains(node) && !is_here
    }

    /// Attempt that the report is about.
    pub(crate) const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Nodes without a result in the report.
    pub(crate) fn missing_nodes(&self) -> Vec<NodeName> {
        self.facts.nodes.iter().filter(|node| self.lacks_result_of(self.attempt, node)).cloned().collect()
    }

    /// Returns whether the report has the results of all nodes.
    pub(crate) const fn is_whole(&self) -> bool {
        self.coverage().is_full()
    }

    const fn coverage(&self) -> ReportCoverage {
        ReportCoverage { reported: self.results.len(), expected: self.facts.nodes.len() }
    }

    /// Adds a caveat to each report that is built from now on.
    pub fn add_note(&mut self, note: Caveat) {
        self.notes.push(note);
    }

    /// Adds a result that arrived after the report was written, with a caveat about it.
    pub(crate) fn add_late_result(&mut self, node: &NodeName, result: NodeResult, doubts: Vec<String>) {
        let seconds = clock::wall_clock_ns().saturating_sub(self.written_at) / 1_000_000_000;
        let text =
            format!("its results came {seconds} s after the report was first written, and were added to it");
        self.notes.push(build_late_result_caveat(node, text.clone(), false));
        if let RunOutcome::Partial { reasons, .. } = &mut self.outcome {
            for reason in reasons {
                replace_missing_result_reason(reason, node, &text);
            }
        }
        // Losses within the results matter for the verdict; the late arrival of the results does not.
        self.notes.extend(doubts.into_iter().map(|doubt| build_late_result_caveat(node, doubt, true)));
        self.results.push(result);
    }

    /// Builds the report with all results that have arrived.
    pub(crate) fn build_report(&self, document: &str) -> Result<RunReport, Error> {
        // With the seed of the run, the random values of the plan are the same as in the run.
        let reading = PlanParseOptions { seed: self.facts.seed, fleet: true, ..PlanParseOptions::default() };
        let plan = Plan::from_text_with(document, reading)?;
        let report = assemble_report(&self.facts, &plan, self.results.clone(), self.outcome.clone());
        let caveats = report.caveats.into_iter().chain(self.notes.iter().cloned()).collect();
        Ok(RunReport { times: Some(self.times.clone()), caveats, ..report })
    }

    /// Says in one sentence that the report now has the result of `node`.
    pub(crate) fn describe_late_result(&self, node: &NodeName) -> String {
        let ReportCoverage { reported, expected } = self.coverage();
        format!(
            "run {}: the results of node {node} have arrived; the report of the run now covers {reported} of \
             {expected} nodes",
            self.facts.run
        )
    }
}

/// Replaces the reason for a node's missing result, because the result has arrived. Details of the reason stay,
/// for example that the machine was overloaded.
fn replace_missing_result_reason(reason: &mut String, node: &NodeName, text: &str) {
    let missing = format!("node {node}: {RESULT_MISSING}");
    if let Some(added) =
        reason.strip_prefix(&missing).filter(|added| added.is_empty() || added.starts_with(';'))
    {
        *reason = format!("node {node}: {text}{added}");
    }
}

fn build_late_result_caveat(node: &NodeName, text: String, matters: bool) -> Caveat {
    Caveat { doubt: CaveatKind::CameLate, subject: format!("node {node}"), text, matters }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_result_replaces_reason_and_keeps_what_it_adds() {
        let after = |reason: &str| {
            let mut reason = reason.to_owned();
            replace_missing_result_reason(&mut reason, &NodeName("s2".to_owned()), "its results came");
            reason
        };
        assert_eq!(after("node s2: its result did not arrive"), "node s2: its results came");
        let overloaded = "node s2: its result did not arrive; its machine is overloaded";
        assert_eq!(after(overloaded), "node s2: its results came; its machine is overloaded");
        for other in ["node s3: its result did not arrive", "node s2: its lease expired"] {
            assert_eq!(after(other), other);
        }
    }
}
