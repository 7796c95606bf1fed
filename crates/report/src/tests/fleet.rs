//! Runs over several nodes, each with a clock of its own.

use super::*;
use crate::{NodeReport, SkewReport, SkewVerdict};
use packetrig_stats::clock::{ClockFit, ClockRecord, FitSource};

/// T on the controller's clock.
const T: u64 = 5 * SECOND;

fn fit(offset_ns: i64, bound: u64) -> ClockFit {
    ClockFit { at: MonoTime::from_nanos(T), offset_ns, bound: Nanos::new(bound), ..ClockFit::same_clock() }
}

fn clock(offset_ns: i64, bound: u64) -> ClockRecord {
    ClockRecord { source: FitSource::InBand, before: fit(offset_ns, bound), after: None, unused: None }
}

/// All instants of a node as its own clock shows them.
fn shifted(mut node: NodeResult, by: u64) -> NodeResult {
    let by = Nanos::new(by);
    let instant = |at: &mut MonoTime| *at = *at + by;
    for at in [&mut node.started, &mut node.senders_done, &mut node.ended] {
        instant(at);
    }
    for row in &mut node.send {
        row.counts.first.iter_mut().chain(&mut row.counts.last).for_each(instant);
    }
    for row in &mut node.receive {
        row.counts.first.iter_mut().chain(&mut row.counts.last).for_each(instant);
    }
    node
}

/// Sender a and receiver b, their clocks 40 s and 900 s ahead of the controller's.
fn two(clocks: &[Option<ClockRecord>; 2]) -> Vec<NodeResult> {
    let (mut sender, mut receiver) = (node(&[1001]), node(&[1001]));
    sender.node = "a".into();
    sender.receive.clear();
    sender.ports.truncate(1);
    receiver.node = "b".into();
    receiver.send.clear();
    receiver.ports.remove(0);
    let (mut sender, mut receiver) = (shifted(sender, 40 * SECOND), shifted(receiver, 900 * SECOND));
    [sender.clock, receiver.clock] = *clocks;
    vec![sender, receiver]
}

fn known() -> [Option<ClockRecord>; 2] {
    [Some(clock(40_000_000_000, 2_000)), Some(clock(900_000_000_000, 3_000))]
}

fn facts_of(nodes: &[&str], max_skew: Option<u64>) -> RunFacts {
    let mut facts = facts();
    facts.nodes = nodes.iter().map(|node| NodeName((*node).to_owned())).collect();
    facts.criteria.max_skew = max_skew.map(Nanos::new);
    facts
}

fn timed_plan(receivers: &[&str]) -> Plan {
    let mut plan = plan(receivers, "");
    plan.streams[0].metrics.latency = true;
    plan
}

fn report(results: Vec<NodeResult>) -> RunReport {
    assemble_report(&facts_of(&["a", "b"], None), &timed_plan(&["rx0"]), results, complete())
}

#[test]
fn inter_node_latency_includes_clock_bound() {
    let report = report(two(&known()));
    let latency = report.streams[0].latency.unwrap();
    assert_eq!(latency.error.clock, Some(Nanos::new(5_000)));
    assert_eq!(latency.error.p99(), Some(Nanos::new(700 + 300 + 5_000)));
    assert_eq!(report.streams[0].per_port[0].latency.unwrap().error.clock, Some(Nanos::new(5_000)));
    assert_eq!((report.verdict, report.caveats), (RunVerdict::Pass, Vec::new()));
}

#[test]
fn stream_times_count_from_common_start() {
    let report = report(two(&known()));
    let stream = &report.streams[0];
    assert_eq!(stream.sent.as_ref().unwrap().first, Some(Nanos::ZERO));
    assert_eq!(stream.received.as_ref().unwrap().first, Some(Nanos::from_millis(1)));
    assert_eq!(report.sending, Some(Nanos::from_secs(1)));
}

#[test]
fn missing_clock_bound_yields_caveat_not_latency() {
    let contradiction = ClockRecord { after: Some(fit(7, 5)), ..clock(40_000_000_000, 2_000) };
    for clocks in [[None, known()[1]], [known()[0], None], [None, None], [Some(contradiction), known()[1]]] {
        let report = report(two(&clocks));
        assert_eq!(report.streams[0].latency, None);
        assert_eq!(report.streams[0].per_port[0].latency, None);
        let caveat = &report.caveats[0];
        assert_eq!((caveat.doubt, caveat.subject.as_str(), caveat.matters), (CaveatKind::Clock, "s", false));
        assert!(caveat.text.contains("its sender (a) and receiver (b)"), "{}", caveat.text);
        assert_eq!(report.streams[0].loss.unwrap().lost, 0, "counting needs no clock");
    }
}

