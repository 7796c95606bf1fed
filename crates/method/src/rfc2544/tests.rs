use super::*;
use crate::journal::{self, MethodJournalEntry};
use crate::sim::SimulatedDevice;
use crate::{BoundCause, MethodJudgement, MethodOptions, MethodSession, MethodVerdict, StreamTrial};
use packetrig_units::BitRate;
use proptest::prelude::*;
use std::collections::BTreeSet;

pub(super) const GIGABIT: BitRate = BitRate::new(1_000_000_000);

pub(super) fn quick(tests: &[Rfc2544Test], sizes: &[u32]) -> Rfc2544Options {
    Rfc2544Options {
        tests: tests.iter().copied().collect(),
        frame_sizes_bytes: sizes.iter().copied().map(FrameSize::new).collect(),
        ..Rfc2544Options::quick(GIGABIT)
    }
}

/// Runs the benchmark on a device.
fn run(options: &Rfc2544Options, mut device: impl FnMut(&TrialRequest) -> TrialResult) -> Rfc2544Method {
    let mut session = MethodSession::new(Rfc2544Method::new(options.clone()));
    while let Some(order) = session.next_trial_request() {
        assert!(session.trial_count() < 20_000, "the method does not end: {order:?}");
        assert!(!session.method().describe_progress().is_empty());
        session.on_result(&device(&order));
    }
    session.method().clone()
}

pub(super) fn run_device(options: &Rfc2544Options, device: &SimulatedDevice) -> Rfc2544Method {
    let mut device = device.clone();
    run(options, |order| device.perform_trial(order))
}

/// A rig that catches up after being late in this share of the trials: the device may have dropped those
/// frames for that alone.
struct BurstyRig {
    doubtful_percent: u64,
    random: u64,
}

impl BurstyRig {
    fn disturb(&mut self, result: TrialResult) -> TrialResult {
        // Knuth's constants for a linear congruential generator.
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if (self.random >> 33) % 100 >= self.doubtful_percent {
            return result;
        }
        let mut result = result;
        result.lost.most += 10;
        result.rig_fault = Some("the rig may have lost 10 of the frames".to_owned());
        result
    }
}

fn fps(load: Load) -> f64 {
    load.frames_per_second()
}

/// The longest burst that a device forwards without loss: see `sim`.
fn longest_burst(load: f64, limit: f64, buffer: u64) -> f64 {
    ((buffer + 1) as f64 / (1.0 - limit / load)).ceil() - 1.0
}

/// On virtual links the speed of the line says nothing about what the rig can send.
#[test]
fn rfc2544_search_stays_below_rig_limit() {
    let line = BitRate::new(10_000_000_000);
    let options = Rfc2544Options {
        tests: [Rfc2544Test::Throughput].into(),
        frame_sizes_bytes: vec![FrameSize::MIN],
        ..Rfc2544Options::quick(line)
    };
    let limits = MethodOptions::Rfc2544(Box::new(options.clone())).estimate_cost().unwrap().with_repeats();
    let mut device = SimulatedDevice { rig_limit: 316_000.0, ..SimulatedDevice::new(1e9, 0) };
    let mut session = MethodSession::new(Rfc2544Method::new(options));
    let mut beyond = 0;
    while let Some(order) = session.next_trial_request() {
        beyond += u32::from(order.load.frames_per_second() > 316_000.0 * 1.1);
        session.on_result(&device.perform_trial(&order));
    }
    let bounds = session.method().current_result().sizes[0].throughput.clone().unwrap();
    let carried = bounds.frames_per_second.unwrap().frames_per_second();
    assert!((316_000.0 * 0.97..=316_000.0).contains(&carried), "{bounds:?}");
    assert_eq!((beyond, bounds.limited_by), (1, BoundCause::Rig), "{bounds:?}");
    assert!(
        session.trial_count() <= 30 && session.trial_count() <= limits.most.trials,
        "{}",
        session.trial_count()
    );
}

