use super::super::{RunFacts, RunReport, RunVerdict, assemble_report};
use super::*;
use crate::outcome::RunOutcome;
use crate::{PlanHash, RunId};
use packetrig_plan::PlanParseOptions;
use packetrig_stats::clock::{ClockFit, ClockRecord, FitSource};
use packetrig_stats::probe::{FirstProbe, ProbeNodeResult, WallClockOffset};
use packetrig_units::MonoTime;

const NODES: [&str; 3] = ["a", "b", "c"];

fn plan() -> Plan {
    let port = |node: &str| format!("{{name: {node}, location: {node}/eth0}}");
    let address = |node: &str| format!("{{port: {node}, address: 198.18.0.{}}}", node.len());
    let text = format!(
        "{{ports: [{}], x_probes: {{method: oneway, from: [a, b, c], to: [a, b, c], count: 10, addresses: [{}]}}}}",
        NODES.map(port).join(", "),
        NODES.map(address).join(", ")
    );
    Plan::from_text_with(&text, PlanParseOptions { fleet: true, ..PlanParseOptions::default() }).unwrap()
}

fn times(ns: i64, bound_ns: u64) -> ProbeTimes {
    ProbeTimes {
        samples: 9,
        min_ns: ns,
        p50_ns: ns,
        p95_ns: Some(ns),
        p99_ns: Some(ns),
        max_ns: ns,
        bound_ns,
    }
}

/// All lines of a node: 40 us there by the wall clocks, 60 us back.
fn result(node: &str) -> NodeResult {
    let plan = plan();
    let own = NODES.iter().position(|name| *name == node).unwrap();
    let line = |number: usize| ProbeLineResult {
        counts: ProbeCounts { planned: 10, sent: 10, answered: 10, ..ProbeCounts::default() },
        there: DirectionTimes {
            by_wall_clocks: Some(times(40_000, 10)),
            by_exchanges: Some(times(50_000, 50_000)),
            variation: Some(times(0, 10)),
        },
        back: DirectionTimes {
            by_wall_clocks: Some(times(60_000, 10)),
            by_exchanges: Some(times(50_000, 50_000)),
            variation: Some(times(0, 10)),
        },
        ..ProbeLineResult::without_probes(number, 10, ProbeLineEndReason::Done)
    };
    let probes = plan.probes.as_ref().unwrap();
    let reflected = probes.list_ports_probing(own).map(|from| ReflectedRequests {
        at: own,
        from,
        requests: 10,
        reflected: Some(10),
    });
    NodeResult {
        node: node.into(),
        started: MonoTime::from_nanos(1_000),
        senders_done: MonoTime::from_nanos(2_000),
        clock: Some(ClockRecord::same_clock()),
        probes: Some(ProbeNodeResult {
            lines: probes.list_lines_sent_by(own).map(|(number, _)| line(number)).collect(),
            reflected: reflected.collect(),
            wall_clock: WallClockOffset { offset_ns: 500, bound: Nanos::new(3) },
            first: Some(FirstProbe { due: MonoTime::from_nanos(1_000), left: MonoTime::from_nanos(1_007) }),
        }),
        ..NodeResult::default()
    }
}

fn kernel_report_from(results: Vec<NodeResult>, outcome: RunOutcome) -> RunReport {
    let nodes: Vec<NodeName> = NODES.iter().map(|node| NodeName((*node).into())).collect();
    let place = |node: &NodeName| PortPlace { node: node.clone(), interface: "eth0".into() };
    let facts = RunFacts {
        run: RunId("r".into()),
        name: String::new(),
        plan: PlanHash::from_document(""),
        started_wall_ns: 0,
        seed: 0,
        places: nodes.iter().map(place).collect(),
        nodes,
        criteria: super::super::AcceptanceCriteria::default(),
        limits: Vec::new(),
        steered: false,
    };
    assemble_report(&facts, &plan(), results, outcome)
}

fn whole(results: Vec<NodeResult>) -> RunReport {
    kernel_report_from(results, RunOutcome::Complete { stopped: false })
}

