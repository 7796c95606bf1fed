use super::*;
use crate::hello::{FLEET_PROTOCOL_VERSION, NodeHello, OfferedPort, ProtocolVersion};
use crate::known::KnownNode;
use crate::lead::NodeLead;
use crate::message::{MessageHead, PlanHash};
use packetrig_plan::PlanParseOptions;
use packetrig_units::Nanos;

const NOW: MonoTime = MonoTime::from_nanos(60_000_000_000);

fn offered(interface: &str, labels: &[&str]) -> OfferedPort {
    OfferedPort {
        interface: interface.into(),
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        driver: "veth".into(),
        speed: None,
        up: true,
        back_ends: Vec::new(),
        addresses: Vec::new(),
    }
}

fn node(labels: &[&str], ports: Vec<OfferedPort>) -> NodeHello {
    let labels = labels.iter().map(|label| (*label).to_owned()).collect();
    NodeHello { protocol: FLEET_PROTOCOL_VERSION, labels, ports, ..NodeHello::default() }
}

fn fleet(nodes: Vec<(&str, NodeHello)>) -> FleetMembers {
    let mut members = FleetMembers::default();
    for (name, hello) in nodes {
        members.on_hello(&NodeName(name.into()), hello, NOW);
    }
    members
}

fn plan(locations: &[&str]) -> Plan {
    let ports: Vec<String> =
        locations.iter().enumerate().map(|(n, at)| format!("{{name: p{n}, location: '{at}'}}")).collect();
    let text = format!("ports: [{}]", ports.join(", "));
    Plan::from_text_with(&text, PlanParseOptions { fleet: true, ..PlanParseOptions::default() }).unwrap()
}

fn settled(locations: &[&str], members: &FleetMembers) -> Vec<String> {
    let settled = assign_places(&plan(locations), members, None, NOW).unwrap();
    assert!(settled.unavailable.is_empty());
    settled.places.iter().map(|place| format!("{}/{}", place.node, place.interface)).collect()
}

/// Each problem as `path: message (hint)`.
fn refused(locations: &[&str], members: &FleetMembers) -> Vec<String> {
    let problems = assign_places(&plan(locations), members, None, NOW).unwrap_err().0;
    let line = |problem: &PlanProblem| {
        format!("{}: {} ({})", problem.path, problem.message, problem.hint.as_deref().unwrap_or(""))
    };
    problems.iter().map(line).collect()
}

#[test]
fn a_named_interface_is_the_place() {
    let members = fleet(vec![("a", node(&[], vec![offered("eth1", &[]), offered("ns/eth1", &[])]))]);
    assert_eq!(settled(&["a/ns/eth1", "a/eth1"], &members), ["a/ns/eth1", "a/eth1"]);
}

#[test]
fn placement_reports_every_problem_with_path() {
    let skewed =
        NodeHello { protocol: ProtocolVersion { major: 99, minor: 0 }, ..node(&[], vec![offered("e", &[])]) };
    let busy = node(&[], vec![offered("e", &[])]);
    let dark = OfferedPort { up: false, ..offered("dark", &[]) };
    let mut members =
        fleet(vec![("a", node(&[], vec![offered("eth1", &[]), dark])), ("new", skewed), ("busy", busy)]);
    members.on_hello(
        &NodeName("gone".into()),
        node(&[], vec![offered("e", &[])]),
        NOW - Nanos::from_secs(11),
    );
    led_for("r9", &["busy"], &mut members);
    let wanted = ["a/eth1", "b/eth1", "a/eth9", "a/dark", "new/e", "busy/e", "gone/e", "any-x"];
    let said = refused(&wanted, &members);
    assert_eq!(
        said,
        [
            "ports[1].location: there is no node `b` (nodes of this fleet: a, busy, gone, new)",
            "ports[2].location: node `a` does not offer a port `eth9` (its owner offers: eth1, dark)",
            "ports[3].location: the link of `a/dark` is down ()",
            &format!(
                "ports[4].location: node `new` cannot take part: its packetrig  speaks protocol 99.0; \
                 this controller accepts {}.{} and {0}.{} ()",
                FLEET_PROTOCOL_VERSION.major,
                FLEET_PROTOCOL_VERSION.minor,
                FLEET_PROTOCOL_VERSION.minor.saturating_sub(1)
            ),
            "ports[5].location: node `busy` cannot take part: it belongs to run r9 of alice@rig7 since 14:03 UTC ()",
            "ports[6].location: node `gone` cannot take part: it does not answer; it was last heard 11s ago ()",
            "ports[7].location: no port is left for `any-x`: the plan needs 1; usable ports with this label: 0 \
             (no node and no port has the label `x`)",
        ]
    );
    assert!(refused(&["a/e"], &FleetMembers::default())[0].contains("no node has joined yet"));
}

