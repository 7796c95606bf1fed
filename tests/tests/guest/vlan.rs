//! Runs through 802.1Q devices, and over them.

use super::{document, inside};
use packetrig_engine::packet::guard::permit_port;
use packetrig_sys::link::NamespaceLinks;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::{INTERFACE, LabPort};
use packetrig_tests::document::{Document, Flow, ethernet, ipv4, udp, vlan};
use packetrig_tests::program::run;
use packetrig_tests::skip;
use packetrig_tests::tools::frames_of;
use serde_json::json;

const DEVICE: &str = "eth0.100";
const TAG: u64 = 100;
const FRAMES: u64 = 200;

fn with_device(port: &LabPort) {
    inside(port.netns(), &format!("ip link add link {INTERFACE} name {DEVICE} type vlan id {TAG}"));
    inside(port.netns(), &format!("ip link set {DEVICE} up"));
}

fn location(port: &LabPort) -> String {
    format!("{}/{DEVICE}", port.namespace())
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn tagged_frames_reach_peer_and_its_vlan_device() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let far = &lab.ports()[1];
    with_device(far);
    let flow = Flow::new("tagged", 1).packets(FRAMES).packet([ethernet(1), vlan(100), ipv4(), udp()]);
    let report = run(&document(&lab).flow(flow)).report();
    assert_eq!(report.number("tagged", "/loss/lost"), 0);
    assert_eq!(report.number("tagged", "/received/frames"), FRAMES);
    assert_eq!(report.number("tagged", "/received/altered"), 0, "the tags came through");
    let mut links = NamespaceLinks::open_in(far.netns()).unwrap();
    let device = links.find_link_by_name(DEVICE).unwrap().index;
    assert_eq!(links.read_counters(device).unwrap().rx_frames, FRAMES, "the kernel saw the same tags");
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn vlan_device_works_as_a_port() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    lab.ports().iter().for_each(with_device);
    let ends: Vec<String> = lab.ports().iter().map(location).collect();
    let report = run(&Document::new(&ends).flow(Flow::new("inside", 1).packets(FRAMES))).report();
    assert_eq!(report.number("inside", "/received/frames"), FRAMES);
    assert_eq!(report.number("inside", "/received/altered"), 0);
    assert_eq!(report.0["imbalances"], json!([]));
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn frames_from_vlan_device_are_tagged_on_cable() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    with_device(&lab.ports()[0]);
    let ends = [location(&lab.ports()[0]), lab.location(1)];
    let finished =
        run(&Document::new(&ends).flow(Flow::new("outside", 1).packets(FRAMES)).capture(1, "pcap"));
    let report = finished.report();
    assert_eq!(report.number("outside", "/received/frames"), FRAMES);
    assert_eq!(report.number("outside", "/received/altered"), FRAMES, "each has a tag that was not sent");
    let frames = frames_of(&finished.capture());
    assert_eq!(frames.len() as u64, FRAMES);
    assert!(frames.iter().all(|frame| frame[12..16] == [0x81, 0, 0, 100]), "{:02x?}", &frames[0][..20]);
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn vlan_over_default_route_card_is_refused() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let port = &lab.ports()[0];
    with_device(port);
    inside(port.netns(), &format!("ip link set {INTERFACE} up"));
    inside(port.netns(), &format!("ip addr add 198.18.9.1/24 dev {INTERFACE}"));
    let refusal = |name: &str| {
        let index = NamespaceLinks::open_in(port.netns()).unwrap().find_link_by_name(name).unwrap().index;
        permit_port(port.netns(), index, name, false).err().map(|error| error.to_string())
    };
    assert_eq!(refusal(DEVICE), None);
    inside(port.netns(), "ip link add br7 type bridge && ip link set eth0.100 master br7");
    inside(port.netns(), "ip link add link br7 name br7.5 type vlan id 5 && ip link set br7 up");
    assert_eq!(refusal("br7.5"), None);
    inside(port.netns(), &format!("ip route add default via 198.18.9.2 dev {INTERFACE}"));
    for name in [DEVICE, "br7", "br7.5"] {
        let said = refusal(name).unwrap_or_else(|| panic!("{name} is not refused"));
        assert!(said.contains("default route"), "{name}: {said}");
    }
}
