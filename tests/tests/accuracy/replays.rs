//! Replayed frames are known again, one by one.

use super::{assert_found, found};
use packetrig_testkit::Lab;
use packetrig_testkit::device::{
    DeviceReport, FaultPlan, FaultRule, FrameClassifier, FrameFault, HeaderEdit, RulePositions,
};
use packetrig_tests::at_once::for_all;
use packetrig_tests::judged_run::LONG_DRAIN;
use packetrig_tests::program::{Report, Running};
use packetrig_tests::recording::{Recorded, stored, tcp, udp};
use packetrig_tests::skip;

const FRAMES: u64 = 3000;

/// Replays frames that all have room for a tag through a device with this rule; `None` without rights.
fn through(rule: FaultRule) -> Option<(Report, DeviceReport)> {
    through_on("packet", rule)
}

/// The same on a back end; `None` also where it cannot run.
fn through_on(back_end: &str, rule: FaultRule) -> Option<(Report, DeviceReport)> {
    let plan = FaultPlan {
        seed: 4711,
        classifier: FrameClassifier::SourceMac,
        rules: vec![rule],
        ..FaultPlan::without_faults()
    };
    let mut lab = skip::lab(|| Lab::with_device(2, plan))?;
    let frame =
        |n: u64| if n.is_multiple_of(2) { udp(1, n, 100) } else { tcp(1, n, 21 + (n % 500) as usize) };
    let frames: Vec<_> = (0..FRAMES).map(|n| Recorded { at: n * 150_000, bytes: frame(n) }).collect();
    let (_directory, file) = stored(&frames);
    if back_end != "packet" && !skip::may_use_bpf(lab.enable_live_frames()) {
        return None;
    }
    let ports = ["--tx", &lab.location(0), "--rx", &lab.location(1)];
    let flags = [&ports[..], &["--back-end", back_end, "--drain", LONG_DRAIN]].concat();
    let finished = Running::replay(&file, &flags).finish();
    let device = lab.stop_device().unwrap();
    assert_eq!(device.own_losses, 0, "the device lost frames by itself: its truth is not the whole truth");
    Some((finished.report(), device))
}

#[test]
fn lost_frames_are_lost_and_no_others() {
    let Some((report, truth)) =
        through(FaultRule::new(RulePositions::draw_positions(1, 37, 0..FRAMES), FrameFault::Drop))
    else {
        return;
    };
    let accounts = assert_found(&report, "replay", &truth, 1);
    assert_eq!((accounts.lost, report.lost_between()), (37, 37));
    report.assert_lossy();
}

#[test]
fn replay_through_xdp_is_verified_per_frame() {
    let dropped = FaultRule::new(RulePositions::draw_positions(3, 41, 0..FRAMES), FrameFault::Drop);
    let damage = FrameFault::Corrupt { from_end: 20, mask: 0x10 };
    let damaged = FaultRule::new(RulePositions::draw_positions(6, 20, 0..FRAMES), damage);
    let rules = [(dropped, (41, 0)), (damaged, (0, 20))];
    let cases: Vec<_> =
        ["xdp", "af-xdp"].into_iter().flat_map(|end| rules.clone().map(|rule| (end, rule))).collect();
    for_all(&cases, |(back_end, (rule, wanted))| {
        let Some((report, truth)) = through_on(back_end, rule.clone()) else { return };
        let accounts = assert_found(&report, "replay", &truth, 1);
        assert_eq!((accounts.lost, accounts.corrupt), *wanted);
        let info = &report.0["ports"][0]["info"];
        assert_eq!(info["back_end"], "af-xdp");
        assert!(info["why"].as_str().unwrap().contains("AF_XDP (copy)"), "{info}");
    });
}

#[test]
fn copies_are_found() {
    let rule =
        FaultRule::new(RulePositions::draw_positions(2, 25, 0..FRAMES), FrameFault::Duplicate { copies: 1 });
    let Some((report, truth)) = through(rule) else { return };
    assert_eq!(assert_found(&report, "replay", &truth, 1).duplicates, 25);
}

#[test]
fn late_frames_are_found() {
    let rule = FaultRule::new(
        RulePositions::draw_positions(5, 30, 0..FRAMES - 100),
        FrameFault::HoldBack { frames: 3 },
    );
    let Some((report, truth)) = through(rule) else { return };
    assert_eq!(assert_found(&report, "replay", &truth, 1).reordered, 30);
}

#[test]
fn tag_checksum_detects_damaged_replay_payload() {
    let rule = FaultRule::new(
        RulePositions::draw_positions(6, 20, 0..FRAMES),
        FrameFault::Corrupt { from_end: 20, mask: 0x10 },
    );
    let Some((report, truth)) = through(rule) else { return };
    assert_eq!(assert_found(&report, "replay", &truth, 1).corrupt, 20);
}

#[test]
fn rewritten_headers_are_nobodys_fault() {
    let rule = FaultRule::new(
        RulePositions::All,
        FrameFault::Rewrite(HeaderEdit::PushVlan { tpid: 0x8100, tci: 7 }),
    );
    let Some((report, _)) = through(rule) else { return };
    let accounts = found(&report, "replay");
    assert_eq!((accounts.unique, accounts.corrupt, accounts.altered), (FRAMES, 0, 0));
    assert_eq!(report.verdict(), "PASS", "{}", report.0["verdict"]);
}
