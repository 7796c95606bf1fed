//! Emulated interfaces: against each other through VLAN tags, and against the kernel, which judges independently.

use super::document;
use packetrig_engine::device::PingState;
use packetrig_engine::gate::SendGate;
use packetrig_engine::rig::{RigOptions, TestRig};
use packetrig_plan::Plan;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_sys::clock;
use packetrig_sys::kernel;
use packetrig_sys::link::NamespaceLinks;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::LabPort;
use packetrig_tests::program::run;
use packetrig_tests::skip;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, sockopt};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

fn ethernet(name: &str, port: usize, key: u8, other: u8, vlans: &Value) -> Value {
    json!({"name": name, "ethernets": [{
        "name": format!("{name} e"), "connection": {"port_name": format!("port {port}")}, "mac": format!("02:00:00:00:0d:{key:02x}"),
        "vlans": vlans,
        "ipv4_addresses": [{"name": format!("{name} 4"), "address": format!("198.18.0.{key}"), "gateway": format!("198.18.0.{other}")}],
        "ipv6_addresses": [{"name": format!("{name} 6"), "address": format!("2001:2::{key}"), "gateway": format!("2001:2::{other}")}],
    }]})
}

fn flow(name: &str, from: &str, to: &str, header: &str) -> Value {
    json!({"name": name, "tx_rx": {"device": {"tx_names": [from], "rx_names": [to], "bidirectional": true}},
        "packet": [{"ethernet": {}}, {header: {}}, {"udp": {"src_port": {"value": 5000}, "dst_port": {"value": 7}}}],
        "size": {"fixed": 200}, "rate": {"pps": 1000}, "duration": {"fixed_packets": {"packets": 300}},
        "metrics": {"enable": true, "latency": {"enable": true, "mode": "cut_through"}}})
}

#[test]
fn emulated_interfaces_resolve_and_send_through_vlans() {
    for vlans in [0, 2] {
        let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
        let tags = |name: &str| {
            let tags = [("outer", "x88A8", 7), ("inner", "x8100", 8)];
            json!(
                tags[..vlans]
                    .iter()
                    .map(|(tag, tpid, id)| json!({"name": format!("{name} {tag}"), "tpid": tpid, "id": id}))
                    .collect::<Vec<_>>()
            )
        };
        let devices = json!([ethernet("a", 0, 1, 2, &tags("a")), ethernet("b", 1, 2, 1, &tags("b"))]);
        let flows = json!([flow("four", "a 4", "b 4", "ipv4"), flow("six", "a e", "b e", "ipv6")]);
        let report = run(&document(&lab).with("devices", devices).with("flows", flows)).report();
        report.assert_clean();
        for stream in ["four: a 4 > b 4", "four: b 4 > a 4", "six: a e > b e", "six: b e > a e"] {
            assert_eq!(report.number(stream, "/sent/frames"), 300);
            assert_eq!(report.number(stream, "/received/sequence/unique"), 300, "{stream}, {vlans} tags");
            assert_eq!(report.number(stream, "/received/altered"), 0, "{stream}: nothing was rewritten");
        }
    }
}

#[test]
fn a_neighbour_that_is_not_there_is_named() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let devices = json!([ethernet("a", 0, 1, 99, &json!([])), ethernet("b", 1, 2, 1, &json!([]))]);
    let mut flow = flow("lonely", "a 4", "b 4", "ipv4");
    flow["packet"][1] = json!({"ipv4": {"dst": {"value": "198.19.0.1"}}});
    let finished = run(&document(&lab).with("devices", devices).with("flows", json!([flow])));
    finished.assert_refused(4, &["lonely", "198.18.0.99", "a e"]);
}

fn kernel_side(port: &LabPort) {
    for (ip, prefix) in [("198.18.0.2", 24), ("2001:2::2", 64)] {
        kernel::write_setting(port.netns(), "net/ipv6/conf/eth0/disable_ipv6", "0").unwrap();
        let mut links = NamespaceLinks::open_in(port.netns()).unwrap();
        links.add_address(port.link.index, ip.parse().unwrap(), prefix).unwrap();
    }
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = clock::monotonic_ns() + 20_000_000_000;
    while !is() {
        assert!(clock::monotonic_ns() < deadline, "{what}");
        clock::sleep_until_ns(clock::monotonic_ns() + 5_000_000);
    }
}

