//! MLRsearch, convergence, comparison and shares of runs with loss.

use crate::lab::{limited_alone, result, start, test};
use packetrig_testkit::Lab;
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::skip;

/// 2000 frames per second in each direction through a bridge that carries them.
fn plan_of_both_directions(lab: &Lab) -> String {
    let [left, right] = [0, 1].map(|port| lab.ports()[port].location());
    format!(
        r#"
ports: [{{name: left, location: {left}}}, {{name: right, location: {right}}}]
devices:
- name: hosts
  ethernets:
  - {{name: e, connection: {{port_name: left}}, mac: "02:00:00:00:00:0a", ipv4_addresses: [
      {{name: e4, address: 198.18.0.2, gateway: 0.0.0.0}}]}}
  - {{name: f, connection: {{port_name: right}}, mac: "02:00:00:00:00:0b", ipv4_addresses: [
      {{name: f4, address: 198.18.0.3, gateway: 0.0.0.0}}]}}
flows:
- name: both
  tx_rx: {{device: {{tx_names: [e4], rx_names: [f4], bidirectional: true}}}}
  packet: [{{ethernet: {{}}}}, {{ipv4: {{}}}}, {{udp: {{}}}}]
  size: {{fixed: 128}}
  rate: {{pps: 2000}}
  metrics: {{enable: true}}
"#
    )
}

/// Frames that left in the trial with the highest load, of all senders together.
fn sent_at_most(finished: &Finished) -> u64 {
    let tests = std::fs::read_dir(finished.directory.path().join("out-store/methods")).unwrap();
    let journals =
        tests.map(|test| std::fs::read_to_string(test.unwrap().path().join("journal.jsonl")).unwrap());
    let journal: String = journals.collect();
    let trials = journal.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    trials.filter_map(|trial| trial["result"]["sent"].as_u64()).max().unwrap_or_default()
}

#[test]
fn both_directions_carry_only_planned_rates() {
    let Some(lab) = skip::lab(|| Lab::with_bridge(2)) else { return };
    let plan = plan_of_both_directions(&lab);
    let bisect = ["test", "bisect", "{plan}", "--time", "300ms", "--resolution", "20%"];
    let rfc2544 = [
        "test",
        "rfc2544",
        "{plan}",
        "--link",
        "1Gbit/s",
        "--quick",
        "--only",
        "throughput",
        "--size",
        "128,1518",
        "--trial-time",
        "300ms",
        "--resolution",
        "20%",
    ];
    for (method, path) in [
        (&bisect[..], "/result/lower_bound_frames_per_second"),
        (&rfc2544[..], "/result/sizes/1/throughput/frames_per_second"),
    ] {
        let arguments = [method, &["--out", "{out}", "--store", "{out}-store"]].concat();
        let finished = Running::start(&arguments, &plan).finish();
        assert!(matches!(finished.code, Some(0 | 7)), "{finished:?}");
        let result = result(&finished);
        let carried = result.pointer(path).and_then(serde_json::Value::as_f64);
        // A busy machine may carry less.
        assert!(carried.is_some_and(|carried| carried <= 4_000.0), "{carried:?} {finished:?}");
        let sender = &result["senders"][1];
        assert_eq!(
            (sender["name"].as_str(), sender["share"].as_f64()),
            (Some("right"), Some(0.5)),
            "{result}"
        );
        let text = std::fs::read_to_string(finished.out().join("result.txt")).unwrap();
        assert!(text.contains("Load of each sender"), "{text}");
        // 300 ms of it, and never twice as many.
        assert!((600..=1_200).contains(&sent_at_most(&finished)), "{finished:?}");
    }
}

