//! Other programs send, our receiver counts what the reference device lets through; engines that do something wrong.

use super::assert_found;
use packetrig_sys::clock;
use packetrig_sys::link::NamespaceLinks;
use packetrig_testkit::Lab;
use packetrig_testkit::device::{
    DeviceReport, FaultPlan, FaultRule, FrameClassifier, FrameFault, RulePositions,
};
use packetrig_tests::at_once::for_all;
use packetrig_tests::document::{Document, Flow, ethernet, udp, value, vlan};
use packetrig_tests::judged_run::LONG_DRAIN;
use packetrig_tests::program::{Finished, Report, Running};
use packetrig_tests::skip::{self, OwnLab};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const ADAPTERS: [&str; 2] = ["trafgen", "tcpreplay"];
const FRAMES: u64 = 600;

fn smallest() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("engines/smallest.pl")
}

/// Whether an engine and what it needs are installed.
fn has_engine(engine: &str) -> bool {
    let interpreter = if ADAPTERS.contains(&engine) { "python3" } else { "perl" };
    skip::has_tool(interpreter) && (!ADAPTERS.contains(&engine) || skip::has_tool(engine))
}

fn flow(name: &str, key: u16) -> Flow {
    Flow::new(name, key).packets(FRAMES)
}

/// Runs flows from port 0 to port 1 through a device with these rules, sent by an engine; `None` without rights.
fn through(engine: &str, rules: Vec<FaultRule>, flows: Vec<Flow>) -> Option<(Finished, DeviceReport)> {
    let plan = FaultPlan {
        seed: 4711,
        classifier: FrameClassifier::SourceMac,
        rules,
        ..FaultPlan::without_faults()
    };
    let mut lab = skip::lab(|| Lab::with_device(2, plan))?;
    let document = Document::new(&[lab.location(0), lab.location(1)]).flows(flows);
    let finished = Running::run(&document, &["--quiet", "--engine", engine, "--drain", LONG_DRAIN]).finish();
    let device = lab.stop_device().unwrap();
    assert_eq!(device.own_losses, 0, "the device lost frames by itself: its truth is not the whole truth");
    Some((finished, device))
}

fn assert_sent_by(report: &Report, engine: &str) {
    let port = &report.0["ports"][0];
    let info = &port["info"];
    assert_eq!(info["back_end"], "process", "{info}");
    assert!(info["why"].as_str().unwrap().contains(engine), "no `{engine}` in {info}");
    let on_wire = &port["tx"]["on_wire"];
    assert_eq!(on_wire, &port["tx"]["handed_over"], "the interface counts what the engine says: {port}");
    let receiver = &report.0["ports"][1]["info"]["back_end"];
    assert_eq!(receiver, "packet");
}

fn sends_what_the_plan_says(engine: &str, name: &str, flows: Vec<Flow>) {
    if !has_engine(engine) {
        return;
    }
    let Some((finished, truth)) = through(engine, Vec::new(), flows.clone()) else { return };
    let report = finished.report();
    for (flow, key) in flows.iter().zip(1..) {
        assert_eq!(assert_found(&report, flow.name(), &truth, key).unique, FRAMES, "{}", report.0["caveats"]);
        let stream = report.stream(flow.name());
        // Our send times are not in these frames.
        assert_eq!((&stream["latency"], &stream["jitter"]), (&Value::Null, &Value::Null));
        assert!(
            stream["sent"]["rate"]["frames_milli"].as_u64().is_some_and(|rate| rate > 100_000),
            "{stream}"
        );
    }
    assert_sent_by(&report, name);
    assert_eq!(report.verdict(), "PASS", "{}", report.0["verdict"]);
    let caveats = report.0["caveats"].to_string();
    assert!(caveats.contains("no_send_time") && caveats.contains("another program sends"), "{caveats}");
}

/// Flows with something to vary.
fn two_flows() -> Vec<Flow> {
    let counting =
        json!({"choice": "increment", "increment": {"start": "198.18.1.1", "step": "0.0.0.1", "count": 9}});
    let varied = json!({"choice": "ipv4", "ipv4": {"src": counting, "dst": value("198.19.0.1")}});
    vec![flow("plain", 1), flow("varied", 2).pps(700).size(300).packet([ethernet(2), vlan(5), varied, udp()])]
}

