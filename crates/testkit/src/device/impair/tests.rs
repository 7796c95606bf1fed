//! The device's own truth, against frames that say themselves where they came from.

use super::*;
use crate::device::{Edit, Rule, Select};
use packetrig_units::Nanos;
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

/// What leaves when `count` frames arrive one microsecond apart, and the truth.
fn pass(rules: Vec<Rule>, count: u64) -> (Vec<u64>, Truth) {
    let mut impairer = Impairer::new(FaultPlan { seed: 1, rules, ..FaultPlan::none() }, 0);
    let mut left = Vec::new();
    let mut out = |frame: &[u8]| left.push(position(frame));
    for n in 0..count {
        impairer.release(n * 1000, &mut out);
        impairer.accept(n * 1000, &frame(n), &mut out);
    }
    let truth = impairer.finish(&mut out).remove(&0).unwrap_or_default();
    (left, truth)
}

fn at(positions: &[u64], fault: Fault) -> Rule {
    Rule::new(Select::At(positions.iter().copied().collect()), fault)
}

#[test]
fn a_faultless_device_is_a_cable() {
    let (left, truth) = pass(vec![], 5);
    assert_eq!(left, [0, 1, 2, 3, 4]);
    assert_eq!((truth.received, truth.departures), (5, left));
}

#[test]
fn each_fault_does_what_it_says() {
    assert_eq!(pass(vec![at(&[1, 2], Fault::Drop)], 5).0, [0, 3, 4]);
    assert_eq!(pass(vec![at(&[1], Fault::Duplicate { copies: 2 })], 3).0, [0, 1, 1, 1, 2]);
    assert_eq!(pass(vec![at(&[1], Fault::HoldBack { frames: 2 })], 5).0, [0, 2, 3, 1, 4]);
    assert_eq!(pass(vec![at(&[1], Fault::Delay(Nanos::new(2500)))], 5).0, [0, 2, 3, 1, 4]);
}

#[test]
fn frames_held_when_the_device_stops_leave_last() {
    let (left, truth) = pass(vec![at(&[3], Fault::HoldBack { frames: 10 })], 5);
    assert_eq!(left, [0, 1, 2, 4, 3]);
    assert_eq!(truth.accounts().max_extent, 1);
}

#[test]
fn a_uniform_delay_keeps_the_order() {
    let (left, truth) = pass(vec![Rule::new(Select::All, Fault::Delay(Nanos::new(3000)))], 10);
    assert_eq!(left, (0..10).collect::<Vec<_>>());
    assert_eq!((truth.delayed, truth.accounts().reordered), (10, 0));
}

#[test]
fn damage_and_rewriting_change_the_bytes_they_say() {
    let mut impairer = Impairer::new(
        FaultPlan {
            rules: vec![
                at(&[0], Fault::Corrupt { from_end: 1, mask: 0x81 }),
                at(&[1], Fault::Rewrite(Edit::SourceMac([2; 6]))),
                at(&[2], Fault::Rewrite(Edit::PopVlan)),
            ],
            ..FaultPlan::none()
        },
        0,
    );
    let mut left = Vec::new();
    for _ in 0..3 {
        impairer.accept(0, &[0; 60], &mut |frame| left.push(frame.to_vec()));
    }
    assert_eq!((left[0][59], &left[1][6..12], &left[2]), (0x81, &[2u8; 6][..], &vec![0; 60]));
    let truth = impairer.finish(&mut |_| {}).remove(&0).unwrap();
    // Nothing was popped, so nothing was rewritten.
    assert_eq!((truth.corrupted, truth.rewritten), ([0].into(), [1].into()));
}

proptest! {
    #[test]
    fn the_truth_is_what_left(
        seed: u64, drop in 0u32..200_000, duplicate in 0u32..200_000, hold in 0u32..200_000, frames in 1u32..20,
        delay in 0u32..200_000, count in 0u64..300,
    ) {
        let random = |millionths| Select::Random { millionths };
        let rules = vec![
            Rule::new(random(drop), Fault::Drop),
            Rule::new(random(duplicate), Fault::Duplicate { copies: 1 }),
            Rule::new(random(hold), Fault::HoldBack { frames }),
            Rule::new(random(delay), Fault::Delay(Nanos::new(7_000))),
        ];
        let mut impairer = Impairer::new(FaultPlan { seed, rules, ..FaultPlan::none() }, 0);
        let mut left = Vec::new();
        for n in 0..count {
            impairer.release(n * 1000, &mut |frame| left.push(position(frame)));
            impairer.accept(n * 1000, &frame(n), &mut |frame| left.push(position(frame)));
        }
        let truth = impairer.finish(&mut |frame| left.push(position(frame))).remove(&0).unwrap_or_default();
        let accounts = truth.accounts();
        prop_assert_eq!(&truth.departures, &left);
        prop_assert_eq!(accounts.lost, truth.dropped.len() as u64);
        prop_assert_eq!(accounts.duplicates, truth.duplicated.values().map(|c| u64::from(*c)).sum::<u64>());
        prop_assert_eq!(accounts.unique + accounts.lost, count);
        prop_assert!(accounts.max_extent >= u64::from(accounts.reordered > 0));
    }
}
