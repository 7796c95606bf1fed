//! Engines that behave and engines that do not, as shell scripts, against the transmit half; no frame is sent.

use super::child::EngineProcess;
use super::*;
use crate::clock::RealClock;
use crate::gate::SendGate;
use crate::port::WorkerClock;
use crate::stream::{FrameSource, NextStep, SendingRecord, StreamControl, StreamSpec, StreamTx, TxJob};
use packetrig_plan::Plan;
use packetrig_stats::port_event::PortEventKind;
use packetrig_sys::netns::NetNs;
use packetrig_units::MonoTime;
use packetrig_wire::pcap::{CaptureDecoder, DecodedElement};
use packetrig_wire::tag::TagKey;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

const KEY: TagKey = TagKey(7);
/// Time limit of a test: a longer one hangs.
const PATIENCE: Nanos = Nanos::from_secs(20);
const HELLO: &str = r#"echo '{"type":"hello","protocol":1,"name":"shell","version":"2","abilities":{"repeat":true,"endless":true}}'
"#;
const READY: &str = "read prepare; echo '{\"type\":\"ready\"}'; read start\n";

/// Streams of one flow of 100 frames of 128 B at 1000 frames/s, with these changes in JSON.
fn streams(changes: &[(&str, &str)]) -> Vec<Arc<StreamSpec>> {
    const FIELDS: [(&str, &str); 5] = [
        ("size", r#"{"choice": "fixed", "fixed": 128}"#),
        ("duration", r#"{"choice": "fixed_packets", "fixed_packets": {"packets": 100}}"#),
        ("metrics", r#"{"enable": true, "loss": true}"#),
        ("udp", r#""src_port": {"value": 1000}, "dst_port": {"value": 7}"#),
        ("flow", ""),
    ];
    let mut text = r#"{"ports": [{"name": "a", "location": "eth1"}, {"name": "b", "location": "eth2"}], "flows": [{"name": "f",
        "tx_rx": {"choice": "port", "port": {"tx_name": "a", "rx_names": ["b"]}},
        "packet": [{"choice": "ethernet", "ethernet": {"src": {"value": "02:00:00:00:00:01"}, "dst": {"value": "02:00:00:00:00:02"}}},
            {"choice": "ipv4", "ipv4": {"src": {"value": "198.18.0.1"}, "dst": {"value": "198.19.0.1"}}},
            {"choice": "udp", "udp": {$udp}}],
        "size": $size, "rate": {"choice": "pps", "pps": 1000}, "duration": $duration, "metrics": $metrics $flow}]}"#
        .to_owned();
    for (name, default) in FIELDS {
        let value = changes.iter().find(|(changed, _)| *changed == name).map_or(default, |(_, value)| *value);
        text = text.replace(&format!("${name}"), value);
    }
    let plan = Plan::from_text(&text).unwrap_or_else(|problems| panic!("{problems:?}\n{text}"));
    let bound = plan.bind_to_links(&[None, None]).unwrap();
    let specs = bound.plan.streams.iter().zip(&bound.streams).zip(0..).map(|((stream, schedule), number)| {
        Arc::new(StreamSpec {
            number,
            source: FrameSource::from_origin(&stream.frames),
            timeline: schedule.timeline,
            latency: false,
            sent_elsewhere: false,
            untimed: true,
        })
    });
    specs.collect()
}

fn job(streams: Vec<Arc<StreamSpec>>) -> TxJob {
    TxJob { key: KEY, streams, steered: false, gate: SendGate::without_lease() }
}

/// An engine that is this shell script.
struct ShellEngine {
    directory: tempfile::TempDir,
    command: EngineCommand,
}

impl ShellEngine {
    fn new(script: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("engine");
        std::fs::write(&file, format!("#!/bin/sh\n{script}")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o700)).unwrap();
        Self { directory, command: EngineCommand::Program(file) }
    }

    fn start(&self) -> Result<ProcessTx, EngineFault> {
        let here = NetNs::current().unwrap();
        let mut engine = EngineProcess::start(&self.command, &here).unwrap();
        let hello = await_hello(&mut engine)?;
        let meter = InterfaceMeter::start(&here, 1).unwrap();
        let site = EngineInterface { interface: "eth1".to_owned(), link_bits_per_second: None };
        Ok(ProcessTx::new(engine, hello, site, meter, SendDoubts::default()))
    }

    /// Armed with the usual stream.
    fn arm(&self) -> ProcessTx {
        let mut tx = self.start().unwrap();
        tx.arm_sender(job(streams(&[]))).unwrap();
        tx
    }
}

