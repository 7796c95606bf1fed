//! The probes of a run: one row for each line of the plan (the probes from a port to one destination), with the results
//! of both ends of the line.
//!
//! The sending node measures times against the wall clock of the other end. The relation of the clocks of two nodes is
//! known here, because both were compared with the controller's clock. The session's own probes and answers give a
//! second relation; the relation with the smaller bound is used. The number of requests that reached a reflector comes
//! from the reflector's node.
//!
//! Invariant: a line without a result is in the report, by name and with the reason.

use super::judgement::{CriterionLine, CriterionResult, SubjectJudgement};
use super::lookup::ResultLookup;
use super::nodes::node_clock_lead;
use crate::{NodeName, PortPlace};
use packetrig_plan::Plan;
use packetrig_plan::probes::{PlannedProbeLine, PlannedProbeMethod, ProbeLineDestination, ProbePlan};
use packetrig_stats::probe::{
    CapacityRange, DirectionTimes, MeasuredCapacity, ProbeCounts, ProbeLineEndReason, ProbeLineResult,
    ProbeTimes, ReflectedRequests,
};
use packetrig_stats::result::NodeResult;
use packetrig_units::{BitRate, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The probes of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbesReport {
    /// `oneway`, `stamp`, `ping`, `send` or `capacity`.
    pub method: String,
    /// Number of probes, or trains, of each line.
    pub count: u32,
    pub interval: Nanos,
    /// Bytes of a frame, FCS included.
    pub size: u32,
    /// One row for each line of the plan, in its order.
    pub lines: Vec<ProbeLineReport>,
}

/// The probes from a port to another port or to a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeLineReport {
    /// The port that sent the probes.
    pub from: String,
    /// The node of the sending port.
    pub from_node: String,
    /// The receiving port, or the address of a host.
    pub to: String,
    /// Node of the receiving port; absent for a host outside the fleet.
    pub to_node: Option<String>,
    /// The address that was probed.
    pub target: String,
    /// Reason why there is no result; absent if there is one.
    pub missing: Option<String>,
    /// Results of the line; absent if they are missing.
    pub found: Option<ProbeFindings>,
}

/// Measured results of a probe line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeFindings {
    pub end: ProbeLineEndReason,
    pub counts: ProbeCounts,
    /// True if the node with the reflector has reported its counts. If not, the losses are the session's own values.
    pub far_end_reported: bool,
    /// Losses between the ports on the way there, and on the way back; absent if unknown.
    pub lost_there: Option<u64>,
    pub lost_back: Option<u64>,
    /// Source of the relation between the clocks of both ends; absent without one-way delays.
    pub clocks: Option<ClockRelationSource>,
    /// One-way delays on the way there and back, with their bound.
    pub delay_there: Option<ProbeTimes>,
    pub delay_back: Option<ProbeTimes>,
    /// One-way delays minus the smallest one: the clocks need not be compared for them.
    pub variation_there: Option<ProbeTimes>,
    pub variation_back: Option<ProbeTimes>,
    pub round_trip: Option<ProbeTimes>,
    /// Round trips without the time in the reflector.
    pub path: Option<ProbeTimes>,
    /// The rate of the narrowest link on the way there; absent unless the plan asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<MeasuredCapacity>,
    /// Distances of departures from their planned times.
    pub release_error: Option<ProbeTimes>,
    pub mechanism: String,
    pub why: String,
}

/// Source of the relation between the clocks of the two ends of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockRelationSource {
    /// Both ends use the same clock.
    One,
    /// The clocks of both nodes were compared with the controller's clock.
    Fleet,
    /// The probes themselves compared the clocks. If the path is always slower in one direction, the
    /// difference looks like a clock offset.
    Exchanges,
}

impl ClockRelationSource {
    pub const fn name(self) -> &'static str {
        match self {
            Self::One => "one clock",
            Self::Fleet => "the fleet's comparison",
            Self::Exchanges => "the probes' own comparison",
        }
    }
}

impl ProbeLineReport {
    /// Name of the line in messages.
    pub fn name(&self) -> String {
        format!("{} -> {}", self.from, self.to)
    }

