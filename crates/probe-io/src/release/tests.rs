//! Each mechanism at a cable that exists for the test only; the far end's kernel says when frames arrived.

use super::*;
use crate::lab::LabCable;
use packetrig_plan::PortLocation;
use packetrig_probe::{DepartureStage, ProbeBudget, StampSource, TargetLimits};
use packetrig_sys::bpf::BpfAttachment;
use packetrig_sys::packet::{RxOptions, RxRing};
use packetrig_sys::{clock, xdp};

/// A cable with a receive ring at its far end.
struct Lab {
    /// Lets live frames arrive.
    pass: Option<BpfAttachment>,
    far: RxRing,
    cable: LabCable,
}

impl Lab {
    /// `None` where rights are missing.
    fn new() -> Option<Self> {
        let cable = LabCable::new()?;
        let options = RxOptions { blocks: 256, retire_ms: 1, ..RxOptions::default() };
        let far = RxRing::open_on_interface(&cable.netns, cable.index("b"), "b", options).unwrap();
        Some(Self { pass: None, far, cable })
    }

    fn location(&self) -> PortLocation {
        self.cable.at("a")
    }

    /// Prepares the far end for live frames; `false` without the rights for it.
    fn enable_live_frames(&mut self) -> bool {
        match xdp::attach_xdp_pass_program(&self.cable.netns, self.cable.index("b"), "b") {
            Ok(pass) => self.pass = Some(pass),
            Err(error) => {
                assert!(error.is_permission_error(), "{error}");
                println!("skipped: {error}");
            }
        }
        self.pass.is_some()
    }

    /// Frames that arrived, each with the arrival on this node's clock.
    fn received(&mut self, count: usize) -> Vec<(Vec<u8>, u64)> {
        let offset = clock::measure_realtime_offset();
        let mut frames = Vec::new();
        for _ in 0..100 {
            self.far.receive_frames(usize::MAX, &mut |frame| {
                frames.push((frame.bytes.to_vec(), offset.to_monotonic(frame.realtime_ns) + offset.bound_ns));
            });
            if frames.len() >= count {
                break;
            }
            self.far.wait_for_frames(20_000_000).unwrap();
        }
        frames
    }
}

fn frames(count: u8) -> Vec<Vec<u8>> {
    let frame = |number: u8| {
        let mut frame = vec![number; 60 + usize::from(number) * 10];
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
        frame
    };
    (0..count).map(frame).collect()
}

/// Sends three trains and holds what comes back, and what arrives, against what was planned.
fn holds(
    lab: &mut Lab,
    mechanism: ReleaseMechanism,
    options: ReleaseOptions,
    gap: Nanos,
) -> Vec<DepartedFrame> {
    let mut release = open_release(&lab.location(), mechanism, options).unwrap();
    assert_eq!(release.mechanism(), mechanism);
    let frames = frames(40);
    let mut all = Vec::new();
    for _ in 0..3 {
        let start = MonoTime::from_nanos(clock::monotonic_ns()) + release.lead_time();
        let at = |n: usize| start + Nanos::new(gap.as_u64() * n as u64);
        let train: Vec<_> =
            frames.iter().enumerate().map(|(n, frame)| DueFrame { at: at(n), frame }).collect();
        let mut gone = Vec::new();
        release.release_train(&train, &mut gone).unwrap();
        let ended = clock::monotonic_ns();
        assert_eq!(gone.len(), frames.len());
        let received = lab.received(frames.len());
        assert!(received.iter().map(|(frame, _)| frame).eq(&frames), "{mechanism}: the same frames in order");
        let mut last = 0;
        for (n, (gone, (_, arrived))) in gone.iter().zip(&received).enumerate() {
            let released = gone.released.unwrap();
            assert!(released.lo <= released.hi && released.hi <= ended, "{mechanism} {n}: {gone:?}");
            // Only the first departure time of a train that leaves at once counts.
            let due = if mechanism == ReleaseMechanism::Ring { at(0) } else { at(n) };
            assert!(released.lo >= due.as_nanos(), "{mechanism} {n}: released early: {gone:?}");
            assert!(*arrived >= released.lo, "{mechanism} {n}: {arrived} before {gone:?}");
            assert!(released.lo >= last, "{mechanism} {n}: in order");
            last = released.lo;
            let is_late = released.lo > (at(n) + options.tolerance).as_nanos();
            assert_eq!(gone.flags.contains(&ProbeFlag::Late), is_late, "{mechanism} {n}: {gone:?}");
            let may_be_early = mechanism == ReleaseMechanism::Ring && n > 0 && gap > Nanos::ZERO;
            assert!(may_be_early || !gone.flags.contains(&ProbeFlag::Early), "{mechanism} {n}: {gone:?}");
            assert!(!gone.flags.contains(&ProbeFlag::StampsDisagree), "{mechanism} {n}: {gone:?}");
        }
        all.extend(gone);
    }
    all
}

/// Each frame has a stamp of each stage, between its release and its arrival's end.
fn are_stamped(gone: &[DepartedFrame], stages: &[DepartureStage]) {
    for gone in gone {
        let found: Vec<_> = gone.departures.iter().map(|departure| departure.stage).collect();
        assert_eq!(found, stages, "{gone:?}");
        assert!(!gone.flags.contains(&ProbeFlag::StampMissing), "{gone:?}");
    }
}

const GAP: Nanos = Nanos::from_micros(100);

#[test]
fn sleeping_sender_is_never_early_and_stamped_twice() {
    let Some(mut lab) = Lab::new() else { return };
    let gone =
        holds(&mut lab, ReleaseMechanism::Sleep, ReleaseOptions::default_for(ReleaseMechanism::Sleep), GAP);
    are_stamped(&gone, &[DepartureStage::Queue, DepartureStage::Driver]);
    assert!(gone.iter().all(|gone| gone.released == gone.handed_over));
}

