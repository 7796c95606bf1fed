mod bounds;
mod claims;
mod comparable;
mod fleet;
mod verdict;

use super::columns::{CellValue, PortTable, ReportTable};
use super::*;
use packetrig_plan::Plan;
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_stats::counts::{StreamRxCounts, StreamTxCounts};
use packetrig_stats::latency::Latency;
use packetrig_stats::ledger::LedgerAccount;
use packetrig_stats::port::{BackEnd, PortInfo, RxCounters, StampKind, TxCounters};
use packetrig_stats::result::{NodeResult, PortResult, ReceiveResult, SendResult};
use packetrig_stats::sequence::SequenceCounts;
use packetrig_stats::series::RateSeries;
use packetrig_units::{BitRate, MonoTime, Share};

const SECOND: u64 = 1_000_000_000;

/// One stream of 1001 frames of 128 bytes at 1000 frames/s, from port `tx` to `rx` ports.
fn document(rx: &[&str], ratio: &str) -> String {
    let port = |name: &&str| format!("- {{name: {name}, location: {name}}}\n");
    let ports: String = rx.iter().map(port).fold(String::new(), |all, one| all + &one);
    let names = rx.join(", ");
    format!(
        "ports:\n- {{name: tx, location: t0}}\n{ports}\
         flows:\n- name: s\n  tx_rx: {{choice: port, port: {{tx_name: tx, rx_names: [{names}]}}}}\n  \
         packet:\n  - {{choice: ethernet, ethernet: {{}}}}\n  size: {{choice: fixed, fixed: 128}}\n  \
         rate: {{choice: pps, pps: 1000}}\n  \
         duration: {{choice: fixed_packets, fixed_packets: {{packets: 1001}}}}\n  \
         metrics: {{enable: true, {ratio}latency: {{enable: true, mode: cut_through}}}}\n"
    )
}

fn plan(rx: &[&str], ratio: &str) -> Plan {
    Plan::from_text(&document(rx, ratio)).unwrap_or_else(|problems| panic!("{problems}"))
}

fn at(ms: u64) -> MonoTime {
    MonoTime::from_nanos(5 * SECOND + ms * 1_000_000)
}

fn latency(ns: &[u64]) -> Latency {
    let mut times = Latency::with_digits(3);
    for ns in ns {
        times.record_time(Nanos::new(*ns));
    }
    times
}

fn sent(frames: u64) -> SendResult {
    let counts = StreamTxCounts {
        untagged: 0,
        frames,
        bytes: frames * 128,
        late: 0,
        first: Some(at(0)),
        last: Some(at(frames - 1)),
        ..StreamTxCounts::default()
    };
    SendResult {
        untagged_contents: packetrig_stats::content::ContentCounts::default(),
        stream: 0,
        counts,
        planned: frames,
        send_error: latency(&[1000, 2000, 9000]),
        stamp_bound: latency(&[500, 700]),
        series: RateSeries::default(),
    }
}

fn received(port: usize, unique: u64) -> ReceiveResult {
    let sequence = SequenceCounts { unique, lost: 1001 - unique, ..SequenceCounts::default() };
    let counts = StreamRxCounts {
        frames: unique,
        bytes: unique * 128,
        sequence,
        first: Some(at(1)),
        last: Some(at(1001)),
        ..StreamRxCounts::default()
    };
    ReceiveResult {
        outages: packetrig_stats::outage::OutageList::default(),
        quality: packetrig_stats::series::QualitySeries::default(),
        stream: 0,
        port,
        counts,
        latency: Some(latency(&[1_000_000, 2_000_000])),
        jitter: None,
        series: RateSeries::default(),
    }
}

fn port(index: usize, name: &str, ring_dropped: u64) -> PortResult {
    let info = PortInfo {
        name: name.into(),
        location: name.into(),
        back_end: BackEnd::Sim,
        why: "test".into(),
        driver: "sim".into(),
        speed: Some(BitRate::new(SECOND)),
        max_frame: 1518,
        tx_stamp: StampKind::User,
        rx_stamp: StampKind::Software,
    };
    PortResult {
        sent_ahead: Vec::new(),
        port: index,
        info,
        tx: TxCounters {
            handed_over: 1001 * u64::from(index == 0),
            dropped: Some(0),
            ..TxCounters::default()
        },
        rx: RxCounters { ring_dropped, ..RxCounters::default() },
        ledger: FrameLedger::default(),
        tx_series: RateSeries::default(),
        rx_series: RateSeries::default(),
        clock_bound: Nanos::new(300),
        events: Vec::new(),
        untagged_contents: packetrig_stats::content::ContentCounts::default(),
        peaks: None,
    }
}