/// These nodes are led for a run, and no others.
fn led_for(run: &str, nodes: &[&str], members: &mut FleetMembers) {
    let lead = NodeLead {
        controller: "c".into(),
        epoch: 1,
        run: RunId(run.into()),
        user: "alice".into(),
        host: "rig7".into(),
        since_wall_ns: 50_580_000_000_000,
        is_free: false,
    };
    members.replace_leads(nodes.iter().map(|node| (NodeName((*node).into()), lead.clone())).collect());
}

#[test]
fn run_may_use_own_or_unled_nodes() {
    let head =
        MessageHead { run: RunId("r9".into()), attempt: 1, epoch: 1, plan: PlanHash::from_document("") };
    let busy = NodeHello { busy: Some(head), ..node(&[], vec![offered("e", &[])]) };
    let mut members = fleet(vec![("a", busy)]);
    assert!(
        assign_places(&plan(&["a/e"]), &members, Some(&RunId("r8".into())), NOW).is_ok(),
        "nobody leads it"
    );
    led_for("r9", &["a"], &mut members);
    assert!(assign_places(&plan(&["a/e"]), &members, Some(&RunId("r9".into())), NOW).is_ok());
    assert!(assign_places(&plan(&["a/e"]), &members, Some(&RunId("r8".into())), NOW).is_err());
}

#[test]
fn labelled_ports_use_free_nodes_but_count_all() {
    let one = || node(&["tx"], vec![offered("e", &[])]);
    let mut members = fleet(vec![("a", one()), ("b", one()), ("c", one())]);
    led_for("r9", &["a"], &mut members);
    assert_eq!(settled(&["any-tx"; 2], &members), ["b/e", "c/e"]);
    assert_eq!(count_labelled_ports_in_fleet("tx", &members), 3);
    let said = refused(&["any-tx"; 3], &members);
    assert_eq!(
        said,
        [
            "ports[2].location: no port is left for `any-tx`: the plan needs 3; usable ports with this label: 2 \
          (node `a` cannot take part: it belongs to run r9 of alice@rig7 since 14:03 UTC)"
        ]
    );
}

#[test]
fn labelled_ports_spread_over_nodes_first() {
    let two = || vec![offered("e0", &[]), offered("e1", &[])];
    let members =
        fleet(vec![("c", node(&["tx"], two())), ("a", node(&["tx"], two())), ("b", node(&["tx"], two()))]);
    assert_eq!(settled(&["any-tx"; 3], &members), ["a/e0", "b/e0", "c/e0"]);
    assert_eq!(settled(&["any-tx"; 5], &members), ["a/e0", "b/e0", "c/e0", "a/e1", "b/e1"]);
    assert_eq!(settled(&["any-tx"; 6], &members).iter().collect::<BTreeSet<_>>().len(), 6);
    let said = refused(&["any-tx"; 7], &members);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with(
        "ports[6].location: no port is left for `any-tx`: the plan needs 7; usable ports with this label: 6"
    ));
}

