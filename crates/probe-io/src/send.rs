//! Sends the probes of a schedule, without listening for answers: trains to one target, or to several targets
//! in turn. Each target has its own dispatcher.
//!
//! Invariant: there is one record for each probe of the schedule, in order, sent or not.

use crate::path::ProbePath;
use crate::release::{DepartedFrame, DueFrame, ReleaseDispatcher};
use crate::{Error, frame_length, now};
use packetrig_probe::frame::{self, ProbeFrameEndpoints};
use packetrig_probe::service::check_frame;
use packetrig_probe::{BudgetExceeded, PlannedProbe, ProbeRecord, ProbeSchedule, ReleaseMechanism};
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use std::ops::Range;

/// Time between the call and the first train, so that the first train is not late.
const FIRST_TRAIN_DELAY: Nanos = Nanos::from_millis(1);
/// Trains that are closer together than this plus the lead time are given to the mechanism together, because
/// there is no time for another call in between.
const JOINED_TRAIN_DISTANCE: Nanos = Nanos::from_millis(4);
/// Maximum number of frames that are given to the mechanism together, unless they belong to one train.
const MAX_FRAMES_PER_BATCH: usize = 400;
/// Longest wait before the loop checks whether to stop.
const STOP_CHECK_INTERVAL: Nanos = Nanos::from_millis(50);

/// Content of the probes to a target.
#[derive(Clone, Debug)]
pub enum ProbeContent {
    /// Datagrams with the probe's number, and with the contact for the probes as far as there is room (RFC 9511).
    Datagram {
        ends: ProbeFrameEndpoints,
        /// Source and target port.
        ports: (u16, u16),
        /// Contact for the probes.
        about: Option<String>,
    },
    Frame(Vec<u8>),
}

/// Returns whether a frame may be sent as a probe: [`check_frame`] accepts it, and its IP addresses are those of
/// `ends`. `check_frame` refuses VLAN tags and IP options, because a source route could lead the frame past the target.
pub fn is_allowed_probe_frame(frame: &[u8], ends: &ProbeFrameEndpoints) -> bool {
    check_frame(frame).is_ok_and(|(_, found)| (found.source, found.target) == (ends.source, ends.target))
}

/// Bytes of a probe's number, at the beginning of its payload.
const PROBE_NUMBER_BYTES: usize = 4;

impl ProbeContent {
    /// Writes the frame of a probe.
    pub fn write_frame(&self, probe: &PlannedProbe, out: &mut Vec<u8>) {
        match self {
            Self::Frame(frame) => {
                out.clear();
                out.extend_from_slice(frame);
            }
            Self::Datagram { ends, ports, about } => {
                let room = (probe.length as usize).saturating_sub(ends.header_bytes() + frame::UDP);
                let mut payload = vec![0; room];
                if room >= PROBE_NUMBER_BYTES {
                    payload[..PROBE_NUMBER_BYTES].copy_from_slice(&probe.number.to_be_bytes());
                    let text_room = room - PROBE_NUMBER_BYTES;
                    let text = frame::attribution_bytes_or_default(about.as_deref(), text_room);
                    payload[PROBE_NUMBER_BYTES..PROBE_NUMBER_BYTES + text.len()].copy_from_slice(text);
                }
                ends.write_udp_frame(ports.0, ports.1, &payload, out);
            }
        }
    }
}

/// A target of a schedule: its path, its dispatcher, and the content of its probes.
#[derive(Debug)]
pub struct ScheduleTarget {
    pub way: ProbePath,
    pub dispatcher: ReleaseDispatcher,
    pub content: ProbeContent,
}

#[derive(Debug)]
pub struct SendOutcome {
    pub records: Vec<ProbeRecord>,
    /// The limit that ended the schedule early, if one did.
    pub refused: Option<BudgetExceeded>,
}

/// Sends a schedule; each train goes to the next target in turn. Ends early when `stop` returns true or
/// a limit is reached.
pub fn send_schedule(
    schedule: &ProbeSchedule,
    aims: &mut [ScheduleTarget],
    stop: &dyn Fn() -> bool,
) -> Result<SendOutcome, Error> {
    send_schedule_from(now() + longest_lead_time(aims) + FIRST_TRAIN_DELAY, schedule, aims, stop, &|_| {})
}

fn longest_lead_time(aims: &[ScheduleTarget]) -> Nanos {
    aims.iter().map(|aim| aim.dispatcher.lead_time()).max().unwrap_or(Nanos::ZERO)
}

