//! Mirrors that are down, gone, full or too small: what is forwarded does not change by a frame.

use crate::testbed::{Testbed, many, name, number, status, stop, until};
use packetrig_sys::link::{NamespaceLinks, VethEnd};
use serde_json::Value;

const FRAMES: u32 = 6000;

/// Sends a third, has something befall the mirror, sends the rest; everything arrives. The accounts of the first direction.
fn forwarded_in_spite_of(way: &str, len: usize, befalls: &dyn Fn(&Testbed)) -> Option<Value> {
    let testbed = Testbed::new(way, 3)?;
    let (mut b, mut copies) = (testbed.listen(1), testbed.listen(2));
    let mirror = testbed.side(2);
    let tap = testbed.tap(way, &["--mirror", &mirror]);
    let frames = many(FRAMES, len);
    let (early, late) = frames.split_at(FRAMES as usize / 3);
    testbed.send(0, early);
    // All of the first third is copied before something befalls the mirror.
    copies.hear(early.len());
    drop(copies);
    befalls(&testbed);
    testbed.send(0, late);
    let heard = b.hear(frames.len());
    assert_eq!(heard.len(), frames.len(), "{way}");
    assert_eq!(heard, frames, "{way}");
    let result = stop(tap);
    let direction = result["accounts"]["directions"][0].clone();
    assert_eq!(number(&direction, "/forwarded"), u64::from(FRAMES), "{way}: {direction}");
    assert_eq!(direction["dropped"], serde_json::json!({}), "{way}");
    Some(direction)
}

/// Copies that were dropped, of all causes.
fn missing(direction: &Value) -> u64 {
    let dropped = direction["mirrors"][0]["dropped"].as_object();
    dropped.into_iter().flatten().map(|(_, frames)| frames.as_u64().unwrap()).sum()
}

const WAYS: [&str; 2] = ["xdp", "packet"];

#[test]
fn a_mirror_that_goes_down() {
    for way in WAYS {
        let down = |testbed: &Testbed| {
            let link = testbed.side_link(2);
            NamespaceLinks::open_in(testbed.netns()).unwrap().switch_interface(link.index, false).unwrap();
        };
        let Some(direction) = forwarded_in_spite_of(way, 100, &down) else { continue };
        assert_eq!(missing(&direction), u64::from(FRAMES) / 3 * 2, "{way}: {direction}");
    }
}

#[test]
fn a_mirror_whose_cable_is_pulled() {
    for way in WAYS {
        let Some(direction) = forwarded_in_spite_of(way, 100, &|testbed| testbed.switch_interface(2, false))
        else {
            continue;
        };
        let mirrored = number(&direction, "/mirrors/0/mirrored");
        assert_eq!(mirrored + missing(&direction), u64::from(FRAMES), "{way}: {direction}");
    }
}

#[test]
fn a_mirror_that_is_deleted() {
    for way in WAYS {
        let delete = |testbed: &Testbed| {
            let link = testbed.side_link(2);
            NamespaceLinks::open_in(testbed.netns()).unwrap().delete_link(link.index).unwrap();
        };
        let Some(direction) = forwarded_in_spite_of(way, 100, &delete) else { continue };
        assert_eq!(missing(&direction), u64::from(FRAMES) / 3 * 2, "{way}: {direction}");
    }
}

#[test]
fn a_mirror_with_too_small_an_mtu() {
    for way in WAYS {
        let Some(testbed) = Testbed::new(way, 3) else { continue };
        let link = testbed.side_link(2);
        NamespaceLinks::open_in(testbed.netns()).unwrap().set_mtu(link.index, 500).unwrap();
        let mut b = testbed.listen(1);
        let mirror = testbed.side(2);
        let mut tap = testbed.tap(way, &["--mirror", &mirror]);
        tap.await_remark("MTU 500");
        let (short, long) = (many(100, 200), many(100, 900));
        testbed.send(0, &short);
        testbed.send(0, &long);
        assert_eq!(b.hear(200), [short, long].concat(), "{way}");
        let result = stop(tap);
        let direction = &result["accounts"]["directions"][0];
        assert_eq!(number(direction, "/forwarded"), 200, "{way}");
        assert_eq!((number(direction, "/mirrors/0/mirrored"), missing(direction)), (100, 100), "{way}");
    }
}

