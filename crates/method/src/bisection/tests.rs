use super::*;
use proptest::prelude::*;

/// Searches a sharp limit; checks the estimates on the way.
fn search<V: SearchedValue>(options: BisectionOptions<V>, limit: V) -> BisectionBounds<V> {
    let mut bisection = Bisection::new(options);
    let mut to_go = Vec::new();
    while let Some(value) = bisection.next_value() {
        to_go.push(bisection.to_go());
        assert!(to_go.len() < 1000, "the search does not end");
        bisection.tell_loss(if value > limit { 0.5 } else { 0.0 }, false);
    }
    for (left, estimate) in (1u32..).zip(to_go.iter().rev()) {
        assert!(estimate.fewest <= left && left <= estimate.most, "{left} trials, {estimate:?}");
    }
    assert_eq!(bisection.to_go(), TrialsToGo::default());
    bisection.found().unwrap()
}

fn frames(max: u64) -> BisectionOptions<u64> {
    BisectionOptions::plain(0, max, 1)
}

#[test]
fn the_maximum_is_tried_first_and_ends_the_search_when_it_passes() {
    let mut bisection = Bisection::new(frames(1000));
    assert_eq!(bisection.next_value(), Some(1000));
    assert_eq!(bisection.found(), None);
    bisection.tell_loss(0.0, false);
    let wanted = BisectionBounds { lower: Some(1000), upper: None, cause: BoundCause::Range };
    assert_eq!(bisection.found(), Some(wanted));
}

#[test]
fn a_burst_is_found_to_the_frame() {
    for limit in [0, 1, 37, 998, 999] {
        let found = search(frames(1000), limit);
        assert_eq!(found.lower, (limit > 0).then_some(limit));
        assert_eq!(found.upper, Some(limit + 1));
    }
}

#[test]
fn the_minimum_is_tried_last_if_nothing_passed() {
    let options = BisectionOptions::plain(10.0, 1000.0, 50.0);
    assert_eq!(search(options, 10.0).lower, Some(10.0));
    let none = search(options, 9.0);
    assert_eq!((none.lower, none.upper, none.cause), (None, Some(10.0), BoundCause::Device));
    let point = search(BisectionOptions::plain(10.0, 10.0, 0.0), 9.0);
    assert_eq!((point.lower, point.upper), (None, Some(10.0)));
}

#[test]
fn a_value_fails_only_when_all_its_tries_lost_frames() {
    let mut bisection = Bisection::new(frames(1000).verified(2));
    bisection.tell_loss(0.1, false);
    assert_eq!(bisection.next_value(), Some(1000));
    bisection.tell_loss(0.1, false);
    assert_eq!(bisection.next_value(), Some(500));
    bisection.tell_loss(0.1, false);
    bisection.tell_loss(0.0, false);
    assert_eq!(bisection.next_value(), Some(750));
    assert_eq!(bisection.bounds().lower, Some(500));
}

#[test]
fn a_hopeless_loss_is_not_tried_again() {
    let options = BisectionOptions { hopeless_loss: 0.05, accepted_loss: 0.01, ..frames(1000).verified(3) };
    let mut bisection = Bisection::new(options);
    bisection.tell_loss(0.06, false);
    assert_eq!(bisection.next_value(), Some(500));
    bisection.tell_loss(0.01, false);
    assert_eq!(bisection.next_value(), Some(750));
}

#[test]
fn a_bound_of_the_rig_is_not_the_devices() {
    let cause = |trials: &[(f64, bool)]| {
        let mut bisection =
            Bisection::new(BisectionOptions { hopeless_loss: 0.5, ..frames(1000).verified(2) });
        for (loss, is_rig_fault) in trials {
            bisection.tell_loss(*loss, *is_rig_fault);
        }
        assert_eq!(bisection.bounds().upper, Some(1000));
        bisection.bounds().cause
    };
    assert_eq!(cause(&[(0.1, false), (0.1, false)]), BoundCause::Device);
    assert_eq!(cause(&[(0.1, true), (0.1, false)]), BoundCause::Rig);
    assert_eq!(cause(&[(0.9, true), (0.1, true)]), BoundCause::Rig);
    assert_eq!(cause(&[(0.1, true), (0.9, false)]), BoundCause::Device);
}

proptest! {
    #[test]
    fn the_bounds_hold_a_sharp_limit_within_the_resolution(
        max in 2u64..2_000_000, limit in 0u64..2_000_000, resolution in 1u64..1000, tries in 1u32..4,
    ) {
        let options = BisectionOptions::plain(1, max, resolution).verified(tries);
        let found = search(options, limit);
        match (found.lower, found.upper) {
            (Some(lower), Some(upper)) => {
                prop_assert!(lower <= limit && limit < upper && upper - lower <= resolution);
            }
            (Some(lower), None) => prop_assert!(lower == max && limit >= max),
            (None, upper) => prop_assert!(upper == Some(1) && limit == 0),
        }
    }

    #[test]
    fn a_load_is_found_within_the_resolution(limit in 1.0f64..2e7, resolution in 1.0f64..1e5) {
        let found = search(BisectionOptions::plain(1.0, 2e7, resolution), limit);
        let (lower, upper) = (found.lower.unwrap(), found.upper.unwrap());
        prop_assert!(lower <= limit && limit < upper && upper - lower <= resolution);
    }
}