/// Sends a schedule with departure times counted from `start`. After each batch, calls `on_sent` with the number of
/// its probes that the limits allowed; the kernel may have dropped some.
pub fn send_schedule_from(
    start: MonoTime,
    schedule: &ProbeSchedule,
    aims: &mut [ScheduleTarget],
    stop: &dyn Fn() -> bool,
    on_sent: &dyn Fn(usize),
) -> Result<SendOutcome, Error> {
    let lead = longest_lead_time(aims);
    let mut sent = SendOutcome { records: Vec::with_capacity(schedule.probes().len()), refused: None };
    // A ring sends all its frames back to back, so it must not get two trains at once. With several targets, the
    // trains take turns: each train goes to the next target, so it is a batch of its own.
    let single =
        aims.len() > 1 || aims.iter().any(|aim| aim.dispatcher.mechanism() == ReleaseMechanism::Ring);
    for (turn, range) in
        split_into_batches(schedule.probes(), single, JOINED_TRAIN_DISTANCE + lead).into_iter().enumerate()
    {
        let probes = &schedule.probes()[range];
        // A train after a refusal or a stop is recorded as unsent, so each probe of the schedule has its record.
        let ended = sent.refused.is_some() || !wait_until_due(start + probes[0].at, lead, stop);
        // If there are no targets at all, the probes are recorded as unsent.
        let aim = turn % aims.len().max(1);
        match aims.get_mut(aim).filter(|_| !ended) {
            Some(aim) => sent.refused = send_batch(probes, start, aim, &mut sent.records, on_sent)?,
            None => sent.records.extend(probes.iter().map(|probe| unsent_probe_record(probe, start))),
        }
    }
    Ok(sent)
}

fn send_batch(
    probes: &[PlannedProbe],
    start: MonoTime,
    aim: &mut ScheduleTarget,
    records: &mut Vec<ProbeRecord>,
    on_sent: &dyn Fn(usize),
) -> Result<Option<BudgetExceeded>, Error> {
    let mut frames = vec![Vec::new(); probes.len()];
    for (probe, frame) in probes.iter().zip(&mut frames) {
        aim.content.write_frame(probe, frame);
    }
    let train: Vec<DueFrame<'_>> =
        probes.iter().zip(&frames).map(|(probe, frame)| DueFrame { at: start + probe.at, frame }).collect();
    let mut gone = Vec::with_capacity(train.len());
    let refused = aim.dispatcher.send_train(&train, &mut gone)?;
    on_sent(gone.iter().filter(|gone| !gone.is_unsent()).count());
    records.extend(train.iter().zip(probes).zip(gone).map(|((due, probe), gone)| {
        // A frame may be padded, so the record has its real length.
        gone.into_record(PlannedProbe { length: frame_length(due.frame), ..*probe }, due.at)
    }));
    Ok(refused)
}

fn unsent_probe_record(probe: &PlannedProbe, start: MonoTime) -> ProbeRecord {
    DepartedFrame::new_unsent().into_record(*probe, start + probe.at)
}

/// Waits until the train must be handed over; returns `false` if the schedule is to stop.
fn wait_until_due(at: MonoTime, lead: Nanos, stop: &dyn Fn() -> bool) -> bool {
    let until = (at - lead).as_nanos();
    loop {
        if stop() {
            return false;
        }
        let now = clock::monotonic_ns();
        if now >= until {
            return true;
        }
        clock::sleep_until_ns(until.min(now + STOP_CHECK_INTERVAL.as_u64()));
    }
}

