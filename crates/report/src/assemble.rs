//! Builds the report of a run from the results of its nodes.

use super::claims;
use super::figures::saturating_sum_of;
use super::limits;
use super::lookup::ResultLookup;
use super::nodes;
use super::ports::{self, build_port_report};
use super::probes;
use super::streams::StreamFindings;
use super::verdict::{VerdictEvidence, judge_run};
use super::{
    CarrierLossCause, FrameLoss, LoadFactor, LossPlaces, NodeReport, PortReport, ProbesReport,
    ReportCoverage, RunFacts, RunReport, SCHEMA_VERSION, SkewReport, StreamReport,
};
use crate::outcome::RunOutcome;
use packetrig_plan::Plan;
use packetrig_plan::timeline::StreamTimeline;
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_stats::ledger::{FrameLedger, LedgerAccount};
use packetrig_stats::result::NodeResult;
use std::collections::{BTreeMap, BTreeSet};

/// Assembles the report of a run. Results of nodes may be missing; if a node has two results, only the first is used.
pub fn assemble_report(
    facts: &RunFacts,
    plan: &Plan,
    results: Vec<NodeResult>,
    outcome: RunOutcome,
) -> RunReport {
    let results = select_plausible_results(facts, plan, results);
    let RunRows { streams, lost, ports, nodes, probes, load, caveats } =
        build_run_rows(facts, plan, &results, &outcome);
    let ledger = sum_ledgers(&results, &streams);
    let imbalances = ledger.find_imbalances();
    // The result of a node that is not in the run must not count in place of a missing result.
    let reported =
        results.iter().filter(|result| facts.nodes.iter().any(|node| node.0 == result.node)).count();
    let coverage = ReportCoverage { reported, expected: facts.nodes.len() };
    let skew = SkewReport::from_nodes(&nodes, facts.criteria.max_skew);
    let evidence = VerdictEvidence {
        streams: &streams,
        ports: &ports,
        imbalances: &imbalances,
        caveats: &caveats,
        results: &results,
        coverage,
        outcome: &outcome,
        skew: skew.as_ref(),
        probes: probes.as_ref(),
    };
    let judgement = judge_run(&evidence, &facts.criteria);
    let captures = results.iter().flat_map(|node| node.captures.clone()).collect();
    RunReport {
        schema_version: SCHEMA_VERSION,
        packetrig_version: env!("CARGO_PKG_VERSION").to_owned(),
        run: facts.run.clone(),
        name: facts.name.clone(),
        plan_sha256: facts.plan.clone(),
        started_wall_ns: facts.started_wall_ns,
        seed: facts.seed,
        sending: results.iter().map(|node| node.senders_done.since(node.started)).max(),
        times: None,
        verdict: judgement.verdict,
        criteria: facts.criteria.clone(),
        judged: judgement.lines,
        coverage,
        nodes,
        skew,
        load,
        unchecked: ledger.unchecked_rules().into_iter().map(str::to_owned).collect(),
        rig_limits: limits::select_port_limits(&ports, &facts.limits),
        ports,
        probes,
        streams,
        ledger,
        imbalances,
        lost,
        captures,
        caveats,
        outcome,
    }
}

/// The rows of a report, and its caveats.
struct RunRows {
    streams: Vec<StreamReport>,
    lost: LossPlaces,
    ports: Vec<PortReport>,
    nodes: Vec<NodeReport>,
    probes: Option<ProbesReport>,
    load: Option<LoadFactor>,
    caveats: Vec<Caveat>,
}

