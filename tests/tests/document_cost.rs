//! What documents cost to read grows with their length and not faster: measured at one length and at four times that.
//!
//! Each document is one that makes a careless reader compare everything with everything: many names, many that are wrong,
//! many that are the same.

use packetrig_fleet::permit::LendingPermit;
use packetrig_link_io::tap::{TapAccounts, TapState};
use packetrig_plan::Plan;
use packetrig_probe::permit::ProbePermit as TargetPermit;
use packetrig_sys::memory::MeteredAllocator;
use packetrig_tests::fuzz::cost::assert_proportional;
use packetrig_tests::fuzz::{answer_to, request};

#[global_allocator]
static ALLOCATOR: MeteredAllocator = MeteredAllocator;

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

/// Length of the shorter document whose memory is measured, in bytes. What every request costs is little beside it.
const MEASURED_LENGTH: usize = 1 << 18;

/// Bytes of memory at the peak for each byte by which a document is longer.
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
fn peak_per_byte(make: &impl Fn(usize) -> String, work: &mut impl FnMut(&str)) -> f64 {
    let mut size = 64;
    while make(size).len() < MEASURED_LENGTH {
        size *= 2;
    }
    let documents = [make(size), make(4 * size)];
    let peaks = documents.each_ref().map(|document| {
        MeteredAllocator::measure_process_peak(|| work(document)).expect("the allocator of this program")
    });
    let [short, long] = peaks.map(|peak| peak as f64);
    (long - short) / (documents[1].len() - documents[0].len()) as f64
}

/// Fails if a byte of a configuration takes more memory than `most` bytes in the server, at the peak, or more than `most_of_plan` where only the
/// plan is read.
#[expect(clippy::print_stdout, reason = "the runner keeps what was measured")]
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
fn assert_memory(what: &str, most: [f64; 2], make: impl Fn(usize) -> String) {
    let plan = peak_per_byte(&make, &mut |text| read_plan(text));
    let whole_request = |n| {
        let whole = request("POST /config", make(n).as_bytes());
        String::from_utf8(whole).expect("it is text")
    };
    let server = peak_per_byte(&whole_request, &mut |text| drop(answer_to(text.as_bytes())));
    println!("{what}: {server:.1} times its length in the server, {plan:.1} times to read the plan");
    assert!(server <= most[0] && plan <= most[1], "{what}: {server:.1}, {plan:.1}, at most {most:?}");
}

#[test]
fn configuration_memory_is_proportional_to_its_length() {
    let header = r#"{"choice":"ethernet","ethernet":{}}"#;
    assert_memory("flows", [20.0, 20.0], |n| {
        format!("{{{PORTS},\"flows\":[{}]}}", list(n, |at| flow(&format!("flow {at}"), "a", "b", "")))
    });
    let usual = r#","rate":{"choice":"pps","pps":"1000"},"size":{"choice":"fixed","fixed":128},"duration":{"choice":"fixed_packets","fixed_packets":{"packets":1000}},"metrics":{"enable":true,"loss":true},"packet":[{"choice":"ethernet","ethernet":{"src":{"choice":"value","value":"02:00:00:00:00:01"},"dst":{"choice":"value","value":"02:00:00:00:00:02"}}},{"choice":"ipv4","ipv4":{"src":{"choice":"value","value":"198.18.0.1"},"dst":{"choice":"value","value":"198.18.0.2"}}},{"choice":"udp","udp":{"src_port":{"choice":"value","value":5000},"dst_port":{"choice":"value","value":5001}}}]"#;
    assert_memory("usual flows", [8.5, 7.5], |n| {
        format!("{{{PORTS},\"flows\":[{}]}}", list(n, |at| flow(&format!("flow {at}"), "a", "b", usual)))
    });
    assert_memory("values", [6.5, 5.5], |n| {
        let values = list(n, |at| format!(r#""198.18.{}.{}""#, at / 250 % 250, at % 250));
        let packet = format!(
            r#","packet":[{header},{{"choice":"ipv4","ipv4":{{"dst":{{"choice":"values","values":[{values}]}}}}}}]"#
        );
        format!("{{{PORTS},\"flows\":[{}]}}", flow("f", "a", "b", &packet))
    });
    assert_memory("unknown keys", [13.0, 11.0], |n| format!("{{{}}}", list(n, |at| format!(r#""x{at}":1"#))));
    assert_memory("refused flows", [22.0, 20.0], |n| {
        format!(
            "{{{PORTS},\"flows\":[{}]}}",
            list(n, |at| flow(&format!("flow {at}"), "a", "b", r#","x":1"#))
        )
    });
    assert_memory("one long name", [7.0, 3.5], |n| {
        format!("{{\"ports\":[{{\"name\":\"{}\",\"location\":\"x\"}}]}}", "x".repeat(n))
    });
}
