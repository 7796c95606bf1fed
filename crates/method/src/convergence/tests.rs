use super::*;
use crate::sim::SimulatedDevice;
use crate::{LostFrames, MethodSession, MethodVerdict};

fn options() -> ConvergenceOptions {
    ConvergenceOptions {
        frame_size_bytes: None,
        frames_per_second: Load::new(10_000.0),
        trial_ns: Nanos::from_secs(10),
        event_at_ns: Nanos::from_secs(2),
        repetitions: 3,
        waits: TrialWaits::QUICK,
        maximum_convergence_ns: Some(Nanos::from_millis(50)),
    }
}

/// A stream of 1000 frames per second that loses some.
fn stream(name: &str, lost: u64) -> StreamTrial {
    let lost = LostFrames { least: lost, most: lost };
    StreamTrial { name: name.to_owned(), sent: 10_000, lost, rate: 1000.0, ..StreamTrial::default() }
}

fn trial(lost: [u64; 2]) -> TrialResult {
    TrialResult {
        sent: 20_000,
        intended: 20_000,
        lost: LostFrames { least: lost[0] + lost[1], most: lost[0] + lost[1] },
        streams: vec![stream("west", lost[0]), stream("east", lost[1])],
        event_at: Some(Nanos::from_millis(2001)),
        ..TrialResult::default()
    }
}

fn run(trials: &[TrialResult]) -> ConvergenceMethod {
    let mut session = MethodSession::new(ConvergenceMethod::new(options()));
    for trial in trials {
        assert_eq!(session.next_trial_request().unwrap().event, Some(TrialEvent { at: Nanos::from_secs(2) }));
        session.on_result(trial);
    }
    session.method().clone()
}

#[test]
fn connectivity_loss_is_lost_frames_over_rate() {
    let method = run(&[trial([30, 0]), trial([10, 0]), trial([20, 0])]);
    assert_eq!(method.next_trial_request(), None);
    let result = method.current_result();
    let found = result.convergence_ns.unwrap();
    assert!((found.mean - 20e6).abs() < 1e-6 && (found.max - 30e6).abs() < 1e-6 && found.count == 3);
    assert_eq!(result.unaffected_streams, ["east"]);
    let affected: Vec<_> =
        result.streams.iter().map(|row| (row.stream.as_str(), row.affected_trials)).collect();
    assert_eq!(affected, [("west", 3), ("east", 0)]);
    assert_eq!(method.judge_result().verdict, Some(MethodVerdict::Pass));
    assert_eq!(
        run(&[trial([30, 0]), trial([10, 51]), trial([0, 0])]).judge_result().verdict,
        Some(MethodVerdict::Fail)
    );
}

#[test]
fn lossless_trial_differs_from_trial_without_event() {
    let no_event = TrialResult { event_at: None, ..trial([0, 0]) };
    let method = run(&[trial([0, 0]), no_event, trial([4, 0])]);
    let outcomes: Vec<_> = method.current_result().trials.iter().map(|trial| trial.outcome).collect();
    let wanted =
        [ConvergenceOutcome::Measured, ConvergenceOutcome::EventDidNotHappen, ConvergenceOutcome::Measured];
    assert_eq!(outcomes, wanted);
    let late = |lost| TrialResult { event_ended_at: Some(Nanos::from_secs(11)), ..trial([lost, 0]) };
    let with_late_ends = run(&[late(0), late(4)]);
    let outcomes: Vec<_> = with_late_ends.current_result().trials.iter().map(|trial| trial.outcome).collect();
    assert_eq!(outcomes, [ConvergenceOutcome::EventDidNotHappen, ConvergenceOutcome::Measured]);
    let found = method.current_result().convergence_ns.unwrap();
    assert!(found.count == 2 && found.min.abs() < 1e-12);
    let judgement = method.judge_result();
    assert_eq!(judgement.verdict, Some(MethodVerdict::Unknown));
    assert_eq!(judgement.unknown, ["trial 2: the event did not happen"]);
}

#[test]
fn rig_fault_gives_no_convergence_time() {
    let faulty = TrialResult { rig_fault: Some("frames were not sent".to_owned()), ..trial([900, 0]) };
    // The session repeats the trial twice before the method receives its result.
    let method = run(&[faulty.clone(), faulty.clone(), faulty, trial([5, 0]), trial([5, 0])]);
    let result = method.current_result();
    assert_eq!(result.trials[0].outcome, ConvergenceOutcome::RigFault);
    assert!((result.convergence_ns.unwrap().max - 5e6).abs() < 1e-6);
    assert_eq!(method.judge_result().verdict, Some(MethodVerdict::Unknown));
}

/// A trial in which the rig knows the loss of connectivity only from two sides.
fn uncertain(least: u64, most: u64) -> TrialResult {
    let mut uncertain = trial([45, 0]);
    let (least, most) = (Nanos::from_millis(least), Nanos::from_millis(most));
    uncertain.streams[0].loss_of_connectivity = Some(TimeRange { least, most });
    uncertain
}

#[test]
fn limit_within_uncertainty_gives_unknown_verdict() {
    let quick = || trial([5, 0]);
    // The trial is made again twice, then the limit stays open.
    let open = [uncertain(10, 60), uncertain(10, 60), uncertain(10, 60), quick(), quick()];
    let method = run(&open);
    assert_eq!(
        (method.next_trial_request(), method.judge_result().verdict),
        (None, Some(MethodVerdict::Unknown))
    );
    assert!(method.judge_result().criteria[0].reason.contains("between 10.000 and 60.000 ms"));
    let verdict = |first: TrialResult| run(&[first, quick(), quick()]).judge_result().verdict;
    assert_eq!(verdict(uncertain(10, 50)), Some(MethodVerdict::Pass));
    assert_eq!(verdict(uncertain(51, 60)), Some(MethodVerdict::Fail));
}

#[test]
fn inconclusive_repetition_is_measured_again() {
    let method = run(&[uncertain(10, 60), trial([30, 0]), trial([5, 0]), trial([5, 0])]);
    assert_eq!(
        (method.next_trial_request(), method.judge_result().verdict),
        (None, Some(MethodVerdict::Pass))
    );
    assert_eq!(method.current_result().trials.len(), 3);
}

#[test]
fn possible_rig_loss_makes_verdict_unknown() {
    let mut doubtful = trial([60, 0]);
    doubtful.streams[0].lost.least = 40;
    let method = run(&[doubtful.clone(), doubtful.clone(), doubtful, trial([5, 0]), trial([5, 0])]);
    assert_eq!(method.judge_result().verdict, Some(MethodVerdict::Unknown));
}

#[test]
fn an_outage_of_a_simulated_device_is_found() {
    let mut device =
        SimulatedDevice { outage: Some(Nanos::from_millis(250)), ..SimulatedDevice::new(20_000.0, 0) };
    let mut method = ConvergenceMethod::new(options());
    while let Some(order) = method.next_trial_request() {
        method.on_result(&device.perform_trial(&order));
    }
    let found = method.current_result().streams[0].clone();
    assert!((found.loss_of_connectivity_ns.mean - 250e6).abs() < 1e5);
    assert!((found.longest_outage_ns.unwrap().mean - 250e6).abs() < 1.0);
}
