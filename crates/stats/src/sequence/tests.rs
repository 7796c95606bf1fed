use super::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashSet};

/// Ten frames per second.
fn second_of(number: u64) -> u64 {
    number / 10
}

fn arrival(number: u64) -> MonoTime {
    MonoTime::from_nanos(number * 1000)
}

fn window_of(arrivals: &[u64], sent: u64) -> SequenceCounts {
    let mut window = SequenceWindow::new();
    for number in arrivals {
        window.on_arrival(*number, arrival(*number), second_of);
    }
    window.finish_stream(sent, second_of);
    window.counts()
}

/// Computes the same counts from whole vectors, straight from the definitions.
fn oracle(arrivals: &[u64], sent: u64) -> SequenceCounts {
    let mut counts = SequenceCounts::default();
    let mut order: Vec<u64> = Vec::new();
    let mut seen = HashSet::new();
    for number in arrivals {
        if !seen.insert(*number) {
            counts.duplicates += 1;
            continue;
        }
        if let Some(first) = order.iter().position(|other| other > number) {
            counts.reordered += 1;
            counts.max_extent = counts.max_extent.max((order.len() - first) as u64);
        }
        order.push(*number);
    }
    counts.unique = order.len() as u64;
    let lost: Vec<u64> = (0..sent).filter(|number| !seen.contains(number)).collect();
    counts.lost = lost.len() as u64;
    let runs: Vec<usize> = lost.chunk_by(|a, b| a + 1 == *b).map(<[u64]>::len).collect();
    counts.loss_bursts = runs.len() as u64;
    counts.longest_burst = runs.into_iter().max().unwrap_or(0) as u64;
    counts.loss_seconds = lost.iter().map(|n| second_of(*n)).collect::<BTreeSet<_>>().len() as u64;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    for (belongs, number) in sorted.iter().zip(&order) {
        let displacement = i64::try_from(*belongs).unwrap() - i64::try_from(*number).unwrap();
        *counts.density.entry(i32::try_from(displacement).unwrap()).or_default() += 1;
    }
    counts
}

/// Frames 0..n with some lost, some twice, some held back by less than the density threshold.
fn faulty(n: u64) -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec((0u8..20, 1u64..12), usize::try_from(n).unwrap()).prop_map(move |faults| {
        let mut out: Vec<(u64, u64)> = Vec::new();
        for ((number, (fault, by)), place) in (0..n).zip(faults).zip((0..).step_by(2)) {
            match fault {
                0 => {}
                1 => out.extend([(place, number), (place + 2 * by, number)]),
                2 => out.push((place + 2 * by + 1, number)),
                _ => out.push((place, number)),
            }
        }
        out.sort_by_key(|(place, _)| *place);
        out.into_iter().map(|(_, number)| number).collect()
    })
}

#[test]
fn a_stream_in_order_has_nothing_to_report() {
    let arrivals: Vec<u64> = (0..200_000).collect();
    let counts = window_of(&arrivals, 200_000);
    assert_eq!((counts.unique, counts.lost, counts.reordered, counts.duplicates), (200_000, 0, 0, 0));
    assert_eq!(counts.density, BTreeMap::from([(0, 200_000)]));
}

#[test]
fn window_edge_frame_is_late_and_older_stale() {
    let mut window = SequenceWindow::new();
    for number in (0..SEQUENCE_WINDOW_FRAMES + 2).filter(|n| ![1, 2].contains(n)) {
        window.on_arrival(number, arrival(number), second_of);
    }
    assert!(matches!(window.on_arrival(2, arrival(2), second_of), SequenceArrival::Late { .. }));
    assert_eq!(window.on_arrival(1, arrival(1), second_of), SequenceArrival::Stale);
    window.finish_stream(SEQUENCE_WINDOW_FRAMES + 2, second_of);
    let counts = window.counts();
    assert_eq!((counts.lost, counts.stale, counts.unique), (1, 1, SEQUENCE_WINDOW_FRAMES + 1));
}

