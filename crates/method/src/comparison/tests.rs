use super::*;
use crate::sim::SimulatedDevice;
use crate::{MethodSession, MethodVerdict};
use proptest::prelude::*;

fn options(pairs: u32, seed: u64) -> ComparisonOptions {
    let load = |size, rate| ComparedLoad {
        frame_size_bytes: Some(FrameSize::new(size)),
        frames_per_second: Load::new(rate),
        trial_ns: Nanos::from_secs(1),
    };
    ComparisonOptions {
        loads: vec![load(64, 100_000.0), load(512, 50_000.0)],
        pairs,
        seed,
        waits: TrialWaits::QUICK,
        maximum_worsening: Vec::new(),
    }
}

fn run(options: &ComparisonOptions, devices: &mut [SimulatedDevice; 2]) -> ComparisonMethod {
    let mut session = MethodSession::new(ComparisonMethod::new(options.clone()));
    while let Some(order) = session.next_trial_request() {
        assert!(session.trial_count() < 10_000);
        session.on_result(&devices[usize::from(order.device)].perform_trial(&order));
    }
    session.method().clone()
}

fn finding(method: &ComparisonMethod, load: usize, measure: ComparedMeasure) -> DifferenceFinding {
    let result = method.current_result();
    result.loads[load].measures.iter().find(|row| row.measure == measure).unwrap().finding
}

#[test]
fn comparison_finds_difference_only_for_lossier_device() {
    let mut devices = [SimulatedDevice::new(90_000.0, 0), SimulatedDevice::new(80_000.0, 0)];
    let method = run(&options(6, 3), &mut devices);
    assert_eq!(finding(&method, 0, ComparedMeasure::LossPercent), DifferenceFinding::Differs);
    assert_eq!(finding(&method, 0, ComparedMeasure::ReceivedFramesPerSecond), DifferenceFinding::Differs);
    assert_eq!(finding(&method, 1, ComparedMeasure::LossPercent), DifferenceFinding::NoDifferenceShown);
    let result = method.current_result();
    let loss = &result.loads[0].measures[0];
    assert!((loss.difference.mean - 10.0).abs() < 1e-9, "{loss:?}");
    assert!(result.loads[0].measures.iter().all(|row| row.measure != ComparedMeasure::MeanLatencyNs));
}

#[test]
fn four_pairs_give_no_finding() {
    let mut devices = [SimulatedDevice::new(90_000.0, 0), SimulatedDevice::new(80_000.0, 0)];
    let method = run(&options(4, 3), &mut devices);
    assert_eq!(finding(&method, 0, ComparedMeasure::LossPercent), DifferenceFinding::TooFewPairs);
}

#[test]
fn a_worsening_is_judged_by_its_whole_interval() {
    let slow = |us| SimulatedDevice { latency: Some(Nanos::from_micros(us)), ..SimulatedDevice::new(1e6, 0) };
    let verdict = |limit| {
        let mut options = options(5, 1);
        options.maximum_worsening = vec![MaximumWorsening { measure: ComparedMeasure::P99LatencyNs, limit }];
        run(&options, &mut [slow(100), slow(110)]).judge_result().verdict
    };
    assert_eq!(verdict(WorseningLimit::PercentOfFirst(11.0)), Some(MethodVerdict::Pass));
    assert_eq!(verdict(WorseningLimit::PercentOfFirst(9.0)), Some(MethodVerdict::Fail));
    assert_eq!(verdict(WorseningLimit::Absolute(10_500.0)), Some(MethodVerdict::Pass));
    let mut fewer = options(5, 1);
    let limit = WorseningLimit::Absolute(-1.0);
    let measure = ComparedMeasure::ReceivedFramesPerSecond;
    fewer.maximum_worsening = vec![MaximumWorsening { measure, limit }];
    let devices = &mut [SimulatedDevice::new(1e6, 0), SimulatedDevice::new(80_000.0, 0)];
    assert_eq!(run(&fewer, devices).judge_result().verdict, Some(MethodVerdict::Fail));
}

#[test]
fn percent_limit_of_zero_loss_allows_no_loss() {
    let mut options = options(5, 1);
    let limit = WorseningLimit::PercentOfFirst(10.0);
    options.maximum_worsening = vec![MaximumWorsening { measure: ComparedMeasure::LossPercent, limit }];
    let judge = |second: f64| {
        let devices = &mut [SimulatedDevice::new(1e6, 0), SimulatedDevice::new(second, 0)];
        run(&options, devices).judge_result().criteria[0].clone()
    };
    assert_eq!(judge(1e6).verdict, MethodVerdict::Pass);
    let worse = judge(40_000.0);
    assert_eq!(worse.verdict, MethodVerdict::Fail);
    let wanted = "; the first device has a loss of 0, so the limit is 0, too";
    assert!(worse.reason.ends_with(wanted), "{}", worse.reason);
}