    /// Reason why fewer probes were sent than planned, if any.
    fn describe_doubt(&self) -> Option<String> {
        let found = self.found.as_ref()?;
        found.end.describe_end().or_else(|| {
            let unsent = found.counts.planned.saturating_sub(found.counts.sent);
            (unsent > 0).then(|| format!("{unsent} of {} probes were not sent", found.counts.planned))
        })
    }
}

/// Builds the rows of all lines; `None` if the plan has no probes.
pub(super) fn build_probes_report(
    plan: &Plan,
    places: &[PortPlace],
    results: &[NodeResult],
    lookup: &ResultLookup<'_>,
) -> Option<ProbesReport> {
    let probes = plan.probes.as_ref()?;
    let rows =
        ProbeLineRows { plan, probes, places, lookup, found: ProbeRowsBySubject::from_results(results) };
    Some(ProbesReport {
        method: probes.method.name().to_owned(),
        count: probes.count,
        interval: probes.interval,
        size: probes.size.bytes(),
        lines: probes.lines.iter().enumerate().map(|(number, line)| rows.line_report(number, line)).collect(),
    })
}

/// Rows of all nodes about probes: results by line, and reflections by pair of ports.
struct ProbeRowsBySubject<'a> {
    lines: HashMap<usize, (&'a NodeResult, &'a ProbeLineResult)>,
    /// Counts of reflected probes, by the answering port and the asking port.
    reflected: HashMap<(usize, usize), &'a ReflectedRequests>,
}

impl<'a> ProbeRowsBySubject<'a> {
    fn from_results(results: &'a [NodeResult]) -> Self {
        let all = || results.iter().filter_map(|node| Some((node, node.probes.as_ref()?)));
        let lines =
            all().flat_map(|(node, probes)| probes.lines.iter().map(move |row| (row.line, (node, row))));
        let reflected =
            all().flat_map(|(_, probes)| probes.reflected.iter().map(|row| ((row.at, row.from), row)));
        Self { lines: lines.collect(), reflected: reflected.collect() }
    }
}

struct ProbeLineRows<'a> {
    plan: &'a Plan,
    probes: &'a ProbePlan,
    places: &'a [PortPlace],
    lookup: &'a ResultLookup<'a>,
    found: ProbeRowsBySubject<'a>,
}

impl ProbeLineRows<'_> {
    fn line_report(&self, number: usize, line: &PlannedProbeLine) -> ProbeLineReport {
        let from_node = self.node_of_port(line.from);
        let target = self.probes.target_address(line).map(|target| target.to_string()).unwrap_or_default();
        let (to, to_node) = match line.to {
            ProbeLineDestination::Port(port) => (self.port_name(port), Some(self.node_of_port(port))),
            ProbeLineDestination::Host(host) => (host.ip().to_string(), None),
        };
        let found = self.found.lines.get(&number);
        let missing = found.is_none().then(|| match self.lookup.node_result(&from_node) {
            None => format!("node {from_node} did not report"),
            Some(_) => format!("node {from_node} reported no result of these probes"),
        });
        let found = found.map(|(node, row)| self.line_findings(line, node, row));
        ProbeLineReport { from: self.port_name(line.from), from_node, to, to_node, target, missing, found }
    }

    fn port_name(&self, port: usize) -> String {
        self.plan.ports.get(port).map(|port| port.name.clone()).unwrap_or_default()
    }

    fn node_of_port(&self, port: usize) -> String {
        // A run on one machine has no places.
        let here = NodeName::local();
        self.places.get(port).map_or(here, |place| place.node.clone()).0
    }

    fn line_findings(
        &self,
        line: &PlannedProbeLine,
        near: &NodeResult,
        row: &ProbeLineResult,
    ) -> ProbeFindings {
        let far_port = if let ProbeLineDestination::Port(port) = line.to { Some(port) } else { None };
        let reflected = far_port.and_then(|port| self.found.reflected.get(&(port, line.from)).copied());
        let relation = far_port.and_then(|port| self.clock_relation(near, &self.node_of_port(port)));
        let delays = OneWayDelays::from_directions(&row.there, &row.back, relation);
        ProbeFindings {
            end: row.end.clone(),
            counts: row.counts,
            far_end_reported: reflected.is_some(),
            lost_there: lost_requests(row, reflected),
            lost_back: lost_answers(row, reflected),
            clocks: delays.clocks,
            delay_there: delays.there,
            delay_back: delays.back,
            variation_there: row.there.variation,
            variation_back: row.back.variation,
            round_trip: row.round_trip,
            path: row.path,
            capacity: row.capacity.clone(),
            release_error: row.release_error,
            mechanism: row.mechanism.clone(),
            why: row.why.clone(),
        }
    }

    /// How far the wall clock of node `far` is ahead of the wall clock of node `near`; `None` if unknown.
    fn clock_relation(&self, near: &NodeResult, far: &str) -> Option<WallClockLead> {
        let same = WallClockLead { offset_ns: 0, bound: Nanos::ZERO, source: ClockRelationSource::One };
        if near.node == far {
            return Some(same);
        }
        let far = self.lookup.node_result(far)?;
        let lead = node_clock_lead(near, far)?;
        if lead.is_same {
            return Some(same);
        }
        let (near, far) = (near.probes.as_ref()?.wall_clock, far.probes.as_ref()?.wall_clock);
        // Each node relates its wall clock to its monotonic clock, and the fleet relates the monotonic
        // clocks of the nodes.
        let offset_ns = lead.offset_ns.saturating_add(far.offset_ns).saturating_sub(near.offset_ns);
        // The error of the near node's own conversion is part of its times already.
        Some(WallClockLead { offset_ns, bound: lead.bound + far.bound, source: ClockRelationSource::Fleet })
    }
}