/// Steps until everything is done, with times that are `shift` ahead of the clock.
fn finish(tx: &mut ProcessTx, shift: Nanos) -> (u64, SendingRecord) {
    let clock = RealClock::new();
    let give_up = clock.now() + PATIENCE;
    while tx.send_due(clock.now() + shift).unwrap() != NextStep::Done {
        assert!(clock.now() < give_up, "it does not come to an end");
        clock.wait_until(clock.now() + Nanos::from_millis(2));
    }
    let record = tx.sending_record();
    let results = tx.finish_sending();
    (results[0].counts.frames, record)
}

fn run(script: &str) -> (u64, SendingRecord) {
    let engine = ShellEngine::new(&[HELLO, READY, script].concat());
    let mut tx = engine.arm();
    tx.apply_control(StreamControl::StartAt(RealClock::new().now()));
    finish(&mut tx, Nanos::ZERO)
}

/// Returns the fault of an engine that runs this script after its start.
fn node_fault_of(script: &str) -> String {
    let (_, record) = run(script);
    assert_eq!(record.stalls.len(), 1, "losses are in doubt: {record:?}");
    assert_eq!((record.stalls[0].what, record.stalls[0].until), (PortEventKind::EngineFailed, None));
    record.fault.expect("it is a fault")
}

fn count(kind: &str, frames: u64, bytes: u64) -> String {
    let count = format!(r#"{{"stream":0,"frames":{frames},"bytes":{bytes}}}"#);
    format!("echo '{{\"type\":\"{kind}\",\"streams\":[{count}]}}'\n")
}

#[test]
fn an_engine_that_behaves_is_believed() {
    let script = [count("counters", 40, 40 * 124), count("ledger", 100, 12_400)].concat();
    assert_eq!(run(&script), (100, SendingRecord::default()));
}

#[test]
fn crashed_engine_keeps_its_counts_and_is_fault() {
    let script = [count("counters", 40, 40 * 124).as_str(), "echo out of memory >&2; exit 1\n"].concat();
    let (frames, record) = run(&script);
    assert_eq!(frames, 40);
    let fault = record.fault.unwrap();
    assert!(fault.starts_with("engine shell failed: it ended too early: out of memory;"), "{fault}");
}

#[test]
fn impossible_counts_are_refused() {
    for (script, why) in [
        (count("ledger", 101, 101 * 124), "add up to 101 frames, but the plan has 100"),
        (
            [count("counters", 9, 9 * 124), count("counters", 8, 8 * 124)].concat(),
            "decrease: 8 frames after 9",
        ),
        (count("ledger", 100, 100 * 128), "100 frames have 12400 to 12400 B without FCS, not 12800"),
        (
            count("ledger", 1, 124).replace("\"stream\":0", "\"stream\":5"),
            "it reports counts of stream 5, which it does not send",
        ),
        ("echo '{\"type\":\"ledger\",\"streams\":[]}'\n".to_owned(), "its ledger has no entry for stream 0"),
        (
            count("ledger", 1, 124).replace("\"frames\":1", "\"first_ns\":1,\"frames\":1"),
            "time 1 ns, which is not between",
        ),
        ("echo sent it all\n".to_owned(), "it sent `sent it all`, which is not a message"),
        (
            "echo '{\"type\":\"ready\"}'\n".to_owned(),
            "it sent message `ready` at a time when this is not allowed",
        ),
        (
            "echo '{\"type\":\"failed\",\"text\":\"no memory\"}'\n".to_owned(),
            "it reported an error: no memory",
        ),
    ] {
        let fault = node_fault_of(&[script.as_str(), "sleep 1000\n"].concat());
        assert!(fault.contains(why), "{fault}");
    }
}

#[test]
fn a_flood_ends_the_engine() {
    let flood = format!("while :; do\n{}done\n", count("counters", 1, 124).repeat(50));
    assert!(node_fault_of(&flood).contains("more than 1000 messages in a second"));
    assert!(
        node_fault_of("head -c 10000000 /dev/zero | tr '\\0' x; sleep 1000\n")
            .contains("it sent a line longer")
    );
    // A flood on standard error does not stop it.
    let script = ["head -c 10000000 /dev/zero >&2\n", &count("ledger", 100, 12_400)].concat();
    assert_eq!(run(&script), (100, SendingRecord::default()));
}

#[test]
fn silent_unstoppable_engine_and_children_are_killed() {
    let engine = ShellEngine::new(
        &[HELLO, READY, "trap '' TERM INT; sleep 1000 & echo $! > pid; mv pid \"$0.pid\"; wait\n"].concat(),
    );
    let mut tx = engine.arm();
    tx.apply_control(StreamControl::StartAt(RealClock::new().now()));
    let pid = engine.directory.path().join("engine.pid");
    while !pid.exists() {
        assert_ne!(tx.send_due(RealClock::new().now()).unwrap(), NextStep::Done);
    }
    let pid: u32 = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    let (_, record) = finish(&mut tx, Nanos::from_secs(6));
    assert!(record.fault.unwrap().contains("it sent no message for "));
    // Its children are gone as well, or are zombies that init is about to reap.
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "{state}");

    let engine = ShellEngine::new(&[HELLO, READY, "sleep 1000\n"].concat());
    let mut tx = engine.arm();
    tx.apply_control(StreamControl::StartAt(RealClock::new().now()));
    tx.apply_control(StreamControl::Stop);
    let (_, record) = finish(&mut tx, Nanos::from_secs(3));
    assert!(record.fault.unwrap().contains("it sent no message `ledger` within 2s"));
}

