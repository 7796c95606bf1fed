//! What a tap cannot be, and what it must be allowed.

use crate::testbed::{Testbed, command, many, number, stop, until};
use packetrig_sys::link::NamespaceLinks;
use packetrig_tests::program::Running;
use packetrig_tests::skip;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn tap_on_addressed_interface_needs_confirmation() {
    let Some(testbed) = Testbed::new("packet", 2) else { return };
    let link = testbed.side_link(0);
    NamespaceLinks::open_in(testbed.netns())
        .unwrap()
        .add_address(link.index, "192.0.2.1".parse().unwrap(), 24)
        .unwrap();
    let (a, b) = (testbed.side(0), testbed.side(1));
    command(&["tap", &a, &b]).assert_refused(8, &[&a, "192.0.2.1", "--confirm"]);
    command(&["tap", &a, &b, "--confirm", &b]).assert_refused(8, &[&a]);
    let confirmed = command(&["tap", &a, &b, "--confirm", &a, "--back-end", "packet", "--time", "50ms"]);
    assert_eq!(confirmed.code, Some(0), "{}", confirmed.stderr);
}

#[test]
fn tap_refuses_invalid_arguments_by_name() {
    let Some(testbed) = Testbed::new("packet", 2) else { return };
    let (a, b) = (testbed.side(0), testbed.side(1));
    command(&["tap", &a, &a]).assert_refused(2, &[&a]);
    command(&["tap", &a, &b, "--mirror", &b]).assert_refused(2, &[&b]);
    command(&["tap", &a, &b, "--mirror", "no-such-ns/eth9"]).assert_refused(4, &["no-such-ns"]);
    command(&["tap", &a, &b, "--name", "a/b"]).assert_refused(2, &["a/b"]);
    let copied = ["--capture", "never.pcapng", "--filter", "udp and and"];
    command(&[&["tap", &a, &b][..], &copied].concat()).assert_refused(2, &["udp and and"]);
    command(&["tap", &a, &b, "--filter", "udp"]).assert_refused(2, &["--mirror", "--capture"]);
    command(&["tap", "status", "no-such-tap"]).assert_refused(2, &["no-such-tap"]);
}

#[test]
fn interfaces_in_use_are_refused() {
    let Some(testbed) = Testbed::new("packet", 2) else { return };
    let (a, b) = (testbed.side(0), testbed.side(1));
    let tap = testbed.tap("packet", &[]);
    command(&["tap", &a, &b, "--name", "another"]).assert_refused(6, &["in use"]);
    stop(tap);
}

#[test]
fn mirror_without_redirect_selects_packet_back_end() {
    // Stations without a program: their cables take none.
    let Some(testbed) = Testbed::new("packet", 3) else { return };
    if !may_use_bpf() {
        return;
    }
    let (a, b, m) = (testbed.side(0), testbed.side(1), testbed.side(2));
    let refused = command(&["tap", &a, &b, "--mirror", &m, "--back-end", "xdp"]);
    refused.assert_refused(2, &["does not accept redirected frames"]);
    let mut tap = Running::start(&["tap", &a, &b, "--mirror", &m, "--json"], "");
    tap.await_remark("with back end packet: ");
    assert!(tap.remarks().contains("does not accept redirected frames"), "{}", tap.remarks());
    let mut listener = testbed.listen(2);
    testbed.send(0, &many(3, 60));
    assert_eq!(listener.hear(3).len(), 3);
    stop(tap);
}

fn may_use_bpf() -> bool {
    skip::may_use_bpf(packetrig_sys::xdp::bpf_obstacle().map_or(Ok(()), Err))
}

/// Bridges have no XDP in their drivers.
#[test]
fn generic_xdp_tap_forwards_with_unknown_counts() {
    let Some(testbed) = Testbed::new("packet", 2) else { return };
    if !may_use_bpf() {
        return;
    }
    let mut links = NamespaceLinks::open_in(testbed.netns()).unwrap();
    let locations = [0, 1].map(|station| {
        let (name, port) = (format!("side{station}"), testbed.side_link(station));
        links.create_bridge(&name).unwrap();
        let bridge = links.find_link_by_name(&name).unwrap();
        links.set_master(port.index, Some(bridge.index)).unwrap();
        links.switch_interface(bridge.index, true).unwrap();
        testbed.side(station).replace(&port.name, &name)
    });
    let [a, b] = &locations;
    let refused = command(&["tap", a, b, "--mirror", &testbed.side(0), "--back-end", "xdp"]);
    refused.assert_refused(2, &["generic path", "side0"]);
    let mut tap = Running::start(&["tap", a, b, "--back-end", "xdp", "--json"], "");
    tap.await_remark("the kernel's generic path does not report them");
    tap.await_remark("forwarding with back end xdp");
    let (mut near, mut far) = (testbed.listen(0), testbed.listen(1));
    // A bridge's ports forward some time after they are up.
    until("it forwards", || {
        testbed.send(0, &many(1, 60));
        !far.hear(0).is_empty()
    });
    let before = far.hear(0).len();
    assert_eq!(before, 0, "all on the way have come");
    let frames = many(50, 900);
    testbed.send(0, &frames);
    assert_eq!(far.hear(50), frames);
    testbed.send(1, &frames);
    assert_eq!(near.hear(50), frames);
    let result = stop(tap);
    let directions = &result["accounts"]["directions"];
    assert!(number(directions, "/0/received") > 50 && number(directions, "/1/received") == 50, "{result}");
    assert!(
        directions[0]["forwarded"].is_null() && directions[0]["dropped"] == serde_json::json!({}),
        "{result}"
    );
}

/// A station that sends without pause never lets the ring run empty.
#[test]
fn flooded_tap_ends_on_signal() {
    let Some(testbed) = Testbed::new("packet", 2) else { return };
    let tap = testbed.tap("packet", &[]);
    let frames = many(100_000, 60);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let rounds = (0..300).take_while(|_| !is_over.load(Ordering::Relaxed));
            rounds.for_each(|_| testbed.send(0, &frames));
        });
        testbed.listen(1).await_frames();
        let result = stop(tap);
        let was_flooded = !flood.is_finished();
        is_over.store(true, Ordering::Relaxed);
        assert!(was_flooded, "it ended only when nothing came any more: {result}");
    });
}
