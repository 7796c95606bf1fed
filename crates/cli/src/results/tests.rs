use super::*;
use packetrig_report::outcome::RunOutcome;
use packetrig_report::{
    AcceptanceCriteria, ArrivedFrames, FrameLoss, LoadFactor, LossPlaces, NodeClock, NodeReport, NodeStart,
    PlanHash, ReportCoverage, RunId, SCHEMA_VERSION, SentFrames, SkewReport, SkewVerdict, StreamReport,
};
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_stats::clock::{ClockRecord, FitSource};
use packetrig_stats::ledger::{FrameLedger, LedgerAccount};
use packetrig_stats::result::CaptureResult;
use packetrig_stats::sequence::SequenceCounts;
use packetrig_stats::series::RateSeries;
use packetrig_units::Nanos;

fn stream(name: &str) -> StreamReport {
    let sequence = SequenceCounts { unique: 990, reordered: 7, max_extent: 3, ..SequenceCounts::default() };
    StreamReport {
        delivered_milli: None,
        largest_jitter: None,
        name: name.into(),
        tx_port: "tx".into(),
        rx_ports: vec!["rx".into()],
        measured: true,
        sent: Some(SentFrames {
            untagged: 0,
            planned: 1_000,
            frames: 1_000,
            unsent: 0,
            late: 12_345,
            bytes: 64_000,
            first: None,
            last: None,
            rate: None,
            rate_error_ppm: Some(-42),
            send_error: None,
            stamp_bound: None,
            series: RateSeries::default(),
        }),
        received: Some(ArrivedFrames {
            frames: 990,
            bytes: 63_360,
            sequence,
            altered: 0,
            corrupt: 0,
            unnumbered: 0,
            first: None,
            last: None,
            rate: None,
            series: RateSeries::default(),
            quality: packetrig_stats::series::QualitySeries::default(),
        }),
        loss: Some(FrameLoss {
            counts_copies: false,
            expected: 1_000,
            lost: 10,
            extra: 0,
            percent: 1.0,
            bursts: Some(2),
            longest_burst: Some(6),
            seconds: Some(1),
            in_doubt: 0,
            extra_in_doubt: 0,
        }),
        latency: None,
        jitter: None,
        per_port: Vec::new(),
        asked_milli: None,
        outages: None,
        misdelivery: None,
        contents: None,
        latency_histogram: Vec::new(),
    }
}

fn report() -> RunReport {
    let mut ledger = FrameLedger::default();
    ledger.add_frames(LedgerAccount::Planned, 1_000);
    ledger.add_frames(LedgerAccount::HandedOver, 1_000);
    ledger.add_frames(LedgerAccount::Counted, 990);
    RunReport {
        schema_version: SCHEMA_VERSION,
        packetrig_version: "0.1.0".into(),
        run: RunId("20261121-081407-3fa9c1".into()),
        name: "first".into(),
        plan_sha256: PlanHash::from_document(""),
        started_wall_ns: 0,
        seed: 3,
        sending: Some(Nanos::from_secs(10)),
        times: None,
        outcome: RunOutcome::Complete { stopped: false },
        verdict: RunVerdict::Fail(vec!["stream a: 10 of 1000 frames lost".into()]),
        criteria: AcceptanceCriteria::default(),
        judged: Vec::new(),
        coverage: ReportCoverage { reported: 1, expected: 1 },
        nodes: Vec::new(),
        skew: None,
        load: None,
        streams: vec![stream("a")],
        probes: None,
        ports: Vec::new(),
        ledger,
        imbalances: Vec::new(),
        unchecked: vec!["arrived = seen + dropped by our ring".into()],
        lost: LossPlaces { total: 10, sender: Some(0), receiver: Some(1), in_doubt: 0, path: Some(9) },
        captures: vec![CaptureResult { port: 1, file: "rx.pcapng".into(), written: 990, dropped: 4 }],
        caveats: vec![
            Caveat {
                doubt: CaveatKind::NotQuiet,
                subject: "rx".into(),
                text: "LRO stays on".into(),
                matters: false,
            },
            Caveat {
                doubt: CaveatKind::SentLate,
                subject: "a".into(),
                text: "1 % late".into(),
                matters: true,
            },
        ],
        rig_limits: vec![],
    }
}

