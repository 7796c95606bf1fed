//! `gate`: frames are handed over ahead of their departure times, and a program at the interface's egress holds
//! each frame back until its departure time.

use super::account::DepartureStampCollector;
use super::open::{flag_if_queue_full, send_each_frame};
use super::pace::{ReleaseTimer, STOLEN_CPU_THRESHOLD};
use super::place::ReleaseInterface;
use super::train::TrainCopy;
use super::worker::MechanismSender;
use super::{DepartedFrame, ReleaseOptions};
use crate::{Error, now};
use packetrig_probe::{ProbeFlag, ProbeStamp, StampSource};
use packetrig_sys::hold::{self, FrameReleaseRecord};
use packetrig_sys::packet::{FrameOptions, FrameSocket, ReleaseClock};
use packetrig_units::{MonoTime, Nanos};

/// Safety margin below the longest hold time: a frame that reaches the program with more time left is sent immediately.
const GATE_CALL_MARGIN: Nanos = Nanos::from_micros(50);

pub(super) struct GateRelease {
    held_by: hold::KernelGate,
    socket: FrameSocket,
    account: DepartureStampCollector,
    ahead: Nanos,
    /// True if frames are handed over so early that a late wake-up does no harm.
    sleeps: bool,
}

impl GateRelease {
    pub(super) fn open_at(place: &ReleaseInterface, release_options: &ReleaseOptions) -> Result<Self, Error> {
        let account = DepartureStampCollector::new(place.wanted_stamps(true), place.stamps, release_options);
        let release = Some(ReleaseClock::Monotonic);
        let options = FrameOptions { stamps: account.wanted_stamps(), release, ..FrameOptions::default() };
        let socket = FrameSocket::open_on_interface(&place.netns, place.link.index, &place.name, options)?;
        let gate = hold::KernelGate::attach_gate_at_egress(
            &place.netns,
            place.link.index,
            &place.name,
            socket.cookie()?,
        )?;
        let ahead = limit_hold_time(release_options.ahead);
        Ok(Self { held_by: gate, socket, account, ahead, sleeps: ahead > release_options.spin_from })
    }

    fn record_released_frame(&self, number: u64, pace: &mut ReleaseTimer, gone: &mut DepartedFrame) {
        // Programs at egress run in the context of the send call. If the program's count does not change, the
        // frame never reached the program, and its table still has the record of an earlier frame.
        if self.held_by.passed_count() == number {
            gone.flags.push(ProbeFlag::StampMissing);
            return;
        }
        // The program spins on this processor, inside our call, so it counts against the spin budget of this thread.
        let held = self.held_by.gated_frame(number);
        pace.record_busy_time(MonoTime::from_nanos(held.entered_ns), MonoTime::from_nanos(held.released_ns));
        record_gated_frame(held, gone);
    }
}

/// Returns the time from handing a frame over to its departure, limited to the time for which the kernel
/// program may hold a frame.
pub(super) fn limit_hold_time(ahead: Nanos) -> Nanos {
    // The kernel program holds no frame longer than `MAX_HELD_NS`: a frame that is due later is sent immediately.
    ahead.min(Nanos::new(hold::MAX_HELD_NS - GATE_CALL_MARGIN.as_u64()))
}

/// Copies the kernel program's record of a frame into the departed frame.
pub(super) fn record_gated_frame(held: FrameReleaseRecord, gone: &mut DepartedFrame) {
    let at = MonoTime::from_nanos;
    gone.released =
        Some(ProbeStamp::between_readings(StampSource::Bpf, at(held.released_ns), at(held.left_ns)));
    if held.gap_ns > STOLEN_CPU_THRESHOLD.as_u64() {
        gone.flags.push(ProbeFlag::Stolen);
    }
}

impl MechanismSender for GateRelease {
    fn send_train(
        &mut self,
        train: &TrainCopy,
        pace: &mut ReleaseTimer,
        gone: &mut [DepartedFrame],
    ) -> Result<(), Error> {
        self.account.begin_train();
        let sent = send_each_frame(gone, |index, gone| {
            let due = train.due_time_at(index);
            let early = due - self.ahead;
            // If the time until the departure is shorter than the possible delay of a wake-up, the thread must
            // spin instead of sleep.
            let at = if self.sleeps {
                pace.sleep_then_warm_up(early, due).at
            } else {
                pace.spin_until_deadline(early).at
            };
            // The count is read before the call, because the program counts the frame while the call runs.
            let number = self.held_by.passed_count();
            let sent = self.socket.send_frame_at(train.frame(index), due.as_nanos());
            let call = ProbeStamp::between_readings(StampSource::Program, at, now());
            flag_if_queue_full(sent, gone)?;
            gone.handed_over = Some(call);
            self.record_released_frame(number, pace, gone);
            Ok(())
        });
        self.account.fetch_stamps(sent.count, gone, &[], &|take| self.socket.drain_reports(take))?;
        self.account.flag_train_timing(train, gone);
        sent.result
    }

    fn lead_time(&self) -> Nanos {
        self.ahead
    }
}