/// Divides a schedule into batches that are given to the mechanism at once: single trains if `single` is true,
/// otherwise also several trains that are closer together than `near`.
fn split_into_batches(probes: &[PlannedProbe], single: bool, near: Nanos) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (index, probe) in probes.iter().enumerate() {
        let joins = found.last().is_some_and(|batch| {
            let before = &probes[index - 1];
            // Cannot underflow: departure times of a `ProbeSchedule` never decrease.
            let distance = Nanos::new(probe.at.as_u64() - before.at.as_u64());
            probe.train == before.train || !single && distance < near && batch.len() < MAX_FRAMES_PER_BATCH
        });
        match found.last_mut() {
            Some(batch) if joins => batch.end = index + 1,
            _ => found.push(index..index + 1),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::FrameReleaser;
    use packetrig_plan::PortLocation;
    use packetrig_probe::schedule::ScheduledTrain;
    use packetrig_probe::{ProbeBudget, ProbeFlag, ProbePermit, TargetLimits};

    #[test]
    fn near_trains_are_given_together_and_others_alone() {
        let train = ScheduledTrain { of: 3, gap: Nanos::from_micros(10), length: 60 };
        let near = ProbeSchedule::periodic_trains(4, Nanos::from_millis(1), train).unwrap();
        assert_eq!(split_into_batches(near.probes(), false, JOINED_TRAIN_DISTANCE).first(), Some(&(0..12)));
        assert_eq!(split_into_batches(near.probes(), true, JOINED_TRAIN_DISTANCE), [0..3, 3..6, 6..9, 9..12]);
        let far = ProbeSchedule::periodic_trains(2, Nanos::from_millis(10), train).unwrap();
        assert_eq!(split_into_batches(far.probes(), false, JOINED_TRAIN_DISTANCE), [0..3, 3..6]);
        let many = ProbeSchedule::periodic(1_000, Nanos::from_micros(1), 60).unwrap();
        assert_eq!(
            split_into_batches(many.probes(), false, JOINED_TRAIN_DISTANCE),
            [0..400, 400..800, 800..1_000]
        );
    }

    struct SendNotes;

    impl FrameReleaser for SendNotes {
        fn mechanism(&self) -> ReleaseMechanism {
            ReleaseMechanism::Sleep
        }

        fn release_train(
            &mut self,
            train: &[DueFrame<'_>],
            gone: &mut Vec<DepartedFrame>,
        ) -> Result<(), Error> {
            gone.extend(train.iter().map(|_| DepartedFrame::default()));
            Ok(())
        }
    }

    fn aim(limits: TargetLimits) -> ScheduleTarget {
        let target = "127.0.0.1".parse().unwrap();
        let permitted = ProbePermit::default().permit_target(target, "2026-11-22").unwrap();
        let ends =
            ProbeFrameEndpoints { own_mac: [2; 6], next_mac: [4; 6], source: target, target, class: 0 };
        let location = PortLocation { namespace: None, interface: "lo".into() };
        let way = ProbePath { location, index: 1, mtu: 1_500, ends, is_loopback: true, permitted };
        let content =
            ProbeContent::Datagram { ends, ports: (7, 9), about: Some("https://example.net".into()) };
        ScheduleTarget {
            way,
            dispatcher: ReleaseDispatcher::new(Box::new(SendNotes), ProbeBudget::new(limits)),
            content,
        }
    }

    #[test]
    fn every_probe_has_a_record_whatever_ends_it() {
        let schedule = ProbeSchedule::periodic(10, Nanos::from_micros(1), 100).unwrap();
        let mut aims = [
            aim(TargetLimits { burst: 2, ..TargetLimits::DEFAULT_LIMITS }),
            aim(TargetLimits::DEFAULT_LIMITS),
        ];
        let announced = std::cell::Cell::new(0);
        let on_sent = |probes| announced.set(announced.get() + probes);
        let start = now() + Nanos::from_millis(1);
        let sent = send_schedule_from(start, &schedule, &mut aims, &|| false, &on_sent).unwrap();
        assert_eq!(announced.get(), 4, "those that left");
        assert!(sent.refused.is_some());
        let unsent: Vec<_> = sent.records.iter().map(|r| r.flags.contains(&ProbeFlag::Unsent)).collect();
        assert_eq!(unsent, [false, false, false, false, true, true, true, true, true, true]);
        assert!(sent.records.iter().map(|record| record.number).eq(0..10));
        assert_eq!(sent.records[0].flags, [ProbeFlag::First]);
        let sent = send_schedule(&schedule, &mut [aim(TargetLimits::DEFAULT_LIMITS)], &|| true).unwrap();
        assert!(sent.records.iter().all(|record| record.flags == [ProbeFlag::Unsent]));
    }

    #[test]
    fn only_frames_between_the_ends_are_probes() {
        let aim = aim(TargetLimits::DEFAULT_LIMITS);
        let (mut frame, ends) = (Vec::new(), aim.way.ends);
        aim.content
            .write_frame(&ProbeSchedule::periodic(1, Nanos::ZERO, 60).unwrap().probes()[0], &mut frame);
        assert!(is_allowed_probe_frame(&frame, &ends));
        for at in [12, 26, 33] {
            let mut other = frame.clone();
            other[at] ^= 1;
            assert!(!is_allowed_probe_frame(&other, &ends), "byte {at}");
        }
        assert!(!is_allowed_probe_frame(&frame[..30], &ends) && !is_allowed_probe_frame(&[], &ends));
        let mut routed = frame.clone();
        routed[14] = 0x46;
        assert!(!is_allowed_probe_frame(&routed, &ends), "an option may be a source route");
        let six = ProbeFrameEndpoints {
            source: "2001:db8::1".parse().unwrap(),
            target: "2001:db8::2".parse().unwrap(),
            ..ends
        };
        six.write_udp_frame(1, 2, &[], &mut frame);
        assert!(is_allowed_probe_frame(&frame, &six) && !is_allowed_probe_frame(&frame, &ends));
    }

    #[test]
    fn datagram_carries_number_and_attribution_if_room() {
        let schedule = ProbeSchedule::periodic(2, Nanos::ZERO, 100).unwrap();
        let mut frame = Vec::new();
        let content = aim(TargetLimits::DEFAULT_LIMITS).content;
        content.write_frame(&schedule.probes()[1], &mut frame);
        assert_eq!(frame.len(), 100);
        assert_eq!(frame[42..46], [0, 0, 0, 1]);
        assert!(frame[46..].starts_with(b"https://example.net\0"));
        let short = PlannedProbe { length: 43, ..schedule.probes()[0] };
        content.write_frame(&short, &mut frame);
        assert_eq!(frame.len(), 60, "padded to the shortest frame");
    }
}