/// Everything on one node: 1001 frames sent, `counts` arrived at the ports in turn.
fn node(counts: &[u64]) -> NodeResult {
    let mut node = NodeResult { node: "local".into(), started: at(0), ..NodeResult::default() };
    node.senders_done = at(1000);
    node.ended = at(1200);
    node.send.push(sent(1001));
    node.ports.push(port(0, "tx", 0));
    for (index, unique) in counts.iter().enumerate() {
        node.receive.push(received(index + 1, *unique));
        node.ports.push(port(index + 1, &format!("rx{index}"), 0));
    }
    node
}

fn facts() -> RunFacts {
    RunFacts {
        limits: Vec::new(),
        run: RunId("r1".into()),
        name: "test".into(),
        plan: PlanHash::from_document("x"),
        started_wall_ns: SECOND,
        seed: 9,
        nodes: vec![NodeName::local()],
        places: Vec::new(),
        criteria: AcceptanceCriteria::default(),
        steered: false,
    }
}

fn complete() -> RunOutcome {
    RunOutcome::Complete { stopped: false }
}

fn kernel_report_from(results: Vec<NodeResult>) -> RunReport {
    assemble_report(&facts(), &plan(&["rx0"], ""), results, complete())
}

#[test]
fn lossless_run_passes() {
    let report = kernel_report_from(vec![node(&[1001])]);
    assert_eq!(report.verdict, RunVerdict::Pass, "{:?}", report.verdict);
    assert_eq!(report.streams[0].loss.unwrap().lost, 0);
    assert_eq!(report.ledger.get(LedgerAccount::Expected), Some(1001));
    assert!(report.coverage.is_full());
    assert_eq!(report.sending, Some(Nanos::from_secs(1)));
}

#[test]
fn the_figures_of_a_stream_are_exact() {
    let report = kernel_report_from(vec![node(&[1001])]);
    let stream = &report.streams[0];
    let rate = stream.sent.as_ref().unwrap().rate.unwrap();
    assert_eq!(rate.frames_milli, 1_000_000);
    assert_eq!(rate.l2.bits_per_second(), 1000 * 128 * 8);
    assert_eq!(rate.l1.bits_per_second(), 1000 * 148 * 8);
    assert_eq!(stream.sent.as_ref().unwrap().rate_error_ppm, Some(0));
    assert_eq!(stream.received.as_ref().unwrap().first, Some(Nanos::from_millis(1)));
    let latency = stream.latency.unwrap();
    assert_eq!((latency.min, latency.max), (Nanos::from_millis(1), Nanos::from_millis(2)));
    assert_eq!(latency.error.rx_conversion, Some(Nanos::new(300)));
    assert_eq!(latency.error.tx_max, Some(Nanos::new(700)));
    assert_eq!(latency.error.p99(), Some(Nanos::new(1000)));
    assert_eq!(latency.error.rx_stamp, Some(StampKind::Software));
}

#[test]
fn frames_of_earlier_run_are_not_counted() {
    let mut node = node(&[1001]);
    node.ports[1].rx =
        RxCounters { seen: 1011, foreign: 5, protocol: 3, other_runs: 2, ..RxCounters::default() };
    let report = kernel_report_from(vec![node]);
    let column = PortTable::COLUMNS.iter().find(|column| column.name == "rx_of_run").unwrap();
    assert_eq!(column.value_in(&PortTable::report_rows(&report)[1]), Some(CellValue::Count(1001)));
}

#[test]
fn slow_sender_shows_negative_rate_error() {
    let mut node = node(&[1001]);
    node.send[0].counts.last = Some(at(1010));
    let error = kernel_report_from(vec![node]).streams[0].sent.as_ref().unwrap().rate_error_ppm;
    assert_eq!(error, Some(-9900), "1 % too long");
}

#[test]
fn a_loss_fails_unless_the_user_accepts_it() {
    let report = kernel_report_from(vec![node(&[999])]);
    let RunVerdict::Fail(reasons) = &report.verdict else { panic!("{:?}", report.verdict) };
    assert!(reasons[0].starts_with("stream s: 2 of 1001 frames lost"), "{reasons:?}");
    assert_eq!(
        report.lost,
        LossPlaces { total: 2, sender: Some(0), receiver: Some(0), in_doubt: 0, path: Some(2) }
    );
    assert_eq!(report.imbalances, []);

    let mut tolerant = facts();
    tolerant.criteria.max_loss = Share::from_billionths(2_000_000);
    let report = assemble_report(&tolerant, &plan(&["rx0"], ""), vec![node(&[999])], complete());
    assert_eq!(report.verdict, RunVerdict::Pass);
}

#[test]
fn receiver_drops_are_not_blamed_on_device() {
    let mut node = node(&[999]);
    node.ports[1] = port(1, "rx0", 2);
    let report = kernel_report_from(vec![node]);
    assert_eq!(
        report.lost,
        LossPlaces { total: 2, sender: Some(0), receiver: Some(2), in_doubt: 0, path: Some(0) }
    );
    assert!(matches!(report.verdict, RunVerdict::Inconclusive(_)), "{:?}", report.verdict);
}

