//! Groups of two to four meters in virtual time. The network loses, delays, repeats and cuts, processes pause, die and come back, and
//! the way to the collector breaks. Every run is drawn from its seed.

mod checks;
mod group;
mod meter;
mod world;

use checks::Outcome;
use group::{Breakage, Group};
use world::{Span, WatermarkFrom, World};

/// 150 000 were tried once.
const SEEDS: u64 = 3000;

fn run(world: World) -> Outcome {
    Group::new(world, Breakage::None).run()
}

/// Returns whether one of these worlds shows a fault when this part is broken: a check that cannot fail proves nothing.
fn is_noticed(
    breakage: Breakage,
    worlds: impl Iterator<Item = World>,
    is_fault: fn(&Outcome) -> bool,
) -> bool {
    worlds.into_iter().any(|world| is_fault(&Group::new(world, breakage).run()))
}

#[test]
fn group_loses_no_record_and_terms_are_unique() {
    for seed in 0..SEEDS {
        let outcome = run(World::wild(seed));
        assert_eq!(outcome.lost, [], "seed {seed}: a ready meter stayed up");
        assert_eq!(outcome.shared_terms, [], "seed {seed}");
        assert_eq!(outcome.reversed_terms, [], "seed {seed}");
        assert_eq!(outcome.sent_after_a_stop, 0, "seed {seed}");
        assert!(outcome.is_settled, "seed {seed}: {} changes", outcome.changes_after_healing);
    }
}

#[test]
fn faultless_group_keeps_roles_and_loses_nothing() {
    for seed in 0..SEEDS {
        let outcome = run(World::calm(seed));
        assert_eq!((outcome.changes_after_start, outcome.lost), (0, vec![]), "seed {seed}");
        assert!(outcome.is_settled, "seed {seed}");
    }
}

/// Records come twice from the margin, from the time between two advertisements, and from messages on their
/// way to the collector.
#[test]
fn failover_duplicates_stay_within_watermark_interval() {
    for seed in 0..SEEDS / 3 {
        let mut world = World::calm_without_preemption(seed);
        world.kills = (0..world.meters).map(|meter| (meter, 300, None)).collect();
        // One inactive member stays: the others are killed once it is known which one is inactive.
        let stays = Group::new(World::calm_without_preemption(seed), Breakage::None).active_at(300);
        world.kills.retain(|(meter, _, _)| Some(*meter) == stays);
        let outcome = run(world.clone());
        assert_eq!(outcome.lost, [], "seed {seed}");
        let unsure_us = world.margin_us + world.skew_us + 10_000 + world.delay_us + 2 * world.export_delay_us;
        let most = usize::try_from(unsure_us / group::RECORD_EVERY_US).unwrap() + 2;
        // All standbys may take over before they receive each other's advertisements.
        let most = most * (world.meters - 1);
        assert!(outcome.duplicates <= most, "seed {seed}: {} > {most}", outcome.duplicates);
    }
}

#[test]
fn without_cuts_a_watermark_from_sending_loses_nothing() {
    for seed in 0..SEEDS / 3 {
        let mut world = World::wild(seed);
        world.watermark = WatermarkFrom::Sending;
        world.export_cuts.clear();
        assert_eq!(run(world).lost, [], "seed {seed}");
    }
}

#[test]
fn watermark_at_sending_loses_records_on_broken_path() {
    let worlds = (0..200).map(|seed| World { watermark: WatermarkFrom::Sending, ..World::wild(seed) });
    assert!(is_noticed(Breakage::None, worlds, |outcome| !outcome.lost.is_empty()));
}

/// A cut copy is noticed within 200 ms, so records are replayed from that much before the last watermark.
fn with_a_cut_copy(seed: u64) -> World {
    let mut world = World::calm_without_preemption(seed);
    let cut = Group::new(world.clone(), Breakage::None).active_at(300).expect("elected");
    world.copy_cuts = vec![(cut, Span { from: 300, to: 300 + 200 + seed % 400 })];
    World { margin_us: 250_000, healed_at: 900, end: 1600, ..world }
}

#[test]
fn cut_link_copy_loses_no_record() {
    for seed in 0..SEEDS / 3 {
        let outcome = run(with_a_cut_copy(seed));
        assert_eq!(outcome.lost, [], "seed {seed}");
        assert!(outcome.is_settled, "seed {seed}");
    }
    let worlds = || (0..50).map(with_a_cut_copy);
    assert!(is_noticed(Breakage::Unseeing, worlds(), |outcome| !outcome.lost.is_empty()));
}

/// The counting thread of the meter has no processor during the cut, so its count only jumps less far than those of the
/// others. Later the meter is alone.
fn with_a_cut_nobody_sees(seed: u64) -> World {
    let mut world = World::calm_without_preemption(seed);
    world.copy_cuts = vec![(0, Span { from: 300, to: 700 })];
    world.kills = (1..world.meters).map(|meter| (meter, 2100, None)).collect();
    World { count_every_us: 1000 * (150 + seed % 300), margin_us: 1_000_000, end: 2600, ..world }
}

#[test]
fn cut_during_a_pause_of_counting_loses_no_record() {
    for seed in 0..SEEDS / 10 {
        assert_eq!(run(with_a_cut_nobody_sees(seed)).lost, [], "seed {seed}");
    }
    let worlds = || (0..50).map(with_a_cut_nobody_sees);
    assert!(is_noticed(Breakage::Unseeing, worlds(), |outcome| !outcome.lost.is_empty()));
}

/// Under load, the counting thread waits for a processor for a while, and the receiving thread does not.
#[test]
fn rarely_counting_meter_is_not_considered_blind() {
    let worlds = || (0..300).map(|seed| World { count_every_us: 1000 * (seed + 1), ..World::calm(seed) });
    for world in worlds() {
        let outcome = run(world.clone());
        assert_eq!((outcome.changes_after_start, outcome.lost), (0, vec![]), "seed {}", world.seed);
    }
    assert!(is_noticed(Breakage::StaleCounts, worlds(), |outcome| outcome.changes_after_start > 0));
}

#[test]
fn each_check_notices_what_it_is_for() {
    let wild = || (0..500).map(World::wild);
    assert!(is_noticed(Breakage::NoReplay, wild(), |outcome| !outcome.lost.is_empty()));
    assert!(is_noticed(Breakage::NoMargin, wild(), |outcome| !outcome.lost.is_empty()));
    assert!(is_noticed(Breakage::ReadyAtOnce, wild(), |outcome| !outcome.lost.is_empty()));
    assert!(is_noticed(Breakage::NoExportDeadline, wild(), |outcome| outcome.sent_after_a_stop > 0));
    assert!(is_noticed(Breakage::SameMeterNumber, wild(), |outcome| !outcome.is_settled));
    assert!(is_noticed(Breakage::SameMeterNumber, wild(), |outcome| !outcome.shared_terms.is_empty()));
    assert!(is_noticed(Breakage::HiddenTerms, wild(), |outcome| !outcome.reversed_terms.is_empty()));
    let lossy = (0..50).map(|seed| World { lost_percent: 40, healed_at: 700, ..World::calm(seed) });
    assert!(is_noticed(Breakage::None, lossy, |outcome| outcome.changes_after_start > 0));
}
