//! Collects the stamps of each frame of a train, converts them to this node's clock, and
//! flags contradictions and lateness.
//!
//! Invariant: a flag is set only if the intervals of the stamps allow no other conclusion.

use super::train::TrainCopy;
use super::{DepartedFrame, ReleaseOptions};
use crate::{Error, now, small_count};
use packetrig_probe::{DepartureStage, DepartureStamp, ProbeFlag, ProbeStamp, StampClock, StampSource};
use packetrig_sys::clock::{self, RealtimeOffset};
use packetrig_sys::ethtool::StampAbilities;
use packetrig_sys::stamping::{self, KernelReport, PacketStamps, WantedStamps};
use packetrig_units::{MonoTime, Nanos};

/// Longest wait for the stamps of a train after its last frame was sent.
const STAMP_TIMEOUT: Nanos = Nanos::from_millis(20);
const STAMP_POLL_INTERVAL: Nanos = Nanos::from_micros(100);

/// Passes all departure reports that wait at a socket to a callback, and returns their number.
type DepartureReports<'a> = dyn Fn(&mut dyn FnMut(KernelReport)) -> Result<usize, packetrig_sys::Error> + 'a;

/// Collects the departure stamps of the frames of one socket. It lives as long as the socket, because the
/// kernel numbers the frames of all trains continuously.
#[derive(Debug)]
pub(super) struct DepartureStampCollector {
    wanted: WantedStamps,
    device: u32,
    tolerance: Nanos,
    /// Number that the kernel gives the first frame of the train on this socket.
    first: u32,
    /// Offset of the real-time clock against the monotonic clock, measured before the train.
    before: RealtimeOffset,
}

/// A departure stamp from the kernel, with the number of its frame on the socket.
struct ReportedStamp {
    number: u32,
    stage: stamping::PacketSendStage,
    stamps: PacketStamps,
}

impl DepartureStampCollector {
    pub(super) fn new(wanted: WantedStamps, stamps: StampAbilities, options: &ReleaseOptions) -> Self {
        let wanted = if options.stamps { wanted } else { WantedStamps::default() };
        let device = stamps.clock.unwrap_or(0);
        Self {
            wanted,
            device,
            tolerance: options.tolerance,
            first: 0,
            before: clock::measure_realtime_offset(),
        }
    }

    pub(super) const fn wanted_stamps(&self) -> WantedStamps {
        self.wanted
    }

    pub(super) fn begin_train(&mut self) {
        // Without stamps there is nothing to convert, so the clocks need not be compared.
        if self.wanted != WantedStamps::default() {
            self.before = clock::measure_realtime_offset();
        }
    }

    /// Fetches the stamps of a train through `reports`, after the kernel accepted its first `given` frames.
    /// `times` are the release times that were given with the frames, if any; a report of a dropped frame
    /// contains only its release time.
    pub(super) fn fetch_stamps(
        &mut self,
        given: usize,
        gone: &mut [DepartedFrame],
        times: &[u64],
        reports: &DepartureReports<'_>,
    ) -> Result<(), Error> {
        let stages = [self.wanted.queued, self.wanted.sent, self.wanted.wire];
        let expected = given * stages.iter().filter(|wanted| **wanted).count();
        let mut found: Vec<ReportedStamp> = Vec::with_capacity(expected);
        let mut dropped = 0;
        let end = now() + STAMP_TIMEOUT;
        loop {
            // Stamps arrive after the send call has returned, once the frame has passed each stage. So the loop
            // reads until all stamps have arrived or the time limit has passed.
            reports(&mut |report| match report {
                KernelReport::Departed { number, stage, stamps } => {
                    found.push(ReportedStamp { number, stage, stamps });
                }
                KernelReport::Missed { at_ns } | KernelReport::Invalid { at_ns } => {
                    dropped += usize::from(flag_dropped_frame(times, at_ns, gone));
                }
                KernelReport::Other { .. } => {}
            })?;
            if found.len() >= expected || dropped >= given || now() >= end {
                break;
            }
            clock::sleep_until_ns((now() + STAMP_POLL_INTERVAL).as_nanos());
        }
        self.add_departure_stamps(&found, gone);
        // Frames that the kernel did not accept cannot lack a stamp.
        for gone in &mut gone[..given] {
            if gone.departures.len() < stages.iter().filter(|wanted| **wanted).count()
                && !gone.flags.contains(&ProbeFlag::Dropped)
            {
                gone.flags.push(ProbeFlag::StampMissing);
            }
        }
        // The kernel numbers the frames of a socket (SOF_TIMESTAMPING_OPT_ID) from 0 and counts on over all trains.
        self.first = self.first.wrapping_add(small_count(given));
        Ok(())
    }

