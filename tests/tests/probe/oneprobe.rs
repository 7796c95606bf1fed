//! Loss and reordering as a web server's answers tell them, next to the truth log of what made them.

use crate::testbed::{Testbed, apart, said};
use packetrig_sys::clock;
use packetrig_tests::program::Running;
use packetrig_tests::truth::Told;
use rustix::process::Signal;
use serde_json::Value;
use std::net::{Ipv4Addr, TcpStream};

/// A server that can be reached, of a file that is large enough.
fn served(testbed: &mut Testbed, server: &[&str]) {
    std::fs::write(testbed.file("large"), vec![b'x'; 300_000]).unwrap();
    testbed.serve(1, server);
    let deadline = clock::monotonic_ns() + 20_000_000_000;
    let is_there = || TcpStream::connect((Ipv4Addr::new(198, 18, 0, 2), 8080)).is_ok();
    // From beside it: what is between the hosts carries nothing yet.
    while !testbed.host(1).run_in_namespace(is_there).unwrap() {
        assert!(clock::monotonic_ns() < deadline, "{server:?} does not listen");
        clock::sleep_until_ns(clock::monotonic_ns() + 20_000_000);
    }
}

struct Through {
    report: Value,
    told: Told,
}

/// A series through an impaired tap.
fn through(testbed: &Testbed, impairments: &[&str], count: &str) -> Through {
    let (truth, outcomes) = (testbed.file("truth.jsonl"), testbed.file("outcomes.jsonl"));
    let file = truth.display().to_string();
    let sides = [testbed.lab.device_location(0), testbed.lab.device_location(1)];
    let usual = ["tap", &sides[0], &sides[1], "--json", "--no-link-state", "--seed", "5", "--truth", &file];
    let mut tap = Running::start(&[&usual[..], impairments].concat(), "");
    tap.await_remark("forwarding");
    let write = outcomes.display().to_string();
    let words = ["oneprobe", "198.18.0.2", "--port", "8080", "--path", "/large", "-c", count, "-i", "10ms"];
    let finished = testbed.probe(&[&words[..], &["--write", &write]].concat());
    tap.signal(Signal::TERM);
    let ended = tap.finish();
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(finished.code, Some(0), "{}{}", finished.stdout, finished.stderr);
    let ahead = u64::try_from(clock::measure_realtime_offset().offset_ns).unwrap();
    Through { report: said(&finished), told: Told::read(&outcomes, &truth, ahead).unwrap() }
}

impl Through {
    fn number(&self, path: &str) -> u64 {
        let found = self.report.pointer(path).and_then(Value::as_u64);
        found.unwrap_or_else(|| panic!("no {path} in {}", self.report))
    }

    /// Every probe that tells something, next to what was done to its frames. Gives how many were lost there and back. Of all probes four of
    /// five tell something: a machine that is away for 0.1 s makes a probe ambiguous.
    fn agrees(&self) -> (u64, u64) {
        let (_, sum, wrong) = self.told.losses();
        assert!(wrong.is_empty(), "{wrong:?}");
        let (told, probes) = (self.number("/report/told"), self.number("/report/probes"));
        assert!(5 * told >= 4 * probes, "{}", self.report);
        (sum.there, sum.back)
    }
}

#[test]
fn oneprobe_loss_matches_the_truth_log() {
    let Some(mut testbed) = apart() else { return };
    served(&mut testbed, &["busybox", "httpd", "-f", "-p", "198.18.0.2:8080", "-h", "."]);
    let told = through(&testbed, &["--impair-ab", "loss=4%", "--impair-ba", "loss=7%"], "250");
    let (there, back) = told.agrees();
    assert!(there > 5 && back > 10, "{there} {back}: {}", told.report);
    assert_eq!((told.number("/report/forward/lost"), told.number("/report/reverse/lost")), (there, back));
    assert_eq!(told.number("/report/probes"), 250);
    assert_eq!(told.number("/report/forward/reordered") + told.number("/report/reverse/reordered"), 0);
}

#[test]
fn oneprobe_clean_path_has_delay_without_loss() {
    let Some(mut testbed) = apart() else { return };
    served(&mut testbed, &["python3", "-m", "http.server", "--bind", "198.18.0.2", "8080"]);
    let told = through(&testbed, &["--impair-ba", "delay=15ms"], "60");
    assert_eq!(told.agrees(), (0, 0));
    assert_eq!(told.number("/report/probes"), 60);
    assert!(told.number("/round_trip/min_ns") >= 15_000_000);
    assert!(told.number("/round_trip/samples") >= 40);
}

#[test]
fn overtaken_answers_are_told_from_overtaken_probes() {
    let Some(mut testbed) = apart() else { return };
    served(&mut testbed, &["busybox", "httpd", "-f", "-p", "198.18.0.2:8080", "-h", "."]);
    let told = through(&testbed, &["--impair-ab", "reorder=10%,reorder-by=1"], "150");
    let there = told.number("/report/forward/reordered");
    // First probes that were held back behind their seconds.
    let held = told.told.held_there();
    assert!(there >= 4 && there <= held, "{there} of {held}: {}", told.report);
    let lost = ["forward", "reverse"].map(|way| told.number(&format!("/report/{way}/lost")));
    assert_eq!((told.number("/report/reverse/reordered"), lost), (0, [0, 0]), "{}", told.report);
}

#[test]
fn oneprobe_without_permission_is_refused() {
    let Some(testbed) = apart() else { return };
    let through = testbed.lab.location(0);
    let refused = Running::start(&["probe", "oneprobe", "198.18.0.2", "--through", &through], "").finish();
    refused.assert_refused(8, &["probing 198.18.0.2 is not allowed", "--allow"]);
}
