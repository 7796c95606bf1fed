//! What is part of a verdict beside counts: frames without a tag, what was asked for and not done, other headers.

use super::account::{judgement, wrong_verdict};
use super::table::{FAIL, PASS, UNKNOWN, Wanted};
use super::{check_on_all, differs};
use packetrig_tests::judge::{Judge, differences};
use packetrig_tests::judged_run::{Judged, JudgedRun, LONG_DRAIN, ON_A_BUSY_MACHINE, document, flow, lab};
use packetrig_tests::program::{Report, Running};
use packetrig_tests::recording::{Recorded, arp, stored, udp};
use packetrig_tests::rig_fault::RigFault;
use packetrig_tests::small_disk::SmallDisk;

const KEY: u16 = 33_000;

#[test]
fn dropped_untagged_frames_fail_the_device() {
    check_on_all(|back_end| {
        let Some(lab) = lab(back_end) else { return Vec::new() };
        let Some(judge) = Judge::start(&lab, "arp_drop") else { return Vec::new() };
        let bytes = |n: u64| if n.is_multiple_of(10) { udp(1, n, 200) } else { arp(1) };
        let frames: Vec<_> = (0..1000).map(|n| Recorded { at: n * 1_000_000, bytes: bytes(n) }).collect();
        let (_directory, file) = stored(&frames);
        let (tx, rx) = (lab.location(0), lab.location(1));
        let flags = ["--tx", &tx, "--rx", &rx, "--back-end", back_end, "--drain", LONG_DRAIN];
        let finished = Running::replay(&file, &flags).finish();
        let report = finished.report();
        let number = |path: &str| report.number("replay", path);
        let dropped = judge.stop().without_key().lost_by_device();
        let mut found: Vec<String> = differs("dropped", dropped, 900).into_iter().collect();
        found.extend(wrong_verdict(finished.code, &report, FAIL, false));
        found.extend(differs("compared", number("/contents/compared"), 900));
        found.extend(differs("lost by content", number("/contents/lost"), 900));
        found.extend(differs("lost with a tag", number("/loss/lost"), 0));
        found
    });
}

/// 6 MB of frames, and room for 2.
#[test]
fn capture_exceeding_disk_is_inconclusive() {
    check_on_all(|back_end| {
        let Some(lab) = lab(back_end) else { return Vec::new() };
        let Some(judge) = Judge::start(&lab, "") else { return Vec::new() };
        let Some(disk) = SmallDisk::mount(c"size=2m") else { return Vec::new() };
        let out = disk.path().join("out").display().to_string();
        let flows = vec![flow("stream", KEY).pps(4000).packets(6000).size(1000)];
        let document = document(&lab, flows).capture(1, "pcapng");
        let arguments = [
            "run",
            "{plan}",
            "--out",
            &out,
            "--store",
            "{out}-store",
            "--quiet",
            "--json",
            "--back-end",
            back_end,
        ];
        let arguments = [&arguments[..], &ON_A_BUSY_MACHINE].concat();
        let finished = Running::start(&arguments, &document.text()).finish();
        let Ok(value) = serde_json::from_str(&finished.stdout) else {
            return vec![format!("no report; exit code {:?}: {}", finished.code, finished.stderr)];
        };
        let report = Report(value);
        let mut found = differences(&report, "stream", &judge.stop().stream(KEY), RigFault::None);
        found.extend(wrong_verdict(finished.code, &report, UNKNOWN, false));
        let counts = ["written", "dropped"].map(|name| report.0["captures"][0][name].as_u64().unwrap_or(0));
        found.extend(differs("frames to write", counts.iter().sum(), 6000));
        if counts[1] == 0 {
            found.push(format!("all frames are in the file: {}", report.0["captures"]));
        }
        found
    });
}

#[test]
fn address_rewrites_fail_only_with_altered_limit() {
    check_on_all(|back_end| {
        std::thread::scope(|scope| {
            let strict = scope.spawn(|| rewritten(back_end, &["--max-altered", "0%"], FAIL));
            let usual = rewritten(back_end, &[], PASS);
            [strict.join().unwrap(), usual].concat()
        })
    });
}

fn rewritten(back_end: &str, flags: &[&str], wanted: Wanted) -> Vec<String> {
    let run = JudgedRun {
        back_end,
        flows: vec![flow("stream", KEY).pps(2000)],
        rules: "rewrite_mac",
        rig_fault: RigFault::None,
        fault_after: 0,
        fault_ns: 0,
        flags: &[&ON_A_BUSY_MACHINE, flags].concat(),
    };
    let Some(Judged { finished, log, .. }) = run.run() else { return Vec::new() };
    let (report, truth) = (finished.report(), log.stream(KEY));
    let mut found = differences(&report, "stream", &truth, RigFault::None);
    found.extend(differs("altered", report.number("stream", "/received/altered"), truth.rewritten()));
    found.extend(wrong_verdict(finished.code, &report, wanted, false));
    let broken: &[&str] = if wanted == FAIL { &["alteration"] } else { &[] };
    found.extend(differs(
        "criteria",
        judgement(&report, "stream").1,
        broken.iter().map(|b| (*b).to_owned()).collect(),
    ));
    found
}
