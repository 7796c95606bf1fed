//! The device's own truth, against frames that say themselves where they came from.

use super::*;
use crate::{
    DelayDistribution, DelayJitter, FaultRule, HeaderEdit, KeyFrameTruth, KeyTruths, QueueLimit, RateQueue,
    RulePositions,
};
use packetrig_units::{BitRate, Nanos};
use proptest::prelude::*;

/// A frame whose payload holds its position.
fn frame(position: u64) -> Vec<u8> {
    let mut bytes = vec![0u8; 60];
    bytes[50..58].copy_from_slice(&position.to_be_bytes());
    bytes
}

fn position(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame[50..58].try_into().unwrap())
}

/// Departures when `count` frames arrive one microsecond apart, and the truth.
fn pass(rules: Vec<FaultRule>, count: u64) -> (Vec<u64>, KeyFrameTruth) {
    let mut impairer = FrameImpairer::new(
        FaultPlan { seed: 1, rules, ..FaultPlan::without_faults() },
        0,
        KeyTruths::default(),
    );
    let mut left = Vec::new();
    let mut out = |frame: &[u8], _: u64| left.push(position(frame));
    for n in 0..count {
        impairer.release_due_frames(n * 1000, &mut out);
        impairer.accept_frame(n * 1000, &frame(n), &mut out);
    }
    let truth = impairer.into_observer(count * 1000, &mut out).0.remove(&0).unwrap_or_default();
    (left, truth)
}

fn at(positions: &[u64], fault: FrameFault) -> FaultRule {
    FaultRule::new(RulePositions::At(positions.iter().copied().collect()), fault)
}

#[test]
fn a_faultless_device_is_a_cable() {
    let (left, truth) = pass(vec![], 5);
    assert_eq!(left, [0, 1, 2, 3, 4]);
    assert_eq!((truth.received, truth.departures), (5, left));
}

#[test]
fn each_fault_does_what_it_says() {
    assert_eq!(pass(vec![at(&[1, 2], FrameFault::Drop)], 5).0, [0, 3, 4]);
    assert_eq!(pass(vec![at(&[1], FrameFault::Duplicate { copies: 2 })], 3).0, [0, 1, 1, 1, 2]);
    assert_eq!(pass(vec![at(&[1], FrameFault::HoldBack { frames: 2 })], 5).0, [0, 2, 3, 1, 4]);
    assert_eq!(pass(vec![at(&[1], FrameFault::Delay(Nanos::new(2500)))], 5).0, [0, 2, 3, 1, 4]);
}

#[test]
fn frames_held_when_the_device_stops_leave_last() {
    let (left, truth) = pass(vec![at(&[3], FrameFault::HoldBack { frames: 10 })], 5);
    assert_eq!(left, [0, 1, 2, 4, 3]);
    assert_eq!(truth.expected_counts().max_extent, 1);
}

#[test]
fn a_uniform_delay_keeps_the_order() {
    let (left, truth) =
        pass(vec![FaultRule::new(RulePositions::All, FrameFault::Delay(Nanos::new(3000)))], 10);
    assert_eq!(left, (0..10).collect::<Vec<_>>());
    assert_eq!((truth.delayed, truth.expected_counts().reordered), (10, 0));
}

#[test]
fn damage_and_rewriting_change_the_bytes_they_say() {
    let mut impairer = FrameImpairer::new(
        FaultPlan {
            rules: vec![
                at(&[0], FrameFault::Corrupt { from_end: 1, mask: 0x81 }),
                at(&[1], FrameFault::Rewrite(HeaderEdit::SourceMac([2; 6]))),
                at(&[2], FrameFault::Rewrite(HeaderEdit::PopVlan)),
            ],
            ..FaultPlan::without_faults()
        },
        0,
        KeyTruths::default(),
    );
    let mut left = Vec::new();
    for _ in 0..3 {
        impairer.accept_frame(0, &[0; 60], &mut |frame, _| left.push(frame.to_vec()));
    }
    assert_eq!((left[0][59], &left[1][6..12], &left[2]), (0x81, &[2u8; 6][..], &vec![0; 60]));
    let truth = impairer.into_observer(0, &mut |_, _| {}).0.remove(&0).unwrap();
    // Nothing was popped, so nothing was rewritten.
    assert_eq!((truth.corrupted, truth.rewritten), ([0].into(), [1].into()));
}

