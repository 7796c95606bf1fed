use super::*;
use crate::MethodVerdict;
use crate::rfc2544::tests::{GIGABIT, quick, run_device};
use crate::sim::SimulatedDevice;

#[test]
fn quick_durations_are_told_apart_from_the_rfc() {
    let all = Rfc2544Options { tests: Rfc2544Test::ALL.into(), ..Rfc2544Options::standard(GIGABIT) };
    assert_eq!(all.find_shortfalls(), Vec::<String>::new());
    let shortfalls = Rfc2544Options::quick(GIGABIT).find_shortfalls();
    let capped = Rfc2544Options { maximum_frames_per_second: Some(Load::new(1e6)), ..all };
    assert_eq!(
        capped.find_shortfalls(),
        ["loads with frames of 64 B: up to 1 000 000 frames/s, not 1 488 095 frames/s"]
    );
    for what in ["throughput trials: 2s, not 60s", "latency: 5 repetitions, not 20", "waits of a trial"] {
        assert!(shortfalls.iter().any(|text| text.starts_with(what)), "{shortfalls:?}");
    }
}

#[test]
fn shortfalls_name_throughput_trials_of_other_tests() {
    let durations = Rfc2544Durations { final_trial_ns: Nanos::from_secs(10), ..Rfc2544Durations::STANDARD };
    let shortfalls = |test| {
        let options = Rfc2544Options { durations, tests: [test].into(), ..Rfc2544Options::standard(GIGABIT) };
        options.find_shortfalls()
    };
    assert_eq!(shortfalls(Rfc2544Test::BackToBack), ["throughput trials: 10s, not 60s"]);
    // Its loads are shares of the line.
    assert_eq!(shortfalls(Rfc2544Test::FrameLoss), Vec::<String>::new());
}

#[test]
fn options_with_reset_after_trial_are_refused() {
    let problem = |test, reset_at_ns| {
        let options = quick(&[test], &[64]);
        let durations = Rfc2544Durations { reset_at_ns, ..options.durations };
        Rfc2544Options { durations, ..options }.find_problem().is_some()
    };
    let end = Rfc2544Durations::QUICK.reset_trial_ns;
    assert!(problem(Rfc2544Test::Reset, end));
    assert!(!problem(Rfc2544Test::Reset, Nanos::from_secs(19)) && !problem(Rfc2544Test::Latency, end));
}

#[test]
fn options_without_load_are_refused() {
    let problem = |percent| {
        let options = quick(&[Rfc2544Test::Throughput], &[64]);
        Rfc2544Options { maximum_percent_of_line: Some(percent), ..options }.find_problem().is_some()
    };
    assert_eq!([0.0, -1.0, f64::NAN, 100.5, 0.1, 100.0].map(problem), [true, true, true, true, false, false]);
}

#[test]
fn limits_for_unrequested_tests_leave_verdict_open() {
    let mut options = quick(&[Rfc2544Test::Throughput], &[64]);
    let unlimited = options.criteria.clone();
    let limit = Some(Nanos::from_secs(1));
    for criteria in [
        Rfc2544Criteria { maximum_latency_ns: limit, ..unlimited.clone() },
        Rfc2544Criteria { maximum_recovery_ns: limit, ..unlimited.clone() },
        Rfc2544Criteria { maximum_reset_ns: limit, ..unlimited.clone() },
    ] {
        options.criteria = criteria;
        let judgement = run_device(&options, &SimulatedDevice::new(5e5, 0)).judge_result();
        assert_eq!(judgement.verdict, Some(MethodVerdict::Unknown), "{:?}", options.criteria);
    }
}
