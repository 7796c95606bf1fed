//! `packetrig probe ping` and `oneway` next to the truth, and within their limits.

use crate::stations::{ALLOW, FAR, Stations};
use packetrig_testkit::device::{FaultPlan, FaultRule, FrameClassifier, FrameFault, RulePositions};
use packetrig_tests::program::Running;
use packetrig_units::Nanos;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::net::{TcpListener, UdpSocket};
use std::process::Command;

fn counts(said: &Value) -> &Value {
    &said["targets"][0]["counts"]
}

/// All accounts: sent, answered, lost, duplicates, reordered, corrupted.
fn six(counts: &Value) -> [u64; 6] {
    ["sent", "answered", "lost", "duplicates", "reordered", "corrupted"]
        .map(|name| counts[name].as_u64().unwrap())
}

#[test]
fn ping_accounts_and_times_every_probe() {
    let Some(stations) = Stations::cabled() else { return };
    let (finished, said) = stations.probe(&["ping", FAR, "-c", "20", "-i", "50ms"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(six(counts(&said)), [20, 20, 0, 0, 0, 0]);
    let rtt = &said["targets"][0]["rtt"];
    // The first probe is not among them.
    assert_eq!(rtt["samples"], 19);
    let ns = |name: &str| rtt[name].as_i64().unwrap();
    assert!(0 < ns("min_ns") && ns("min_ns") <= ns("p50_ns") && ns("p50_ns") <= ns("max_ns"), "{rtt}");
    assert!(ns("bound_ns") > 0, "{rtt}");
}

#[test]
fn ping_report_has_address_of_named_target() {
    let Some(stations) = Stations::cabled() else { return };
    let arguments = ["probe", "ping", "localhost", "-c", "3", "-i", "50ms", "--json"];
    let allow = ["--allow", "127.0.0.0/8", "--allow", "::1/128"];
    let inside = stations.netns(0);
    let finished =
        inside.run_in_namespace(|| Running::start(&[&arguments[..], &allow].concat(), "").finish()).unwrap();
    let said: Value = serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", finished.stdout, finished.stderr));
    assert_eq!((finished.code, six(counts(&said))), (Some(0), [3, 3, 0, 0, 0, 0]), "{said}");
    let address = finished
        .stderr
        .lines()
        .find_map(|line| line.strip_prefix("probe: localhost has the address "))
        .unwrap();
    assert!(said.to_string().contains(&format!("\"{address}\"")), "{said}");
}

#[test]
fn ping_distinguishes_open_closed_and_echo_ports() {
    let Some(stations) = Stations::cabled() else { return };
    let far = stations.netns(1);
    let open = far.run_in_namespace(|| TcpListener::bind((FAR, 0)).unwrap()).unwrap();
    let echo = far.run_in_namespace(|| UdpSocket::bind((FAR, 0)).unwrap()).unwrap();
    let (open_port, echo_port) =
        (open.local_addr().unwrap().port().to_string(), echo.local_addr().unwrap().port().to_string());
    std::thread::spawn(move || {
        let mut buffer = [0; 2000];
        while let Ok((length, from)) = echo.recv_from(&mut buffer) {
            drop(echo.send_to(&buffer[..length], from));
        }
    });
    for (words, says) in [
        (["--tcp", &open_port], "open"),
        (["--tcp", "1"], "closed"),
        (["--udp", &echo_port], "echo"),
        (["--udp", "9"], "closed"),
    ] {
        let (_, said) = stations.probe(&[&["ping", FAR, "-c", "3", "-i", "100ms"], &words[..]].concat());
        assert_eq!(six(counts(&said)), [3, 3, 0, 0, 0, 0], "{words:?}: {said}");
        assert_eq!(said["targets"][0]["said"], json!([[says, 3]]), "{words:?}");
    }
}

#[test]
fn ping_counts_match_device_faults() {
    const PROBES: u64 = 60;
    let there = |select, fault| FaultRule::new(select, fault).for_key(0);
    let back = |select, fault| FaultRule::new(select, fault).for_key(1);
    let plan = FaultPlan {
        rules: vec![
            there(RulePositions::At([5, 17, 30].into()), FrameFault::Drop),
            there(RulePositions::At([8, 22].into()), FrameFault::Duplicate { copies: 1 }),
            back(RulePositions::At([40].into()), FrameFault::Drop),
            back(RulePositions::At([44, 46].into()), FrameFault::Corrupt { from_end: 9, mask: 0x04 }),
            back(RulePositions::At([12, 50].into()), FrameFault::HoldBack { frames: 1 }),
        ],
        classifier: FrameClassifier::SourceMac,
        ..FaultPlan::without_faults()
    };
    let Some(mut stations) = Stations::around(plan) else { return };
    let (finished, said) = stations.probe(&["ping", FAR, "-c", &PROBES.to_string(), "-i", "50ms"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let report = stations.lab.stop_device().unwrap();
    let (there, back) = (report.truth(0, 0), report.truth(1, 1));
    assert_eq!(there.received, PROBES, "nothing but probes passed");
    let (dropped, damaged) = (there.dropped.len() + back.dropped.len(), back.corrupted.len());
    let copies: u32 = there.duplicated.values().sum();
    let lost = (dropped + damaged) as u64;
    let truth = [PROBES, PROBES - lost, lost, copies.into(), back.held.len() as u64, damaged as u64];
    assert_eq!(truth, [60, 54, 6, 2, 2, 2], "the device did what was planned");
    assert_eq!(six(counts(&said)), truth);
}

#[test]
fn one_way_delay_on_one_clock_has_bound() {
    let Some(stations) = Stations::cabled() else { return };
    let to = stations.lab.location(1);
    stations.start(&["oneway", &to, "--clock-bound", "1us"]).finish().assert_refused(2, &["--clock-bound"]);
    stations.start(&["oneway", FAR, "--address", FAR]).finish().assert_refused(2, &["--address"]);
    let (finished, said) = stations.probe(&["oneway", &to, "-c", "20", "-i", "50ms"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(six(&said["counts"]), [20, 20, 0, 0, 0, 0]);
    let (least, bound) =
        (said["delay"]["min_ns"].as_i64().unwrap(), said["delay"]["bound_ns"].as_i64().unwrap());
    assert!(least + bound > 0 && bound > 0, "{said}");
}

/// Nothing is said of either clock; what one direction adds to every other probe has to be found in that direction.
#[test]
fn one_way_delay_between_nodes_compares_clocks() {
    const ADDED: i64 = 20_000_000;
    let added = FrameFault::Delay(Nanos::from_millis(20));
    let plan = FaultPlan {
        rules: vec![FaultRule::new(RulePositions::Every { nth: 2 }, added).for_key(0)],
        classifier: FrameClassifier::SourceMac,
        ..FaultPlan::without_faults()
    };
    let Some(stations) = Stations::around(plan) else { return };
    // A device made of rings does not see to checksums that a card would have written.
    let tool = || Command::new("ethtool").args(["-K", "eth0", "tx", "off"]).status().unwrap();
    assert!(stations.netns(1).run_in_namespace(tool).unwrap().success());
    let netns = stations.lab.ports()[1].namespace().to_owned();
    let address = format!("{FAR}:862");
    let mut reflector =
        Running::start(&[&["probe", "reflect", &address, "--netns", &netns][..], &ALLOW].concat(), "");
    reflector.await_remark("listening");
    let (finished, said) = stations.probe(&["oneway", FAR, "-c", "30", "-i", "50ms"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!((&said["counts"]["answered"], &said["one_way"]["clocks"]), (&30.into(), &"exchanges".into()));
    let ns = |way: &str, name: &str| {
        let value = said["one_way"][way]["delay"][name].as_i64();
        value.unwrap_or_else(|| panic!("{way} {name}: {said}"))
    };
    let bound = ns("there", "bound_ns");
    assert!(bound > 0 && bound < ADDED / 2, "no wider than half of a round trip without the delay: {said}");
    assert!(ns("there", "max_ns") + bound >= ADDED, "{said}");
    assert!(ns("there", "max_ns") - ns("there", "min_ns") >= ADDED - 2 * bound, "{said}");
    assert!(ns("back", "p50_ns") - ns("back", "bound_ns") < ADDED / 2, "the way back has none of it: {said}");
    reflector.signal(Signal::TERM);
    assert_eq!(reflector.finish().code, Some(0));
}

#[test]
fn ping_refuses_unpermitted_targets_and_rates() {
    let Some(stations) = Stations::cabled() else { return };
    let through = stations.lab.location(0);
    let ping = |words: &[&str]| {
        Running::start(&[&["probe", "ping", FAR, "--through", &through], words].concat(), "").finish()
    };
    ping(&["-c", "1"]).assert_refused(8, &[FAR, "--allow"]);
    let fast = ["-c", "1000", "-i", "10ms"];
    ping(&[&fast[..], &ALLOW].concat()).assert_refused(2, &["20 probes/s"]);
    ping(&[&["-c", "1", "--mechanism", "magic"][..], &ALLOW].concat()).assert_refused(2, &["magic"]);
}

#[test]
fn lossy_target_is_no_longer_probed() {
    let plan = FaultPlan {
        rules: vec![FaultRule::new(RulePositions::Every { nth: 4 }, FrameFault::Drop).for_key(0)],
        classifier: FrameClassifier::SourceMac,
        ..FaultPlan::without_faults()
    };
    let Some(stations) = Stations::around(plan) else { return };
    let (finished, said) = stations.probe(&["ping", FAR, "-c", "200", "-i", "50ms", "--wait", "200ms"]);
    assert_eq!(finished.code, Some(4), "{}", finished.stderr);
    assert_eq!(said["targets"][0]["end"], "lossy");
    let [sent, ..] = six(counts(&said));
    assert!((50..100).contains(&sent), "{sent}");
}