#[test]
fn throughput_is_within_resolution_for_every_size() {
    let options =
        Rfc2544Options { tests: [Rfc2544Test::Throughput].into(), ..Rfc2544Options::standard(GIGABIT) };
    // A device of 400 Mbit/s at layer 1: another limit for each size.
    let device = |order: &TrialRequest| {
        let size = order.size.unwrap();
        SimulatedDevice::new(fps(options.theoretical_load(size)) * 0.4, 0).perform_trial(order)
    };
    let method = run(&options, device);
    assert_eq!(method.current_result().sizes.len(), 7);
    for row in &method.current_result().sizes {
        let bounds = row.throughput.as_ref().unwrap();
        let (found, truth) =
            (fps(bounds.frames_per_second.unwrap()), fps(row.theoretical_frames_per_second) * 0.4);
        assert!(
            found <= truth + 1.0 && truth - found <= fps(row.maximum_frames_per_second) / 1000.0,
            "{row:?}"
        );
        assert_eq!((bounds.limited_by, bounds.is_complete), (BoundCause::Device, true));
    }
    assert_eq!(method.current_result().shortfalls, Vec::<String>::new());
    assert_eq!(method.judge_result(), MethodJudgement::default());
}

#[test]
fn load_carried_only_briefly_is_not_throughput() {
    let options = Rfc2544Options { tests: [Rfc2544Test::Throughput].into(), ..quick(&[], &[64]) };
    // The buffer hides an overload of 100 000 frames per second in a trial of one second, not in one of two.
    let method = run_device(&options, &SimulatedDevice::new(500_000.0, 100_000));
    let bounds = method.current_result().sizes[0].throughput.clone().unwrap();
    let (carried, lost) = (bounds.frames_per_second.unwrap(), bounds.lost_at_frames_per_second.unwrap());
    assert!(fps(carried) <= 550_001.0 && fps(carried) > 548_000.0, "{bounds:?}");
    assert!(fps(lost) > 549_999.0 && fps(lost) - fps(carried) <= 1489.0, "{bounds:?}");
}

/// A long trial may be beyond a rig that holds a short one.
#[test]
fn confirming_search_tries_headroom_above_rig() {
    let options = quick(&[Rfc2544Test::Throughput], &[64]);
    let mut device = SimulatedDevice::new(1e9, 0);
    let mut slow = SimulatedDevice { rig_limit: 500_000.0, ..device.clone() };
    let mut highest = 0.0_f64;
    let mut is_confirming = false;
    run(&options, |order| {
        if order.length == TrialLength::Time(options.durations.search_trial_ns) {
            return device.perform_trial(order);
        }
        if is_confirming {
            highest = highest.max(fps(order.load));
        }
        is_confirming |= fps(order.load) < 600_000.0;
        slow.perform_trial(order)
    });
    assert!((500_001.0..=550_000.0).contains(&highest), "{highest}");
}

#[test]
fn tests_that_need_the_throughput_measure_it_first() {
    let mut device =
        SimulatedDevice { latency: Some(Nanos::from_micros(50)), ..SimulatedDevice::new(3e5, 0) };
    let mut purposes = Vec::new();
    let method = run(&quick(&[Rfc2544Test::Latency], &[64, 512]), |order| {
        purposes.push(order.purpose);
        device.perform_trial(order)
    });
    purposes.dedup();
    assert_eq!(purposes, [TrialPurpose::Search, TrialPurpose::Latency]);
    assert!(
        method.current_result().sizes.iter().all(|row| row
            .latency
            .as_ref()
            .unwrap()
            .measured_value()
            .is_some())
    );
}

#[test]
fn latency_is_measured_at_throughput_by_chosen_definition() {
    let mut device =
        SimulatedDevice { latency: Some(Nanos::from_micros(50)), ..SimulatedDevice::new(2e5, 0) };
    let options = Rfc2544Options {
        latency_definition: LatencyDefinition::StoreAndForward,
        repetitions: Rfc2544Repetitions { latency: 20, back_to_back: 1, recovery: 1 },
        ..quick(&[Rfc2544Test::Latency], &[512])
    };
    let mut loads = BTreeSet::new();
    let method = run(&options, |order| {
        if order.purpose == TrialPurpose::Latency {
            loads.insert(order.load.to_string());
        }
        device.perform_trial(order)
    });
    let row = &method.current_result().sizes[0];
    let latency = row.latency.as_ref().unwrap().measured_value().unwrap();
    assert_eq!(latency.samples.len(), 20);
    assert_eq!(latency.subtracted_ns, Nanos::new(4096));
    assert!((latency.mean_latency_ns.unwrap().mean - 45_904.0).abs() < 1e-6);
    assert_eq!(latency.samples[0].latency.unwrap().mean, Nanos::from_micros(50));
    let throughput = row.throughput.as_ref().unwrap().frames_per_second.unwrap();
    assert_eq!(loads, [throughput.to_string()].into());
    assert_eq!(latency.basis, ThroughputBasis { frames_per_second: throughput, is_throughput: true });
}