#[test]
fn unfinished_engine_is_stopped_after_plan_end() {
    let script = ["read stop; ", &count("ledger", 60, 60 * 124)].concat();
    let engine = ShellEngine::new(&[HELLO, READY, &script].concat());
    let mut tx = engine.arm();
    // 100 frames at 1000 frames/s began 7 s ago. Its last message was that of the start.
    let clock = RealClock::new();
    tx.apply_control(StreamControl::StartAt(clock.now() - Nanos::from_secs(7)));
    assert_eq!(finish(&mut tx, Nanos::ZERO), (60, SendingRecord::default()), "what is unsent is unsent");
}

#[test]
fn a_stop_before_the_start_sends_nothing() {
    let engine = ShellEngine::new(&[HELLO, READY, "sleep 1000\n"].concat());
    let mut tx = engine.arm();
    tx.apply_control(StreamControl::Stop);
    tx.apply_control(StreamControl::StartAt(MonoTime::from_nanos(1)));
    assert_eq!(finish(&mut tx, Nanos::ZERO), (0, SendingRecord::default()));
}

#[test]
fn start_error_says_why_program_is_no_engine() {
    for (script, why) in [
        ("exit 3\n", "it ended too early"),
        ("echo usage: tool FILE >&2; exit 1\n", "usage: tool FILE"),
        ("echo hello\n", "it sent `hello`, which is not a message"),
        ("echo '{\"type\":\"hello\",\"protocol\":2,\"name\":\"x\"}'\n", "version 2 of the protocol"),
        ("echo '{\"type\":\"failed\",\"text\":\"no license\"}'\n", "it reported an error: no license"),
    ] {
        let fault = ShellEngine::new(script).start().unwrap_err().to_string();
        assert!(fault.contains(why), "{fault}");
    }
    let missing = EngineCommand::Program("/no/such/engine".into());
    let error = EngineProcess::start(&missing, &NetNs::current().unwrap()).unwrap_err().to_string();
    assert!(error.starts_with("exec failed on engine /no/such/engine"), "{error}");
}

