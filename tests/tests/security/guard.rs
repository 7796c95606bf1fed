//! The lab guard on real interfaces: whatever is stacked with the card that carries the default route is refused.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use packetrig_engine::packet::guard::permit_port;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::{NetNs, delete_named_namespace};
use packetrig_tests::program::Running;
use packetrig_tests::skip;
use packetrig_tests::tools::post;
use serde_json::json;
use std::process::{Child, Command};

/// A machine whose `card` carries the default route, and a second one.
struct Machines([String; 2]);

impl Machines {
    fn new(name: &str) -> Option<Self> {
        if !skip::has_tool("ip") {
            return None;
        }
        let names = ["one", "two"].map(|which| format!("guard-{name}-{which}-{}", std::process::id()));
        for name in &names {
            if let Err(error) = NetNs::create_named_namespace(name) {
                assert!(error.is_permission_error(), "{error}");
                skip::lacking(&format!("no rights for namespaces ({error})"));
                return None;
            }
        }
        let machines = Self(names);
        assert!(machines.ip("link add card type veth peer name wire netns TWO"));
        assert!(machines.ip("link set card up") && machines.ip("addr add 198.18.0.1/24 dev card"));
        assert!(machines.ip("route add default via 198.18.0.2"));
        Some(machines)
    }

    /// `ip` on the first machine; `TWO` is the other one. False if this kernel lacks the kind of interface.
    fn ip(&self, command: &str) -> bool {
        Self::ip_on(&self.0[0], &command.replace("TWO", &self.0[1]))
    }

    fn ip_there(&self, command: &str) -> bool {
        Self::ip_on(&self.0[1], &command.replace("ONE", &self.0[0]))
    }

    fn ip_on(name: &str, command: &str) -> bool {
        let output = Command::new("ip").args(["-n", name]).args(command.split(' ')).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        let is_missing = complaint.contains("Unknown device type") || complaint.contains("not supported");
        assert!(output.status.success() || is_missing, "ip {command}: {complaint}");
        if is_missing {
            skip::lacking(&format!("this kernel lacks a kind of interface (ip {command}: {complaint})"));
        }
        output.status.success()
    }

    /// Why a port of the machine `which` is refused.
    fn refusal_on(&self, which: usize, name: &str) -> Option<String> {
        let netns = NetNs::open_named_namespace(&self.0[which]).unwrap();
        let index = NamespaceLinks::open_in(&netns).unwrap().find_link_by_name(name).unwrap().index;
        assert!(permit_port(&netns, index, name, true).is_ok(), "the user's word counts");
        permit_port(&netns, index, name, false).err().map(|error| error.to_string())
    }

    /// Takes the second machine its name; it lives as long as the process.
    fn hide_second(&self) -> Held {
        let name = &self.0[1];
        let inside = NetNs::open_named_namespace(name).unwrap();
        let held = inside.run_in_namespace(|| Command::new("sleep").arg("60").spawn()).unwrap();
        delete_named_namespace(name).unwrap();
        Held(held.unwrap())
    }

    /// What a server, which can enter no namespace any more, answers to a run on that port of the first machine.
    fn answer_of_server(&self, name: &str) -> String {
        let mut running =
            Running::start(&["serve", "--plain-http", "--http", "127.0.0.1:0", "--no-grpc"], "");
        running.await_printed("Live page: ");
        let printed = std::fs::read_to_string(running.directory().join("stdout")).unwrap();
        let address = printed.lines().find_map(|line| line.strip_prefix("OTG over HTTP: ")).unwrap();
        let ports = json!({ "ports": [{"name": "a", "location": format!("{}/{name}", self.0[0])}] });
        post(&format!("{address}/config"), &ports.to_string())
    }

    fn demand_refused(&self, which: usize, name: &str) {
        let said = self.refusal_on(which, name).unwrap_or_else(|| panic!("{name} is not refused"));
        assert!(said.contains("card") && said.contains("default route"), "{name}: {said}");
    }
}

/// A process that ends with the test.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait().map(drop)).ok();
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in &self.0 {
            delete_named_namespace(name).ok();
        }
    }
}

#[test]
fn interfaces_over_default_route_card_are_refused() {
    let Some(machines) = Machines::new("up") else { return };
    for (name, kind) in [
        ("macvlan0", "macvlan mode bridge"),
        ("macvtap0", "macvtap mode bridge"),
        ("ipvlan0", "ipvlan mode l2"),
        ("vlan0", "vlan id 7"),
        ("vxlan0", "vxlan id 7 dev card dstport 4789 group 239.1.1.1"),
    ] {
        let link = if kind.starts_with("vxlan") { "" } else { "link card " };
        if machines.ip(&format!("link add {link}name {name} type {kind}")) {
            machines.demand_refused(0, name);
            // Two on one card may not be of different kinds.
            assert!(machines.ip(&format!("link delete {name}")));
        }
    }
    // In another namespace, too.
    if machines.ip("link add link card name away type macvlan mode bridge")
        && machines.ip("link set away netns TWO")
    {
        machines.demand_refused(1, "away");
    }
}

