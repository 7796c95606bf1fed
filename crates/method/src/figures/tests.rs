use super::*;
use crate::loss_share::{LossShareMethod, LossShareOptions};
use crate::rfc2544::{PartOutcome, ResetTime, Rfc2544Method, Rfc2544Options, Rfc2544Test, ThroughputBasis};
use crate::sim::SimulatedDevice;
use crate::{MethodSession, TestMethod};
use packetrig_units::{BitRate, FrameSize, Nanos};

fn run<M: TestMethod + Clone>(method: M, device: &SimulatedDevice, most_trials: u32) -> M {
    let mut device = device.clone();
    let mut session = MethodSession::new(method);
    while let Some(order) = session.next_trial_request().filter(|_| session.trial_count() < most_trials) {
        session.on_result(&device.perform_trial(&order));
    }
    session.method().clone()
}

fn value_of(result: &MethodResult, name: &str) -> Option<f64> {
    let figures = result.report_figures();
    figures.iter().find(|figure| figure.name == name).unwrap().value
}

fn rfc2544_value(test: Rfc2544Test, device: &SimulatedDevice, most_trials: u32, name: &str) -> Option<f64> {
    let options = Rfc2544Options {
        tests: [test].into(),
        frame_sizes_bytes: vec![FrameSize::MIN],
        ..Rfc2544Options::quick(BitRate::new(1_000_000_000))
    };
    let method = run(Rfc2544Method::new(options), device, most_trials);
    value_of(&MethodResult::Rfc2544(method.current_result().clone()), name)
}

#[test]
fn lossless_rate_figure_needs_certain_next_rate() {
    let highest = |device: &SimulatedDevice, most_trials: u32| {
        let options = LossShareOptions::new([100.0, 200.0].map(Load::new).to_vec());
        let method = run(LossShareMethod::new(options), device, most_trials);
        value_of(&MethodResult::LossShare(method.current_result()), "highest-rate-without-loss")
    };
    let limits = [1000.0, 150.0, 50.0].map(|limit| highest(&SimulatedDevice::new(limit, 0), 1000));
    assert_eq!(limits, [Some(200.0), Some(100.0), Some(0.0)]);
    let slow_rig = |rig_limit| SimulatedDevice { rig_limit, ..SimulatedDevice::new(1000.0, 0) };
    assert_eq!([150.0, 50.0].map(|limit| highest(&slow_rig(limit), 1000)), [None, None]);
    // Not all runs were made.
    assert_eq!([0, 5, 15].map(|trials| highest(&SimulatedDevice::new(1000.0, 0), trials)), [None; 3]);
}

#[test]
fn reset_figure_without_end_is_unknown() {
    let value = |is_back| {
        let basis = ThroughputBasis { frames_per_second: Load::new(1.0), is_throughput: true };
        let reset = ResetTime {
            frame_size_bytes: FrameSize::MIN,
            basis,
            least_outage_ns: Nanos::new(40),
            outage_ns: Nanos::new(50),
            is_back,
            lost_frames: 1,
            event_at_ns: Nanos::ZERO,
        };
        let result = Rfc2544Result { reset: Some(PartOutcome::Measured(reset)), ..Rfc2544Result::default() };
        let figure = MethodResult::Rfc2544(result).report_figures().remove(0);
        (figure.value, figure.uncertainty)
    };
    assert_eq!([true, false].map(value), [(Some(50.0), Some(10.0)), (None, None)]);
}

#[test]
fn recovery_figure_without_recovery_is_unknown() {
    let value = |recovery| {
        let device = SimulatedDevice { recovery, ..SimulatedDevice::new(5e5, 0) };
        rfc2544_value(Rfc2544Test::Recovery, &device, 1000, "recovery")
    };
    assert_eq!([Nanos::from_millis(120), Nanos::from_secs(60)].map(value), [Some(120e6), None]);
}

#[test]
fn maximum_loss_figure_is_unknown_beyond_rig() {
    let value = |device| rfc2544_value(Rfc2544Test::FrameLoss, &device, 1000, "frame-loss-at-maximum");
    let slow_rig = SimulatedDevice { rig_limit: 1e6, ..SimulatedDevice::new(5e5, 0) };
    assert_eq!(value(slow_rig), None);
    assert!(value(SimulatedDevice::new(5e5, 0)).is_some_and(|loss| loss > 60.0));
}

#[test]
fn throughput_figure_of_unfinished_search_is_unknown() {
    let value =
        |trials| rfc2544_value(Rfc2544Test::Throughput, &SimulatedDevice::new(5e5, 0), trials, "throughput");
    assert_eq!([0, 1, 5].map(value), [None; 3]);
    assert!(value(1000).is_some_and(|load| load > 4e5));
}
