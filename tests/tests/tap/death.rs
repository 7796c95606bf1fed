//! What becomes of the link when the process dies, is stopped, or leaves the tap to the kernel.

use crate::testbed::{Testbed, balanced, command, many, name, number, status, stop};
use packetrig_sys::link::NamespaceLinks;
use packetrig_tests::program::Running;
use rustix::process::Signal;
use serde_json::Value;

fn assert_gone(name: &str) {
    command(&["tap", "status", name]).assert_refused(2, &[name]);
}

/// Whether `doctor` says that an interface was left changed.
fn is_unrestored(location: &str) -> bool {
    command(&["doctor", location]).stdout.contains(&format!("--restore {location}"))
}

fn kill(mut tap: Running) {
    tap.signal(Signal::KILL);
    assert_eq!(tap.finish().code, None, "killed");
}

#[test]
fn killed_tap_keeps_forwarding_and_can_be_ended() {
    let Some(testbed) = Testbed::new("xdp", 3) else { return };
    let before = (testbed.side_link(0), testbed.side_link(1), testbed.side_link(2));
    let (mut b, mut m) = (testbed.listen(1), testbed.listen(2));
    let (mirror, name) = (testbed.side(2), name());
    let tap = testbed.tap("xdp", &["--mirror", &mirror, "--name", &name]);
    let frames = many(60_000, 60);
    // Killed while frames are on their way: the sender does not stop for it.
    let heard = std::thread::scope(|scope| {
        let sender = scope.spawn(|| testbed.send(0, &frames));
        let mut heard = b.await_frames();
        kill(tap);
        sender.join().unwrap();
        heard += b.hear(60_000 - heard).len();
        heard
    });
    assert_eq!(heard, 60_000, "frames lost while it was killed");
    let found = status(&name);
    assert_eq!((&found["forwarding"], &found["has_process"]), (&true.into(), &false.into()), "{found}");
    assert!(!is_unrestored(&testbed.side(0)), "an interface of a tap that forwards is not to be restored");
    assert_eq!(number(&found, "/accounts/directions/0/received"), 60_000, "{found}");
    assert_eq!(number(&found, "/accounts/directions/0/forwarded"), 60_000, "{found}");
    // It still is what it was.
    let later = many(100, 100);
    testbed.send(0, &later);
    assert_eq!(b.hear(100), later);
    assert!(m.hear(100).ends_with(&later));
    let ended = balanced(&command(&["tap", "stop", &name, "--json"]));
    assert_eq!(number(&ended, "/accounts/directions/0/forwarded"), 60_100, "{ended}");
    assert_eq!((testbed.side_link(0), testbed.side_link(1), testbed.side_link(2)), before);
    testbed.send(0, &many(5, 60));
    assert!(b.hear(0).is_empty(), "it forwards no more");
    assert_gone(&name);
}