#[test]
fn long_outage_is_one_burst_over_its_seconds() {
    let arrivals: Vec<u64> = (0..100).chain(1_000_000..1_000_100).collect();
    let counts = window_of(&arrivals, 1_000_100);
    assert_eq!((counts.loss_bursts, counts.longest_burst, counts.loss_seconds), (1, 999_900, 99_990));
    assert_eq!(counts.density, BTreeMap::from([(0, 200)]));
}

#[test]
fn nothing_arrived_means_all_lost() {
    let counts = window_of(&[], 50);
    assert_eq!((counts.lost, counts.loss_bursts, counts.longest_burst, counts.loss_seconds), (50, 1, 50, 5));
}

#[test]
fn an_absurd_number_does_not_blow_the_accounts() {
    let counts = window_of(&[0, 1, 1 << 40, 2], 3);
    assert_eq!((counts.unique, counts.lost, counts.stale), (3, 0, 1));
}

#[test]
fn short_numbers_unwrap_around_the_highest_seen() {
    let mut window = SequenceWindow::new();
    assert_eq!(window.restore_full_number(5, 20), 5);
    // No number is below zero: a first number in the upper half is a gap.
    assert_eq!(window.restore_full_number(0xf_fff0, 20), 0xf_fff0);
    for number in 0..(1 << 20) + 10 {
        assert_eq!(window.restore_full_number(u32::try_from(number & 0xf_ffff).unwrap(), 20), number);
        window.on_arrival(number, arrival(number), second_of);
    }
    assert_eq!(window.restore_full_number(0xf_fffe, 20), 0xf_fffe);
}

proptest! {
    #[test]
    fn counts_equal_those_of_the_naive_definitions(arrivals in faulty(600), cut in 0u64..5) {
        // Some frames of the end never arrive at all.
        prop_assert_eq!(window_of(&arrivals, 600 + cut), oracle(&arrivals, 600 + cut));
    }

    #[test]
    fn every_frame_is_in_one_account(arrivals in faulty(300)) {
        let counts = window_of(&arrivals, 300);
        prop_assert_eq!(counts.unique + counts.lost, 300);
        prop_assert_eq!(counts.unique + counts.duplicates + counts.stale, arrivals.len() as u64);
    }

    #[test]
    fn any_numbers_are_fine(arrivals in prop::collection::vec(0u64..300_000, 0..50), sent in 0u64..300_000) {
        let counts = window_of(&arrivals, sent);
        prop_assert_eq!(counts.unique + counts.duplicates + counts.stale, arrivals.len() as u64);
    }
}

#[test]
fn outages_have_sequence_numbers_and_surrounding_arrivals() {
    let mut window = SequenceWindow::new();
    for number in (5..100).chain(110..120).filter(|number| *number != 50) {
        window.on_arrival(number, arrival(number), second_of);
    }
    window.finish_stream(130, second_of);
    let list = window.take_outages();
    let spans: Vec<_> = list.outages.iter().map(|o| (o.first, o.last, o.begin, o.end)).collect();
    let at = |number| Some(arrival(number));
    assert_eq!(
        spans,
        [
            (0, 4, None, at(5)),
            (50, 50, at(49), at(51)),
            (100, 109, at(99), at(110)),
            (120, 129, at(119), None)
        ]
    );
    assert_eq!((list.gaps, list.longest), (4, Some(packetrig_units::Nanos::new(11_000))));
}

proptest! {
    #[test]
    fn outages_hold_every_lost_frame_and_no_other(arrivals in faulty(600), cut in 0u64..5) {
        let mut window = SequenceWindow::new();
        for (place, number) in arrivals.iter().enumerate() {
            window.on_arrival(*number, arrival(place as u64), second_of);
        }
        window.finish_stream(600 + cut, second_of);
        let lost: Vec<u64> = (0..600 + cut).filter(|number| !arrivals.contains(number)).collect();
        let list = window.take_outages();
        let listed: Vec<u64> = list.outages.iter().flat_map(|o| o.first..=o.last).collect();
        prop_assert_eq!(listed, lost);
        prop_assert_eq!(list.gaps, window.counts().loss_bursts);
    }
}
