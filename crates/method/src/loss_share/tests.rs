use super::*;
use crate::MethodSession;
use crate::sim::SimulatedDevice;

fn run(options: &LossShareOptions, device: &SimulatedDevice) -> LossShareMethod {
    let mut device = device.clone();
    let mut session = MethodSession::new(LossShareMethod::new(options.clone()));
    while let Some(order) = session.next_trial_request() {
        assert!(session.trial_count() < 10_000 && order.length == TrialLength::Frames(1_000_000));
        session.on_result(&device.perform_trial(&order));
    }
    session.method().clone()
}

fn options(rates: &[f64]) -> LossShareOptions {
    LossShareOptions::new(rates.iter().copied().map(Load::new).collect())
}

#[test]
fn loss_occurs_only_above_the_device_limit() {
    let device = SimulatedDevice::new(55_000.0, 0);
    let mut options = options(&[40_000.0, 50_000.0, 60_000.0, 70_000.0]);
    options.minimum_lossless_frames_per_second = Some(Load::new(50_000.0));
    let method = run(&options, &device);
    let result = method.current_result();
    let with_loss: Vec<_> = result.rates.iter().map(|rate| (rate.runs, rate.runs_with_loss)).collect();
    assert_eq!(with_loss, [(10, 0), (10, 0), (10, 10), (10, 10)]);
    assert_eq!(result.highest_lossless_frames_per_second, Some(Load::new(50_000.0)));
    assert!((result.rates[0].confidence_95.unwrap().high - 0.27753).abs() < 1e-5);
    assert_eq!(method.judge_result().verdict, Some(MethodVerdict::Pass));
    options.minimum_lossless_frames_per_second = Some(Load::new(60_000.0));
    assert_eq!(run(&options, &device).judge_result().verdict, Some(MethodVerdict::Fail));
    options.minimum_lossless_frames_per_second = Some(Load::new(55_000.0));
    assert_eq!(run(&options, &device).judge_result().verdict, Some(MethodVerdict::Unknown));
}

#[test]
fn stalling_device_loses_in_expected_share_of_runs() {
    let mut options = options(&[100_000.0]);
    options.runs_per_rate = 1000;
    // Each run takes ten seconds.
    let method = run(&options, &SimulatedDevice::new(1e6, 0).with_stalls(0.02, 3, 7));
    let interval = method.current_result().rates[0].confidence_95.unwrap();
    assert!(interval.contains(1.0 - 0.98f64.powi(10)), "{interval:?}");
}

#[test]
fn runs_beyond_rig_limit_do_not_count() {
    let device = SimulatedDevice { rig_limit: 55_000.0, ..SimulatedDevice::new(1e9, 0) };
    let mut options = options(&[50_000.0, 60_000.0]);
    options.minimum_lossless_frames_per_second = Some(Load::new(60_000.0));
    let method = run(&options, &device);
    let result = method.current_result();
    assert_eq!(
        (result.rates[1].runs, result.rates[1].unknown_runs, result.rates[1].share_with_loss),
        (0, 10, None)
    );
    let judgement = method.judge_result();
    assert_eq!(judgement.verdict, Some(MethodVerdict::Unknown));
    assert_eq!(judgement.unknown, ["60 000 frames/s: runs that the rig could not sustain: 10"]);
}

#[test]
fn stepped_rates_end_with_the_highest() {
    let rates = |step: f64| {
        let rates =
            LossShareOptions::list_stepped_rates(Load::new(30_000.0), Load::new(50_000.0), Load::new(step));
        rates.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(rates(10_000.0), "30 000 frames/s, 40 000 frames/s, 50 000 frames/s");
    assert_eq!(rates(15_000.0), "30 000 frames/s, 45 000 frames/s, 50 000 frames/s");
    assert_eq!(rates(0.0), "50 000 frames/s");
}