#[test]
fn same_node_latency_needs_no_clock_comparison() {
    let mut one = node(&[1001]);
    one.node = "a".into();
    let error = report(vec![one]).streams[0].latency.unwrap().error;
    assert_eq!((error.clock, error.p99()), (None, Some(Nanos::new(1000))));
}

#[test]
fn node_table_includes_missing_node() {
    let report = report(two(&known()).into_iter().take(1).collect());
    let [a, b] = report.nodes.as_slice() else { panic!("{:?}", report.nodes) };
    assert_eq!((a.reported, a.sent, a.received, a.ports), (true, Some(1001), Some(0), 1));
    let clock = a.clock.unwrap();
    assert_eq!((clock.offset_ns, clock.bound), (Some(40_000_000_000), Some(Nanos::new(2_000))));
    assert_eq!(a.start.unwrap().skew_ns, Some(0));
    assert_eq!((b.reported, b.sent, b.received), (false, None, None), "missing is never zero");
    assert!(report.streams[0].latency.is_none());
}

/// A node that began so long after T, by a clock that is `offset` ahead of the controller's within `bound`.
fn starter(name: &str, late: u64, clock: Option<ClockRecord>) -> NodeResult {
    let mut node = node(&[1001]);
    node.node = name.to_owned();
    node.receive.clear();
    node.ports.truncate(1);
    if let Some(first) = &mut node.send[0].counts.first {
        *first = *first + Nanos::new(late);
    }
    let offset = clock.map_or(0, |clock| clock.before.offset_ns.unsigned_abs());
    NodeResult { clock, ..shifted(node, offset) }
}

fn skew_of(results: &[NodeResult], wanted: Option<u64>) -> (SkewReport, RunReport) {
    let report =
        assemble_report(&facts_of(&["a", "b"], wanted), &timed_plan(&["rx0"]), results.to_vec(), complete());
    (report.skew.clone().unwrap(), report)
}

#[test]
fn skew_is_judged_by_both_bounds() {
    let nodes =
        [starter("a", 1_000, Some(clock(7_000, 100))), starter("b", 4_000, Some(clock(800_000, 200)))];
    let verdict = |wanted| skew_of(&nodes, wanted).0.verdict;
    let (skew, report) = skew_of(&nodes, None);
    assert_eq!((skew.spread, skew.bound), (Some(Nanos::new(3_000)), Some(Nanos::new(300))));
    let starts: Vec<_> = report.nodes.iter().map(|node: &NodeReport| node.start.unwrap().skew_ns).collect();
    assert_eq!(starts, [Some(1_000), Some(4_000)]);
    assert_eq!(verdict(None), None);
    assert_eq!(verdict(Some(3_300)), Some(SkewVerdict::Met));
    assert_eq!(verdict(Some(3_299)), Some(SkewVerdict::Unknown));
    assert_eq!(verdict(Some(2_700)), Some(SkewVerdict::Unknown));
    assert_eq!(verdict(Some(2_699)), Some(SkewVerdict::NotMet));
}

/// The widest bound is that of a node in between: it makes the most that the spread may be, and takes nothing from the least.
#[test]
fn certain_start_spread_is_reported() {
    let mut nodes =
        [starter("a", 1_000, Some(clock(0, 100))), starter("b", 4_000, Some(clock(0, 200)))].to_vec();
    nodes.push(starter("c", 2_000, Some(clock(0, 9_000))));
    let report =
        assemble_report(&facts_of(&["a", "b", "c"], Some(2_000)), &timed_plan(&["rx0"]), nodes, complete());
    let skew = report.skew.unwrap();
    assert_eq!(skew.verdict, Some(SkewVerdict::NotMet));
    assert_eq!((skew.spread, skew.least), (Some(Nanos::new(3_000)), Some(Nanos::new(2_700))));
    assert!(skew.least > skew.wanted, "{skew:?}");
    assert_eq!(
        skew.describe_spread(|time| time.to_string()).unwrap(),
        "3us apart (at least 2.7us and at most 18us)"
    );
}