fn build_run_rows(facts: &RunFacts, plan: &Plan, results: &[NodeResult], outcome: &RunOutcome) -> RunRows {
    // If users start and stop the streams of a run, no schedule says when a frame was due.
    let timelines = if facts.steered { Vec::new() } else { compute_timelines(plan, results) };
    let lookup = ResultLookup::from_results(results);
    let findings =
        StreamFindings { plan, results, lookup: &lookup, criteria: &facts.criteria, timelines: &timelines };
    let StreamRows { streams, lost } = build_stream_rows(findings);
    let ports = build_port_rows(plan, results, facts.criteria.carrier_loss);
    let nodes = nodes::build_node_rows(&node_names(facts, results), &lookup, &timelines);
    let probes = probes::build_probes_report(plan, &facts.places, results, &lookup);
    let mut caveats =
        collect_caveats(findings, was_stopped_early(&streams, &timelines, probes.as_ref(), outcome));
    caveats.extend(limits::near_limit_caveats(&ports, &streams, &facts.limits, lost));
    let load = LoadFactor::from_streams(plan, &streams, &timelines);
    RunRows { streams, lost, ports, nodes, probes, load, caveats }
}

/// The rows of all streams, and the places of their losses.
struct StreamRows {
    streams: Vec<StreamReport>,
    lost: LossPlaces,
}

fn build_stream_rows(findings: StreamFindings<'_>) -> StreamRows {
    let indices = 0..findings.plan.streams.len();
    let mut streams: Vec<StreamReport> =
        indices.map(|index| findings.stream_report(index, findings.timelines.get(index))).collect();
    // The comparison needs all rows: streams with the same receiving port compare their contents
    // with the same arrivals.
    findings.compare_contents(&mut streams);
    let reported: Vec<_> = findings.results.iter().flat_map(|node| &node.ports).collect();
    let out_of_order = findings.count_losses_of_faulty_ports();
    // These losses are summed before `add_drop_doubt` adds the drops of the rig's own ports: `LossPlaces` shows
    // drops at the sender and the receiver.
    let in_doubt = sum_doubtful_losses(&streams);
    let lost = LossPlaces::new(sum_lost_frames(&streams), in_doubt, &out_of_order, &reported);
    ports::add_drop_doubt(&mut streams, findings.plan, findings.lookup, &out_of_order);
    for stream in &mut streams {
        // The rate is computed last, because its bounds include the losses that are in doubt.
        stream.delivered_milli = stream.delivered_rate_milli();
    }
    StreamRows { streams, lost }
}

/// Keeps one result of each node, and removes rows that cannot be about the node's part of the plan.
fn select_plausible_results(facts: &RunFacts, plan: &Plan, results: Vec<NodeResult>) -> Vec<NodeResult> {
    let results = remove_repeated_nodes(results).into_iter();
    results.map(|result| claims::remove_implausible_rows(plan, &facts.places, result)).collect()
}

fn remove_repeated_nodes(results: Vec<NodeResult>) -> Vec<NodeResult> {
    let mut kept = BTreeMap::new();
    for result in results {
        // A node may deliver its result twice.
        kept.entry(result.node.clone()).or_insert(result);
    }
    kept.into_values().collect()
}

/// Returns the names of the run's nodes and of all other nodes that reported, sorted.
fn node_names(facts: &RunFacts, results: &[NodeResult]) -> Vec<String> {
    let wanted = facts.nodes.iter().map(|node| node.0.clone());
    let names: BTreeSet<String> = wanted.chain(results.iter().map(|node| node.node.clone())).collect();
    names.into_iter().collect()
}

/// Computes the schedules for the link speeds that the nodes found. Empty if the plan does not fit these
/// speeds; then nothing was sent.
fn compute_timelines(plan: &Plan, results: &[NodeResult]) -> Vec<StreamTimeline> {
    let mut speeds = vec![None; plan.ports.len()];
    for row in results.iter().flat_map(|node| &node.ports) {
        speeds[row.port] = row.info.speed;
    }
    // Rates in percent of the link depend on the links: the plan is bound again to the speeds that the nodes found.
    let bound = plan.clone().bind_to_links(&speeds);
    bound.map_or_else(|_| Vec::new(), |bound| bound.streams.iter().map(|stream| stream.timeline).collect())
}