#[test]
fn trafgen_sends_what_the_plan_says() {
    sends_what_the_plan_says("trafgen", "engine trafgen 0.", two_flows());
}

#[test]
fn tcpreplay_sends_what_the_plan_says() {
    sends_what_the_plan_says("tcpreplay", "engine tcpreplay 4.", two_flows());
}

#[test]
fn engine_written_from_docs_sends_planned_frames() {
    let engine = smallest();
    sends_what_the_plan_says(engine.to_str().unwrap(), "engine smallest 1", vec![flow("plain", 1)]);
}

#[test]
fn device_drops_are_counted_exactly_for_every_engine() {
    for_all(&ADAPTERS, |engine| {
        if !has_engine(engine) {
            return;
        }
        let rules = vec![
            FaultRule::new(RulePositions::draw_positions(1, 40, 0..FRAMES), FrameFault::Drop).for_key(1),
            FaultRule::new(RulePositions::Within(FRAMES - 7..FRAMES), FrameFault::Drop).for_key(2),
        ];
        let Some((finished, truth)) = through(engine, rules, vec![flow("scattered", 1), flow("tail", 2)])
        else {
            return;
        };
        let report = finished.report();
        assert_eq!(assert_found(&report, "scattered", &truth, 1).lost, 40);
        assert_eq!(assert_found(&report, "tail", &truth, 2).lost, 7);
        assert_eq!((report.verdict(), &report.0["lost"]["path"]), ("FAIL", &json!(47)), "{engine}");
    });
}

fn bursts() -> Value {
    json!({"choice": "burst", "burst": {"bursts": 6, "packets": 100,
        "inter_burst_gap": {"choice": "microseconds", "microseconds": 50_000}}})
}

#[test]
fn engine_refuses_bursts_it_cannot_send() {
    if !has_engine("trafgen") || !has_engine("tcpreplay") {
        return;
    }
    let flow = || flow("bursts", 1).with("duration", bursts());
    let Some((refused, _)) = through("trafgen", Vec::new(), vec![flow()]) else { return };
    refused.assert_refused(3, &["flows[0].duration", "engine trafgen cannot send bursts with pauses"]);
    let Some((finished, truth)) = through("tcpreplay", Vec::new(), vec![flow()]) else { return };
    let report = finished.report();
    assert_eq!(assert_found(&report, "bursts", &truth, 1).unique, 600);
    assert_eq!(report.verdict(), "PASS", "{}", report.0["verdict"]);
}

/// A run without an end of which an engine has sent 300 frames; `None` without rights.
fn start_endless(engine: &str) -> Option<(OwnLab, Running)> {
    let lab = skip::lab(|| Lab::with_device(2, FaultPlan::without_faults()))?;
    let endless = Flow::new("f", 1)
        .with("metrics", json!({"enable": false}))
        .with("duration", json!({"choice": "continuous"}));
    let document = Document::new(&[lab.location(0), lab.location(1)]).flow(endless);
    let mut running = Running::run(&document, &["--quiet", "--engine", engine]);
    packetrig_tests::rig_fault::await_frames(&lab, &mut running, 300);
    Some((lab, running))
}

#[test]
fn endless_flow_runs_until_interrupted() {
    for_all(&ADAPTERS, |engine| {
        if !has_engine(engine) {
            return;
        }
        let Some((_lab, mut running)) = start_endless(engine) else { return };
        running.signal(Signal::INT);
        let report = running.finish().report();
        assert!(report.number("f", "/sent/frames") >= 300, "{engine}");
        assert_sent_by(&report, engine);
        assert_eq!(report.0["imbalances"], json!([]), "{engine}");
    });
}

/// The smallest engine with `from` replaced by `to`.
fn variant(directory: &Path, name: &str, from: &str, to: &str) -> PathBuf {
    let text = std::fs::read_to_string(smallest()).unwrap();
    assert!(text.contains(from), "the engine has no `{from}`");
    let file = directory.join(name);
    std::fs::write(&file, text.replace(from, to)).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o700)).unwrap();
    file
}

