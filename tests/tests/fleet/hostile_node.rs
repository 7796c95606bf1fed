//! A node with a good certificate and bad intentions, in a fleet that does its work meanwhile.

use crate::lab::{Fleet, FleetOptions, await_that, pid};
use crate::run::Judged;
use packetrig_fleet::fabric::{Endpoint, Fabric, ResultSender, SegmentId};
use packetrig_fleet::hello::NodeHello;
use packetrig_fleet::message::MessageBody;
use packetrig_fleet::packed;
use packetrig_nats::enrol::enrol_node;
use packetrig_nats::{NatsEndpoint, NatsFabric};
use packetrig_report::{NodeName, RunId};
use packetrig_sys::clock;
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};

/// More than the server delivers before the first of them are confirmed.
const POISON: u64 = 4200;
/// What the controller keeps of it.
const KEPT: usize = 64;

/// Everything it says is sealed as it should be: the fleet has let it in.
fn poison(line: &str) {
    let name = NodeName("evil".into());
    let line = line.parse().expect("a line of this fleet");
    let membership = enrol_node(&line, &name, None).expect("it is let in");
    let fabric = NatsFabric::new(membership.server_access().expect("whole")).expect("a runtime");
    // As an agent does: a busy message server gives up connections whose greeting takes too long.
    let join = || {
        fabric
            .open_endpoint(name.clone())
            .map_err(|_| std::thread::sleep(std::time::Duration::from_millis(300)))
    };
    let mut endpoint = (0..20).find_map(|_| join().ok()).expect("it joins");
    let troubles = vec!["\u{1b}]0;owned\u{7}\nVerdict: PASS".to_owned()];
    let hello = NodeHello { epoch: u64::MAX - 1, incarnation: 7, troubles, ..NodeHello::default() };
    let mut outgoing = fabric.open_result_outlet(&name).expect("it opens");
    for number in 0..POISON {
        if number % 100 == 0 {
            endpoint
                .post_message(&NodeName::controller(), MessageBody::Hello(Box::new(hello.clone())))
                .expect("it is sent");
        }
        let id = SegmentId { run: RunId("nobody-knows".into()), attempt: 1, node: name.clone(), number };
        outgoing.append_segment(&id, format!("nonsense {number}").as_bytes()).expect("the server keeps it");
    }
}

#[test]
fn hostile_node_neither_blocks_nor_slows_fleet() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    // A controller makes the stream of results.
    assert_eq!(fleet.begin(&["--packets", "100"]).finish().code, Some(0));
    let line = fleet.line().to_owned();
    fleet.beside_controller(|| poison(&line));
    for _ in 0..2 {
        let ended = fleet.begin(&["--packets", "2000"]).finish();
        assert_eq!(ended.code, Some(0), "{}", ended.complaints);
        assert!(!ended.complaints.contains(['\u{1b}', '\u{7}']), "{:?}", ended.complaints);
        ended.report().assert_nothing_lost();
    }
    // What was refused is counted, named, and kept within the node's room.
    let (_, printed, remarks) = fleet.ask(&["fleet", "collect"]);
    let kept = fleet.place().join("ctl/packetrig/set-aside/evil");
    let files = std::fs::read_dir(&kept).map(Iterator::count).unwrap_or_default();
    assert_eq!(files, KEPT, "{} {printed} {remarks}", kept.display());
}

/// Ports of the long hello: 109 MB of JSON, in 850 KB.
const FLOOD_PORTS: usize = 970_000;
/// Between two of them: 150 in a second.
const FLOOD_EVERY_NS: u64 = 6_666_667;
/// Most of them.
const MAX_FLOOD: usize = 6000;
/// Most that `fleet up` may need meanwhile.
const FLOOD_RSS_KIB: u64 = 128 << 10;