#[test]
fn loss_curve_ends_after_two_lossless_trials() {
    let method = run_device(&quick(&[Rfc2544Test::FrameLoss], &[64]), &SimulatedDevice::new(1_000_000.0, 0));
    let row = &method.current_result().sizes[0];
    assert_eq!(row.throughput, None);
    let curve = row.frame_loss.as_ref().unwrap();
    let percents: Vec<String> =
        curve.points.iter().map(|point| format!("{}", point.percent_of_maximum)).collect();
    assert_eq!(percents, ["100", "90", "80", "70", "60", "50"]);
    assert!(curve.is_complete);
    for point in &curve.points {
        let truth = (1.0 - 1_000_000.0 / fps(point.frames_per_second)).max(0.0) * 100.0;
        assert!((point.most_loss_percent - truth).abs() < 0.001, "{point:?}");
    }
}

#[test]
fn unsettled_loss_curve_is_partial() {
    let device = SimulatedDevice::new(1e9, 0).with_stalls(1.0, 5, 1);
    let method = run_device(&quick(&[Rfc2544Test::FrameLoss], &[64]), &device);
    let curve = method.current_result().sizes[0].frame_loss.as_ref().unwrap();
    assert_eq!((curve.points.len(), curve.is_complete), (10, false));
}

#[test]
fn burst_tests_are_inapplicable_at_line_rate() {
    let options = quick(&[Rfc2544Test::BackToBack, Rfc2544Test::Recovery], &[64]);
    let method = run_device(&options, &SimulatedDevice::new(1e9, 0));
    let row = &method.current_result().sizes[0];
    assert!(matches!(row.back_to_back, Some(PartOutcome::NotApplicable { .. })));
    assert!(matches!(row.recovery, Some(PartOutcome::NotApplicable { .. })));
    assert_eq!(method.judge_result(), MethodJudgement::default());
}

#[test]
fn buffer_beyond_longest_burst_invalidates_result() {
    let method =
        run_device(&quick(&[Rfc2544Test::BackToBack], &[64]), &SimulatedDevice::new(1e6, 10_000_000));
    // The buffer is larger than a trial of the throughput fills.
    let row = &method.current_result().sizes[0];
    assert!(matches!(row.back_to_back, Some(PartOutcome::NotApplicable { .. })), "{row:?}");
    let options = Rfc2544Options {
        durations: Rfc2544Durations { longest_burst_ns: Nanos::from_millis(100), ..Rfc2544Durations::QUICK },
        ..quick(&[Rfc2544Test::BackToBack], &[64])
    };
    let method = run_device(&options, &SimulatedDevice::new(1e6, 100_000));
    let part = method.current_result().sizes[0].back_to_back.as_ref().unwrap().measured_value().unwrap();
    assert_eq!((part.burst_frames, part.searches.len()), (None, 1));
    assert!(part.invalid.as_ref().unwrap().contains("allow longer bursts"));
    assert_eq!(method.judge_result().verdict, Some(MethodVerdict::Unknown));
}

#[test]
fn corrected_buffer_time_follows_rfc_9004() {
    let method =
        run_device(&quick(&[Rfc2544Test::BackToBack], &[64]), &SimulatedDevice::new(744_047.619, 1000));
    let row = &method.current_result().sizes[0];
    let part = row.back_to_back.as_ref().unwrap().measured_value().unwrap();
    let bursts = part.burst_frames.unwrap();
    assert_eq!((bursts.count, part.repetitions), (3, 3));
    assert!((bursts.mean - 2001.0).abs() <= 2.0 && bursts.standard_deviation < 1e-9);
    // 2001 frames at 1 488 095 frames per second, and half of it.
    assert!((part.implied_buffer_time_ns.unwrap() - 1_344_672.0).abs() < 1500.0);
    assert!((part.corrected_buffer_time_ns.unwrap() - 672_336.0).abs() < 2000.0, "{part:?}");
}

