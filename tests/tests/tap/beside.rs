//! A run through a tap that loses frames itself: the report names the tap and does not blame the device.

use crate::testbed::{Testbed, balanced, name, number};
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::judged_run::LONG_DRAIN;
use packetrig_tests::program::{Running, binary};
use packetrig_tests::rig_fault::await_frames;
use rustix::process::Signal;

/// More than the 32 MiB of a tap's ring hold.
const FRAMES: u64 = 40_000;
const BYTES: u32 = 1400;

#[test]
fn tap_ring_losses_are_not_blamed_on_device() {
    let Some(testbed) = Testbed::new("packet", 2) else { return };
    // Of its own, so that runs of other tests do not hear of this tap.
    let directory = tempfile::tempdir().unwrap();
    let place = format!("PACKETRIG_RUN_DIR={}", directory.path().join("run").display());
    let program = binary().display().to_string();
    let (a, b, tap_name) = (testbed.side(0), testbed.side(1), name());
    let words = ["tap", &a, &b, "--back-end", "packet", "--json", "--name", &tap_name];
    let mut tap = Running::start_program("env", &[&[&place[..], &program], &words[..]].concat(), "");
    tap.await_remark("forwarding with back end");
    tap.signal(Signal::STOP);
    let flow = Flow::new("flow", 1).size(BYTES).pps(20_000).packets(FRAMES);
    let document =
        Document::new(&[0, 1].map(|station| testbed.lab().ports()[station].location())).flows([flow]);
    let words = ["run", "{plan}", "--out", "{out}", "--store", "{out}-store", "--max-late", "20s", "--drain"];
    let words = [&[&place[..], &program], &words[..], &[LONG_DRAIN]].concat();
    let mut run = Running::start_program("env", &words, &document.text());
    await_frames(testbed.lab(), &mut run, FRAMES);
    tap.signal(Signal::CONT);
    let finished = run.finish();
    let report = finished.report();
    tap.signal(Signal::INT);
    let account = balanced(&tap.finish());
    let lost = number(&account, "/accounts/directions/0/dropped/ring");
    assert!(lost > 1000, "{account}");
    assert_eq!(report.number("flow", "/loss/lost"), lost);
    assert_eq!((report.verdict(), finished.code), ("INCONCLUSIVE", Some(7)), "{}", finished.stdout);
    let text = format!("tap {tap_name} on this machine lost {lost} frames in its own rings");
    assert!(finished.stdout.contains(&text), "{text}: {}", finished.stdout);
}
