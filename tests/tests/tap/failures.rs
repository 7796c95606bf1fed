//! Mirrors that are down, gone, full or too small: what is forwarded does not change by a frame.

use crate::bench::{Bench, many, number, stop, until};
use packetrig_sys::link::Links;
use serde_json::Value;

const FRAMES: u32 = 6000;

/// Sends a third, has something befall the mirror, sends the rest; everything arrives. The accounts of the first direction.
fn forwarded_in_spite_of(way: &str, len: usize, befalls: &dyn Fn(&Bench)) -> Option<Value> {
    let bench = Bench::new(way, 3)?;
    let mut b = bench.listen(1);
    let mirror = bench.side(2);
    let tap = bench.tap(way, &["--mirror", &mirror]);
    let frames = many(FRAMES, len);
    let (early, late) = frames.split_at(FRAMES as usize / 3);
    bench.send(0, early);
    befalls(&bench);
    bench.send(0, late);
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
    let dropped = direction["mirrors"][0]["dropped"].as_object().unwrap();
    dropped.values().map(|frames| frames.as_u64().unwrap()).sum()
}

const WAYS: [&str; 2] = ["xdp", "packet"];

#[test]
fn a_mirror_that_goes_down() {
    for way in WAYS {
        let down = |bench: &Bench| {
            let link = bench.side_link(2);
            Links::open(bench.netns()).unwrap().set_up(link.index, false).unwrap();
        };
        let Some(direction) = forwarded_in_spite_of(way, 100, &down) else { continue };
        assert_eq!(missing(&direction), u64::from(FRAMES) / 3 * 2, "{way}: {direction}");
    }
}

#[test]
fn a_mirror_whose_cable_is_pulled() {
    for way in WAYS {
        let Some(direction) = forwarded_in_spite_of(way, 100, &|bench| bench.set_up(2, false)) else {
            continue;
        };
        let mirrored = number(&direction, "/mirrors/0/mirrored");
        assert_eq!(mirrored + missing(&direction), u64::from(FRAMES), "{way}: {direction}");
    }
}

#[test]
fn a_mirror_that_is_deleted() {
    for way in WAYS {
        let delete = |bench: &Bench| {
            let link = bench.side_link(2);
            Links::open(bench.netns()).unwrap().delete(link.index).unwrap();
        };
        let Some(direction) = forwarded_in_spite_of(way, 100, &delete) else { continue };
        assert_eq!(missing(&direction), u64::from(FRAMES) / 3 * 2, "{way}: {direction}");
    }
}

#[test]
fn a_mirror_with_too_small_an_mtu() {
    for way in WAYS {
        let Some(bench) = Bench::new(way, 3) else { continue };
        let link = bench.side_link(2);
        Links::open(bench.netns()).unwrap().set_mtu(link.index, 500).unwrap();
        let mut b = bench.listen(1);
        let mirror = bench.side(2);
        let mut tap = bench.tap(way, &["--mirror", &mirror]);
        tap.await_remark("MTU 500");
        let (short, long) = (many(100, 200), many(100, 900));
        bench.send(0, &short);
        bench.send(0, &long);
        assert_eq!(b.hear(200), [short, long].concat(), "{way}");
        let result = stop(tap);
        let direction = &result["accounts"]["directions"][0];
        assert_eq!(number(direction, "/forwarded"), 200, "{way}");
        assert_eq!((number(direction, "/mirrors/0/mirrored"), missing(direction)), (100, 100), "{way}");
    }
}

/// The mirror's far end takes nothing: its interface has a full queue from the first frames on.
#[test]
fn a_mirror_that_takes_less_than_it_is_given() {
    for way in WAYS {
        // Its own traffic fills the mirror's way while copies come.
        let flood = |bench: &Bench| bench.send(2, &many(3000, 1500));
        let Some(direction) = forwarded_in_spite_of(way, 1500, &flood) else { continue };
        let mirrored = number(&direction, "/mirrors/0/mirrored");
        assert_eq!(mirrored + missing(&direction), u64::from(FRAMES), "{way}: {direction}");
    }
}

#[test]
fn a_peer_that_is_down_is_the_cause_of_what_is_dropped() {
    for way in WAYS {
        let Some(bench) = Bench::new(way, 2) else { continue };
        let tap = bench.tap(way, &["--no-link-state"]);
        let link = bench.side_link(1);
        Links::open(bench.netns()).unwrap().set_up(link.index, false).unwrap();
        bench.send(0, &many(100, 60));
        let port = bench.side_link(0).index;
        let mut links = Links::open(bench.netns()).unwrap();
        let received = std::cell::RefCell::new(&mut links);
        until("all have arrived", || received.borrow_mut().counters(port).unwrap().rx_frames >= 100);
        let result = stop(tap);
        let direction = &result["accounts"]["directions"][0];
        assert_eq!(number(direction, "/received"), 100, "{way}");
        assert_eq!(number(direction, "/forwarded"), 0, "{way}");
        assert_eq!(number(direction, "/dropped/down"), 100, "{way}: {direction}");
    }
}
