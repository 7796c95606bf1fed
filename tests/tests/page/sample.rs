//! Pages of made-up runs: their numbers are known, and nothing had to be sent.

use packetrig_page::report::{REPORT_PAGE_FILE, RunPage, render_run};
use packetrig_report::RunReport;
use serde_json::{Value, json};
use std::path::PathBuf;
use tempfile::TempDir;

/// A page in a directory of its own.
pub(crate) struct SamplePage {
    pub(crate) report: RunReport,
    pub(crate) file: PathBuf,
    pub(crate) bytes: usize,
    _place: TempDir,
}

/// The page of a run with so many streams and seconds. Every tenth stream lost frames.
pub(crate) fn page(streams: u64, seconds: u64) -> SamplePage {
    page_of(run(streams, seconds))
}

/// The page of a run that probed between all of so many nodes. One line has no result.
pub(crate) fn page_of_probes(nodes: u64) -> SamplePage {
    let mut run = run(0, 1);
    let pairs =
        (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to))).filter(|(from, to)| from != to);
    let lines: Vec<Value> = pairs.map(|(from, to)| probe_line(from, to)).collect();
    run["probes"] = json!({
        "method": "oneway", "count": 10, "interval": 100_000_000, "size": 102, "lines": lines
    });
    page_of(run)
}

fn probe_line(from: u64, to: u64) -> Value {
    let name = |node: u64| format!("node<{node}>");
    let mut line = json!({
        "from": name(from), "from_node": name(from), "to": name(to), "to_node": name(to), "target": "198.18.0.1:18620"
    });
    if (from, to) == (0, 1) {
        line["missing"] = json!("its node did not report");
        return line;
    }
    let times = |p50: u64| {
        json!({
            "samples": 10, "min_ns": p50 - 500, "p50_ns": p50, "p95_ns": p50 + 500, "p99_ns": p50 + 900,
            "max_ns": 2 * p50, "bound_ns": 4100
        })
    };
    let (lost, delay) = (drawn(from, to) % 3, 1000 * (20 + drawn(to, from) % 90));
    line["found"] = json!({
        "end": {"why": "done"},
        "counts": {
            "planned": 10, "sent": 10, "answered": 10 - lost, "lost": lost, "refused": 0, "duplicates": 0,
            "reordered": 0, "corrupted": 0, "doubtful": 0
        },
        "far_end_reported": true, "lost_there": lost, "lost_back": 0, "clocks": "fleet",
        "delay_there": times(delay), "delay_back": times(delay + 1000), "round_trip": times(2 * delay),
        "release_error": times(1500), "mechanism": "spin", "why": "asked for"
    });
    line
}

fn page_of(run: Value) -> SamplePage {
    let report: RunReport = serde_json::from_value(run).expect("a sample is a report");
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join(REPORT_PAGE_FILE);
    let html = render_run(RunPage { report: &report, document: "flows: [] # the plan" });
    std::fs::write(&file, &html).unwrap();
    SamplePage { report, file, bytes: html.len(), _place: place }
}

const FRAMES_PER_SECOND: u64 = 9000;

fn run(streams: u64, seconds: u64) -> Value {
    let rows: Vec<Value> = (0..streams).map(|index| stream(index, seconds)).collect();
    let frames = streams * (seconds * FRAMES_PER_SECOND + 3000);
    let lost: u64 = rows.iter().map(|row| row["loss"]["lost"].as_u64().unwrap()).sum();
    let accounts = json!({
        "planned": frames, "unsent": 0, "built": frames, "refused": 0, "handed_over": frames, "tx_dropped": 0,
        "on_wire": frames, "arrived": frames - lost + 12, "ring_dropped": 0, "seen": frames - lost + 12,
        "foreign": 12, "protocol": 0, "other_runs": 0, "misdelivered": 0, "recognised": frames - lost,
        "counted": frames - lost, "duplicate": 0, "stale": 0, "unnumbered": 0, "expected": frames, "lost": lost
    });
    let failed = format!("stream 0 </script><b>: {lost} of {frames} frames lost");
    json!({
        "schema_version": 1, "packetrig_version": "0.1.0", "run": "20261126-080000-abcdef", "name": "core & edge",
        "plan_sha256": "934907b0a01a0aa0971384616b837e2b0591ad7970c747c2c5a8ba1b0c69925e",
        "started_wall_ns": 1_795_668_797_550_396_441_u64, "seed": 7, "sending": seconds * 1_000_000_000,
        "outcome": {"state": "complete", "stopped": false},
        "verdict": {"verdict": "FAIL", "reasons": [failed]},
        "criteria": {
            "max_loss": 0, "max_duplicates": 0, "max_damaged": 0, "max_misdelivered": 0, "max_reordered": null,
            "max_altered": null, "latency": [], "max_jitter": null, "max_outage": null, "min_rate": null,
            "min_verified": 1_000_000_000, "max_late": 200_000_000, "max_skew": null
        },
        "judged": [
            {"criterion": "loss", "limit": "at most 0 %", "result": "FAIL", "judged": streams, "failed": 1,
             "unknown": 0, "subjects": [{"subject": "stream 0", "result": "FAIL", "measured": "frames lost"}]},
            {"criterion": "damage", "limit": "at most 0 %", "result": "PASS", "judged": streams, "failed": 0,
             "unknown": 0, "subjects": [{"subject": "stream 0", "result": "PASS", "measured": "none"}]},
            {"criterion": "lateness", "limit": "at most 1ms", "result": "UNKNOWN", "judged": streams, "failed": 0,
             "unknown": 1, "subjects": [{"subject": "stream 0", "result": "UNKNOWN", "measured": "2ms"}]}
        ],
        "coverage": {"reported": 1, "expected": 1},
        "streams": rows, "ports": [port("left"), port("right")],
        "ledger": {"counts": accounts}, "imbalances": [], "unchecked": [],
        "lost": {"total": lost, "sender": 0, "receiver": 0, "in_doubt": 0, "path": lost},
        "captures": [],
        "caveats": [
            {"doubt": "sent_late", "subject": "left", "text": "12 frames left more than 1ms late", "matters": false},
            {"doubt": "near_limit", "subject": "left", "text": "near the limit", "matters": true}
        ]
    })
}