fn build_port_rows(plan: &Plan, results: &[NodeResult], carrier_loss: CarrierLossCause) -> Vec<PortReport> {
    let mut rows: Vec<_> =
        results.iter().flat_map(|node| node.ports.iter().map(move |row| (row.port, node, row))).collect();
    // Nodes report their ports in any order; the report has the order of the plan.
    rows.sort_by_key(|(index, ..)| *index);
    rows.into_iter().map(|(_, node, row)| build_port_report(plan, node, row, carrier_loss)).collect()
}

/// Sums the ledgers of all ports, and adds the accounts that need the counts of both sender and receiver.
fn sum_ledgers(results: &[NodeResult], streams: &[StreamReport]) -> FrameLedger {
    let mut ledger = FrameLedger::default();
    for row in results.iter().flat_map(|node| &node.ports) {
        ledger.merge(&row.ledger);
    }
    // Receivers do not know how many copies the plan expects, so they count expected copies as duplicates.
    for stream in streams {
        ledger.move_frames_between(
            LedgerAccount::Duplicate,
            LedgerAccount::Counted,
            stream.expected_copies(),
        );
    }
    let measured: Vec<_> =
        streams.iter().filter(|stream| stream.measured && !stream.rx_ports.is_empty()).collect();
    // The sum is unknown if one end of one stream did not report: a missing count is never zero.
    if !measured.is_empty() && ledger.get(LedgerAccount::Expected).is_none() {
        let expected = sum_loss_counts(&measured, |loss| loss.expected);
        ledger.add_frames_if_measured(LedgerAccount::Expected, expected);
        ledger.add_frames_if_measured(LedgerAccount::Lost, sum_loss_counts(&measured, |loss| loss.lost));
    }
    ledger
}

fn sum_loss_counts(streams: &[&StreamReport], count: fn(&FrameLoss) -> u64) -> Option<u64> {
    let counts = streams.iter().map(|stream| stream.loss.as_ref().map(count));
    counts.collect::<Option<Vec<u64>>>().map(saturating_sum_of)
}

fn sum_lost_frames(streams: &[StreamReport]) -> u64 {
    saturating_sum_of(streams.iter().filter_map(|stream| stream.loss).map(|loss| loss.lost))
}

fn sum_doubtful_losses(streams: &[StreamReport]) -> u64 {
    saturating_sum_of(streams.iter().filter_map(|stream| stream.loss).map(|loss| loss.in_doubt))
}

/// Collects the caveats of the nodes, and adds caveats that need the results of all nodes.
fn collect_caveats(findings: StreamFindings<'_>, stopped_early: bool) -> Vec<Caveat> {
    // A single node cannot know whether the whole run ended early.
    let mut caveats = claims::distinct_caveats_except(findings.results, CaveatKind::Interrupted);
    if stopped_early {
        caveats.push(Caveat {
            doubt: CaveatKind::Interrupted,
            subject: "run".to_owned(),
            text: "stopped before its plan ended".to_owned(),
            matters: true,
        });
    }
    caveats.extend(findings.list_clock_caveats().into_iter().chain(findings.list_drain_caveats()));
    caveats
}

fn was_stopped_early(
    streams: &[StreamReport],
    timelines: &[StreamTimeline],
    probes: Option<&ProbesReport>,
    outcome: &RunOutcome,
) -> bool {
    // A stream without an end is meant to be stopped. A stream with an end is cut short if some of its frames
    // were not sent.
    let mut rows = streams.iter().zip(timelines);
    let mut is_cut_short = || {
        rows.any(|(stream, timeline)| {
            let sent = stream.sent.as_ref().map_or(0, |sent| sent.frames);
            timeline.total_frames().is_some_and(|total| sent < total)
        })
    };
    // A stop after the last frame does not affect the result.
    outcome.was_stopped() && (is_cut_short() || probes.is_some_and(ProbesReport::is_cut_short))
}