#[test]
fn undecided_criterion_says_how_many_pairs_decide_it() {
    let mut options = options(6, 1);
    let stalling = |seed| SimulatedDevice::new(1e6, 0).with_stalls(0.5, 100, seed);
    let reason = |options: &ComparisonOptions| {
        let judged = run(options, &mut [stalling(3), stalling(4)]).judge_result();
        judged.criteria[0].reason.clone()
    };
    // The limit is near the middle of the interval, and then at its end.
    let method = run(&options, &mut [stalling(3), stalling(4)]);
    let loss = method.current_result().loads[0].measures[0].clone();
    assert_eq!(loss.measure, ComparedMeasure::LossPercent);
    let (mean, high) = (loss.difference.mean, loss.confidence_95.unwrap().high);
    let limits =
        |most| vec![MaximumWorsening { measure: loss.measure, limit: WorseningLimit::Absolute(most) }];
    options.maximum_worsening = limits(f64::midpoint(mean, high));
    assert!(
        reason(&options).contains("pairs like these would give a verdict (--pairs "),
        "{}",
        reason(&options)
    );
    options.maximum_worsening = limits(mean);
    assert!(reason(&options).contains("make the trials longer (--time)"), "{}", reason(&options));
}

#[test]
fn a_comparison_that_was_interrupted_does_not_pass() {
    let mut options = options(10, 1);
    let limit = WorseningLimit::Absolute(1.0);
    options.maximum_worsening = vec![MaximumWorsening { measure: ComparedMeasure::LossPercent, limit }];
    let (mut method, mut device) = (ComparisonMethod::new(options), SimulatedDevice::new(1e6, 0));
    for _ in 0..28 {
        method.on_result(&device.perform_trial(&method.next_trial_request().unwrap()));
    }
    assert_eq!(finding(&method, 0, ComparedMeasure::LossPercent), DifferenceFinding::NoDifferenceShown);
    assert_eq!(method.judge_result().verdict, Some(MethodVerdict::Unknown));
}

#[test]
fn pairs_beyond_rig_limit_do_not_count() {
    let rig = SimulatedDevice { rig_limit: 70_000.0, ..SimulatedDevice::new(1e6, 0) };
    let mut options = options(6, 1);
    let limit = WorseningLimit::Absolute(0.1);
    options.maximum_worsening = vec![MaximumWorsening { measure: ComparedMeasure::LossPercent, limit }];
    let method = run(&options, &mut [SimulatedDevice::new(1e6, 0), rig]);
    let result = method.current_result();
    assert_eq!((result.loads[0].unusable_pairs, result.loads[0].measures.len()), (6, 0));
    assert_eq!((result.loads[1].unusable_pairs, result.loads[1].measures.len()), (0, 2));
    assert_eq!(method.judge_result().verdict, Some(MethodVerdict::Unknown));
}

proptest! {
    #[test]
    fn device_order_is_balanced_for_each_load(pairs in 1u32..30, seed in any::<u64>()) {
        let devices = || [SimulatedDevice::new(1e6, 0), SimulatedDevice::new(1e6, 0)];
        let method = run(&options(pairs, seed), &mut devices());
        for load in method.current_result().loads {
            prop_assert_eq!(load.pairs.len(), pairs as usize);
            let second_first = load.pairs.iter().filter(|pair| pair.began_with == 1).count();
            prop_assert!(second_first.abs_diff(pairs as usize - second_first) <= 1);
        }
        prop_assert_eq!(run(&options(pairs, seed), &mut devices()).current_result(), method.current_result());
    }

    #[test]
    fn pair_order_is_balanced_and_depends_on_seed(seed in any::<u64>()) {
        let orders = schedule::draw_trial_orders(64, seed);
        prop_assert!(orders.chunks(2).all(|pair| pair[0] != pair[1]));
        prop_assert!(orders != schedule::draw_trial_orders(64, seed.wrapping_add(1)));
    }
}

#[test]
fn equal_stalling_devices_rarely_show_difference() {
    let claimed = (0..400).filter(|seed| {
        let stalling = |seed| SimulatedDevice::new(1e6, 0).with_stalls(0.5, 100, seed);
        let method = run(&options(20, *seed), &mut [stalling(2 * seed), stalling(2 * seed + 1)]);
        finding(&method, 0, ComparedMeasure::LossPercent) == DifferenceFinding::Differs
    });
    let claimed = claimed.count();
    // 5 % of 400 are 20; four standard deviations are 17.
    assert!((3..=37).contains(&claimed), "{claimed}");
}
