//! Interfaces are as they were, however a run ends.

use super::document;
use packetrig_sys::clock;
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::kernel::{read_setting, write_setting};
use packetrig_sys::link::{Link, NamespaceLinks};
use packetrig_testkit::Lab;
use packetrig_testkit::lab::{INTERFACE, LabPort};
use packetrig_tests::document::Flow;
use packetrig_tests::program::Running;
use packetrig_tests::skip::{self, OwnLab};
use rustix::process::Signal;
use serde_json::{Value, json};

const IPV6_OFF: &str = "net/ipv6/conf/eth0/disable_ipv6";

/// All that a run may change about a port.
#[derive(Debug, PartialEq)]
struct State {
    link: Link,
    ipv6_off: String,
    offloads: Vec<(Offload, Option<bool>)>,
}

fn state(port: &LabPort) -> State {
    let ethtool = EthtoolCalls::open_in(port.netns()).unwrap();
    let kinds = [Offload::Gro, Offload::Gso, Offload::Tso, Offload::Lro];
    State {
        link: NamespaceLinks::open_in(port.netns()).unwrap().find_link_by_name(INTERFACE).unwrap(),
        ipv6_off: read_setting(port.netns(), IPV6_OFF).unwrap(),
        offloads: kinds.map(|kind| (kind, ethtool.is_offload_on(INTERFACE, kind).ok())).to_vec(),
    }
}

/// Makes a port as unquiet as an ordinary one.
fn unquiet(port: &LabPort) {
    write_setting(port.netns(), IPV6_OFF, "0").unwrap();
    EthtoolCalls::open_in(port.netns()).unwrap().set_offload(INTERFACE, Offload::Gro, true).unwrap();
}

/// Starts a run and waits until it has changed both ports.
fn start_and_await_changes(lab: &Lab, before: &[State], duration: &Value) -> Running {
    let flow = Flow::new("f", 1).with("duration", duration.clone());
    let mut running = Running::run(&document(lab).flow(flow), &["--quiet"]);
    let deadline = clock::monotonic_ns() + 60_000_000_000;
    while lab.ports().iter().zip(before).any(|(port, before)| state(port) == *before) {
        assert!(!running.has_ended(), "{:?}", running.finish());
        assert!(clock::monotonic_ns() < deadline, "the run changes nothing about its ports");
        clock::sleep_until_ns(clock::monotonic_ns() + 2_000_000);
    }
    running
}

/// Runs until the port has changed, then sends signals, and expects the old state.
fn assert_restored(signals: &[Signal], code: Option<i32>) {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    lab.ports().iter().for_each(unquiet);
    let before: Vec<State> = lab.ports().iter().map(state).collect();
    let duration = if signals.is_empty() {
        json!({"choice": "fixed_packets", "fixed_packets": {"packets": 1000}})
    } else {
        json!({"choice": "fixed_packets", "fixed_packets": {"packets": 1_000_000}})
    };
    let mut running = start_and_await_changes(&lab, &before, &duration);
    let during: Vec<State> = lab.ports().iter().map(state).collect();
    for signal in signals {
        running.signal(*signal);
    }
    let finished = running.finish();
    assert_eq!(finished.code, code, "{}", finished.stderr);
    let after: Vec<State> = lab.ports().iter().map(state).collect();
    assert_eq!(after, before, "it was {during:?} during the run");
}

#[test]
fn after_a_normal_end() {
    assert_restored(&[], Some(0));
}

#[test]
fn after_ctrl_c() {
    assert_restored(&[Signal::INT], Some(130));
}

#[test]
fn after_sigterm() {
    assert_restored(&[Signal::TERM], Some(130));
}

#[test]
fn after_the_terminal_is_gone() {
    assert_restored(&[Signal::HUP], Some(130));
}

/// Starts a run on two ports and ends it at once, as SIGKILL and the second Ctrl-C do: nothing is restored.
fn killed_run() -> Option<(OwnLab, Vec<State>)> {
    let lab = skip::lab(Lab::cabled_pair)?;
    lab.ports().iter().for_each(unquiet);
    let before: Vec<State> = lab.ports().iter().map(state).collect();
    let duration = json!({"choice": "fixed_packets", "fixed_packets": {"packets": 1_000_000}});
    let mut running = start_and_await_changes(&lab, &before, &duration);
    running.signal(Signal::KILL);
    assert_eq!(running.finish().code, None, "killed");
    for (port, before) in lab.ports().iter().zip(&before) {
        assert_ne!(state(port), *before, "a killed process restores nothing");
    }
    Some((lab, before))
}

