//! What documents cost to read grows with their length and not faster: measured at one length and at four times that.
//!
//! Each document is one that makes a careless reader compare everything with everything: many names, many that are wrong,
//! many that are the same.

use packetrig_fleet::permit::LendingPermit;
use packetrig_link_io::tap::{TapAccounts, TapState};
use packetrig_plan::Plan;
use packetrig_probe::permit::ProbePermit as TargetPermit;
use packetrig_tests::fuzz::cost::assert_proportional;

fn list(count: usize, item: impl Fn(usize) -> String) -> String {
    (0..count).map(item).collect::<Vec<_>>().join(",")
}

fn repeat(count: usize, item: impl Fn(usize) -> String) -> String {
    (0..count).map(item).collect::<Vec<_>>().concat()
}

fn read_plan(text: &str) {
    drop(Plan::from_text(text));
}

fn assert_plan(what: &str, make: impl Fn(usize) -> String) {
    assert_proportional(what, make, read_plan);
}

const PORTS: &str = r#""ports":[{"name":"a","location":"x"},{"name":"b","location":"y"}]"#;

fn flow(name: &str, from: &str, to: &str, rest: &str) -> String {
    format!(
        r#"{{"name":"{name}","tx_rx":{{"choice":"port","port":{{"tx_name":"{from}","rx_names":["{to}"]}}}}{rest}}}"#
    )
}

#[test]
fn plans_with_many_ports_and_flows() {
    assert_plan("flows", |n| {
        format!("{{{PORTS},\"flows\":[{}]}}", list(n, |at| flow(&format!("flow {at}"), "a", "b", "")))
    });
    assert_plan("flows of one name", |n| {
        format!("{{{PORTS},\"flows\":[{}]}}", list(n, |_| flow("flow", "a", "b", "")))
    });
    assert_plan("ports, each with a flow", |n| {
        let ports = list(n, |at| format!(r#"{{"name":"port {at}","location":"l{at}"}}"#));
        let flows = list(n, |at| {
            flow(&format!("flow {at}"), &format!("port {at}"), &format!("port {}", n - 1 - at), "")
        });
        format!(r#"{{"ports":[{ports}],"flows":[{flows}]}}"#)
    });
}

#[test]
fn plans_in_which_everything_is_wrong() {
    assert_plan("flows of ports that are not there", |n| {
        let ports = list(n, |at| format!(r#"{{"name":"port {at}","location":"l{at}"}}"#));
        let flows = list(n, |at| flow(&format!("flow {at}"), &format!("prt {at}"), &format!("pot {at}"), ""));
        format!(r#"{{"ports":[{ports}],"flows":[{flows}]}}"#)
    });
    assert_plan("keys that nobody knows", |n| {
        format!("{{{PORTS},{}}}", list(n, |at| format!(r#""flwos{at}":1"#)))
    });
    assert_plan("one key many times", |n| format!("{{{PORTS},{}}}", list(n, |_| r#""flows":[]"#.to_owned())));
    assert_plan("a long name", |n| {
        let long = "x".repeat(n);
        format!("{{{PORTS},\"flows\":[{}]}}", flow(&long, &long, &long, ""))
    });
}

#[test]
fn plans_with_long_headers_values_and_nesting() {
    let header = r#"{"choice":"ethernet","ethernet":{}}"#;
    assert_plan("headers", |n| {
        let packet = format!(r#","packet":[{}]"#, list(n, |_| header.to_owned()));
        format!("{{{PORTS},\"flows\":[{}]}}", flow("f", "a", "b", &packet))
    });
    assert_plan("values", |n| {
        let values = list(n, |at| format!(r#""198.18.{}.{}""#, at / 250 % 250, at % 250));
        let packet = format!(
            r#","packet":[{header},{{"choice":"ipv4","ipv4":{{"dst":{{"choice":"values","values":[{values}]}}}}}}]"#
        );
        format!("{{{PORTS},\"flows\":[{}]}}", flow("f", "a", "b", &packet))
    });
    assert_plan("nested lists", |n| format!("{}{}", "[".repeat(n), "]".repeat(n)));
    assert_plan("nested maps of YAML", |n| "a: {".repeat(n));
    assert_plan("anchors", |n| repeat(n, |at| format!("k{at}: &a{at} [1]\nl{at}: *a{at}\n")));
    assert_plan("lines of a block", |n| format!("ports: |\n{}", "  x\n".repeat(n)));
}

#[test]
fn permits_with_many_ports_networks_and_targets() {
    let read = |text: &str| drop(LendingPermit::from_toml(text));
    let ports =
        |n: usize| repeat(n, |at| format!("[[port]]\ninterface = \"eth{at}\"\nlabels = [\"l{at}\"]\n"));
    assert_proportional("ports that are lent", ports, read);
    assert_proportional("one port many times", |n| "[[port]]\ninterface = \"eth1\"\n".repeat(n), read);
    let network = |at: usize| format!("\"10.{}.{}.0/24\"", at / 250 % 250, at % 250);
    assert_proportional("networks", |n| format!("[destinations]\nip = [{}]\n", list(n, network)), read);
    let probes = |text: &str| drop(TargetPermit::from_text(text));
    let targets = |n: usize| {
        repeat(n, |at| {
            format!("[[target]]\nnetwork = {}\nprobes_per_s = 1\nbits_per_s = \"1Mbps\"\n", network(at))
        })
    };
    assert_proportional("targets", targets, probes);
    assert_proportional("networks never probed", |n| format!("never = [{}]\n", list(n, network)), probes);
}

#[test]
fn states_and_accounts_of_a_tap() {
    let state = |text: &str| drop(serde_json::from_str::<TapState>(text));
    let accounts = |text: &str| drop(serde_json::from_str::<TapAccounts>(text));
    for key in ["sides", "mirrors", "directions", "x"] {
        let many =
            |n: usize| format!("{{\"{key}\":[{}]}}", list(n, |at| format!(r#"{{"location":"l{at}"}}"#)));
        assert_proportional(key, many, state);
        assert_proportional(key, many, accounts);
    }
    assert_proportional("nested", |n| "[".repeat(n), state);
}