#[test]
fn a_place_that_was_not_measured_is_absent() {
    let mut node = node(&[999]);
    node.ports[0].tx.dropped = None;
    let report = kernel_report_from(vec![node]);
    assert_eq!(
        report.lost,
        LossPlaces { total: 2, sender: None, receiver: Some(0), in_doubt: 0, path: None }
    );
    assert!(matches!(report.verdict, RunVerdict::Fail(_)));
}

#[test]
fn duplicates_and_damage_fail_but_reordering_passes() {
    let judged = |change: fn(&mut StreamRxCounts)| {
        let mut node = node(&[1001]);
        change(&mut node.receive[0].counts);
        kernel_report_from(vec![node]).verdict
    };
    assert!(matches!(judged(|counts| counts.sequence.duplicates = 1), RunVerdict::Fail(_)));
    assert!(matches!(judged(|counts| counts.corrupt = 1), RunVerdict::Fail(_)));
    assert!(matches!(judged(|counts| counts.unnumbered = 1), RunVerdict::Fail(_)));
    assert_eq!(judged(|counts| counts.sequence.reordered = 5), RunVerdict::Pass);
    assert_eq!(judged(|counts| counts.altered = 1001), RunVerdict::Pass);
    assert!(matches!(judged(|counts| counts.sequence.stale = 1), RunVerdict::Inconclusive(_)));
}

#[test]
fn doubts_forbid_pass() {
    let doubtful = |change: fn(&mut NodeResult)| {
        let mut node = node(&[1001]);
        change(&mut node);
        kernel_report_from(vec![node]).verdict
    };
    let unsent = doubtful(|node| node.send[0].planned = 1100);
    assert_eq!(unsent.reasons(), ["stream s: 99 of 1100 planned frames were not sent"]);
    let caveat = |matters| Caveat {
        doubt: CaveatKind::Clock,
        subject: "port tx".into(),
        text: "stepped".into(),
        matters,
    };
    let mut serious = node(&[1001]);
    serious.caveats = vec![caveat(true), caveat(true)];
    let report = kernel_report_from(vec![serious]);
    assert_eq!(report.verdict, RunVerdict::Inconclusive(vec!["port tx: stepped".into()]), "said once");
    let mut harmless = node(&[1001]);
    harmless.caveats = vec![caveat(false)];
    assert_eq!(kernel_report_from(vec![harmless]).verdict, RunVerdict::Pass);
    let unbalanced = doubtful(|node| {
        for (account, frames) in
            [(LedgerAccount::Planned, 9), (LedgerAccount::Built, 5), (LedgerAccount::Unsent, 5)]
        {
            node.ports[0].ledger.add_frames(account, frames);
        }
    });
    assert!(unbalanced.reasons()[0].contains("planned = built + unsent"), "{unbalanced:?}");
}

#[test]
fn missing_node_is_never_zero_loss_or_pass() {
    let report = kernel_report_from(vec![]);
    assert_eq!(report.coverage, ReportCoverage { reported: 0, expected: 1 });
    assert_eq!(report.streams[0].loss, None);
    assert_eq!(report.streams[0].sent, None);
    assert!(matches!(report.verdict, RunVerdict::Inconclusive(_)));
    let twice = kernel_report_from(vec![node(&[1001]), node(&[1001])]);
    assert_eq!(twice.streams[0].sent.as_ref().unwrap().frames, 1001);
    assert_eq!(twice.coverage.reported, 1, "a result is counted once");
}

#[test]
fn sender_and_receiver_nodes_share_one_row() {
    let (mut sender, mut receiver) = (node(&[1001]), node(&[1001]));
    sender.node = "a".into();
    sender.receive.clear();
    sender.ports.truncate(1);
    receiver.node = "b".into();
    receiver.send.clear();
    receiver.ports.remove(0);
    let mut two = facts();
    two.nodes = vec![NodeName("a".into()), NodeName("b".into())];
    let report = assemble_report(&two, &plan(&["rx0"], ""), vec![receiver, sender.clone()], complete());
    assert_eq!(report.verdict, RunVerdict::Pass, "{:?}", report.verdict);
    let partial = RunOutcome::Partial { reasons: vec!["node b: silent for 5s".into()], stopped: false };
    let report = assemble_report(&two, &plan(&["rx0"], ""), vec![sender], partial);
    assert_eq!(report.streams[0].loss, None);
    assert!(report.verdict.reasons().contains(&"only 1 of 2 nodes reported".to_owned()));
}