#[test]
fn named_ports_are_reserved_and_counted_in_spread() {
    let two = || vec![offered("e0", &["x"]), offered("e1", &["x"])];
    let members = fleet(vec![("a", node(&[], two())), ("b", node(&[], two()))]);
    assert_eq!(settled(&["any-x", "a/e0"], &members), ["b/e0", "a/e0"]);
    assert_eq!(settled(&["any-x", "any-x", "any-x", "a/e0"], &members), ["b/e0", "a/e1", "b/e1", "a/e0"]);
}

#[test]
fn port_moves_for_one_with_fewer_choices() {
    // Only a/e0 can receive, and it comes first for the sender as well.
    let members = fleet(vec![
        ("a", node(&[], vec![offered("e0", &["tx", "rx"])])),
        ("b", node(&[], vec![offered("e0", &["tx"])])),
    ]);
    assert_eq!(settled(&["any-tx", "any-rx"], &members), ["b/e0", "a/e0"]);
    let said = refused(&["any-tx", "any-rx", "any-rx"], &members);
    assert!(said[0].contains("(other ports of the plan use all ports with this label)"), "{said:?}");
}

#[test]
fn lost_nodes_and_down_links_are_named() {
    let dark = OfferedPort { up: false, ..offered("e0", &["x"]) };
    let mut members = fleet(vec![("a", node(&[], vec![dark]))]);
    members.on_hello(
        &NodeName("b".into()),
        node(&["x"], vec![offered("e0", &[])]),
        NOW - Nanos::from_secs(30),
    );
    let said = refused(&["any-x"], &members);
    assert!(
        said[0].ends_with("(node `b` cannot take part: it does not answer; it was last heard 30s ago, the link of `a/e0` is down)"),
        "{said:?}"
    );
    assert_eq!(count_labelled_ports_in_fleet("x", &members), 2, "they belong to it all the same");
    members.on_hello(
        &NodeName("b".into()),
        node(&["x"], vec![offered("e0", &[]), offered("e1", &["x"])]),
        NOW,
    );
    assert_eq!(count_labelled_ports_in_fleet("x", &members), 3, "a port labelled twice is one port");
}

#[test]
fn remembered_node_is_named_or_taken_as_absent() {
    let mut members = fleet(vec![("a", node(&["x"], vec![offered("e0", &[])]))]);
    let hello = node(&["x"], vec![offered("e0", &[])]);
    let known = KnownNode::from_hello(&hello, 5_000_000_000);
    members.restore_node(&NodeName("b".into()), &known, 65_000_000_000, NOW);
    assert_eq!(count_labelled_ports_in_fleet("x", &members), 2);
    let said = refused(&["any-x", "any-x"], &members);
    assert!(
        said[0].ends_with("(node `b` cannot take part: it does not answer; it was last heard 60s ago)"),
        "{said:?}"
    );
    assert!(refused(&["b/e0"], &members)[0].contains("it does not answer; it was last heard 60s ago"));
    for wanted in [&["any-x", "any-x"], &["b/e0", "any-x"]] {
        let found = assign_places_with_unavailable_nodes(&plan(wanted), &members, None, NOW).unwrap();
        let names = nodes_of_places(&found.places).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(found.unavailable.len(), 1);
        assert_eq!(found.unavailable[&NodeName("b".into())], "it does not answer; it was last heard 60s ago");
    }
    // Present nodes come first, and a missing port is not made up.
    let found = assign_places_with_unavailable_nodes(&plan(&["any-x"]), &members, None, NOW).unwrap();
    assert_eq!((nodes_of_places(&found.places), found.unavailable.len()), (vec![NodeName("a".into())], 0));
    assert!(assign_places_with_unavailable_nodes(&plan(&["any-x"; 3]), &members, None, NOW).is_err());
    // After its first hello it is present, in its first life.
    members.on_hello(&NodeName("b".into()), NodeHello { incarnation: 4, ..hello }, NOW);
    assert_eq!(settled(&["b/e0"], &members), ["b/e0"]);
    assert_eq!(members.member_rows(NOW)[1].restarts, 0);
}