/// The wall clock of the far node minus that of the near node.
#[derive(Clone, Copy, Debug)]
struct WallClockLead {
    offset_ns: i64,
    bound: Nanos,
    source: ClockRelationSource,
}

/// One-way delays, computed with the clock relation that has the smaller error bound.
#[derive(Default)]
struct OneWayDelays {
    there: Option<ProbeTimes>,
    back: Option<ProbeTimes>,
    clocks: Option<ClockRelationSource>,
}

impl OneWayDelays {
    fn from_directions(
        there: &DirectionTimes,
        back: &DirectionTimes,
        relation: Option<WallClockLead>,
    ) -> Self {
        let by_fleet = relation.map(|lead| Self {
            there: there.by_wall_clocks.map(|times| times.subtract_offset(lead.offset_ns, lead.bound)),
            back: back
                .by_wall_clocks
                .map(|times| times.subtract_offset(lead.offset_ns.saturating_neg(), lead.bound)),
            clocks: Some(lead.source),
        });
        let by_exchanges = Self {
            there: there.by_exchanges,
            back: back.by_exchanges,
            clocks: Some(ClockRelationSource::Exchanges),
        };
        let known = by_fleet.into_iter().chain([by_exchanges]).filter(|delays| delays.there.is_some());
        // If both bounds are equal, the first relation is used, which is that of the fleet.
        known.min_by_key(|delays| delays.there.map(|times| times.bound_ns)).unwrap_or_default()
    }
}

/// Requests that never arrived: sent requests less the requests that the far end counted.
fn lost_requests(row: &ProbeLineResult, reflected: Option<&ReflectedRequests>) -> Option<u64> {
    match reflected {
        // If more requests arrived than were sent, copies were made on the way, and the number of losses is
        // unknown.
        Some(far) => row.counts.sent.checked_sub(far.requests),
        None => row.session_lost.map(|(there, _)| there),
    }
}

/// Answers that never arrived.
fn lost_answers(row: &ProbeLineResult, reflected: Option<&ReflectedRequests>) -> Option<u64> {
    match reflected.and_then(|far| far.reflected) {
        // If more answers arrived than were reflected, copies were made on the way back, and the number of
        // losses is unknown.
        Some(reflected) => reflected.checked_sub(row.counts.answered),
        None => row.session_lost.map(|(_, back)| back),
    }
}

impl ProbesReport {
    /// True if a line was stopped before all of its probes had left.
    pub(super) fn is_cut_short(&self) -> bool {
        let mut found = self.lines.iter().filter_map(|line| line.found.as_ref());
        found.any(|found| found.end == ProbeLineEndReason::Stopped)
    }