/// As a hello travels that has no use but to cost its readers much.
fn costly_hello() -> Vec<u8> {
    let port = r#"{"interface":"eth0","labels":[],"driver":"veth","speed":null,"up":true,"back_ends":[],"addresses":["10.0.0.1"]},"#;
    let hello = serde_json::to_string(&NodeHello::default()).expect("it is JSON");
    let ports = port.repeat(FLOOD_PORTS);
    let hello = hello.replace(r#""ports":[]"#, &format!(r#""ports":[{}]"#, ports.trim_end_matches(',')));
    packed::pack_text(format!(r#"{{"from":"evil","body":{{"hello":{hello}}}}}"#).as_bytes())
        .expect("it is packed")
}

/// Joins as a node that the fleet has let in.
fn join_as_evil(line: &str) -> NatsEndpoint {
    let name = NodeName("evil".into());
    let line = line.parse().expect("a line of this fleet");
    let membership = enrol_node(&line, &name, None).expect("it is let in");
    let fabric = NatsFabric::new(membership.server_access().expect("whole")).expect("a runtime");
    fabric.open_endpoint(name).expect("it joins")
}

/// Says the hello again and again, until the node was removed and has lost its connection.
fn flood(endpoint: &mut NatsEndpoint, hello: &[u8], is_removed: &AtomicBool) -> usize {
    let mut said = 0;
    while said < MAX_FLOOD {
        if endpoint.post_as_hello(hello.to_vec()).is_err() {
            break;
        }
        // Troubles of its connection.
        if !endpoint.take_problems().is_empty() && is_removed.load(Ordering::Acquire) {
            break;
        }
        said += 1;
        clock::sleep_until_ns(clock::monotonic_ns() + FLOOD_EVERY_NS);
    }
    said
}

/// Rows of `fleet status`: which nodes are fresh.
fn fresh_nodes(fleet: &Fleet) -> Vec<String> {
    let (_, printed, complaints) = fleet.ask(&["fleet", "status", "--json"]);
    let rows: Value = serde_json::from_str(&printed).unwrap_or_else(|_| panic!("{printed}{complaints}"));
    let fresh = rows.as_array().expect("rows").iter().filter(|row| row["presence"] == "fresh");
    fresh.filter_map(|row| row["node"].as_str().map(str::to_owned)).filter(|node| node != "evil").collect()
}

/// Largest memory that a process has needed, KiB.
fn peak_memory_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it has memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn node_hello_flood_is_contained_and_removable() {
    let Some(mut fleet) = Fleet::up(FleetOptions::default()) else { return };
    let (line, hello, is_removed) = (fleet.line().to_owned(), costly_hello(), AtomicBool::new(false));
    assert!((800_000..900_000).contains(&hello.len()), "{}", hello.len());
    let server = fleet.server_process();
    let before = peak_memory_kib(server);
    let checked = || std::fs::read_to_string(fleet.place().join("fleet/health.json")).unwrap_or_default();
    std::thread::scope(|scope| {
        let flooding =
            scope.spawn(|| fleet.beside_controller(|| flood(&mut join_as_evil(&line), &hello, &is_removed)));
        // Eight looks while it floods: a node that is not heard is not fresh after three seconds.
        for look in 0..8 {
            let health = checked();
            clock::sleep_until_ns(clock::monotonic_ns() + 1_000_000_000);
            await_that("the server is looked after", || checked() != health, checked);
            let fresh = fresh_nodes(&fleet);
            assert_eq!(fresh.len(), 6, "look {look}: {fresh:?}");
            let peak = peak_memory_kib(server);
            assert!(peak < FLOOD_RSS_KIB, "look {look}: {peak} KiB, {before} KiB before");
        }
        println!("{} KiB before, {} KiB at most", before, peak_memory_kib(server));
        assert!(!flooding.is_finished(), "it floods all the time");
        is_removed.store(true, Ordering::Release);
        let (code, _, complaints) = fleet.ask(&["fleet", "remove", "evil"]);
        assert_eq!(code, Some(0), "{complaints}");
        await_that("it is cut off", || flooding.is_finished(), || fleet.said("up"));
        println!("{} hellos", flooding.join().expect("it ends"));
    });
    let asked = clock::monotonic_ns();
    kill_process(pid(server), Signal::INT).expect("it is there");
    fleet.await_server_end();
    let took = clock::monotonic_ns() - asked;
    println!("ended after {} ms", took / 1_000_000);
    // A second, and what a busy machine adds.
    assert!(took < 5_000_000_000, "{took} ns");
}
