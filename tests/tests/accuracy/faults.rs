//! Loss, duplication, reordering, corruption and delay.

use super::{assert_found, through};
use packetrig_testkit::device::{FaultRule, FrameFault, RulePositions};
use packetrig_tests::document::{Flow, ethernet, ipv4, tcp};
use packetrig_units::Nanos;

const FRAMES: u64 = 3000;

fn flow(name: &str, key: u16) -> Flow {
    Flow::new(name, key).pps(6000).packets(FRAMES)
}

#[test]
fn lost_frames_are_found_with_their_bursts() {
    let rules = vec![
        FaultRule::new(RulePositions::draw_positions(1, 40, 0..FRAMES), FrameFault::Drop).for_key(1),
        FaultRule::new(RulePositions::Within(700..733), FrameFault::Drop).for_key(2),
        FaultRule::new(RulePositions::Within(0..5), FrameFault::Drop).for_key(3),
        // The end of a stream is where nothing later shows a gap.
        FaultRule::new(RulePositions::Within(FRAMES - 7..FRAMES), FrameFault::Drop).for_key(4),
    ];
    let names = [("scattered", 1), ("burst", 2), ("head", 3), ("tail", 4), ("untouched", 5)];
    let Some((report, truth)) = through(rules, names.map(|(name, key)| flow(name, key)).to_vec()) else {
        return;
    };
    let accounts = names.map(|(name, key)| assert_found(&report, name, &truth, key.into()));
    assert_eq!(accounts.map(|a| a.lost), [40, 33, 5, 7, 0]);
    assert_eq!((accounts[1].longest_burst, accounts[3].longest_burst), (33, 7));
    assert_eq!(report.verdict(), "FAIL");
    assert_eq!(report.lost_between(), 85);
}

#[test]
fn a_stream_that_never_arrives_is_lost_whole() {
    let rules = vec![FaultRule::new(RulePositions::All, FrameFault::Drop).for_key(1)];
    let Some((report, truth)) = through(rules, vec![flow("gone", 1), flow("there", 2)]) else { return };
    assert_eq!(assert_found(&report, "gone", &truth, 1).lost, FRAMES);
    assert_eq!(assert_found(&report, "there", &truth, 2).lost, 0);
}

#[test]
fn copies_are_found_and_not_taken_for_frames() {
    let rules = vec![
        FaultRule::new(RulePositions::draw_positions(2, 25, 0..FRAMES), FrameFault::Duplicate { copies: 1 })
            .for_key(1),
        FaultRule::new(RulePositions::draw_positions(3, 10, 0..FRAMES), FrameFault::Duplicate { copies: 3 })
            .for_key(2),
    ];
    let Some((report, truth)) = through(rules, vec![flow("twice", 1), flow("four times", 2)]) else { return };
    assert_eq!(assert_found(&report, "twice", &truth, 1).duplicates, 25);
    assert_eq!(assert_found(&report, "four times", &truth, 2).duplicates, 30);
}

#[test]
fn late_frames_are_found_with_their_extent() {
    let rules = vec![
        FaultRule::new(
            RulePositions::draw_positions(5, 30, 0..FRAMES - 100),
            FrameFault::HoldBack { frames: 3 },
        )
        .for_key(1),
        FaultRule::new(RulePositions::At([1000].into()), FrameFault::HoldBack { frames: 1500 }).for_key(2),
    ];
    let Some((report, truth)) = through(rules, vec![flow("a little", 1), flow("a lot", 2)]) else { return };
    assert_eq!(assert_found(&report, "a little", &truth, 1).reordered, 30);
    let accounts = assert_found(&report, "a lot", &truth, 2);
    assert_eq!((accounts.reordered, accounts.max_extent), (1, 1500));
}

#[test]
fn payload_damage_is_found_with_both_tag_forms() {
    // From the end: the tag takes 16 bytes, or 6 in the smallest TCP frame, which has no payload in front of it.
    let payload = FrameFault::Corrupt { from_end: 20, mask: 0x10 };
    let rules = vec![
        FaultRule::new(RulePositions::draw_positions(6, 20, 0..FRAMES), payload.clone()).for_key(1),
        FaultRule::new(
            RulePositions::draw_positions(7, 20, 0..FRAMES),
            FrameFault::Corrupt { from_end: 7, mask: 0x01 },
        )
        .for_key(2),
    ];
    let short = flow("short tag", 2).size(66).packet([ethernet(2), ipv4(), tcp()]);
    let Some((report, truth)) = through(rules, vec![flow("full tag", 1), short]) else { return };
    for (name, key) in [("full tag", 1), ("short tag", 2)] {
        assert_eq!(assert_found(&report, name, &truth, key).corrupt, 20);
    }
}

#[test]
fn damaged_tag_counts_frame_as_unnumbered() {
    let rules = vec![FaultRule::new(
        RulePositions::draw_positions(8, 12, 0..FRAMES),
        FrameFault::Corrupt { from_end: 11, mask: 0x40 },
    )];
    let Some((report, truth)) = through(rules, vec![flow("damaged", 1)]) else { return };
    let damaged = truth.truth(0, 1).corrupted.len() as u64;
    assert_eq!(damaged, 12);
    assert_eq!(report.number("damaged", "/received/unnumbered"), damaged);
    assert_eq!(report.number("damaged", "/loss/lost"), damaged);
    assert_eq!(report.number("damaged", "/received/sequence/unique"), FRAMES - damaged);
    assert_eq!(report.verdict(), "FAIL");
}

#[test]
fn a_delay_is_in_the_latency() {
    const DELAY: u64 = 20_000_000;
    let rules = vec![FaultRule::new(RulePositions::All, FrameFault::Delay(Nanos::new(DELAY))).for_key(1)];
    let flows = vec![flow("delayed", 1), flow("direct", 2)];
    let Some((report, truth)) = through(rules, flows) else { return };
    assert_found(&report, "delayed", &truth, 1);
    assert_found(&report, "direct", &truth, 2);
    // The device forwards no frame earlier than told; how much later is the machine's business.
    assert!(report.number("delayed", "/latency/min") >= DELAY);
    assert!(report.number("delayed", "/latency/min") >= report.number("direct", "/latency/min") + DELAY / 2);
}

#[test]
fn all_faults_at_once_are_kept_apart() {
    let random = |millionths| RulePositions::Random { millionths };
    let rules = vec![
        FaultRule::new(random(10_000), FrameFault::Drop),
        FaultRule::new(random(10_000), FrameFault::Duplicate { copies: 1 }),
        FaultRule::new(random(10_000), FrameFault::HoldBack { frames: 5 }),
        FaultRule::new(random(10_000), FrameFault::Corrupt { from_end: 20, mask: 0xff }),
    ];
    let flows: Vec<Flow> = (1..=8).map(|key| flow(&format!("stream {key}"), key).pps(2000)).collect();
    let Some((report, truth)) = through(rules, flows) else { return };
    for key in 1..=8u32 {
        let accounts = assert_found(&report, &format!("stream {key}"), &truth, key);
        assert!(
            accounts.lost > 0 && accounts.duplicates > 0 && accounts.reordered > 0 && accounts.corrupt > 0
        );
    }
}