    /// Judges each probe line: a line needs at least one answer, and a rate if the method measures capacities. If the
    /// method gets no answers, all probes must have been sent.
    pub(super) fn judge_lines(&self) -> Option<CriterionLine> {
        let (name, limit) = match (self.is_answered(), self.has_capacities()) {
            (_, true) => ("capacity", "a rate for each pair"),
            (true, false) => ("answers", "at least one for each pair"),
            (false, false) => ("sending", "all were sent"),
        };
        let judged = self.lines.iter().map(|line| self.judge_probe_line(line)).collect();
        CriterionLine::from_judgements(name, limit.to_owned(), judged)
    }

    /// True if the probes of this method get answers.
    pub fn is_answered(&self) -> bool {
        self.method != PlannedProbeMethod::Send.name()
    }

    fn has_capacities(&self) -> bool {
        self.method == PlannedProbeMethod::Capacity.name()
    }

    fn judge_probe_line(&self, line: &ProbeLineReport) -> SubjectJudgement {
        let result = self.result_of_line(line);
        let mut measured = match &line.found {
            None => line.missing.clone().unwrap_or_default(),
            Some(found) => found.describe_findings(self.is_answered()),
        };
        // Each pair gets one reason, which contains all details.
        let doubt =
            line.describe_doubt().filter(|doubt| result == CriterionResult::Unknown && *doubt != measured);
        measured.extend(doubt.map(|doubt| format!("; {doubt}")));
        SubjectJudgement { subject: format!("probes {}", line.name()), result, measured, figure: None }
    }

    /// Returns the result of a line, according to the criterion of its method.
    pub fn result_of_line(&self, line: &ProbeLineReport) -> CriterionResult {
        line.found.as_ref().map_or(CriterionResult::Unknown, |found| self.judge_findings(found))
    }

    fn judge_findings(&self, found: &ProbeFindings) -> CriterionResult {
        let ProbeCounts { planned, sent, answered, .. } = found.counts;
        // Without a report from the reflector's node, missing answers may be the fault of the reflector and
        // not of the path.
        let has_far_end = !self.has_reflectors() || found.far_end_reported;
        match (self.is_answered(), sent, answered) {
            // Probes of this method get no answers, so only the sending can be judged.
            (false, ..) if sent == planned => CriterionResult::Pass,
            // No probe was sent, so missing answers prove nothing about the path.
            (false, ..) | (true, 0, _) => CriterionResult::Unknown,
            (true, _, 0) if has_far_end => CriterionResult::Fail,
            (true, _, 0) => CriterionResult::Unknown,
            (true, ..) if self.has_capacities() && found.capacity_rate().is_none() => {
                CriterionResult::Unknown
            }
            (true, ..) => CriterionResult::Pass,
        }
    }

    fn has_reflectors(&self) -> bool {
        let mut methods = PlannedProbeMethod::ALL.iter();
        methods.any(|(name, method)| *name == self.method && method.has_reflectors())
    }

    /// Reasons why lines sent fewer probes than planned. Lines with an inconclusive result are left out,
    /// because their result names the reason already.
    pub(super) fn line_doubts(&self) -> impl Iterator<Item = String> {
        let others = self.lines.iter().filter(|line| self.result_of_line(line) != CriterionResult::Unknown);
        others.filter_map(|line| Some(format!("probes {}: {}", line.name(), line.describe_doubt()?)))
    }
}

impl ProbeFindings {
    /// The measured capacity; `None` if the plan does not ask for it, or if no rate was found.
    pub fn capacity_rate(&self) -> Option<CapacityRange> {
        self.capacity.as_ref()?.rate
    }

    fn describe_findings(&self, is_answered: bool) -> String {
        let ProbeCounts { planned, sent, answered, .. } = self.counts;
        let capacity = self.capacity.as_ref().filter(|_| answered > 0);
        match (is_answered, sent, self.end.describe_end()) {
            (_, 0, Some(why)) => why,
            _ if let Some(capacity) = capacity => match (&capacity.rate, &capacity.why_not) {
                (Some(rate), _) => BitRate::new(rate.bits_per_s).to_string(),
                (None, Some(why)) => why.clone(),
                (None, None) => "no rate".to_owned(),
            },
            (true, ..) => format!("{answered} of {sent} answered"),
            (false, ..) => format!("{sent} of {planned} sent"),
        }
    }
}

#[cfg(test)]
mod tests;