#[test]
fn mlrsearch_finds_the_limit_for_two_goals() {
    let Some(lab) = limited_alone(10_000, 128) else { return };
    let goals = [
        "--goal",
        "loss=0,duration=200ms,sum=600ms,exceed=50%,width=2%",
        "--goal",
        "loss=5%,duration=200ms,sum=600ms,exceed=50%,width=2%",
    ];
    let finished =
        test(&lab, "mlrsearch", &[&["--size", "128", "--max-rate", "20kpps"], &goals[..]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let result = result(&finished);
    let bound =
        |goal: usize| result["result"]["goals"][goal]["lower_bound_frames_per_second"].as_f64().unwrap();
    // In 200 ms the queue of the device takes 200 frames besides what it forwards.
    assert!((9_700.0..=11_100.0).contains(&bound(0)), "{}\n{finished:?}", bound(0));
    assert!(bound(1) >= bound(0) && bound(1) <= 11_800.0, "{}\n{finished:?}", bound(1));
}

#[test]
fn convergence_is_the_time_that_the_event_cost() {
    let Some(lab) = skip::lab(|| Lab::with_bridge(2)) else { return };
    let device = lab.device_location(1);
    let (space, interface) = device.split_once('/').unwrap();
    let state = |state: u8| format!("bridge -n {space} link set dev {interface} state {state}");
    // A bridge port that is disabled forwards nothing and keeps its carrier.
    let event = format!("{}; sleep 1.5; {}", state(0), state(3));
    let finished = test(
        &lab,
        "convergence",
        &["--size", "128", "--rate", "1kpps", "--time", "5s", "--event-at", "400ms", "--event", &event],
    );
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let result = result(&finished);
    let trial = &result["result"]["trials"][0];
    assert_eq!(trial["outcome"], "measured", "{finished:?}");
    assert!(trial["event_at_ns"].as_u64().unwrap() >= 400_000_000, "{finished:?}");
    let stream = &trial["streams"][0];
    let number = |name: &str| stream[name].as_f64().unwrap_or_else(|| panic!("no {name}\n{finished:?}"));
    assert!(number("most_lost_frames") > 0.0, "{finished:?}");
    // Nothing arrives while the command sleeps, whatever a busy machine has sent by then.
    assert!(number("longest_outage_ns") >= 1.5e9, "{finished:?}");
    // At the rate of the plan: a machine that is late sends fewer in a time.
    let wanted = number("most_lost_frames") * 1e9 / 1e3;
    let [least, most] = ["least_loss_of_connectivity_ns", "loss_of_connectivity_ns"].map(number);
    let is_right = least <= wanted + 1.0 && wanted - 1.0 <= most && most >= 1.5e9 - 1e9 / 1e3;
    assert!(is_right, "{least} to {most} ns, by frames {wanted}\n{finished:?}");
}

/// `packetrig test convergence` whose event is a shell command at the device's end of the receiver's cable.
fn converge(lab: &Lab, event: impl Fn(&str, &str) -> String, more: &[&str]) -> Running {
    let device = lab.device_location(1);
    let (space, interface) = device.split_once('/').unwrap();
    let event = event(space, interface);
    let flags = ["--size", "128", "--rate", "1kpps", "--event-at", "400ms", "--event", &event];
    start(lab, "convergence", &[&flags, more].concat())
}

#[test]
fn carrier_loss_of_device_is_measured() {
    let Some(lab) = skip::lab(|| Lab::with_bridge(2)) else { return };
    let flap = |space: &str, interface: &str| {
        let link = format!("ip -n {space} link set {interface}");
        format!("{link} down; sleep 1.5; {link} up")
    };
    let run = || converge(&lab, flap, &["--time", "5s"]).finish();
    let finished = (0..10).map(|_| run()).find(|finished| finished.code != Some(7));
    let finished = finished.expect("a machine that holds one of ten trials");
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let trial = result(&finished)["result"]["trials"][0].clone();
    assert_eq!(trial["outcome"], "measured", "{trial}");
    let stream = &trial["streams"][0];
    assert!(stream["least_lost_frames"].as_u64() > Some(0), "{trial}");
    assert!(stream["longest_outage_ns"].as_f64() >= Some(1.5e9), "{trial}");
}

#[test]
fn rig_stall_does_not_shorten_measured_outage() {
    let Some(lab) = skip::lab(|| Lab::with_bridge(2)) else { return };
    let block = |space: &str, interface: &str| {
        let state = |state: u8| format!("bridge -n {space} link set dev {interface} state {state}");
        // The shell's parent is packetrig.
        let stop = "sleep .1; kill -STOP $PPID; sleep .15; kill -CONT $PPID; sleep .1";
        format!("{}; {stop}; {}", state(0), state(3))
    };
    // It lasts 350 ms at least, and frames of 200 ms or a little more are lost.
    let run = || converge(&lab, block, &["--time", "2s", "--max-outage", "300ms"]).finish();
    // A machine that is too busy may run the commands of the event after the last frame.
    let is_late =
        |finished: &Finished| result(finished)["result"]["trials"][0]["outcome"] == "event-did-not-happen";
    let finished = (0..10).map(|_| run()).find(|finished| !is_late(finished)).expect("an event in time");
    assert!(matches!(finished.code, Some(1 | 7)), "{finished:?}");
    let stream = result(&finished)["result"]["trials"][0]["streams"][0].clone();
    let number = |name: &str| stream[name].as_f64().unwrap_or_else(|| panic!("no {name}\n{finished:?}"));
    assert!(number("loss_of_connectivity_ns") >= 0.35e9 - 1e6, "{stream}");
    assert!(number("least_loss_of_connectivity_ns") <= number("loss_of_connectivity_ns"), "{stream}");
}

#[test]
fn compare_method_finds_slower_device_setting() {
    let Some(lab) = skip::lab(|| Lab::with_bridge(2)) else { return };
    let device = lab.device_location(1);
    let (space, interface) = device.split_once('/').unwrap();
    let shape = |what: &str| format!("tc -n {space} qdisc {what}");
    let set_a = shape(&format!("del dev {interface} root 2> /dev/null || true"));
    // 300 of 3000 frames in a second, and hardly any that wait.
    let set_b = shape(&format!("replace dev {interface} root tbf rate 300kbit burst 1500 limit 1500"));
    let flags = [
        "--size",
        "128",
        "--rate",
        "3kpps",
        "--time",
        "200ms",
        "--pairs",
        // Five are needed: two may be spoilt by a busy machine.
        "7",
        "--set-a",
        &set_a,
        "--set-b",
        &set_b,
        "--max-worse",
        "50%",
    ];
    let finished = test(&lab, "compare", &flags);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(result(&finished)["result"]["loads"][0]["pairs"].as_array().unwrap().len(), 7);
}

#[test]
fn loss_share_counts_only_runs_beyond_limit() {
    let Some(lab) = limited_alone(10_000, 128) else { return };
    let finished = test(
        &lab,
        "loss-share",
        &["--size", "128", "--rates", "5kpps,20kpps", "--packets", "2000", "--repetitions", "3"],
    );
    assert_eq!(finished.code, Some(0), "{finished:?}");
    // No criterion was asked for: nothing was judged, and runs with loss are no PASS.
    assert_eq!(result(&finished)["verdict"], "NOT JUDGED", "{finished:?}");
    let rates = result(&finished)["result"]["rates"].clone();
    assert_eq!(
        (rates[0]["runs_with_loss"].as_u64(), rates[1]["runs_with_loss"].as_u64()),
        (Some(0), Some(3)),
        "{rates}"
    );
}
