//! What is refused, by name, before anything is sent.

use crate::lab::{Fleet, FleetOptions, SENDERS};

const PLAN: &str = "
ports: [{name: a, location: s1/eth0}, {name: b, location: NODE/eth0}]
flows:
- name: s
  tx_rx: {choice: port, port: {tx_name: a, rx_names: [b]}}
  packet:
  - {choice: ethernet, ethernet: {dst: {choice: value, value: '02:00:00:00:99:02'}, src: {choice: value, value: '02:00:00:00:99:01'}}}
  - {choice: ipv4, ipv4: {dst: {choice: value, value: ADDRESS}, src: {choice: value, value: 198.18.0.1}}}
  - {choice: udp, udp: {}}
  size: {choice: fixed, fixed: 128}
  rate: {choice: pps, pps: 1000}
  duration: {choice: fixed_packets, fixed_packets: {packets: 100}}
  metrics: {enable: true}
";

fn run(fleet: &Fleet, node: &str, address: &str) -> (Option<i32>, String) {
    let file = fleet.place().join("plan.yaml");
    std::fs::write(&file, PLAN.replace("NODE", node).replace("ADDRESS", address))
        .expect("there is room for a plan");
    // A busy machine may hold a sender up.
    let (code, printed, complaints) =
        fleet.ask_begun(&["run", &file.display().to_string(), "--max-late", "5s"]);
    (code, format!("{printed}{complaints}"))
}

#[test]
fn fleet_refuses_absent_node_and_unpermitted_address() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let (code, said) = run(&fleet, "r9", "198.18.0.2");
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("r9"), "{said}");
    let (code, said) = run(&fleet, "r1", "192.0.2.7");
    assert!(code.is_some_and(|code| code != 0 && code != 70), "{code:?} {said}");
    assert!(said.contains("s1") && said.contains("192.0.2.7"), "{said}");
    assert!(fleet.catalogue().is_empty(), "nothing was run");
    let (code, said) = run(&fleet, "r1", "198.18.0.2");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn an_owners_limits_bind_every_controller() {
    let request = FleetOptions {
        owner: "max_duration = \"2s\"",
        port: "max_frames_per_second = 1500",
        ..FleetOptions::default()
    };
    let Some(fleet) = Fleet::up(request) else { return };
    let fast = fleet.run(&["--rate", "2kpps", "--packets", "100"]).finish();
    assert!(fast.code.is_some_and(|code| code != 0 && code != 70), "{:?} {}", fast.code, fast.complaints);
    assert!(SENDERS.iter().any(|node| fast.complaints.contains(node)), "{}", fast.complaints);
    let long = fleet.run(&["--packets", "5000"]).finish();
    assert!(long.code.is_some_and(|code| code != 0 && code != 70), "{:?} {}", long.code, long.complaints);
    assert!(fleet.catalogue().is_empty(), "nothing was run");
}