proptest! {
    #[test]
    fn the_truth_is_what_left(
        seed: u64, drop in 0u32..200_000, duplicate in 0u32..200_000, hold in 0u32..200_000, frames in 1u32..20,
        delay in 0u32..200_000, count in 0u64..300,
    ) {
        let random = |millionths| RulePositions::Random { millionths };
        let rules = vec![
            FaultRule::new(random(drop), FrameFault::Drop),
            FaultRule::new(random(duplicate), FrameFault::Duplicate { copies: 1 }),
            FaultRule::new(random(hold), FrameFault::HoldBack { frames }),
            FaultRule::new(random(delay), FrameFault::Delay(Nanos::new(7_000))),
        ];
        let mut impairer = FrameImpairer::new(FaultPlan { seed, rules, ..FaultPlan::without_faults() }, 0, KeyTruths::default());
        let mut left = Vec::new();
        for n in 0..count {
            impairer.release_due_frames(n * 1000, &mut |frame, _| left.push(position(frame)));
            impairer.accept_frame(n * 1000, &frame(n), &mut |frame, _| left.push(position(frame)));
        }
        let truth = impairer.into_observer(count * 1000, &mut |frame, _| left.push(position(frame)));
        let truth = truth.0.get(&0).cloned().unwrap_or_default();
        let accounts = truth.expected_counts();
        prop_assert_eq!(&truth.departures, &left);
        prop_assert_eq!(accounts.lost, truth.dropped.len() as u64);
        prop_assert_eq!(accounts.duplicates, truth.duplicated.values().map(|c| u64::from(*c)).sum::<u64>());
        prop_assert_eq!(accounts.unique + accounts.lost, count);
        prop_assert!(accounts.max_extent >= u64::from(accounts.reordered > 0));
    }
}

/// Departures with their times, of frames that arrive at these instants. The impairer is polled every microsecond.
fn timed(plan: FaultPlan, arrivals: &[u64], end: u64) -> (Vec<(u64, u64)>, KeyFrameTruth) {
    let mut impairer = FrameImpairer::new(plan, 0, KeyTruths::default());
    let mut left = Vec::new();
    let mut next = 0;
    for now in (0..=end).step_by(1000) {
        impairer.release_due_frames(now, &mut |frame, _| left.push((now, position(frame))));
        while arrivals.get(next).is_some_and(|at| *at <= now) {
            impairer
                .accept_frame(now, &frame(next as u64), &mut |frame, _| left.push((now, position(frame))));
            next += 1;
        }
    }
    assert_eq!(impairer.next_due_time(), None, "the test looked long enough");
    (left, impairer.into_observer(end, &mut |_, _| {}).0.remove(&0).unwrap_or_default())
}

#[test]
fn rate_queue_spaces_frames_and_drops_tail() {
    // 64 bytes with FCS in 4 us; three frames have room.
    let queue = RateQueue { rate: BitRate::new(128_000_000), room: QueueLimit::Frames(3) };
    let plan = FaultPlan { queue: Some(queue), ..FaultPlan::without_faults() };
    let (left, truth) = timed(plan, &[0; 6], 100_000);
    assert_eq!(left, [(4_000, 0), (8_000, 1), (12_000, 2)]);
    assert_eq!((truth.received, truth.dropped), (6, [3, 4, 5].into()));
}

#[test]
fn copies_take_room_like_frames() {
    let queue = RateQueue { rate: BitRate::new(128_000_000), room: QueueLimit::Frames(3) };
    let rules = vec![at(&[0, 1], FrameFault::Duplicate { copies: 1 })];
    let (left, truth) =
        timed(FaultPlan { queue: Some(queue), rules, ..FaultPlan::without_faults() }, &[0, 0, 0], 100_000);
    assert_eq!(left, [(4_000, 0), (8_000, 0), (12_000, 1)]);
    assert_eq!((truth.dropped, truth.duplicated), ([2].into(), [(0, 1)].into()));
}

#[test]
fn held_frame_counts_queued_copies_once() {
    let queue = RateQueue { rate: BitRate::new(128_000_000), room: QueueLimit::Frames(9) };
    let rules =
        || vec![at(&[0], FrameFault::HoldBack { frames: 2 }), at(&[1], FrameFault::Duplicate { copies: 2 })];
    let order = |queue| {
        let plan = FaultPlan { queue, rules: rules(), ..FaultPlan::without_faults() };
        let (left, _) = timed(plan, &[0, 0, 0, 0], 100_000);
        left.into_iter().map(|(_, position)| position).collect::<Vec<_>>()
    };
    assert_eq!(order(None), [1, 1, 1, 2, 0, 3]);
    assert_eq!(order(Some(queue)), [1, 1, 1, 2, 0, 3]);
}