/// Neither equal in all streams nor smooth: what a page has to make room for.
fn drawn(index: u64, second: u64) -> u64 {
    (index * 7919 + second).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
}

fn stream(index: u64, seconds: u64) -> Value {
    let name =
        if index == 0 { "voice \"gold\" </script><b>".to_owned() } else { format!("stream {index:04}") };
    let p50 = 8000 + drawn(index, 0) % 50_000;
    let lost_at = |second: u64| {
        let is_lossy = index.is_multiple_of(10) && second % 97 == index % 97 % seconds;
        if is_lossy { 1 + drawn(index, second) % 500 } else { 0 }
    };
    let frames_in = |second: u64| if second == seconds { 3000 } else { FRAMES_PER_SECOND };
    let sent: Vec<Value> = (0..=seconds).map(|s| json!([frames_in(s), frames_in(s) * 128])).collect();
    let got: Vec<Value> = (0..=seconds)
        .map(|s| json!([frames_in(s) - lost_at(s), (frames_in(s) - lost_at(s)) * 128]))
        .collect();
    let percentiles: Vec<Value> = (0..=seconds)
        .map(|s| json!([p50 + drawn(index, s) % 2500, p50 * (2 + drawn(index, s + 3) % 3)]))
        .collect();
    let quality: Vec<Value> = (0..=seconds)
        .map(|s| {
            let arrived = frames_in(s) - lost_at(s);
            let mean = p50 + drawn(index, s) % 3000;
            json!([lost_at(s), arrived, arrived * mean, mean * (2 + drawn(index, s + 7) % 9)])
        })
        .collect();
    let lost: u64 = (0..=seconds).map(lost_at).sum();
    let frames = seconds * FRAMES_PER_SECOND + 3000;
    let rate = json!({"frames_milli": 9_000_133, "l2": 9_216_136, "l1": 10_656_157});
    let histogram: Vec<Value> = (0..40)
        .map(|step| json!([p50 + step * 1000, p50 + step * 1000 + 1000, 1 + drawn(index, step) % 9000]))
        .collect();
    json!({
        "name": name, "tx_port": "left", "rx_ports": ["right"], "measured": true,
        "sent": {
            "planned": frames, "frames": frames, "unsent": 0, "late": 0, "bytes": frames * 128, "first": 12000,
            "last": seconds * 1_000_000_000 + 340_000_000, "rate": rate, "rate_error_ppm": 2, "send_error": null,
            "stamp_bound": null, "series": {"seconds": sent, "beyond": [0, 0]}
        },
        "received": {
            "frames": frames - lost, "bytes": (frames - lost) * 128,
            "sequence": {
                "unique": frames - lost, "duplicates": 0, "reordered": 0, "max_extent": 0, "stale": 0, "lost": lost,
                "loss_bursts": 1, "longest_burst": lost, "loss_seconds": 1, "density": {}
            },
            "altered": 0, "corrupt": 0, "unnumbered": 0, "first": 20000, "last": 5, "rate": rate,
            "series": {"seconds": got, "beyond": [0, 0]}, "quality": {"seconds": quality, "percentiles": percentiles}
        },
        "loss": {
            "expected": frames, "lost": lost, "extra": 0, "percent": 0.1, "bursts": 1, "longest_burst": lost,
            "seconds": 1, "in_doubt": 0, "extra_in_doubt": 0
        },
        "latency": {
            "count": frames - lost, "min": p50 / 2, "mean": p50 + 500, "max": p50 * 21, "p50": p50, "p90": p50 + 900,
            "p99": p50 * 2, "p999": p50 * 4, "p9999": p50 * 9, "early": 0,
            "error": {"tx_stamp": "user", "rx_stamp": "software", "tx_p99": 900, "tx_max": 4000, "rx_conversion": 36}
        },
        "jitter": null, "per_port": [], "asked_milli": 9_000_000, "outages": null, "latency_histogram": histogram
    })
}

fn port(name: &str) -> Value {
    let no_series = json!({"seconds": [], "beyond": [0, 0]});
    json!({
        "node": "local",
        "info": {
            "name": name, "location": "left/eth0", "back_end": "packet", "why": "works everywhere", "driver": "veth",
            "speed": 10_000_000_000_u64, "max_frame": 9234, "tx_stamp": "user", "rx_stamp": "software"
        },
        "tx": {"handed_over": 20, "refused": 0, "on_wire": 20, "dropped": 0}, "tx_bytes": 1280,
        "rx": {"arrived": 20, "dropped": 0, "ring_dropped": 0, "seen": 20, "foreign": 0, "unnumbered": 0, "bytes": 0},
        "tx_rate": null, "rx_rate": null, "tx_series": no_series, "rx_series": no_series,
        "ledger": {"counts": {}}, "clock_bound": 36
    })
}