#[test]
fn port_bridged_to_default_route_card_is_refused() {
    let Some(machines) = Machines::new("across") else { return };
    // `port` and `far` are a cable between the machines.
    assert!(machines.ip("link add port type veth peer name far netns TWO"));
    assert_eq!(machines.refusal_on(0, "port"), None);
    assert_eq!(machines.refusal_on(1, "far"), None, "a cable that is not plugged in");
    assert!(machines.ip("link add br0 type bridge") && machines.ip("link set port master br0"));
    assert_eq!(machines.refusal_on(0, "port"), None, "a bridge of its own");
    assert!(machines.ip("link set card master br0"));
    machines.demand_refused(0, "port");
    machines.demand_refused(0, "br0");
    machines.demand_refused(1, "far");
    // A sibling: a macvlan on the port of the bridge.
    assert!(machines.ip_there("link set far up"));
    if machines.ip_there("link add link far name top type macvlan mode bridge") {
        machines.demand_refused(1, "top");
    }
}

#[test]
fn bridge_over_bonded_card_is_refused() {
    let Some(machines) = Machines::new("bond") else { return };
    if !machines.ip("link add bond0 type bond") {
        return;
    }
    assert!(machines.ip("link set card down") && machines.ip("link set card master bond0"));
    assert!(machines.ip("link add br0 type bridge") && machines.ip("link set bond0 master br0"));
    assert!(
        machines.ip("link set bond0 up") && machines.ip("link set br0 up") && machines.ip("link set card up")
    );
    assert!(machines.ip("route replace default dev card"));
    assert!(machines.ip("link add port type veth peer name far netns TWO"));
    assert!(machines.ip("link set port master br0"));
    for name in ["port", "br0", "bond0"] {
        machines.demand_refused(0, name);
    }
    machines.demand_refused(1, "far");
}

#[test]
fn both_ends_of_a_cable_here_count() {
    let Some(machines) = Machines::new("here") else { return };
    assert!(machines.ip("link add name left type veth peer name right"));
    assert!(machines.ip("link add br0 type bridge") && machines.ip("link set right master br0"));
    assert_eq!(machines.refusal_on(0, "left"), None);
    assert!(machines.ip("link set card master br0"));
    machines.demand_refused(0, "left");
}

#[test]
fn device_default_route_to_port_is_allowed() {
    let Some(machines) = Machines::new("dut") else { return };
    // `wire` is the far end of the card.
    assert_eq!(machines.refusal_on(1, "wire"), None);
}

#[test]
fn sandboxed_server_refuses_hidden_default_route() {
    let Some(machines) = Machines::new("walls") else { return };
    if !skip::has_tool("curl") {
        return;
    }
    for (port, far, bridge) in [("port", "far", "br0"), ("plain", "end", ""), ("tested", "device", "br1")] {
        assert!(machines.ip(&format!("link add {port} type veth peer name {far} netns TWO")));
        if !bridge.is_empty() {
            assert!(machines.ip_there(&format!("link add {bridge} type bridge")));
            assert!(machines.ip_there(&format!("link set {far} master {bridge}")));
        }
    }
    assert!(machines.ip_there("link set br0 up") && machines.ip_there("addr add 192.0.2.1/24 dev br0"));
    assert!(machines.ip_there("route add default via 192.0.2.2"));
    let has_macvlan = machines.ip_there("link add link wire name upper type macvlan mode bridge");
    assert!(!has_macvlan || machines.ip_there("link set upper netns ONE"));
    let _held = machines.hide_second();
    let said = machines.answer_of_server("port");
    assert!(said.contains("port is refused") && said.contains("br0"), "{said}");
    if has_macvlan {
        let said = machines.answer_of_server("upper");
        assert!(said.contains("upper is refused") && said.contains("wire"), "{said}");
    }
    // A cable that is not plugged in, and one to a bridge without addresses, are a lab's.
    // The server waits some seconds for their carrier, so it is asked for both at the same time.
    std::thread::scope(|scope| {
        for name in ["plain", "tested"] {
            let machines = &machines;
            scope.spawn(move || assert_eq!(machines.answer_of_server(name), r#"{"warnings":[]}"#, "{name}"));
        }
    });
}