    fn add_departure_stamps(&self, found: &[ReportedStamp], gone: &mut [DepartedFrame]) {
        let after = clock::measure_realtime_offset();
        for ReportedStamp { number, stage, stamps } in found {
            // A late stamp of an earlier train wraps to a huge index, which is not in `gone`.
            let index = number.wrapping_sub(self.first) as usize;
            let Some(gone) = gone.get_mut(index) else { continue };
            if let Some(at) = stamps.software_ns {
                let stage = match stage {
                    stamping::PacketSendStage::Queued => DepartureStage::Queue,
                    stamping::PacketSendStage::Sent => DepartureStage::Driver,
                };
                gone.departures
                    .push(DepartureStamp { stage, stamp: convert_kernel_stamp(self.before, after, at) });
            }
            if let Some(at) = stamps.hardware_ns {
                let clock = StampClock::Device(self.device);
                let stamp = ProbeStamp { clock, source: StampSource::Hardware, lo: at, hi: at };
                gone.departures.push(DepartureStamp { stage: DepartureStage::Wire, stamp });
            }
        }
        for gone in gone {
            // Stamps come in any order. Records list them in the order of the stages.
            gone.departures.sort_by_key(|departure| departure.stage);
        }
    }

    /// Flags each frame whose stamps prove that it left late or early, or contradict each other.
    pub(super) fn flag_train_timing(&self, train: &TrainCopy, gone: &mut [DepartedFrame]) {
        for (index, gone) in gone.iter_mut().enumerate() {
            flag_frame_timing(train.due_time_at(index), self.tolerance, gone);
        }
    }
}

/// Converts a stamp of the real-time clock. The result covers the conversions with the clock comparisons before
/// and after the train.
fn convert_kernel_stamp(before: RealtimeOffset, after: RealtimeOffset, at: u64) -> ProbeStamp {
    let one = before.to_monotonic(at);
    let other = after.to_monotonic(at);
    // The outer ends of both conversions are used, because the clock may have been set between them.
    let lo = one.saturating_sub(before.bound_ns).min(other.saturating_sub(after.bound_ns));
    let hi = one.saturating_add(before.bound_ns).max(other.saturating_add(after.bound_ns));
    ProbeStamp::between_readings(StampSource::Kernel, MonoTime::from_nanos(lo), MonoTime::from_nanos(hi))
}

/// Flags the frame that a drop report is about. ETF reports only the release time; several frames with the same
/// release time are flagged one after the other. Returns `false` if there is no such frame.
fn flag_dropped_frame(times: &[u64], at_ns: u64, gone: &mut [DepartedFrame]) -> bool {
    for (time, gone) in times.iter().zip(gone) {
        if *time == at_ns && !gone.flags.contains(&ProbeFlag::Dropped) {
            gone.flags.push(ProbeFlag::Dropped);
            return true;
        }
    }
    false
}

fn flag_frame_timing(due: MonoTime, tolerance: Nanos, gone: &mut DepartedFrame) {
    // A frame that was dropped or never sent cannot be late.
    if gone.handed_over.is_none() || gone.flags.contains(&ProbeFlag::Dropped) {
        return;
    }
    // `fq` and `etf` hold a frame back after its queue stamp, so that stamp is no departure. Stamps of a
    // device's clock cannot be compared with the due time.
    let own = gone
        .departures
        .iter()
        .filter(|d| d.stage > DepartureStage::Queue && d.stamp.clock == StampClock::Monotonic);
    let left = own.clone().max_by_key(|departure| departure.stage).map(|departure| departure.stamp);
    if let Some(left) = gone.released.or(left) {
        // The earliest upper bound of all stamps decides "early": a driver's stamp is often narrower than the call around it.
        let earliest = own.map(|departure| departure.stamp.hi).fold(left.hi, u64::min);
        // A frame is late only if even its earliest possible departure is too late.
        if left.lo > (due + tolerance).as_nanos() {
            gone.flags.push(ProbeFlag::Late);
        } else if earliest < due.as_nanos().saturating_sub(tolerance.as_u64()) {
            gone.flags.push(ProbeFlag::Early);
        }
    }
    if has_contradictory_stamps(gone) {
        gone.flags.push(ProbeFlag::StampsDisagree);
    }
}

