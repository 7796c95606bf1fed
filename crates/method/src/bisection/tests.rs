use super::*;
use proptest::prelude::*;

/// Runs a search against a sharp limit.
fn search<V: SearchedValue>(options: BisectionOptions<V>, limit: V) -> BisectionBounds<V> {
    let mut bisection = Bisection::new(options);
    let mut trials = 0;
    while let Some(value) = bisection.next_value() {
        trials += 1;
        assert!(trials < 1000, "the search does not end");
        bisection.on_loss(if value > limit { 0.5 } else { 0.0 }, false);
    }
    bisection.final_bounds().unwrap()
}

fn frames(max: u64) -> BisectionOptions<u64> {
    BisectionOptions::without_retries(0, max, 1)
}

#[test]
fn maximum_is_tried_first_and_passing_ends_bisection() {
    let mut bisection = Bisection::new(frames(1000));
    assert_eq!(bisection.next_value(), Some(1000));
    assert_eq!(bisection.final_bounds(), None);
    bisection.on_loss(0.0, false);
    let wanted = BisectionBounds { lower: Some(1000), upper: None, cause: BoundCause::Range };
    assert_eq!(bisection.final_bounds(), Some(wanted));
}

#[test]
fn bisection_finds_burst_to_the_frame() {
    for limit in [0, 1, 37, 998, 999] {
        let found = search(frames(1000), limit);
        assert_eq!(found.lower, (limit > 0).then_some(limit));
        assert_eq!(found.upper, Some(limit + 1));
    }
}

#[test]
fn the_minimum_is_tried_last_if_nothing_passed() {
    let options = BisectionOptions::without_retries(10.0, 1000.0, 50.0);
    assert_eq!(search(options, 10.0).lower, Some(10.0));
    let none = search(options, 9.0);
    assert_eq!((none.lower, none.upper, none.cause), (None, Some(10.0), BoundCause::Device));
    let point = search(BisectionOptions::without_retries(10.0, 10.0, 0.0), 9.0);
    assert_eq!((point.lower, point.upper), (None, Some(10.0)));
}

#[test]
fn value_fails_only_after_all_tries_lose_frames() {
    let mut bisection = Bisection::new(frames(1000).with_tries(2));
    bisection.on_loss(0.1, false);
    assert_eq!(bisection.next_value(), Some(1000));
    bisection.on_loss(0.1, false);
    assert_eq!(bisection.next_value(), Some(500));
    bisection.on_loss(0.1, false);
    bisection.on_loss(0.0, false);
    assert_eq!(bisection.next_value(), Some(750));
    assert_eq!(bisection.bounds().lower, Some(500));
}

#[test]
fn a_hopeless_loss_is_not_tried_again() {
    let options = BisectionOptions { hopeless_loss: 0.05, accepted_loss: 0.01, ..frames(1000).with_tries(3) };
    let mut bisection = Bisection::new(options);
    bisection.on_loss(0.06, false);
    assert_eq!(bisection.next_value(), Some(500));
    bisection.on_loss(0.01, false);
    assert_eq!(bisection.next_value(), Some(750));
}

#[test]
fn rig_caused_bound_is_not_attributed_to_device() {
    let cause = |trials: &[(f64, bool)]| {
        let mut bisection =
            Bisection::new(BisectionOptions { hopeless_loss: 0.5, ..frames(1000).with_tries(2) });
        for (loss, is_rig_fault) in trials {
            bisection.on_loss(*loss, *is_rig_fault);
        }
        assert_eq!(bisection.bounds().upper, Some(1000));
        bisection.bounds().cause
    };
    assert_eq!(cause(&[(0.1, false), (0.1, false)]), BoundCause::Device);
    assert_eq!(cause(&[(0.1, true), (0.1, false)]), BoundCause::Rig);
    assert_eq!(cause(&[(0.9, true), (0.1, true)]), BoundCause::Rig);
    assert_eq!(cause(&[(0.1, true), (0.9, false)]), BoundCause::Device);
}

/// Options that end the search at two per cent of the upper bound; a value must pass three times.
fn repeated(max: u64) -> BisectionOptions<u64> {
    BisectionOptions { relative_resolution_permille: 20, passes: 3, ..frames(max) }
}

#[test]
fn value_needing_three_passes_fails_on_one_loss() {
    let mut bisection = Bisection::new(repeated(100));
    for loss in [0.0, 0.0, 0.1] {
        assert_eq!(bisection.next_value(), Some(100));
        bisection.on_loss(loss, false);
    }
    assert_eq!((bisection.next_value(), bisection.bounds().lower), (Some(50), None));
    for _ in 0..3 {
        bisection.on_loss(0.0, false);
    }
    assert_eq!((bisection.next_value(), bisection.bounds().lower), (Some(75), Some(50)));
}

proptest! {
    #[test]
    fn bisection_finds_limit_within_relative_resolution(limit in 1u64..5_000_000, above in 0u64..5_000_000) {
        let found = search(repeated(limit + above), limit);
        let lower = found.lower.unwrap_or(0);
        let upper = found.upper.unwrap_or(lower);
        prop_assert!(lower <= limit && limit <= upper);
        prop_assert!(upper - lower <= (upper / 50).max(1));
    }

    #[test]
    fn bisection_bounds_enclose_limit_within_resolution(
        max in 2u64..2_000_000, limit in 0u64..2_000_000, resolution in 1u64..1000, tries in 1u32..4,
    ) {
        let options = BisectionOptions::without_retries(1, max, resolution).with_tries(tries);
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
        let found = search(BisectionOptions::without_retries(1.0, 2e7, resolution), limit);
        let (lower, upper) = (found.lower.unwrap(), found.upper.unwrap());
        prop_assert!(lower <= limit && limit < upper && upper - lower <= resolution);
    }
}
