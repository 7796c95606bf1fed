//! What passes, unchanged; link state; interfaces put back.

use crate::testbed::{Testbed, many, name, number, status, stop, udp, until};
use packetrig_sys::ethtool::{EthtoolCalls, Offload};

/// Frames of every kind that something between two stations might change or keep.
fn odd_frames() -> Vec<Vec<u8>> {
    let to = |mac: [u8; 6], kind: [u8; 2], len: usize| {
        let mut frame = [&mac[..], &[2, 0, 0, 0, 0, 1], &kind].concat();
        frame.resize(len, 0xa5);
        frame
    };
    let tagged = |tpid: [u8; 2], frame: Vec<u8>| [&frame[..12], &tpid, &[0x20, 0x64], &frame[12..]].concat();
    let mut frames = vec![
        to([0xff; 6], [8, 6], 60),
        to([1, 0, 0x5e, 0, 0, 1], [8, 0], 100),
        to([0x33, 0x33, 0, 0, 0, 1], [0x86, 0xdd], 200),
        // LLDP, spanning tree, pause: what bridges keep to themselves.
        to([1, 0x80, 0xc2, 0, 0, 0x0e], [0x88, 0xcc], 60),
        to([1, 0x80, 0xc2, 0, 0, 0], [0, 0x26], 60),
        to([1, 0x80, 0xc2, 0, 0, 1], [0x88, 8], 60),
        to([2, 0, 0, 0, 0, 2], [0x88, 0xb5], 61),
        tagged([0x81, 0], udp(1, 9, 300)),
        tagged([0x88, 0xa8], tagged([0x81, 0], udp(2, 9, 300))),
        // Checksums that are wrong, of both headers: none here is right.
        udp(3, 9, 1514),
    ];
    frames.extend((60..1514).step_by(97).map(|len| udp(4, 9, len)));
    frames.extend([2000, 3400, 3600, 4200, 9000].map(|len| udp(5, 9, len)));
    frames
}

fn transparent(way: &str) {
    let Some(testbed) = Testbed::new(way, 2) else { return };
    let (mut a, mut b) = (testbed.listen(0), testbed.listen(1));
    let tap = testbed.tap(way, &[]);
    let frames = odd_frames();
    let back: Vec<_> = frames.iter().rev().cloned().collect();
    testbed.send(0, &frames);
    testbed.send(1, &back);
    assert_eq!(b.hear(frames.len()), frames, "{way}");
    assert_eq!(a.hear(frames.len()), back, "{way}");
    let result = stop(tap);
    for direction in [0, 1] {
        let at = |what: &str| number(&result, &format!("/accounts/directions/{direction}/{what}"));
        assert_eq!((at("received"), at("forwarded")), (frames.len() as u64, frames.len() as u64));
        let bytes: usize = frames.iter().map(Vec::len).sum();
        assert_eq!(at("received_bytes"), bytes as u64);
    }
}

#[test]
fn every_frame_passes_unchanged_in_the_kernel() {
    transparent("xdp");
}

#[test]
fn every_frame_passes_unchanged_in_the_process() {
    transparent("packet");
}

fn counted_under_load(way: &str) {
    let Some(testbed) = Testbed::new(way, 2) else { return };
    let (mut b, name) = (testbed.listen(1), name());
    let tap = testbed.tap(way, &["--name", &name]);
    testbed.send(0, &many(20_000, 60));
    until("all have arrived at the tap", || {
        status(&name).pointer("/accounts/directions/0/received") == Some(&20_000.into())
    });
    let result = stop(tap);
    let direction = &result["accounts"]["directions"][0];
    assert_eq!(number(direction, "/received"), 20_000, "{result}");
    let forwarded = number(direction, "/forwarded");
    let heard = b.hear(usize::try_from(forwarded).unwrap()).len() as u64;
    assert_eq!(heard, forwarded, "{result}");
}

#[test]
fn kernel_tap_counts_match_arrivals() {
    counted_under_load("xdp");
}

#[test]
fn process_tap_counts_match_arrivals() {
    counted_under_load("packet");
}

fn passes_link_state(way: &str) {
    let Some(testbed) = Testbed::new(way, 2) else { return };
    let tap = testbed.tap(way, &[]);
    testbed.switch_interface(0, false);
    until("the other side is taken down", || !testbed.link(1).carrier);
    testbed.switch_interface(0, true);
    until("the other side comes up again", || testbed.link(1).carrier);
    testbed.switch_interface(1, false);
    until("the first side is taken down", || !testbed.link(0).carrier);
    testbed.switch_interface(1, true);
    until("the first side comes up again", || testbed.link(0).carrier && testbed.link(1).carrier);
    let mut b = testbed.listen(1);
    testbed.send(0, &many(5, 60));
    assert_eq!(b.hear(5).len(), 5);
    stop(tap);
}

#[test]
fn link_loss_is_passed_to_other_side() {
    passes_link_state("xdp");
    passes_link_state("packet");
}

#[test]
fn without_link_state_the_other_side_stays_up() {
    let Some(testbed) = Testbed::new("packet", 2) else { return };
    let tap = testbed.tap("packet", &["--no-link-state"]);
    testbed.switch_interface(0, false);
    until("the first side has no carrier", || !testbed.side_link(0).carrier);
    // Time enough for some looks at the links.
    testbed.listen(1).hear(0);
    assert!(testbed.side_link(1).up && testbed.link(1).carrier);
    stop(tap);
}

fn restored(way: &str) {
    let Some(testbed) = Testbed::new(way, 3) else { return };
    let ethtool = EthtoolCalls::open_in(testbed.netns()).unwrap();
    for port in ["port0", "port1"] {
        ethtool.set_offload(port, Offload::Gro, true).unwrap();
    }
    let state = || {
        let offload = |port: &str| ethtool.is_offload_on(port, Offload::Gro).unwrap();
        let links: Vec<_> = (0..3).map(|station| testbed.side_link(station)).collect();
        (links, offload("port0"), offload("port1"))
    };
    let before = state();
    let mirror = testbed.side(2);
    let tap = testbed.tap(way, &["--mirror", &mirror]);
    let during = state();
    assert!(during.0[0].promiscuous && during.0[1].promiscuous && !during.1, "{during:?}");
    stop(tap);
    assert_eq!(state(), before);
}

#[test]
fn interfaces_are_put_back_as_they_were() {
    restored("xdp");
    restored("packet");
}