fn rendered(report: &RunReport) -> String {
    render_report(report, TextStyle::PLAIN)
}

#[test]
fn every_part_of_a_report_is_shown() {
    let text = rendered(&report());
    for part in [
        "Run 20261121-081407-3fa9c1 \"first\", 1970-01-01 00:00:00 UTC, sent for 10s, run complete",
        "-42 ppm",
        "12 345",
        "planned 1 000  handed over 1 000",
        "10: in our sender 0, in our receiver 1, during an event at a port 0 (in doubt), in the device under test or on the path 9",
        "not checked, because a counter is missing: arrived",
        "rx.pcapng: 990 frames, missing frames: 4",
        "Verdict: FAIL\n  stream a: 10 of 1000 frames lost",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let row = text.lines().find(|line| line.trim_start().starts_with("a ")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[..9], ["a", "1", "000", "990", "10", "1", "%", "2", "6"]);
}

fn node(name: &str, clock: Option<NodeClock>) -> NodeReport {
    NodeReport {
        node: name.into(),
        reported: true,
        ports: 2,
        sent: Some(1_000),
        received: Some(0),
        clock,
        start: clock.map(|_| NodeStart {
            skew_ns: Some(-1_500),
            bound: Some(Nanos::from_micros(40)),
            late_ns: 0,
            stamp: None,
        }),
        machine: None,
    }
}

#[test]
fn nodes_are_shown_when_there_are_several() {
    let clock = NodeClock {
        source: FitSource::InBand,
        offset_ns: Some(-2_000_000),
        bound: Some(Nanos::from_micros(35)),
        record: ClockRecord::same_clock(),
    };
    let mut report = report();
    report.nodes = vec![node("alpha", Some(clock))];
    assert!(!rendered(&report).contains("alpha"), "one node needs no row");
    let gone = NodeReport { reported: false, sent: None, received: None, ..node("gamma", None) };
    report.nodes.extend([node("beta", None), gone]);
    report.coverage = ReportCoverage { reported: 2, expected: 3 };
    report.outcome =
        RunOutcome::Partial { reasons: vec!["node gamma: silent for 5s".into()], stopped: false };
    report.skew = Some(SkewReport {
        spread: Some(Nanos::from_micros(12)),
        bound: Some(Nanos::from_micros(70)),
        least: Some(Nanos::ZERO),
        wanted: Some(Nanos::from_millis(1)),
        verdict: Some(SkewVerdict::Unknown),
        unknown: vec!["beta".into(), "gamma".into()],
    });
    report.load =
        Some(LoadFactor { senders: 3, asked_milli: 180_000_000, received_milli: 97_200_000, k: 0.54 });
    let text = rendered(&report);
    for part in [
        "reported: 2 of 3 nodes\n  partial: node gamma: silent for 5s",
        "start skew: senders began 12us apart (at most 82us); wanted at most 1ms: INCONCLUSIVE; unknown for beta, gamma",
        "received 54 % of the requested load: 97.2 kframes/s of 180 kframes/s",
        "from 3 senders",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let row = |name: &str| text.lines().find(|line| line.trim_start().starts_with(name)).unwrap().to_owned();
    assert!(
        row("alpha").contains("in-band") && row("alpha").contains("-2ms") && row("alpha").contains("± 35us")
    );
    assert!(row("beta").contains(" yes ") && row("beta").contains('–') && row("gamma").contains(" no "));
    assert!(!row("gamma").contains('0'), "missing is not zero: {}", row("gamma"));
}

#[test]
fn tables_fit_terminal_or_show_all_columns() {
    let mut report = report();
    report.streams.push(stream("a name of thirty-two characters!"));
    report.nodes = vec![node("alpha", None), node("beta", None)];
    let narrow = render_report(&report, TextStyle::PLAIN.with_width(Some(80)));
    let tables = narrow.split("Ledger").next().unwrap().lines().skip(1);
    for line in tables {
        assert!(line.chars().count() <= 80, "{} characters: {line}", line.chars().count());
    }
    assert!(narrow.contains("lost") && !narrow.contains("extent") && narrow.contains("--wide"), "{narrow}");
    assert!(rendered(&report).contains("extent") && !rendered(&report).contains("--wide"));
}

#[test]
fn caveats_that_matter_come_first() {
    let text = rendered(&report());
    let (late, quiet) = (text.find("1 % late").unwrap(), text.find("LRO stays on").unwrap());
    assert!(late < quiet);
}

fn late(stream: &str, frames: u64) -> Caveat {
    let text = format!("{frames} frames (1.5 %) left more than 1ms late");
    Caveat { doubt: CaveatKind::SentLate, subject: stream.into(), text, matters: false }
}

#[test]
fn many_similar_caveats_merge_with_total_and_worst() {
    let mut report = report();
    report.streams = (0..38).map(|number| stream(&format!("s{number}"))).collect();
    report.caveats.extend((0..38).map(|number| late(&format!("s{number}"), 100 + number)));
    let text = rendered(&report);
    let merged = "note     38 streams (s0, s1, s2 and 35 more): 4 503 in all, most for s37: 137 frames (1.5 %) left more than 1ms";
    assert!(text.contains(merged), "{merged} in\n{text}");
    assert_eq!(text.matches("left more than").count(), 1);
    assert!(text.contains("rx: LRO stays on"), "the others are still there:\n{text}");
}

#[test]
fn few_similar_caveats_stay_separate() {
    let mut report = report();
    report.caveats.extend([late("a", 1), late("b", 2)]);
    let text = rendered(&report);
    assert!(text.contains("a: 1 frames") && text.contains("b: 2 frames"), "{text}");
}

#[test]
fn identical_caveats_merge_into_one_line() {
    let mut report = report();
    report.streams = (0..5).map(|number| stream(&format!("s{number}"))).collect();
    let no_time = |number| Caveat {
        doubt: CaveatKind::NoSendTime,
        subject: format!("s{number}"),
        text: "its frames have no room for a send time: no latency".into(),
        matters: false,
    };
    report.caveats.extend((0..5).map(no_time));
    let text = rendered(&report);
    assert!(text.contains("5 streams (s0, s1, s2 and 2 more): its frames have no room"), "{text}");
}

#[test]
fn similar_verdict_reasons_are_merged() {
    let mut report = report();
    report.streams = (0..9).map(|number| stream(&format!("s{number}"))).collect();
    let lost = |number| format!("stream s{number}: {number} of 1000 frames lost ({number} %)");
    let reasons = (0..9).map(lost).chain(["only 1 of 2 nodes reported".to_owned()]);
    report.verdict = RunVerdict::Fail(reasons.collect());
    let text = rendered(&report);
    let merged =
        "Verdict: FAIL\n  9 streams (s0, s1, s2 and 6 more): 36 in all, most for s8: 8 of 1000 frames lost";
    assert!(text.contains(merged) && text.contains("only 1 of 2 nodes reported"), "{text}");
}

#[test]
fn unknown_values_render_as_dash() {
    let mut report = report();
    let stream = &mut report.streams[0];
    (stream.sent, stream.received, stream.loss) = (None, None, None);
    let text = rendered(&report);
    let row = text.lines().find(|line| line.trim_start().starts_with("a ")).unwrap();
    assert!(row.contains('–') && !row.contains('0'), "{row}");
    assert!(!text.contains("Sending") && !text.contains("Latency"), "{text}");
}

#[test]
fn thousands_of_streams_are_cut_short_and_counted() {
    let mut report = report();
    report.streams = (0..4096).map(|number| stream(&format!("s{number}"))).collect();
    let text = rendered(&report);
    assert!(text.contains("… and 4032 more streams, see streams.csv"), "{text}");
    assert!(text.lines().count() < 300);
}

#[test]
fn long_names_are_shortened_at_character_boundary() {
    assert_eq!(shorten_name("short"), "short");
    assert_eq!(shorten_name(&"ü".repeat(50)).chars().count(), LONGEST_NAME);
}

#[test]
fn nothing_sent_line_requires_all_reports() {
    let mut silent = RunReport { sending: Some(Nanos::from_secs(1)), ..report() };
    silent.streams.iter_mut().for_each(|stream| stream.sent.iter_mut().for_each(|sent| sent.frames = 0));
    assert!(rendered(&silent).contains("nothing was sent"));
    silent.sending = None;
    let missing = RunReport { coverage: ReportCoverage { reported: 0, expected: 4 }, ..silent };
    let text = rendered(&missing);
    assert!(
        text.contains("no node has reported its sent frames") && !text.contains("nothing was sent"),
        "{text}"
    );
}
