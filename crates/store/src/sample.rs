//! A report for tests: one measured stream with an awkward name, one without metrics, one port.

use packetrig_report::outcome::RunOutcome;
use packetrig_report::{
    AcceptanceCriteria, ArrivedFrames, FrameLoss, LatencyError, LatencyReport, LossPlaces, PlanHash,
    PortReport, ReportCoverage, RunId, RunReport, RunVerdict, SCHEMA_VERSION, SentFrames, StreamReport,
};
use packetrig_stats::counts::StreamRxCounts;
use packetrig_stats::latency::Latency;
use packetrig_stats::ledger::FrameLedger;
use packetrig_stats::port::{BackEnd, PortInfo, RxCounters, StampKind, TxCounters};
use packetrig_stats::result::{CaptureResult, CountSample, NodeResult, ReceiveResult};
use packetrig_stats::sequence::SequenceCounts;
use packetrig_stats::series::RateSeries;
use packetrig_units::{MonoTime, Nanos};

pub(crate) fn report(run: &str) -> RunReport {
    let measured = stream("voice, \"gold\" <1>", true);
    let plain = StreamReport { received: None, loss: None, latency: None, ..stream("plain", false) };
    RunReport {
        schema_version: SCHEMA_VERSION,
        packetrig_version: "0.1.0".into(),
        run: RunId(run.into()),
        name: "a & b".into(),
        plan_sha256: PlanHash::from_document("plan"),
        started_wall_ns: 1_700_000_000_000_000_000,
        seed: 11,
        sending: Some(Nanos::from_millis(1500)),
        times: None,
        outcome: RunOutcome::Complete { stopped: false },
        verdict: RunVerdict::Fail(vec!["stream x: 2 of 10 frames lost".into()]),
        criteria: AcceptanceCriteria::default(),
        judged: Vec::new(),
        coverage: ReportCoverage { reported: 1, expected: 1 },
        nodes: vec![],
        skew: None,
        load: None,
        streams: vec![measured, plain],
        probes: None,
        ports: vec![port()],
        ledger: FrameLedger::default(),
        imbalances: vec![],
        unchecked: vec![],
        lost: LossPlaces { total: 2, sender: Some(0), receiver: Some(0), in_doubt: 0, path: Some(2) },
        captures: vec![CaptureResult { port: 0, file: "elsewhere.pcapng".into(), written: 1, dropped: 0 }],
        caveats: vec![],
        rig_limits: vec![],
    }
}

fn series() -> RateSeries {
    let mut series = RateSeries::with_limit(4);
    let start = MonoTime::from_nanos(0);
    series.add_frames(start, start, 6, 384);
    series.add_frames(start, MonoTime::from_nanos(1_000_000_000), 4, 256);
    // The room a worker reserves is not part of a report.
    let mut plain = RateSeries::default();
    plain.merge(&series);
    plain
}

fn sent() -> SentFrames {
    SentFrames {
        untagged: 0,
        planned: 10,
        frames: 10,
        unsent: 0,
        late: 1,
        bytes: 640,
        first: Some(Nanos::ZERO),
        last: Some(Nanos::from_secs(1)),
        rate: None,
        rate_error_ppm: Some(-3),
        send_error: None,
        stamp_bound: None,
        series: series(),
    }
}

fn received() -> ArrivedFrames {
    ArrivedFrames {
        frames: 8,
        bytes: 512,
        sequence: SequenceCounts { unique: 8, lost: 2, ..SequenceCounts::default() },
        altered: 0,
        corrupt: 0,
        unnumbered: 0,
        first: Some(Nanos::new(7)),
        last: Some(Nanos::from_secs(1)),
        rate: None,
        series: series(),
        quality: packetrig_stats::series::QualitySeries::default(),
    }
}

fn stream(name: &str, measured: bool) -> StreamReport {
    let ns = Nanos::new;
    let error = LatencyError {
        tx_stamp: None,
        rx_stamp: None,
        tx_p99: Some(ns(5)),
        tx_max: None,
        rx_conversion: Some(ns(6)),
        clock: None,
    };
    StreamReport {
        delivered_milli: None,
        largest_jitter: None,
        name: name.into(),
        tx_port: "tx".into(),
        rx_ports: vec!["rx".into()],
        measured,
        sent: Some(sent()),
        received: Some(received()),
        loss: Some(FrameLoss {
            counts_copies: false,
            expected: 10,
            lost: 2,
            extra: 0,
            percent: 20.0,
            bursts: Some(1),
            longest_burst: Some(2),
            seconds: Some(1),
            in_doubt: 0,
            extra_in_doubt: 0,
        }),
        latency: Some(LatencyReport {
            bounds: None,
            count: 8,
            min: ns(1),
            mean: ns(2),
            max: ns(9),
            p50: ns(2),
            p90: ns(3),
            p99: ns(4),
            p999: ns(5),
            p9999: ns(9),
            early: ns(0),
            error,
        }),
        jitter: None,
        per_port: vec![],
        asked_milli: None,
        outages: None,
        misdelivery: None,
        contents: None,
        latency_histogram: Vec::new(),
    }
}

fn port() -> PortReport {
    PortReport {
        sent_ahead: 0,
        node: "local".into(),
        info: PortInfo {
            name: "tx".into(),
            location: "ns/eth0".into(),
            back_end: BackEnd::Packet,
            why: "always there".into(),
            driver: "veth".into(),
            speed: None,
            max_frame: 1518,
            tx_stamp: StampKind::User,
            rx_stamp: StampKind::Software,
        },
        tx: TxCounters { handed_over: 20, refused: 0, on_wire: Some(20), dropped: None },
        tx_bytes: 1280,
        rx: RxCounters::default(),
        tx_rate: None,
        rx_rate: None,
        tx_series: series(),
        rx_series: RateSeries::default(),
        ledger: FrameLedger::default(),
        clock_bound: Nanos::new(300),
        events: Vec::new(),
        peaks: None,
        other_runs: Vec::new(),
    }
}

/// Counters after this many seconds.
pub(crate) fn sample(seconds: u64) -> CountSample {
    let counters =
        TxCounters { handed_over: seconds * 10, refused: 0, on_wire: Some(seconds * 10), dropped: None };
    CountSample {
        at: MonoTime::from_nanos(seconds * 1_000_000_000),
        ports: vec![(0, counters, RxCounters::default())],
        ..CountSample::default()
    }
}

fn receive_result(stream: usize, spread: u64) -> ReceiveResult {
    let mut latency = Latency::with_digits(3);
    // Other values in every stream, so that they do not compress to nothing.
    let seed = (stream as u64) << 32;
    for n in 0..spread {
        let value = (seed + n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) >> 36;
        latency.record_time(Nanos::new(value));
    }
    ReceiveResult {
        outages: packetrig_stats::outage::OutageList::default(),
        quality: packetrig_stats::series::QualitySeries::default(),
        stream,
        port: 1,
        counts: StreamRxCounts::default(),
        latency: Some(latency),
        jitter: None,
        series: series(),
    }
}

/// A result with this many streams, each with a latency of `spread` different values.
pub(crate) fn node_result(streams: usize, spread: u64) -> NodeResult {
    NodeResult {
        node: "a".into(),
        started: MonoTime::from_nanos(5),
        senders_done: MonoTime::from_nanos(9),
        ended: MonoTime::from_nanos(11),
        receive: (0..streams).map(|stream| receive_result(stream, spread)).collect(),
        captures: vec![CaptureResult {
            port: 1,
            file: "/var/tmp/x/rx.pcapng".into(),
            written: 7,
            dropped: 0,
        }],
        ..NodeResult::default()
    }
}