fn doctor(arguments: &[&str]) -> String {
    let finished = Running::start(&[&["doctor"], arguments].concat(), "").finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    finished.stdout
}

#[test]
fn next_run_restores_interfaces_of_killed_run() {
    let Some((lab, before)) = killed_run() else { return };
    for location in [lab.location(0), lab.location(1)] {
        let advice = format!("packetrig doctor --restore {location}");
        for text in [doctor(&[&location]), doctor(&[])] {
            assert!(text.contains(&advice) && text.contains("gro on"), "no `{advice}` in: {text}");
        }
    }
    let duration = json!({"choice": "fixed_packets", "fixed_packets": {"packets": 100}});
    let flow = Flow::new("f", 1).with("duration", duration);
    let next = packetrig_tests::program::run(&document(&lab).flow(flow));
    assert_eq!(next.code, Some(0), "{}", next.stderr);
    assert_eq!(lab.ports().iter().map(state).collect::<Vec<_>>(), before);
    // Other tests may have left interfaces of theirs.
    for location in [lab.location(0), lab.location(1)] {
        let text = doctor(&[&location]);
        assert!(!text.contains(&format!("--restore {location}")), "nothing is left to restore: {text}");
    }
}

#[test]
fn doctor_restores_only_named_interfaces() {
    let Some((lab, before)) = killed_run() else { return };
    let text = doctor(&["--restore", &lab.location(0)]);
    assert!(text.contains(&format!("{} is restored", lab.location(0))), "{text}");
    assert_eq!(state(&lab.ports()[0]), before[0]);
    assert_ne!(state(&lab.ports()[1]), before[1], "only the one that was named");
    doctor(&["--restore", &lab.location(1)]);
    assert_eq!(state(&lab.ports()[1]), before[1]);
}

#[test]
fn doctor_leaves_interfaces_of_active_run() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    lab.ports().iter().for_each(unquiet);
    let before: Vec<State> = lab.ports().iter().map(state).collect();
    let duration = json!({"choice": "fixed_packets", "fixed_packets": {"packets": 1_000_000}});
    let mut running = start_and_await_changes(&lab, &before, &duration);
    let text = doctor(&["--restore", &lab.location(0)]);
    assert!(text.contains("no interface to restore"), "{text}");
    assert_ne!(state(&lab.ports()[0]), before[0]);
    running.signal(Signal::INT);
    assert_eq!(running.finish().code, Some(130));
}

/// `packetrig doctor` with a runtime directory of its own: other tests must not find this one's record.
fn doctor_in(directory: &std::path::Path, arguments: &[&str]) -> String {
    let place = format!("PACKETRIG_RUN_DIR={}", directory.join("runtime").display());
    let program = packetrig_tests::program::binary().display().to_string();
    let finished =
        Running::start_program("env", &[&[&place, &program, "doctor"], arguments].concat(), "").finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    finished.stdout
}

#[test]
fn doctor_fixes_named_interface_and_undoes_it() {
    let Some(lab) = skip::lab(|| Lab::with_bridge(2)) else { return };
    let directory = tempfile::tempdir().unwrap();
    let (port, location) = (&lab.ports()[0], lab.location(0));
    let mut links = NamespaceLinks::open_in(port.netns()).unwrap();
    let index = links.find_link_by_name(INTERFACE).unwrap().index;
    links.switch_interface(index, false).unwrap();
    // Without the name, an interface stays as it is.
    doctor_in(directory.path(), &["--fix"]);
    assert!(!links.find_link_by_name(INTERFACE).unwrap().up);
    let said = doctor_in(directory.path(), &["--fix", &location]);
    assert!(said.contains(&format!("{location}: changed from down to up")), "{said}");
    assert!(links.find_link_by_name(INTERFACE).unwrap().up);
    let said = doctor_in(directory.path(), &["--fix", &location]);
    assert!(said.contains("there is nothing to fix"), "{said}");
    let said = doctor_in(directory.path(), &["--undo"]);
    assert!(said.contains(&format!("{location}: changed back to down")), "{said}");
    assert!(!links.find_link_by_name(INTERFACE).unwrap().up);
    assert!(doctor_in(directory.path(), &["--undo"]).contains("there is nothing to undo"));
}