fn dies_with_its_process(way: &str, flags: &[&str]) {
    let Some(testbed) = Testbed::new(way, 2) else { return };
    let before = (testbed.side_link(0), testbed.side_link(1));
    let mut b = testbed.listen(1);
    let name = name();
    let tap = testbed.tap(way, &[&["--name", &name], flags].concat());
    testbed.send(0, &many(5, 60));
    assert_eq!(b.hear(5).len(), 5);
    kill(tap);
    testbed.send(0, &many(5, 60));
    assert!(b.hear(0).is_empty(), "{way}: it forwards on");
    let found = status(&name);
    assert_eq!((&found["forwarding"], &found["has_process"]), (&false.into(), &false.into()), "{found}");
    assert!(is_unrestored(&testbed.side(0)) && is_unrestored(&testbed.side(1)), "{way}");
    let finished = command(&["tap", "stop", &name, "--json"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(!is_unrestored(&testbed.side(0)));
    assert_eq!((testbed.side_link(0), testbed.side_link(1)), before, "{way}");
    assert_gone(&name);
}

#[test]
fn fail_closed_it_dies_with_its_process() {
    dies_with_its_process("xdp", &["--fail-closed"]);
}

#[test]
fn in_the_process_it_dies_with_it() {
    dies_with_its_process("packet", &[]);
}

#[test]
fn dead_tap_does_not_block_its_successor() {
    let Some(testbed) = Testbed::new("packet", 2) else { return };
    let name = name();
    kill(testbed.tap("packet", &["--name", &name]));
    let mut b = testbed.listen(1);
    let tap = testbed.tap("packet", &["--name", &name]);
    testbed.send(0, &many(5, 60));
    assert_eq!(b.hear(5).len(), 5);
    stop(tap);
}

#[test]
fn detached_tap_runs_until_stopped() {
    let Some(testbed) = Testbed::new("xdp", 2) else { return };
    let before = (testbed.side_link(0), testbed.side_link(1));
    let (a_side, b_side, name) = (testbed.side(0), testbed.side(1), name());
    let detached = command(&["tap", &a_side, &b_side, "--detach", "--name", &name]);
    assert_eq!(detached.code, Some(0), "{}", detached.stderr);
    let mut b = testbed.listen(1);
    testbed.send(0, &many(50, 60));
    assert_eq!(b.hear(50).len(), 50);
    assert_eq!(status(&name)["forwarding"], true);
    let again = command(&["tap", &a_side, &b_side, "--name", &name]);
    again.assert_refused(2, &["a tap named", &name]);
    let ended = balanced(&command(&["tap", "stop", &name, "--json"]));
    assert_eq!(number(&ended, "/accounts/directions/0/forwarded"), 50, "{ended}");
    assert_eq!((testbed.side_link(0), testbed.side_link(1)), before);
    assert_gone(&name);
}

#[test]
fn orphaned_tap_without_side_stops_forwarding() {
    let Some(testbed) = Testbed::new("xdp", 2) else { return };
    let (side, name) = (testbed.side(1), name());
    let before = testbed.side_link(0);
    kill(testbed.tap("xdp", &["--name", &name]));
    assert_eq!(
        (&status(&name)["forwarding"], &status(&name)["gone"]),
        (&true.into(), &serde_json::json!([]))
    );
    NamespaceLinks::open_in(testbed.netns()).unwrap().delete_link(testbed.side_link(1).index).unwrap();
    let found = status(&name);
    assert_eq!(
        (&found["forwarding"], &found["gone"]),
        (&false.into(), &serde_json::json!([side])),
        "{found}"
    );
    let ended = command(&["tap", "stop", &name, "--json"]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let after = testbed.side_link(0);
    assert_eq!((after.promiscuous, after.up), (before.promiscuous, before.up));
    assert_gone(&name);
}

#[test]
fn detach_is_refused_for_process_back_end() {
    let Some(testbed) = Testbed::new("packet", 2) else { return };
    let (a, b) = (testbed.side(0), testbed.side(1));
    let refused = command(&["tap", &a, &b, "--detach", "--back-end", "packet"]);
    refused.assert_refused(2, &["--detach needs back end `xdp`"]);
}

#[test]
fn tap_with_process_shows_status_and_stops() {
    for way in ["xdp", "packet"] {
        let Some(testbed) = Testbed::new(way, 2) else { continue };
        let name = name();
        let tap = testbed.tap(way, &["--name", &name]);
        let mut b = testbed.listen(1);
        testbed.send(0, &many(50, 60));
        assert_eq!(b.hear(50).len(), 50);
        // It leaves its accounts once a second; the kernel's can be read at any time.
        crate::testbed::until("the accounts are there", || {
            let found = status(&name);
            found["has_process"] == true
                && found.pointer("/accounts/directions/0/received") == Some(&50.into())
        });
        let stopped = command(&["tap", "stop", &name, "--json"]);
        assert_eq!(stopped.code, Some(0), "{}", stopped.stderr);
        let told: Value = serde_json::from_str(&stopped.stdout).unwrap();
        assert!(number(&told, "/ended_by") > 0 && told["state"]["name"] == name, "{told}");
        balanced(&tap.finish());
        assert_gone(&name);
    }
}

/// A tap between bare interface names, started by `ip netns exec` inside their namespace.
fn tap_inside(testbed: &Testbed, way: &str, name: &str) -> Running {
    let namespace = testbed.side(0).split('/').next().unwrap().to_owned();
    let program = packetrig_tests::program::binary().display().to_string();
    let words = ["netns", "exec", &namespace, &program, "tap", "port0", "port1"];
    let flags = ["--back-end", way, "--name", name, "--json"];
    let mut tap = Running::start_program("ip", &[&words[..], &flags].concat(), "");
    tap.await_remark("forwarding with back end");
    tap
}

#[test]
fn tap_in_namespace_is_managed_from_outside() {
    for way in ["xdp", "packet"] {
        let Some(testbed) = Testbed::new(way, 2) else { continue };
        let before = (testbed.side_link(0), testbed.side_link(1));
        let name = name();
        let tap = tap_inside(&testbed, way, &name);
        let mut b = testbed.listen(1);
        testbed.send(0, &many(50, 60));
        assert_eq!(b.hear(50).len(), 50);
        let found = status(&name);
        let state = (&found["forwarding"], &found["has_process"], &found["gone"]);
        assert_eq!(state, (&true.into(), &true.into(), &serde_json::json!([])), "{way}: {found}");
        let stopped = command(&["tap", "stop", &name, "--json"]);
        let told: Value = serde_json::from_str(&stopped.stdout).unwrap();
        assert!(number(&told, "/ended_by") > 0, "{told}");
        balanced(&tap.finish());
        assert_eq!((testbed.side_link(0), testbed.side_link(1)), before, "{way}");
        assert_gone(&name);
    }
}

#[test]
fn killed_namespace_tap_is_restored_from_outside() {
    let Some(testbed) = Testbed::new("packet", 2) else { return };
    let before = (testbed.side_link(0), testbed.side_link(1));
    let name = name();
    kill(tap_inside(&testbed, "packet", &name));
    let found = status(&name);
    assert_eq!((&found["forwarding"], &found["has_process"]), (&false.into(), &false.into()), "{found}");
    let stopped = command(&["tap", "stop", &name, "--json"]);
    assert_eq!(stopped.code, Some(0), "{}", stopped.stderr);
    assert!(!is_unrestored(&testbed.side(0)));
    assert_eq!((testbed.side_link(0), testbed.side_link(1)), before);
    assert_gone(&name);
}