fn row<'a>(report: &'a RunReport, name: &str) -> &'a ProbeLineReport {
    let lines = &report.probes.as_ref().unwrap().lines;
    lines.iter().find(|line| line.name() == name).unwrap_or_else(|| panic!("no line {name}"))
}

fn change(result: &mut NodeResult, change: impl Fn(&mut ProbeLineResult)) {
    result.probes.as_mut().unwrap().lines.iter_mut().for_each(change);
}

#[test]
fn a_whole_mesh_has_all_pairs_and_passes() {
    let report = whole(NODES.map(result).to_vec());
    assert_eq!(report.verdict, RunVerdict::Pass, "{:?}", report.verdict);
    assert_eq!(report.probes.as_ref().unwrap().lines.len(), 6);
    let found = row(&report, "a -> c").found.clone().unwrap();
    assert_eq!((found.lost_there, found.lost_back), (Some(0), Some(0)));
    // One clock: the wall clocks of both ends are the same, whatever each node knows of its own.
    assert_eq!(found.clocks, Some(ClockRelationSource::One));
    assert_eq!((found.delay_there, found.delay_back), (Some(times(40_000, 10)), Some(times(60_000, 10))));
    let skew = report.skew.unwrap();
    assert_eq!(skew.spread, Some(Nanos::ZERO), "all began 7 ns after T");
    assert_eq!((report.nodes[0].sent, report.nodes[0].received), (Some(40), Some(40)));
}

#[test]
fn pairs_of_missing_node_are_named_not_zero() {
    let lost = RunOutcome::Partial { reasons: vec!["node b: silent".into()], stopped: false };
    let report = kernel_report_from(vec![result("a"), result("c")], lost);
    assert_eq!(report.verdict.as_str(), "INCONCLUSIVE");
    for name in ["b -> a", "b -> c"] {
        let row = row(&report, name);
        assert_eq!((row.found.clone(), row.missing.as_deref()), (None, Some("node b did not report")));
    }
    let others = row(&report, "a -> c").found.clone().unwrap();
    assert_eq!((others.counts.answered, others.lost_there), (10, Some(0)));
    // The counts of b are unknown, so nothing is said about where its probes were lost.
    let to_it = row(&report, "a -> b").found.clone().unwrap();
    assert_eq!((to_it.far_end_reported, to_it.lost_there, to_it.lost_back), (false, None, None));
    assert!(report.verdict.reasons().iter().any(|reason| reason.contains("only 2 of 3 nodes")));
}

#[test]
fn losses_are_in_the_direction_where_they_were() {
    let mut results = NODES.map(result).to_vec();
    // a receives 6 answers of 10. 7 of its probes reached b; c answered 10.
    change(&mut results[0], |line| {
        line.counts.answered = 6;
        line.counts.lost = 4;
    });
    for row in &mut results[1].probes.as_mut().unwrap().reflected {
        (row.requests, row.reflected) = (7, Some(7));
    }
    let report = whole(results);
    let losses =
        |name: &str| row(&report, name).found.clone().map(|found| (found.lost_there, found.lost_back));
    assert_eq!(losses("a -> b"), Some((Some(3), Some(1))));
    assert_eq!(losses("a -> c"), Some((Some(0), Some(4))));
    assert_eq!(report.verdict, RunVerdict::Pass, "a loss is a finding, not a failure");
}

#[test]
fn missing_answers_fail_only_with_far_end_report() {
    let silence = |line: &mut ProbeLineResult| {
        line.counts.answered = 0;
        line.counts.lost = 10;
    };
    let mut results = NODES.map(result).to_vec();
    change(&mut results[0], silence);
    let report = whole(results.clone());
    assert_eq!(report.verdict.as_str(), "FAIL", "{:?}", report.verdict);
    assert!(report.verdict.reasons()[0].contains("0 of 10 answered"), "{:?}", report.verdict);
    let report = whole(vec![results.swap_remove(0), result("c")]);
    let answers = report.judged.iter().find(|line| line.criterion == "answers").unwrap();
    let of = |name: &str| answers.subjects.iter().find(|it| it.subject.ends_with(name)).map(|it| it.result);
    assert_eq!(of("a -> b"), Some(CriterionResult::Unknown));
    assert_eq!(of("a -> c"), Some(CriterionResult::Fail));
    // It is unknown whether a host has a reflector.
    let probes = report.probes.as_ref().unwrap();
    let mut to_host = row(&report, "a -> c").clone();
    to_host.to_node = None;
    to_host.found.as_mut().unwrap().far_end_reported = false;
    assert_eq!(probes.result_of_line(&to_host), CriterionResult::Unknown);
}