#[test]
fn jitter_stays_within_spread_and_can_keep_order() {
    let jitter = DelayJitter { spread: Nanos::from_micros(40), shape: DelayDistribution::Uniform };
    let rules = || {
        vec![
            FaultRule::new(RulePositions::All, FrameFault::Delay(Nanos::from_micros(100))),
            FaultRule::new(RulePositions::All, FrameFault::Jitter(jitter)),
        ]
    };
    let arrivals: Vec<u64> = (0..500).map(|n| n * 10_000).collect();
    for in_order in [false, true] {
        let plan = FaultPlan { seed: 5, rules: rules(), in_order, ..FaultPlan::without_faults() };
        let (left, truth) = timed(plan, &arrivals, 6_000_000);
        let delays: Vec<u64> = left.iter().map(|(at, position)| at - position * 10_000).collect();
        // A frame that is due between two polls leaves at the later one.
        assert!(delays.iter().all(|delay| (60_000..=141_000).contains(delay)), "{delays:?}");
        assert!(delays.iter().max() > Some(&130_000) && delays.len() == 500);
        assert_eq!(truth.expected_counts().reordered > 0, !in_order);
    }
}

#[test]
fn held_back_frame_leaves_after_maximum_hold() {
    let plan = FaultPlan {
        rules: vec![
            at(&[1], FrameFault::HoldBack { frames: 3 }),
            at(&[1], FrameFault::Delay(Nanos::from_micros(5))),
        ],
        held_at_most: Some(Nanos::from_micros(20)),
        ..FaultPlan::without_faults()
    };
    let (left, truth) = timed(plan, &[0, 1000, 2000], 100_000);
    assert_eq!(left, [(0, 0), (2_000, 2), (26_000, 1)]);
    assert_eq!((truth.held, truth.delayed), ([1].into(), 1));
}

#[test]
fn corruption_flips_one_reported_bit_after_ethernet_header() {
    struct LastFrame(Option<(u32, u8)>);
    impl FrameObserver for LastFrame {
        fn on_arrival(&mut self, _: FrameIdentity, deeds: &FrameActions, _: &[u8]) {
            self.0 = deeds.corrupted;
        }
        fn on_departure(&mut self, _: FrameIdentity) {}
    }
    let plan = FaultPlan {
        seed: 9,
        rules: vec![FaultRule::new(RulePositions::All, FrameFault::CorruptAnywhere)],
        ..FaultPlan::without_faults()
    };
    let mut impairer = FrameImpairer::new(plan, 0, LastFrame(None));
    let mut places = std::collections::BTreeSet::new();
    for _ in 0..500 {
        let mut left = Vec::new();
        impairer.accept_frame(0, &[0; 60], &mut |frame, _| left = frame.to_vec());
        let (at, mask) = impairer.observer_mut().0.unwrap();
        let mut wanted = [0u8; 60];
        wanted[at as usize] = mask;
        assert!(at >= 14 && mask.is_power_of_two() && left == wanted);
        places.insert((at, mask));
    }
    // 368 bits; 500 draws miss a quarter of them.
    assert!(places.len() > 240, "{}", places.len());
}

#[test]
fn impairer_accounts_balance_at_every_moment() {
    let queue = RateQueue { rate: BitRate::new(100_000_000), room: QueueLimit::Bytes(2_000) };
    let rules = vec![
        FaultRule::new(RulePositions::Random { millionths: 50_000 }, FrameFault::Drop),
        FaultRule::new(RulePositions::Random { millionths: 50_000 }, FrameFault::Duplicate { copies: 2 }),
        FaultRule::new(RulePositions::Random { millionths: 50_000 }, FrameFault::HoldBack { frames: 4 }),
        FaultRule::new(RulePositions::All, FrameFault::Delay(Nanos::from_micros(50))),
    ];
    #[derive(Default)]
    struct KeptAccounts([u64; 5]);
    impl FrameObserver for KeptAccounts {
        fn on_arrival(&mut self, _: FrameIdentity, deeds: &FrameActions, _: &[u8]) {
            let more = [1, u64::from(deeds.copies), u64::from(deeds.dropped), u64::from(deeds.overflowed), 0];
            for (sum, more) in self.0.iter_mut().zip(more) {
                *sum += more;
            }
        }
        fn on_departure(&mut self, _: FrameIdentity) {
            self.0[4] += 1;
        }
    }
    let plan =
        FaultPlan { seed: 2, queue: Some(queue), rules, in_order: true, ..FaultPlan::without_faults() };
    let mut impairer = FrameImpairer::new(plan, 0, KeptAccounts::default());
    for n in 0..5_000 {
        impairer.release_due_frames(n * 4_000, &mut |_, _| {});
        impairer.accept_frame(n * 4_000, &frame(n), &mut |_, _| {});
        let inside = impairer.frames_inside();
        let [arrived, copies, dropped, overflowed, left] = impairer.observer_mut().0;
        assert_eq!(arrived + copies, left + dropped + overflowed + inside);
    }
    let [_, copies, dropped, overflowed, _] = impairer.observer_mut().0;
    assert!(copies > 0 && dropped > 0 && overflowed > 0);
}