#[test]
fn unsupported_engine_ability_is_refused_with_path() {
    let bursts = r#"{"choice": "burst", "burst": {"bursts": 2, "packets": 5, "inter_burst_gap": {"choice": "microseconds", "microseconds": 100}}}"#;
    let endless = r#"{"choice": "continuous"}"#;
    let many = r#"{"choice": "fixed_packets", "fixed_packets": {"packets": 2000000}}"#;
    let untagged = r#"{"enable": false}"#;
    let able = EngineAbilities { repeat: true, endless: true, ..EngineAbilities::default() };
    let refusals = |abilities: &EngineAbilities, changes: &[(&str, &str)]| {
        let hello = EngineHello {
            protocol: 1,
            name: "own".to_owned(),
            version: String::new(),
            abilities: abilities.clone(),
        };
        let problems =
            abilities::check_streams(&hello, &streams(changes)).err().map_or_else(Vec::new, |found| found.0);
        problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(refusals(&able, &[]), [""; 0]);
    assert_eq!(refusals(&able, &[("duration", endless), ("metrics", untagged)]), [""; 0]);
    for (abilities, changes, why) in [
        (
            able.clone(),
            vec![("duration", bursts)],
            "flows[0].duration: engine own cannot send bursts with pauses",
        ),
        (able.clone(), vec![("duration", endless)], "flows[0].duration: engine own plays frames from a file"),
        (able.clone(), vec![("duration", many)], "plays at most 1000000 different frames"),
        (
            EngineAbilities::default(),
            vec![("duration", endless), ("metrics", untagged)],
            "flows[0].duration: engine own cannot send an endless flow",
        ),
        (
            EngineAbilities { frame_bytes: Some([60, 100]), ..able.clone() },
            vec![],
            "flows[0].size: engine own sends frames of 64 to 104 B (FCS included); the plan asks for 128 to 128 B",
        ),
        (
            EngineAbilities { frames_per_second: Some(999), ..able.clone() },
            vec![],
            "flows[0].rate: engine own sends at most 999 frames/s; the plan asks for 1000",
        ),
    ] {
        let found = refusals(&abilities, &changes);
        assert!(found.iter().any(|problem| problem.contains(why)), "{why} in {found:?}");
    }
}

#[test]
fn an_engine_may_refuse_by_itself() {
    let refusal =
        r#"echo '{"type":"refused","stream":0,"feature":"VLAN tags","needs":"a card","found":"none"}'"#;
    let engine = ShellEngine::new(&[HELLO, "read prepare\n", refusal, "\nsleep 1000\n"].concat());
    let error = engine.start().unwrap().arm_sender(job(streams(&[]))).unwrap_err().to_string();
    assert!(
        error.contains("flows[0]: engine shell cannot do this: VLAN tags needs a card; found none"),
        "{error}"
    );
}

/// The frames of a file and their times.
fn frames_of(bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut decoder = CaptureDecoder::default();
    let mut rest = bytes;
    let mut frames = Vec::new();
    loop {
        match decoder.next_step(rest).unwrap() {
            DecodedElement::Record { record, used } => {
                frames.push((record.at_ns.unwrap(), record.bytes.to_vec()));
                rest = &rest[used..];
            }
            DecodedElement::Skip(bytes) => rest = &rest[usize::try_from(bytes).unwrap()..],
            DecodedElement::More(_) => return frames,
        }
    }
}

fn rendered(changes: &[(&str, &str)]) -> (messages::EngineCapture, Vec<(u64, Vec<u8>)>) {
    let directory = tempfile::tempdir().unwrap();
    let spec = &streams(changes)[0];
    let template = spec.source.template().unwrap();
    let need = render::EngineFileFrames::from_template(template, 0, spec.timeline.total_frames()).unwrap();
    let capture = render::write_capture(directory.path(), spec, template, need, KEY).unwrap();
    let frames = frames_of(&std::fs::read(&capture.file).unwrap());
    (capture, frames)
}

#[test]
fn tagged_frames_are_rendered_with_due_times() {
    let (capture, frames) = rendered(&[]);
    assert_eq!((capture.frames, capture.repeat, frames.len()), (100, false, 100));
    for (number, (at, frame)) in (0..).zip(&frames) {
        assert_eq!(*at, u64::from(number) * 1_000_000);
        let found = packetrig_wire::tag::find_tag(frame, KEY).expect("it has a tag");
        assert_eq!((found.tag.stream, found.tag.sequence, found.tag.time), (0, number, 0));
    }
}

#[test]
fn frames_that_repeat_are_written_once() {
    let counting = r#""src_port": {"choice": "increment", "increment": {"start": 1, "count": 4}},
        "dst_port": {"choice": "values", "values": [1, 2, 3, 4, 5, 6]}"#;
    let (capture, frames) = rendered(&[("udp", counting), ("metrics", r#"{"enable": false}"#)]);
    assert_eq!((capture.frames, capture.repeat, frames.len()), (12, true, 12));
    let ports: Vec<_> = frames.iter().map(|(_, frame)| (frame[35], frame[37])).collect();
    assert_eq!(ports[..7], [(1, 1), (2, 2), (3, 3), (4, 4), (1, 5), (2, 6), (3, 1)]);
    let (capture, _) = rendered(&[("metrics", r#"{"enable": false}"#)]);
    assert_eq!((capture.frames, capture.repeat), (1, true));
}