#[test]
fn recovery_ends_at_last_loss_after_overload() {
    let device = SimulatedDevice { recovery: Nanos::from_millis(120), ..SimulatedDevice::new(5e5, 0) };
    let mut options = quick(&[Rfc2544Test::Recovery], &[64]);
    options.criteria.maximum_recovery_ns = Some(Nanos::from_millis(100));
    let method = run_device(&options, &device);
    let part = method.current_result().sizes[0].recovery.as_ref().unwrap().measured_value().unwrap();
    assert_eq!(part.trials[0].recovery_ns, Some(Nanos::from_millis(120)));
    let [overload, after, basis] =
        [part.overload_frames_per_second, part.after_frames_per_second, part.basis.frames_per_second]
            .map(fps);
    assert!((overload - basis * 1.1).abs() < 1e-6 && (after - overload / 2.0).abs() < 1e-6);
    assert_eq!(method.judge_result().verdict, Some(MethodVerdict::Fail));
    let never = SimulatedDevice { recovery: Nanos::from_secs(60), ..device };
    options.criteria.maximum_recovery_ns = Some(Nanos::from_secs(10));
    let method = run_device(&options, &never);
    assert!(
        !method.current_result().sizes[0].recovery.as_ref().unwrap().measured_value().unwrap().trials[0]
            .is_recovered
    );
    assert_eq!(method.judge_result().verdict, Some(MethodVerdict::Unknown));
}

#[test]
fn recovery_is_unknown_without_every_last_loss() {
    let mut device = SimulatedDevice { recovery: Nanos::from_millis(120), ..SimulatedDevice::new(5e5, 0) };
    let method = run(&quick(&[Rfc2544Test::Recovery], &[64]), |order| {
        let mut result = device.perform_trial(order);
        if order.purpose == TrialPurpose::Recovery {
            // A second stream, whose last loss nobody knows.
            let unknown = |stream: &StreamTrial| StreamTrial { last_loss: None, ..stream.clone() };
            result.streams = result.streams.iter().flat_map(|row| [row.clone(), unknown(row)]).collect();
        }
        result
    });
    let part = method.current_result().sizes[0].recovery.as_ref().unwrap().measured_value().unwrap();
    assert_eq!((part.trials[0].recovery_ns, part.trials[0].is_recovered), (None, false));
}

#[test]
fn the_reset_is_measured_with_the_smallest_size() {
    let device = SimulatedDevice { outage: Some(Nanos::from_secs(3)), ..SimulatedDevice::new(1e5, 0) };
    let mut options = quick(&[Rfc2544Test::Reset], &[512, 128]);
    options.criteria.maximum_reset_ns = Some(Nanos::from_secs(5));
    let method = run_device(&options, &device);
    let reset = method.current_result().reset.as_ref().unwrap().measured_value().unwrap();
    assert_eq!(
        (reset.frame_size_bytes.bytes(), reset.outage_ns, reset.is_back),
        (128, Nanos::from_secs(3), true)
    );
    assert_eq!(method.judge_result().verdict, Some(MethodVerdict::Pass));
    let gone = SimulatedDevice { outage: Some(Nanos::from_secs(18)), ..device.clone() };
    let method = run_device(&options, &gone);
    assert!(!method.current_result().reset.as_ref().unwrap().measured_value().unwrap().is_back);
    assert_eq!(method.judge_result().verdict, Some(MethodVerdict::Fail));
    let unharmed = SimulatedDevice { outage: None, ..device };
    let method = run_device(&options, &unharmed);
    assert!(matches!(method.current_result().reset, Some(PartOutcome::NotMeasured { .. })));
    assert_eq!(method.judge_result().verdict, Some(MethodVerdict::Unknown));
}

#[test]
fn reset_that_may_come_after_all_frames_is_not_measured() {
    let options = quick(&[Rfc2544Test::Reset], &[64]);
    let mut device = SimulatedDevice { outage: None, ..SimulatedDevice::new(1e5, 0) };
    let reset_ended_at = |ended: Nanos, device: &mut SimulatedDevice| {
        let method = run(&options, |order| TrialResult {
            event_at: order.event.map(|event| event.at),
            event_ended_at: order.event.map(|_| ended),
            ..device.perform_trial(order)
        });
        method.current_result().reset.clone().unwrap()
    };
    let in_time = reset_ended_at(Nanos::from_millis(1), &mut device);
    assert_eq!(in_time.measured_value().unwrap().outage_ns, Nanos::ZERO);
    let late = reset_ended_at(Nanos::from_secs(3600), &mut device);
    assert!(matches!(late, PartOutcome::NotMeasured { reason } if reason.contains("too late")));
}

