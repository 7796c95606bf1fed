//! Interfaces of a lab: what the other end sent is what the ledger has, to the packet.

use super::{ledger, mixture, number, send, udp};
use packetrig_sys::xdp;
use packetrig_testkit::Lab;
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::scraping;
use packetrig_tests::skip::{self, OwnLab};
use rustix::process::Signal;

const FRAMES: usize = 12_000;

fn lab(source: &str) -> Option<OwnLab> {
    if source != "packet" && !skip::may_use_bpf(xdp::bpf_obstacle().map_or(Ok(()), Err)) {
        return None;
    }
    skip::lab(Lab::cabled_pair)
}

/// Meters at the second port what the first sends, until it is told to end.
fn meter(lab: &Lab, flags: &[&str]) -> Finished {
    let location = lab.location(1);
    let mut arguments = vec!["meter", &location, "--direction", "in", "--json"];
    arguments.extend(flags);
    let mut running = Running::start(&arguments, "");
    running.await_remark("listening");
    send(&lab.ports()[0], &mixture(), FRAMES);
    running.signal(Signal::TERM);
    running.finish()
}

fn assert_exact(flags: &[&str]) {
    let Some(lab) = lab(flags[1]) else { return };
    let result = ledger(&meter(&lab, flags));
    let sent = FRAMES as u64;
    assert_eq!(number(&result, "/ledger/capture/arrived"), sent, "{flags:?}");
    assert_eq!(number(&result, "/ledger/capture/delivered"), sent, "{flags:?}");
    assert_eq!(number(&result, "/ledger/packets/ignored/arp"), sent / 6, "{flags:?}: ARP");
    assert_eq!(number(&result, "/ledger/packets/recorded"), sent / 6 * 5, "{flags:?}");
    // Both directions are one flow, which is in one worker's table.
    assert_eq!(number(&result, "/ledger/packets/flows"), 50, "{flags:?}");
}

#[test]
fn packet_rings_meter_every_sent_packet() {
    assert_exact(&["--source", "packet"]);
}

#[test]
fn shared_rings_meter_each_flow_once() {
    assert_exact(&["--source", "packet", "--workers", "3"]);
}

#[test]
fn trimmed_xdp_frames_meter_every_sent_packet() {
    assert_exact(&["--source", "xdp", "--snap", "64"]);
}

#[test]
fn headers_lose_no_packet_of_what_was_sent() {
    assert_exact(&["--source", "headers"]);
}

#[test]
fn idle_flow_ends_without_further_traffic() {
    let Some(lab) = lab("packet") else { return };
    let location = lab.location(1);
    let flags = ["--idle", "200ms", "--metrics", "127.0.0.1:0", "--json", "--direction", "in"];
    let mut running = Running::start(&[&["meter", location.as_str()], &flags[..]].concat(), "");
    let address = scraping::await_metrics(&mut running);
    send(&lab.ports()[0], &[udp(1, false)], 10);
    let text = scraping::await_line(&address, "packetrig_meter_recorded_packets_total 10");
    assert!(text.contains("packetrig_meter_live_packets 0\n"), "{text}");
    assert!(!running.has_ended());
    running.signal(Signal::INT);
    assert_eq!(number(&ledger(&running.finish()), "/ledger/packets/records"), 1);
}

#[test]
fn quiet_meter_prints_nothing_but_warnings() {
    let finished = Running::start(&["meter", "lo", "--json", "--quiet", "--time", "10ms"], "").finish();
    assert_eq!(number(&ledger(&finished), "/ledger/capture/ring_dropped"), 0);
    // What the kernel lacks is a warning.
    let others: Vec<&str> = finished
        .stderr
        .lines()
        .filter(|line| !line.contains("warning") && !line.contains("missing"))
        .collect();
    assert_eq!(others, [""; 0]);
}

#[test]
fn meter_reports_interface_that_is_down() {
    let Some(lab) = lab("packet") else { return };
    // Nobody has brought it up in a namespace that is new.
    let place = format!("{}/lo", lab.ports()[1].namespace());
    let finished = Running::start(&["meter", &place, "--json", "-q", "--time", "10ms"], "").finish();
    assert_eq!(number(&ledger(&finished), "/ledger/capture/delivered"), 0);
    assert!(finished.stderr.contains(&format!("{place} is down")), "{}", finished.stderr);
}