/// Whether an echo request of the kernel's sockets is answered.
fn kernel_pings(port: &LabPort, to: IpAddr, attempts: u32, wait: Duration) -> bool {
    let (family, protocol, request, reply, header) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8, 0, 20),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128, 129, 0),
    };
    let socket = port
        .netns()
        .run_in_namespace(|| {
            rustix::net::socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol))
        })
        .unwrap()
        .unwrap();
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(wait)).unwrap();
    rustix::net::connect(&socket, &SocketAddr::new(to, 0)).unwrap();
    let mut echo = [request, 0, 0, 0, 0x12, 0x34, 0, 1, 1, 2, 3, 4];
    if to.is_ipv4() {
        let sum = !packetrig_wire::checksum::ones_complement_sum(&echo);
        echo[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    (0..attempts).any(|_| {
        // Not sent while the kernel still looks for the neighbour: the next attempt may be.
        rustix::net::send(&socket, &echo, SendFlags::empty()).unwrap_or(0);
        let mut bytes = [0; 256];
        let answers = std::iter::from_fn(|| {
            let (length, _) = rustix::net::recv(&socket, &mut bytes[..], RecvFlags::empty()).ok()?;
            Some(bytes[..length].to_vec())
        });
        let is_answer = |bytes: Vec<u8>| {
            bytes.get(header) == Some(&reply) && bytes.get(header + 4..header + 12) == Some(&echo[4..])
        };
        answers.take(8).any(is_answer)
    })
}

#[test]
fn kernel_and_emulated_interface_resolve_and_ping() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let [ours, theirs] = lab.ports() else { panic!("two ports") };
    kernel_side(theirs);
    let devices = json!([ethernet("a", 0, 1, 2, &json!([]))]);
    let text =
        json!({"ports": [{"name": "port 0", "location": ours.location()}], "devices": devices}).to_string();
    let options = RigOptions {
        engine: None,
        run: String::new(),
        terms: SharedRunOptions { tag_key: 5, ..SharedRunOptions::default() },
        confirmed: std::collections::BTreeSet::new(),
        capture_dir: None,
        site: packetrig_engine::rig::PlanPortLocations::EveryPortHere,
        gate: SendGate::without_lease(),
    };
    let mut rig = TestRig::prepare(Plan::from_text(&text).unwrap(), &options).unwrap();
    eventually("the kernel answers ARP and neighbour discovery", || {
        rig.neighbour_states().iter().all(|neighbour| neighbour.mac.is_some())
    });
    let found = rig.neighbour_states();
    let wanted =
        [IpAddr::from(Ipv4Addr::new(198, 18, 0, 2)), Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2).into()];
    assert_eq!(found.iter().map(|neighbour| neighbour.address).collect::<Vec<_>>(), wanted);
    assert!(found.iter().all(|neighbour| neighbour.mac == theirs.link.mac && neighbour.interface == "a e"));
    for to in wanted {
        let ping = rig.start_ping("a e", to).unwrap().unwrap();
        let mut state = PingState::Waiting;
        eventually("a ping ends", || {
            state = rig.take_ping_state(ping).unwrap();
            state != PingState::Waiting
        });
        assert_eq!(state, PingState::Succeeded, "{to}");
    }
    let own: [IpAddr; 2] = ["198.18.0.1".parse().unwrap(), "2001:2::1".parse().unwrap()];
    let timeout = Duration::from_millis(500);
    assert!(own.iter().all(|own| kernel_pings(theirs, *own, 20, timeout)));
    assert_eq!(rig.start_ping("nobody", wanted[0]).unwrap(), None);
    rig.set_protocols_enabled(false).unwrap();
    assert!(rig.neighbour_states().iter().all(|neighbour| neighbour.mac.is_none()));
    assert!(!kernel_pings(theirs, own[0], 3, Duration::from_millis(250)), "what is off does not answer");
}
