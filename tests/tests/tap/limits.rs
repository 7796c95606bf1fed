//! What a tap cannot be, and what it must be allowed.

use crate::bench::{Bench, command, many, stop};
use packetrig_sys::link::Links;

#[test]
fn an_interface_of_a_real_network_is_refused_until_confirmed() {
    let Some(bench) = Bench::new("packet", 2) else { return };
    let link = bench.side_link(0);
    Links::open(bench.netns()).unwrap().add_address(link.index, "192.0.2.1".parse().unwrap(), 24).unwrap();
    let (a, b) = (bench.side(0), bench.side(1));
    command(&["tap", &a, &b]).assert_refused(8, &[&a, "192.0.2.1", "--confirm"]);
    command(&["tap", &a, &b, "--confirm", &b]).assert_refused(8, &[&a]);
    let confirmed = command(&["tap", &a, &b, "--confirm", &a, "--back-end", "packet", "--time", "50ms"]);
    assert_eq!(confirmed.code, Some(0), "{}", confirmed.stderr);
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let Some(bench) = Bench::new("packet", 2) else { return };
    let (a, b) = (bench.side(0), bench.side(1));
    command(&["tap", &a, &a]).assert_refused(2, &[&a]);
    command(&["tap", &a, &b, "--mirror", &b]).assert_refused(2, &[&b]);
    command(&["tap", &a, &b, "--mirror", "no-such-ns/eth9"]).assert_refused(4, &["no-such-ns"]);
    command(&["tap", &a, &b, "--name", "a/b"]).assert_refused(2, &["a/b"]);
    command(&["tap", &a, &b, "--filter", "udp and and"]).assert_refused(2, &["udp and and"]);
    command(&["tap", "status", "no-such-tap"]).assert_refused(2, &["no-such-tap"]);
}

#[test]
fn interfaces_in_use_are_refused() {
    let Some(bench) = Bench::new("packet", 2) else { return };
    let (a, b) = (bench.side(0), bench.side(1));
    let tap = bench.tap("packet", &[]);
    command(&["tap", &a, &b, "--name", "another"]).assert_refused(6, &["in use"]);
    stop(tap);
}

#[test]
fn a_mirror_that_takes_no_redirected_frames_decides_the_way() {
    // Stations without a program: their cables take none.
    let Some(bench) = Bench::new("packet", 3) else { return };
    if !packetrig_tests::skip::may_use_bpf(packetrig_sys::xdp::obstacle().map_or(Ok(()), Err)) {
        return;
    }
    let (a, b, m) = (bench.side(0), bench.side(1), bench.side(2));
    let refused = command(&["tap", &a, &b, "--mirror", &m, "--back-end", "xdp"]);
    refused.assert_refused(2, &["takes no redirected frames"]);
    let mut tap = packetrig_tests::program::Running::start(&["tap", &a, &b, "--mirror", &m, "--json"], "");
    tap.await_remark("on way packet: ");
    assert!(tap.remarks().contains("takes no redirected frames"), "{}", tap.remarks());
    let mut ear = bench.listen(2);
    bench.send(0, &many(3, 60));
    assert_eq!(ear.hear(3).len(), 3);
    stop(tap);
}
