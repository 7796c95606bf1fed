//! Delay and loss that the kernel makes, as packetrig finds them.

use super::{document, inside};
use packetrig_testkit::Lab;
use packetrig_tests::document::Flow;
use packetrig_tests::program::run;
use packetrig_tests::skip;

const FRAMES: u64 = 3000;
const DELAY_NS: u64 = 10_000_000;

/// A run over a bridge whose way to the second port goes through netem.
fn through(settings: &str) -> Option<packetrig_tests::program::Report> {
    let lab = skip::lab(|| Lab::with_bridge(2))?;
    let device = lab.device_netns().unwrap();
    // On the device under test: our own frames pass by the queueing discipline of the port they leave from.
    inside(device, &format!("tc qdisc add dev port1 root netem limit 10000 {settings}"));
    Some(run(&document(&lab).flow(Flow::new("f", 1).packets(FRAMES))).report())
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn delay_and_loss_are_found() {
    let Some(report) = through("delay 10ms loss 2%") else { return };
    let (sent, lost) = (report.number("f", "/sent/frames"), report.number("f", "/loss/lost"));
    assert_eq!(sent, FRAMES);
    // Two in a hundred, give or take seven deviations.
    assert!((10..=120).contains(&lost), "{lost} of {sent} lost");
    assert_eq!(report.number("f", "/received/frames"), sent - lost);
    report.assert_lossy();
    assert!(report.number("f", "/latency/min") >= DELAY_NS, "{}", report.stream("f")["latency"]);
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn delay_alone_loses_nothing() {
    let Some(report) = through("delay 10ms") else { return };
    assert_eq!(report.number("f", "/loss/lost"), 0);
    assert_eq!(report.number("f", "/received/frames"), FRAMES);
    assert!(report.number("f", "/latency/min") >= DELAY_NS, "{}", report.stream("f")["latency"]);
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn copies_and_damage_are_found() {
    let Some(report) = through("duplicate 3% corrupt 3%") else { return };
    assert!(report.number("f", "/received/sequence/duplicates") > 0, "{}", report.stream("f")["received"]);
    let damaged = report.number("f", "/received/corrupt")
        + report.number("f", "/received/altered")
        + report.number("f", "/received/unnumbered");
    assert!(damaged > 0, "{}", report.stream("f")["received"]);
}