#[test]
fn faulty_engine_makes_verdict_inconclusive() {
    if !has_engine("smallest") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (sends, counts) = ("if (send(", "$frames++; $bytes += length $frame->[1]");
    let after_300 = |what: &str| format!("{counts}; if ($frames == 300) {{ {what} }}");
    let cases = [
        (
            "counts too few",
            counts,
            format!("if ((our $said)++ >= 10) {{ {counts} }}"),
            "does not hold: left side 590, right side 600",
        ),
        (
            "counts too many",
            sends,
            "if ($frames >= 590 || send(".to_owned(),
            "does not hold: left side 600, right side 590",
        ),
        (
            "counts beyond the plan",
            "say_message(counts(\"ledger\"))",
            "$frames++; $bytes += 124; say_message(counts(\"ledger\"))".to_owned(),
            "601 frames, but the plan has 600",
        ),
        (
            "dies",
            counts,
            after_300("print STDERR \"out of memory\\n\"; exit 1"),
            "it ended too early: out of memory",
        ),
        ("hangs", counts, after_300("sleep 1000"), "it sent no message for"),
        (
            "floods",
            counts,
            after_300("say_message({ type => \"note\", text => \"x\" }) while 1"),
            "more than 1000 messages",
        ),
    ];
    for_all(&cases, |(name, from, to, why)| {
        let engine = variant(directory.path(), name, from, to);
        // The device loses frames as well: that cannot be told from what the engine did.
        let rules = vec![FaultRule::new(RulePositions::Within(100..105), FrameFault::Drop).for_key(1)];
        let rules = if why.contains("does not hold") { Vec::new() } else { rules };
        let Some((finished, _)) = through(engine.to_str().unwrap(), rules, vec![flow("f", 1)]) else {
            return;
        };
        let report = finished.report();
        let verdict = report.0["verdict"].to_string();
        assert_eq!((finished.code, report.verdict()), (Some(7), "INCONCLUSIVE"), "{name}: {verdict}");
        assert!(verdict.contains(why), "{name}: {verdict}");
    });
}

#[test]
fn an_engine_may_refuse_the_plan_by_itself() {
    if !has_engine("smallest") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let refusal = r#"say_message({ type => "refused", stream => 0, feature => "this", needs => "a card", found => "none" })"#;
    let engine = variant(directory.path(), "refuses", "say_message({ type => \"ready\" })", refusal);
    let Some((finished, _)) = through(engine.to_str().unwrap(), Vec::new(), vec![flow("f", 1)]) else {
        return;
    };
    finished
        .assert_refused(3, &["flows[0]", "engine smallest cannot do this: this needs a card; found none"]);
}

#[test]
fn program_without_engine_protocol_is_refused() {
    let Some((finished, _)) = through("/bin/true", Vec::new(), vec![flow("f", 1)]) else { return };
    finished.assert_refused(4, &["engine /bin/true", "it ended too early"]);
    let Some((finished, _)) = through("/no/such/engine", Vec::new(), vec![flow("f", 1)]) else { return };
    finished.assert_refused(4, &["/no/such/engine"]);
}

#[test]
fn killed_run_stops_engine_and_next_cleans_up() {
    for_all(&ADAPTERS, |engine| {
        if !has_engine(engine) {
            return;
        }
        let Some((lab, mut running)) = start_endless(engine) else { return };
        let process = running.process();
        assert!(has_directory(process));
        running.signal(Signal::KILL);
        let mut links = NamespaceLinks::open_in(lab.ports()[0].netns()).unwrap();
        let mut sent = || links.read_counters(lab.ports()[0].link.index).unwrap().tx_frames;
        // An engine that went on would send a hundred frames in this time; one that was told to end may take a while.
        let deadline = clock::monotonic_ns() + 20_000_000_000;
        let mut before = sent();
        loop {
            clock::sleep_until_ns(clock::monotonic_ns() + 100_000_000);
            let now = sent();
            if now == before {
                break;
            }
            before = now;
            assert!(clock::monotonic_ns() < deadline, "{engine} goes on");
        }
        drop(lab);
        // Also a run that fails starts its engine.
        assert_eq!(running.finish().code, None, "it was killed");
        drop(through("/bin/true", Vec::new(), vec![flow("f", 1)]));
        assert!(!has_directory(process), "what the killed one left is removed by the next one");
    });
}

/// Whether a process has a directory for an engine.
fn has_directory(process: u32) -> bool {
    let name = format!("packetrig-engine-{process}-");
    let mut entries = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    entries.any(|entry| entry.file_name().to_string_lossy().starts_with(&name))
}