#[test]
fn early_ended_probe_line_forbids_pass() {
    let mut results = NODES.map(result).to_vec();
    change(&mut results[1], |line| {
        line.end = ProbeLineEndReason::LeaseEnded;
        line.counts.sent = 9;
        line.counts.answered = 9;
    });
    let report = whole(results);
    assert_eq!(report.verdict.as_str(), "INCONCLUSIVE");
    let reasons = report.verdict.reasons().join("\n");
    assert!(
        reasons.contains("probes b -> a: ended early because the node heard nothing from the controller"),
        "{reasons}"
    );
}

#[test]
fn compared_clocks_relate_both_probe_ends() {
    let fit = |offset_ns: i64, bound: u64| {
        let before = ClockFit { offset_ns, bound: Nanos::new(bound), ..ClockFit::default() };
        Some(ClockRecord { source: FitSource::InBand, before, after: None, unused: None })
    };
    let mut results = NODES.map(result).to_vec();
    // The monotonic clock of b is 1000 ns ahead of that of a, and its wall clock is 200 ns less ahead of that: 800 ns in all.
    results[0].clock = fit(2_000, 20);
    results[1].clock = fit(3_000, 30);
    results[1].probes.as_mut().unwrap().wall_clock.offset_ns = 300;
    let report = whole(results.clone());
    let found = row(&report, "a -> b").found.clone().unwrap();
    assert_eq!(found.clocks, Some(ClockRelationSource::Fleet));
    let bound = 10 + 20 + 30 + 3;
    assert_eq!(
        (found.delay_there, found.delay_back),
        (Some(times(39_200, bound)), Some(times(60_800, bound)))
    );
    let there = row(&report, "b -> a").found.clone().unwrap();
    assert_eq!(there.delay_there.map(|times| times.p50_ns), Some(40_800));
    // A worse comparison than the session's own is not used.
    results[1].clock = fit(3_000, 1_000_000);
    let found = row(&whole(results.clone()), "a -> b").found.clone().unwrap();
    assert_eq!(found.clocks, Some(ClockRelationSource::Exchanges));
    assert_eq!(found.delay_there, Some(times(50_000, 50_000)));
    // Without any relation there is no delay, but the variation is known.
    results[1].clock = None;
    change(&mut results[0], |line| line.there.by_exchanges = None);
    let found = row(&whole(results), "a -> b").found.clone().unwrap();
    assert_eq!((found.clocks, found.delay_there, found.variation_there), (None, None, Some(times(0, 10))));
}

#[test]
fn probe_rows_about_other_nodes_are_ignored() {
    let mut results = NODES.map(result).to_vec();
    let foreign = results[1].probes.as_ref().unwrap().lines[0].clone();
    let probes = results[0].probes.as_mut().unwrap();
    probes.lines.push(foreign);
    probes.lines.push(ProbeLineResult::without_probes(99, 10, ProbeLineEndReason::Done));
    probes.lines.push(ProbeLineResult {
        counts: ProbeCounts { sent: 11, ..ProbeCounts::default() },
        ..probes.lines[0].clone()
    });
    probes.reflected.push(ReflectedRequests { at: 1, from: 2, requests: 0, reflected: None });
    let report = whole(results);
    let reasons = report.verdict.reasons().join("\n");
    assert!(reasons.contains("ports and streams and were left out (number: 3)"), "{reasons}");
    assert!(reasons.contains("impossible counts and were left out (number: 1)"), "{reasons}");
    assert_eq!(row(&report, "b -> c").found.as_ref().unwrap().lost_there, Some(0));
    let stranger = NodeResult { probes: None, ..result("a") };
    assert_eq!(
        row(&whole(vec![stranger]), "a -> b").missing.as_deref(),
        Some("node a reported no result of these probes")
    );
}