#[test]
fn wanted_throughput_between_bounds_is_tried_itself() {
    let mut options = quick(&[Rfc2544Test::Throughput], &[64]);
    let floor = ThroughputFloor::FramesPerSecond(Load::new(500_000.0));
    options.criteria.minimum_throughput = vec![MinimumThroughput { frame_size_bytes: None, floor }];
    let verdict = |limit: f64| run_device(&options, &SimulatedDevice::new(limit, 0)).judge_result().verdict;
    assert_eq!(verdict(500_000.0), Some(MethodVerdict::Pass));
    assert_eq!(verdict(499_990.0), Some(MethodVerdict::Fail));
}

#[test]
fn zero_throughput_fails_and_leaves_latency_unmeasured() {
    let mut options = quick(&Rfc2544Test::ALL, &[64]);
    let floor = ThroughputFloor::PercentOfLine(1.0);
    options.criteria.minimum_throughput = vec![MinimumThroughput { frame_size_bytes: None, floor }];
    let method = run_device(&options, &SimulatedDevice::new(0.0, 0));
    assert_eq!(method.judge_result().verdict, Some(MethodVerdict::Fail));
    assert!(matches!(method.current_result().sizes[0].latency, Some(PartOutcome::NotMeasured { .. })));
}

/// All tests with all criteria.
fn all_tests_and_criteria() -> Rfc2544Options {
    let mut options = quick(&Rfc2544Test::ALL, &[64, 1518]);
    let floor = ThroughputFloor::PercentOfLine(90.0);
    options.criteria = Rfc2544Criteria {
        minimum_throughput: vec![MinimumThroughput { frame_size_bytes: None, floor }],
        maximum_latency_ns: Some(Nanos::new(1)),
        maximum_recovery_ns: Some(Nanos::new(1)),
        maximum_reset_ns: Some(Nanos::new(1)),
    };
    options
}

#[test]
fn rig_limited_result_is_unknown_and_names_load() {
    let device = SimulatedDevice {
        rig_limit: 50_000.0,
        latency: Some(Nanos::from_micros(10)),
        outage: Some(Nanos::from_secs(1)),
        ..SimulatedDevice::new(1e9, 0)
    };
    let method = run_device(&all_tests_and_criteria(), &device);
    let judgement = method.judge_result();
    assert_eq!(judgement.verdict, Some(MethodVerdict::Unknown), "{judgement:?}");
    let bounds = method.current_result().sizes[0].throughput.as_ref().unwrap();
    assert_eq!(bounds.limited_by, BoundCause::Rig);
    let carried = bounds.frames_per_second.unwrap();
    assert!(fps(carried) <= 50_000.0 && fps(carried) > 48_000.0);
    assert!(judgement.unknown[0].contains(&carried.to_string()), "{judgement:?}");
    let latency = judgement.criteria.iter().find(|judged| judged.criterion.contains("latency")).unwrap();
    assert!(latency.reason.contains(&carried.to_string()), "{latency:?}");
}

#[test]
fn a_benchmark_that_was_interrupted_does_not_pass() {
    let mut options = quick(&[Rfc2544Test::Latency], &[64]);
    options.criteria.maximum_latency_ns = Some(Nanos::from_secs(1));
    let mut device =
        SimulatedDevice { latency: Some(Nanos::from_micros(10)), ..SimulatedDevice::new(1e9, 0) };
    let mut method = Rfc2544Method::new(options);
    let mut verdicts = Vec::new();
    while let Some(order) = method.next_trial_request() {
        verdicts.push(method.judge_result().verdict);
        method.on_result(&device.perform_trial(&order));
    }
    // Two trials of the throughput, five of the latency.
    assert_eq!(verdicts, [Some(MethodVerdict::Unknown); 7]);
    assert_eq!(method.judge_result().verdict, Some(MethodVerdict::Pass));
}