#[test]
fn spinning_sender_is_never_early_with_stamps_disabled() {
    let Some(mut lab) = Lab::new() else { return };
    let options = ReleaseOptions { stamps: false, ..ReleaseOptions::common() };
    let gone = holds(&mut lab, ReleaseMechanism::Spin, options, Nanos::from_micros(10));
    are_stamped(&gone, &[]);
}

#[test]
fn ring_releases_whole_train_at_first_departure_time() {
    let Some(mut lab) = Lab::new() else { return };
    let gone = holds(&mut lab, ReleaseMechanism::Ring, ReleaseOptions::common(), Nanos::ZERO);
    are_stamped(&gone, &[DepartureStage::Driver]);
    assert!(gone.chunks(40).all(|train| train.iter().all(|gone| gone.released == train[0].released)));
    // The ring does not keep later departure times, and it says so.
    let options = ReleaseOptions::common();
    let mut release = open_release(&lab.location(), ReleaseMechanism::Ring, options).unwrap();
    let start = MonoTime::from_nanos(clock::monotonic_ns()) + Nanos::from_millis(2);
    let frame = &frames(1)[0];
    let train = [DueFrame { at: start, frame }, DueFrame { at: start + Nanos::from_millis(60_000), frame }];
    let mut gone = Vec::new();
    release.release_train(&train, &mut gone).unwrap();
    assert!(gone[1].flags.contains(&ProbeFlag::Early), "{gone:?}");
    let many = vec![DueFrame { at: start, frame }; 5_000];
    assert!(matches!(release.release_train(&many, &mut gone), Err(Error::Train { .. })));
}

#[test]
fn gate_delays_frames_handed_over_ahead() {
    let Some(mut lab) = Lab::new() else { return };
    if let Some(error) = xdp::bpf_obstacle().filter(packetrig_sys::Error::is_permission_error) {
        return println!("skipped: {error}");
    }
    for ahead in [0, 100, 500, 1_000] {
        let options = ReleaseOptions { ahead: Nanos::from_micros(ahead), ..ReleaseOptions::common() };
        let gone = holds(&mut lab, ReleaseMechanism::Gate, options, GAP);
        are_stamped(&gone, &[DepartureStage::Queue, DepartureStage::Driver]);
        assert!(gone.iter().all(|gone| gone.released.unwrap().source == StampSource::Bpf));
    }
}

#[test]
fn live_frames_leave_on_time_if_peer_accepts() {
    let Some(mut lab) = Lab::new() else { return };
    let refused = open_release(&lab.location(), ReleaseMechanism::Live, ReleaseOptions::common()).err();
    assert!(
        matches!(refused, Some(Error::Mechanism { mechanism: ReleaseMechanism::Live, .. })),
        "{refused:?}"
    );
    if !lab.enable_live_frames() {
        return;
    }
    for gap in [Nanos::from_micros(10), Nanos::from_millis(2)] {
        let gone = holds(&mut lab, ReleaseMechanism::Live, ReleaseOptions::common(), gap);
        are_stamped(&gone, &[DepartureStage::Driver]);
        for gone in &gone {
            let (released, driver) = (gone.released.unwrap(), gone.departures[0].stamp);
            assert!(gone.handed_over.is_some() && driver.source == StampSource::Bpf, "{gone:?}");
            assert!(driver.lo == released.lo && released.hi <= driver.hi, "{gone:?}");
        }
    }
}

#[test]
fn release_times_are_refused_without_supporting_qdisc() {
    let Some(lab) = Lab::new() else { return };
    for mechanism in [ReleaseMechanism::Fq, ReleaseMechanism::Etf, ReleaseMechanism::Launch] {
        let error = open_release(&lab.location(), mechanism, ReleaseOptions::common()).err().unwrap();
        let text = error.to_string();
        assert!(matches!(error, Error::Mechanism { .. }) && text.contains("found noqueue"), "{text}");
    }
}

#[test]
fn capabilities_are_what_opening_says() {
    let Some(lab) = Lab::new() else { return };
    let found = find_capabilities(&lab.location()).unwrap();
    assert_eq!(found.iter().map(|can| can.mechanism).collect::<Vec<_>>(), ReleaseMechanism::ALL);
    for can in &found {
        let opened = open_release(&lab.location(), can.mechanism, ReleaseOptions::common());
        assert_eq!(opened.is_ok(), can.obstacle.is_none(), "{can:?}");
    }
    assert!(
        found[0].obstacle.is_none() && found[0].stages == [DepartureStage::Queue, DepartureStage::Driver]
    );
}

#[test]
fn limits_stop_a_mechanism() {
    let Some(mut lab) = Lab::new() else { return };
    let release = open_release(
        &lab.location(),
        ReleaseMechanism::Sleep,
        ReleaseOptions::default_for(ReleaseMechanism::Sleep),
    )
    .unwrap();
    let limits = TargetLimits { burst: 5, ..TargetLimits::DEFAULT_LIMITS };
    let mut dispatcher = ReleaseDispatcher::new(release, ProbeBudget::new(limits));
    let start = MonoTime::from_nanos(clock::monotonic_ns()) + Nanos::from_millis(1);
    let frames = frames(8);
    let train: Vec<_> = frames.iter().map(|frame| DueFrame { at: start, frame }).collect();
    let mut gone = Vec::new();
    assert!(dispatcher.send_train(&train, &mut gone).unwrap().is_some());
    assert_eq!(gone.iter().filter(|gone| gone.flags == [ProbeFlag::Unsent]).count(), 3);
    assert!(lab.received(5).iter().map(|(frame, _)| frame).eq(&frames[..5]));
}