#[test]
fn a_mirror_whose_mtu_becomes_too_small() {
    for (way, cause) in [("xdp", "skipped"), ("packet", "too-long")] {
        let Some(testbed) = Testbed::new(way, 3) else { continue };
        let (mirror, name) = (testbed.side(2), name());
        let mut b = testbed.listen(1);
        let tap = testbed.tap(way, &["--mirror", &mirror, "--name", &name]);
        let mut sent = 20;
        testbed.send(0, &many(20, 512));
        let link = testbed.side_link(2);
        NamespaceLinks::open_in(testbed.netns()).unwrap().set_mtu(link.index, 256).unwrap();
        until("copies are given up", || {
            testbed.send(0, &many(20, 512));
            sent += 20;
            missing(&status(&name)["accounts"]["directions"][0]) > 0
        });
        assert_eq!(b.hear(sent).len(), sent, "{way}");
        let result = stop(tap);
        let direction = &result["accounts"]["directions"][0];
        assert_eq!(number(direction, "/forwarded"), sent as u64, "{way}");
        let given_up = number(direction, &format!("/mirrors/0/dropped/{cause}"));
        assert_eq!(given_up, missing(direction), "{way}: {direction}");
        assert_eq!(number(direction, "/mirrors/0/mirrored") + given_up, sent as u64, "{way}");
    }
}

#[test]
fn recreated_mirror_is_reported_as_gone() {
    for way in WAYS {
        let Some(testbed) = Testbed::new(way, 3) else { continue };
        let (mirror, name, link) = (testbed.side(2), name(), testbed.side_link(2));
        let mut tap = testbed.tap(way, &["--mirror", &mirror, "--name", &name]);
        assert_eq!(status(&name)["gone"], serde_json::json!([]), "{way}");
        let mut links = NamespaceLinks::open_in(testbed.netns()).unwrap();
        links.delete_link(link.index).unwrap();
        let end = |name| VethEnd { name, netns: None, mac: None };
        links.create_veth(end(&link.name), end("other")).unwrap();
        tap.await_remark(&format!("{mirror} no longer exists"));
        assert_eq!(status(&name)["gone"], serde_json::json!([mirror]), "{way}");
        testbed.send(0, &many(10, 60));
        let result = stop(tap);
        let direction = &result["accounts"]["directions"][0];
        assert_eq!((number(direction, "/forwarded"), missing(direction)), (10, 10), "{way}: {direction}");
    }
}

/// The mirror's far end takes nothing: its interface has a full queue from the first frames on.
#[test]
fn slow_mirror_losses_are_counted() {
    for way in WAYS {
        // Its own traffic fills the mirror's way while copies come.
        let flood = |testbed: &Testbed| testbed.send(2, &many(3000, 1500));
        let Some(direction) = forwarded_in_spite_of(way, 1500, &flood) else { continue };
        let mirrored = number(&direction, "/mirrors/0/mirrored");
        assert_eq!(mirrored + missing(&direction), u64::from(FRAMES), "{way}: {direction}");
    }
}

#[test]
fn down_peer_is_named_as_drop_cause() {
    for way in WAYS {
        let Some(testbed) = Testbed::new(way, 2) else { continue };
        let tap = testbed.tap(way, &["--no-link-state"]);
        let link = testbed.side_link(1);
        NamespaceLinks::open_in(testbed.netns()).unwrap().switch_interface(link.index, false).unwrap();
        testbed.send(0, &many(100, 60));
        let port = testbed.side_link(0).index;
        let mut links = NamespaceLinks::open_in(testbed.netns()).unwrap();
        until("all have arrived", || links.read_counters(port).unwrap().rx_frames >= 100);
        let result = stop(tap);
        let direction = &result["accounts"]["directions"][0];
        assert_eq!(number(direction, "/received"), 100, "{way}");
        assert_eq!(number(direction, "/forwarded"), 0, "{way}");
        assert_eq!(number(direction, "/dropped/down"), 100, "{way}: {direction}");
    }
}

#[test]
fn side_refusing_redirected_frames_is_named() {
    // With several exits the kernel does not say which of its reasons it was.
    for (is_copied, cause) in [(false, "no-redirect"), (true, "skipped")] {
        let Some(mut testbed) = Testbed::new("xdp", 3) else { return };
        let mirror = testbed.side(2);
        let flags: &[&str] = if is_copied { &["--mirror", &mirror] } else { &[] };
        let mut tap = testbed.tap("xdp", flags);
        testbed.deafen(1);
        testbed.send(0, &many(50, 60));
        tap.await_remark("refused the last 50 frames");
        assert!(tap.remarks().contains("--back-end packet"), "{}", tap.remarks());
        let result = stop(tap);
        let direction = &result["accounts"]["directions"][0];
        assert_eq!(direction["dropped"], serde_json::json!({ cause: 50 }), "{direction}");
    }
}