/// Runs a method with the journal of its first `cut` trials, then with the device.
fn resume(options: &Rfc2544Options, journal_text: &str, device: &SimulatedDevice) -> Rfc2544Method {
    let read_back = journal::parse_journal::<Rfc2544Options>(journal_text).unwrap();
    let mut session = MethodSession::new(Rfc2544Method::new(read_back.head));
    for entry in &read_back.trials {
        session.replay_trial(&entry.order, &entry.result).unwrap();
    }
    assert_eq!(&session.method().options, options);
    let mut device = device.clone();
    while let Some(order) = session.next_trial_request() {
        session.on_result(&device.perform_trial(&order));
    }
    session.method().clone()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn longest_burst_is_within_two_frames_of_buffer(
        limit in 1e4..1.4e6f64, buffer in 0u64..20_000, size in prop::sample::select(Rfc2544Options::STANDARD_SIZES.to_vec()),
    ) {
        let options = quick(&[Rfc2544Test::BackToBack], &[size.bytes()]);
        let load = fps(options.maximum_load(size));
        // Above it, a trial of the throughput does not fill the buffer.
        prop_assume!(load - limit > buffer as f64 * 1.2 + 2000.0);
        let method = run_device(&options, &SimulatedDevice::new(limit, buffer));
        let part = method.current_result().sizes[0].back_to_back.clone().unwrap();
        let truth = longest_burst(load, limit, buffer);
        let found = part.measured_value().and_then(|part| part.burst_frames).map(|bursts| bursts.mean);
        prop_assert!(found.is_some_and(|found| (found - truth).abs() <= 2.0), "{truth}: {part:?}");
    }

    #[test]
    fn rfc2544_run_resumes_from_any_journal_cut(
        limit in 1e3..2e6f64, buffer in 0u64..5000, cut_percent in 0usize..=100, rig_limit in 1e4..3e6f64,
    ) {
        let options = all_tests_and_criteria();
        let device = SimulatedDevice {
            rig_limit,
            latency: Some(Nanos::from_micros(10)),
            outage: Some(Nanos::from_secs(1)),
            ..SimulatedDevice::new(limit, buffer)
        };
        let mut text = journal::to_json_line(&options).unwrap();
        let mut number = 0;
        let mut recorder = device.clone();
        let mut session = MethodSession::new(Rfc2544Method::new(options.clone()));
        while let Some(order) = session.next_trial_request() {
            let result = recorder.perform_trial(&order);
            session.on_result(&result);
            number += 1;
            text += &journal::to_json_line(&MethodJournalEntry { number, started_wall_ns: 0, order, result }).unwrap();
        }
        let head = text.find('\n').unwrap() + 1;
        let cut = head + (text.len() - head) * cut_percent / 100;
        let resumed = resume(&options, &text[..cut], &device);
        prop_assert_eq!(resumed.current_result(), session.method().current_result());
        prop_assert_eq!(resumed.judge_result(), session.method().judge_result());
    }

    #[test]
    fn doubtful_losses_never_fail_device(limit in 2e4..1.4e6f64, doubtful_percent in 0u64..60, seed in any::<u64>()) {
        let mut options = quick(&[Rfc2544Test::Throughput], &[64]);
        let floor = ThroughputFloor::FramesPerSecond(Load::new(limit * 0.95));
        options.criteria.minimum_throughput = vec![MinimumThroughput { frame_size_bytes: None, floor }];
        let mut rig = BurstyRig { doubtful_percent, random: seed };
        let mut device = SimulatedDevice::new(limit, 0);
        let method = run(&options, |order| rig.disturb(device.perform_trial(order)));
        let bounds = method.current_result().sizes[0].throughput.clone().unwrap();
        if bounds.limited_by == BoundCause::Device {
            prop_assert!(fps(bounds.lost_at_frames_per_second.unwrap()) >= limit - 1.0, "{bounds:?}");
        }
        prop_assert!(method.judge_result().verdict != Some(MethodVerdict::Fail), "{:?}", method.judge_result());
    }

    #[test]
    fn rig_limit_alone_never_fails_a_device(rig_limit in 1e3..1.2e6f64, buffer in 0u64..1000) {
        let mut options = all_tests_and_criteria();
        options.criteria.maximum_reset_ns = None;
        let device = SimulatedDevice { rig_limit, ..SimulatedDevice::new(1e9, buffer) };
        let judgement = run_device(&options, &device).judge_result();
        prop_assert!(judgement.verdict != Some(MethodVerdict::Fail), "{:?}", judgement);
    }
}