#[test]
fn an_unknown_clock_gives_unknown_and_never_met() {
    let nodes = [starter("a", 0, Some(clock(7_000, 100))), starter("b", 0, None)];
    let (skew, report) = skew_of(&nodes, Some(1_000_000_000));
    assert_eq!((skew.verdict, skew.unknown), (Some(SkewVerdict::Unknown), vec!["b".to_owned()]));
    assert!(
        report.verdict.reasons().iter().any(|why| why.contains("start skew INCONCLUSIVE")),
        "{:?}",
        report.verdict
    );
    let gone = [starter("a", 0, Some(clock(7_000, 100)))];
    assert_eq!(skew_of(&gone, Some(1_000_000_000)).0.verdict, Some(SkewVerdict::Unknown));
}

#[test]
fn start_found_late_afterwards_counts_as_late() {
    // The node thought it was 7 us ahead; later it turned out to be 9 us.
    let late = ClockRecord { after: Some(fit(9_000, 50)), ..clock(7_000, 2_500) };
    let node = starter("a", 0, Some(late));
    let (_, report) = skew_of(&[node, starter("b", 0, Some(clock(0, 10)))], None);
    let start = report.nodes[0].start.unwrap();
    assert_eq!((start.skew_ns, start.bound, start.late_ns), (Some(-2_000), Some(Nanos::new(50)), 0));
}

#[test]
fn missed_skew_target_is_inconclusive() {
    let (mut all, late) = (two(&known()), starter("c", 500_000, Some(clock(0, 10))));
    all.push(late);
    let report =
        assemble_report(&facts_of(&["a", "b", "c"], Some(1_000)), &timed_plan(&["rx0"]), all, complete());
    let RunVerdict::Inconclusive(reasons) = &report.verdict else { panic!("{:?}", report.verdict) };
    assert!(
        reasons.contains(
            &"start skew NOT_MET: senders began 500us apart (at least 497.99us and at most 502.01us); wanted at most 1us".to_owned()
        ),
        "{reasons:?}"
    );
}

#[test]
fn one_sender_has_neither_skew_nor_load_factor() {
    let report = report(two(&known()));
    assert_eq!((report.skew, report.load), (None, None));
    let alone = kernel_report_from(vec![node(&[1001])]);
    assert_eq!((alone.skew, alone.nodes.len()), (None, 1));
}

#[test]
fn load_factor_compares_received_with_requested() {
    let text = "{ports: [{name: x, location: x}, {name: y, location: y}, {name: r, location: r}], flows: [\
        {name: one, tx_rx: {choice: port, port: {tx_name: x, rx_names: [r]}}, size: {fixed: 128}, \
         rate: {choice: pps, pps: 1000}, duration: {choice: fixed_packets, fixed_packets: {packets: 1001}}, metrics: {enable: true}}, \
        {name: two, tx_rx: {choice: port, port: {tx_name: y, rx_names: [r]}}, size: {fixed: 128}, \
         rate: {choice: pps, pps: 1000}, duration: {choice: fixed_packets, fixed_packets: {packets: 1001}}, metrics: {enable: true}}]}";
    let plan = Plan::from_text(text).unwrap();
    let mut node = node(&[]);
    node.send.push(SendResult { stream: 1, ..sent(1001) });
    // Half of the second stream's frames arrive, over the same second.
    node.receive = vec![received(2, 1001), ReceiveResult { stream: 1, ..received(2, 501) }];
    node.ports = vec![port(0, "x", 0), port(1, "y", 0), port(2, "r", 0)];
    let load = assemble_report(&facts(), &plan, vec![node.clone()], complete()).load.unwrap();
    assert_eq!((load.senders, load.asked_milli, load.received_milli), (2, 2_000_000, 1_500_000));
    assert_eq!(format!("{:.3}", load.k), "0.750");
    node.receive.pop();
    assert_eq!(
        assemble_report(&facts(), &plan, vec![node], complete()).load,
        None,
        "what is missing is not zero"
    );
}

#[test]
fn multi_node_report_round_trips_and_reads_older() {
    let report = report(two(&known()));
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<RunReport>(&text).unwrap(), report);
    let mut older: serde_json::Value = serde_json::from_str(&text).unwrap();
    for member in ["nodes", "skew", "load"] {
        older.as_object_mut().unwrap().remove(member);
    }
    assert!(serde_json::from_value::<RunReport>(older).unwrap().nodes.is_empty());
}
