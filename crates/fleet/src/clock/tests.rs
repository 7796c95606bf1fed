use super::*;

const SECOND: u64 = 1_000_000_000;

#[test]
fn clock_choice_prefers_narrower_bound() {
    let fit = |bound| ClockFit { bound: Nanos::new(bound), ..ClockFit::same_clock() };
    let ntp = |bound| Some((FitSource::Ntp, fit(bound)));
    let at = MonoTime::default();
    let chosen = choose_better_fit(Some(fit(10)), ntp(5_000), at).unwrap();
    assert_eq!((chosen.source, chosen.unused), (FitSource::InBand, ntp(5_000)));
    let chosen = choose_better_fit(Some(fit(9_000)), ntp(5_000), at).unwrap();
    assert_eq!((chosen.source, chosen.unused.unwrap().0), (FitSource::Ntp, FitSource::InBand));
    assert_eq!(choose_better_fit(None, ntp(5), at).unwrap().unused, None);
    assert_eq!(choose_better_fit(None, None, at), None);
}

#[test]
fn disciplined_clocks_are_compared_through_true_time() {
    let facts = |at, true_less_mono_ns, bound| DisciplinedClock {
        at: MonoTime::from_nanos(at),
        true_less_mono_ns,
        bound: Nanos::new(bound),
    };
    // The controller booted 100 s before the node; asked at the same instant.
    let (node, controller) =
        (facts(SECOND, 200 * 1_000_000_000, 30), facts(101 * SECOND, 100 * 1_000_000_000, 12));
    let fit = DisciplinedClock::fit_clocks(&node, &controller).unwrap();
    assert_eq!((fit.offset_ns, fit.bound), (-100 * 1_000_000_000, Nanos::new(42)));
    assert_eq!(fit.to_node_time(controller.at), node.at);
    let late = facts(102 * SECOND, 100 * 1_000_000_000, 12);
    assert_eq!(
        DisciplinedClock::fit_clocks(&node, &late).unwrap().bound,
        Nanos::new(42 + MAX_CLOCK_DRIFT_PPB)
    );
}