#[test]
fn receivers_sharing_stream_are_judged_by_sum() {
    let plan = plan(&["rx0", "rx1"], "");
    let report = assemble_report(&facts(), &plan, vec![node(&[600, 401])], complete());
    assert_eq!(report.verdict, RunVerdict::Pass, "{:?}", report.verdict);
    let row = &report.streams[0];
    assert_eq!(row.loss.unwrap().longest_burst, None, "no receiver can tell");
    assert_eq!(row.per_port.len(), 2);
    assert_eq!(row.per_port[0].loss, None);
    assert_eq!(row.received.as_ref().unwrap().bytes, 1001 * 128);

    let flooded = assemble_report(&facts(), &plan, vec![node(&[1001, 1001])], complete());
    assert_eq!(flooded.streams[0].loss.unwrap().extra, 1001);
    assert!(matches!(flooded.verdict, RunVerdict::Fail(_)));
}

#[test]
fn rx_count_stream_is_judged_at_each_receiver() {
    let ratio = "rx_tx_ratio: {choice: rx_count, rx_count: {}}, ";
    let report =
        assemble_report(&facts(), &plan(&["rx0", "rx1"], ratio), vec![node(&[1001, 1000])], complete());
    let row = &report.streams[0];
    assert_eq!((row.loss.unwrap().expected, row.loss.unwrap().lost), (2002, 1));
    assert_eq!(row.per_port[0].loss.unwrap().lost, 0);
    assert_eq!(row.per_port[1].loss.unwrap().lost, 1);
}

#[test]
fn plan_cut_short_is_marked_interrupted() {
    let stopped = || RunOutcome::Complete { stopped: true };
    let mut short = node(&[500]);
    short.send[0] = sent(500);
    let report = assemble_report(&facts(), &plan(&["rx0"], ""), vec![short], stopped());
    assert_eq!(report.caveats[0].doubt, CaveatKind::Interrupted);
    assert!(matches!(report.verdict, RunVerdict::Inconclusive(_)));
    let whole = assemble_report(&facts(), &plan(&["rx0"], ""), vec![node(&[1001])], stopped());
    assert_eq!(whole.caveats, []);
}

#[test]
fn a_report_survives_json() {
    for report in [
        kernel_report_from(vec![node(&[999])]),
        kernel_report_from(vec![node(&[1001])]),
        kernel_report_from(vec![]),
    ] {
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<RunReport>(&text).unwrap(), report);
    }
}

#[test]
fn rows_outside_plan_are_dropped_and_forbid_pass() {
    let whole = kernel_report_from(vec![node(&[1001])]);
    let mut hostile = NodeResult { node: "hostile".into(), ..NodeResult::default() };
    hostile.ports.push(port(usize::MAX, "far", 0));
    hostile.send.push(SendResult { stream: 9, ..sent(7) });
    hostile.receive.push(received(77, 5));
    hostile.receive.push(ReceiveResult { stream: 9, ..received(1, 5) });
    let report = kernel_report_from(vec![node(&[1001]), hostile]);
    assert_eq!(report.streams[0].loss, whole.streams[0].loss, "the others' counts are as before");
    assert_eq!(report.ports.len(), whole.ports.len());
    let about = report.caveats.iter().find(|caveat| caveat.subject == "hostile").unwrap();
    assert!(about.matters && about.text.ends_with("(number: 4)"), "{about:?}");
}

#[test]
fn excess_rows_about_one_stream_are_dropped() {
    let mut hostile = NodeResult { node: "hostile".into(), ..NodeResult::default() };
    hostile.receive = vec![received(1, 0); 10_000];
    hostile.caveats = (0..20_000)
        .map(|number| Caveat {
            doubt: CaveatKind::Unbalanced,
            subject: "x".into(),
            text: (number % 10_000).to_string(),
            matters: true,
        })
        .collect();
    let report = kernel_report_from(vec![node(&[1001]), hostile]);
    let left_out = report.caveats.iter().find(|caveat| caveat.subject == "hostile").unwrap();
    assert!(left_out.text.ends_with("(number: 9936)"), "{left_out:?}");
    assert_eq!(report.caveats.iter().filter(|caveat| caveat.subject == "x").count(), 10_000);
}

#[test]
fn node_rows_about_foreign_ports_are_ignored() {
    let place = |node: &str| PortPlace { node: NodeName(node.into()), interface: "eth0".into() };
    let plan = plan(&["rx0"], "");
    let facts = RunFacts { places: vec![place("local"), place("local")], ..facts() };
    let honest = || node(&[1001]);
    let hostile = NodeResult { node: "hostile".into(), ..honest() };
    let report = assemble_report(&facts, &plan, vec![honest(), hostile], complete());
    let alone = assemble_report(&facts, &plan, vec![honest()], complete());
    assert_eq!((report.streams, report.ports), (alone.streams, alone.ports));
    assert!(report.caveats.iter().any(|caveat| caveat.subject == "hostile" && caveat.matters));
}