/// Returns whether the stamps contradict the order of the stages: handed over, queued, given to the driver; and
/// released, given to the driver. Only a stage that ended before an earlier one began is a contradiction.
fn has_contradictory_stamps(gone: &DepartedFrame) -> bool {
    let queued = monotonic_stamp_of(gone, DepartureStage::Queue);
    let driver = monotonic_stamp_of(gone, DepartureStage::Driver);
    are_stamps_backwards(&[gone.handed_over, queued, driver])
        || are_stamps_backwards(&[gone.released, driver])
}

/// Returns the stamp of a stage, if it has one on the monotonic clock of this machine.
fn monotonic_stamp_of(gone: &DepartedFrame, stage: DepartureStage) -> Option<ProbeStamp> {
    let mut own = gone.departures.iter().filter(|d| d.stamp.clock == StampClock::Monotonic);
    own.find(|departure| departure.stage == stage).map(|departure| departure.stamp)
}

/// Returns whether any stamp ended before the stamp before it began. Missing stamps are left out.
fn are_stamps_backwards(stamps: &[Option<ProbeStamp>]) -> bool {
    let known: Vec<ProbeStamp> = stamps.iter().flatten().copied().collect();
    // Intervals that overlap contradict nothing.
    known.windows(2).any(|two| two[0].lo > two[1].hi)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(lo: u64, hi: u64) -> ProbeStamp {
        ProbeStamp::between_readings(StampSource::Kernel, MonoTime::from_nanos(lo), MonoTime::from_nanos(hi))
    }

    fn judged(released: (u64, u64), driver: (u64, u64)) -> Vec<ProbeFlag> {
        let departures =
            vec![DepartureStamp { stage: DepartureStage::Driver, stamp: stamp(driver.0, driver.1) }];
        let handed_over = Some(stamp(released.0, released.1));
        let mut gone = DepartedFrame {
            handed_over,
            released: Some(stamp(released.0, released.1)),
            departures,
            flags: vec![],
        };
        flag_frame_timing(MonoTime::from_nanos(1_000), Nanos::new(100), &mut gone);
        gone.flags
    }

    #[test]
    fn late_early_and_contradictory_flags_need_certainty() {
        assert_eq!(judged((1_000, 1_050), (1_010, 1_040)), []);
        assert_eq!(judged((1_100, 1_300), (1_110, 1_140)), []);
        assert_eq!(judged((1_101, 1_300), (1_110, 1_140)), [ProbeFlag::Late]);
        assert_eq!(judged((700, 899), (750, 899)), [ProbeFlag::Early]);
        assert_eq!(
            judged((700, 2_000), (750, 899)),
            [ProbeFlag::Early],
            "what left is known better than the call"
        );
        assert_eq!(judged((1_000, 1_050), (900, 999)), [ProbeFlag::StampsDisagree]);
        assert_eq!(judged((1_000, 1_050), (900, 1_000)), []);
    }

    #[test]
    fn entering_a_queue_ahead_is_not_early() {
        let departures = vec![DepartureStamp { stage: DepartureStage::Queue, stamp: stamp(500, 510) }];
        let handed_over = Some(stamp(490, 520));
        let mut gone =
            DepartedFrame { handed_over, released: Some(stamp(1_000, 1_001)), departures, flags: vec![] };
        flag_frame_timing(MonoTime::from_nanos(1_000), Nanos::new(100), &mut gone);
        assert_eq!(gone.flags, []);
        gone.released = None;
        flag_frame_timing(MonoTime::from_nanos(1_000), Nanos::new(100), &mut gone);
        assert_eq!(gone.flags, [], "when it left is not known");
    }

    #[test]
    fn wall_clock_step_widens_stamp() {
        let offset = |offset_ns| RealtimeOffset { offset_ns, bound_ns: 10 };
        assert_eq!(convert_kernel_stamp(offset(100), offset(100), 1_100), stamp(990, 1_010));
        assert_eq!(convert_kernel_stamp(offset(100), offset(-400), 1_100), stamp(990, 1_510));
    }

    #[test]
    fn dropped_frame_is_flagged_once_by_release_time() {
        let mut gone = vec![DepartedFrame::default(); 3];
        let times = [5, 7, 7];
        assert!(flag_dropped_frame(&times, 7, &mut gone) && flag_dropped_frame(&times, 7, &mut gone));
        assert!(!flag_dropped_frame(&times, 7, &mut gone) && !flag_dropped_frame(&times, 9, &mut gone));
        assert_eq!(gone.iter().map(|gone| gone.flags.len()).collect::<Vec<_>>(), [0, 1, 1]);
    }
}
