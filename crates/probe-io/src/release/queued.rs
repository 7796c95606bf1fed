//! `fq`, `etf`, `launch`: frames are handed over early with their departure times (SO_TXTIME), and the
//! queueing discipline or the network card releases them.
//!
//! Any other discipline silently ignores departure times. So `open_at` checks which discipline the interface has.

use super::account::DepartureStampCollector;
use super::open::{flag_if_queue_full, send_each_frame};
use super::pace::{ReleaseTimer, sleep_until};
use super::place::ReleaseInterface;
use super::train::TrainCopy;
use super::worker::MechanismSender;
use super::{DepartedFrame, ReleaseOptions};
use crate::{Error, now};
use packetrig_probe::{ProbeStamp, ReleaseMechanism, StampSource};
use packetrig_sys::packet::{FrameOptions, FrameSocket, ReleaseClock};
use packetrig_sys::qdisc::{self, QueueingDiscipline};
use packetrig_sys::{UnsupportedFeature, clock};
use packetrig_units::{MonoTime, Nanos};

/// The number of `CLOCK_TAI`.
const CLOCK_TAI_ID: i32 = 11;
/// Maximum number of frames of one socket that `fq` holds (`flow_limit`), unless the kernel reports another number.
const FQ_FLOW_LIMIT: usize = 100;

pub(super) struct QueuedRelease {
    socket: FrameSocket,
    account: DepartureStampCollector,
    ahead: Nanos,
    clock: ReleaseClock,
    /// Maximum number of frames that may wait in the queueing discipline at once.
    most: usize,
    /// Maximum delay with which the queueing discipline releases a frame after its departure time.
    slack: Nanos,
    times: Vec<u64>,
}

/// Returns the queueing discipline that releases the frames of this mechanism; fails if the interface
/// has no such discipline.
pub(super) fn find_release_qdisc(
    place: &ReleaseInterface,
    mechanism: ReleaseMechanism,
) -> Result<QueueingDiscipline, Error> {
    let found = qdisc::read_qdiscs(&place.netns, place.link.index, &place.name)?;
    if let Some(qdisc) = found.iter().find(|qdisc| is_qdisc_suitable(qdisc, mechanism)) {
        return Ok(qdisc.clone());
    }
    let needs = match mechanism {
        ReleaseMechanism::Fq => "queueing discipline `fq` (`tc qdisc replace dev <interface> root fq`)",
        ReleaseMechanism::Etf => "queueing discipline `etf` with CLOCK_TAI, without offload",
        _ => "queueing discipline `etf` with CLOCK_TAI and offload, on a card that supports launch times",
    };
    let kinds: Vec<_> = found.iter().map(|qdisc| qdisc.kind.as_str()).collect();
    let found = if kinds.is_empty() { "none".into() } else { kinds.join(", ") };
    let source = UnsupportedFeature {
        feature: "releasing frames at their departure times",
        needs: needs.into(),
        found,
    };
    Err(Error::Mechanism { mechanism, interface: place.name.clone(), source: Box::new(source) })
}

fn is_qdisc_suitable(qdisc: &QueueingDiscipline, mechanism: ReleaseMechanism) -> bool {
    match mechanism {
        ReleaseMechanism::Fq => qdisc.kind == "fq",
        ReleaseMechanism::Etf => qdisc.etf.is_some_and(|etf| etf.clock == CLOCK_TAI_ID && !etf.offload),
        _ => qdisc.etf.is_some_and(|etf| etf.clock == CLOCK_TAI_ID && etf.offload),
    }
}

impl QueuedRelease {
    pub(super) fn open_at(
        place: &ReleaseInterface,
        mechanism: ReleaseMechanism,
        release_options: &ReleaseOptions,
    ) -> Result<Self, Error> {
        let qdisc = find_release_qdisc(place, mechanism)?;
        let fq = qdisc.fq.unwrap_or_default();
        let clock =
            if mechanism == ReleaseMechanism::Fq { ReleaseClock::Monotonic } else { ReleaseClock::Tai };
        let account = DepartureStampCollector::new(place.wanted_stamps(true), place.stamps, release_options);
        let options =
            FrameOptions { stamps: account.wanted_stamps(), release: Some(clock), ..FrameOptions::default() };
        let limit = fq.flow_limit.map_or(FQ_FLOW_LIMIT, |limit| limit as usize);
        Ok(Self {
            socket: FrameSocket::open_on_interface(&place.netns, place.link.index, &place.name, options)?,
            account,
            ahead: release_options.ahead,
            clock,
            // `fq` drops frames beyond its flow limit. Packet sockets share a flow with other sockets without
            // a connection, so a tenth of the limit is left free.
            most: limit.saturating_sub(limit / 10).max(1),
            slack: Nanos::new(fq.slack_ns.unwrap_or(0).into()),
            times: Vec::new(),
        })
    }

    /// Converts a departure time to the clock of the queueing discipline.
    fn release_time(&self, at: MonoTime, tai_ahead: u64) -> u64 {
        match self.clock {
            ReleaseClock::Monotonic => at.as_nanos(),
            ReleaseClock::Tai => at.as_nanos().saturating_add(tai_ahead),
        }
    }
}

/// `CLOCK_TAI` minus `CLOCK_MONOTONIC` in nanoseconds: the measured offset of the real-time clock plus whole seconds.
fn tai_minus_monotonic_ns() -> u64 {
    const SECOND: u64 = 1_000_000_000;
    // The two calls are some nanoseconds apart, and the true difference is a whole number of seconds, so
    // the result is rounded.
    let seconds = (clock::tai_ns().saturating_sub(clock::wall_clock_ns()) + SECOND / 2) / SECOND;
    // Below zero only if the wall clock shows a time before 1970 plus the uptime: no release time can be right then.
    clock::measure_realtime_offset().offset_ns.max(0).cast_unsigned() + seconds * SECOND
}

impl MechanismSender for QueuedRelease {
    fn send_train(
        &mut self,
        train: &TrainCopy,
        _pace: &mut ReleaseTimer,
        gone: &mut [DepartedFrame],
    ) -> Result<(), Error> {
        self.account.begin_train();
        let tai_ahead = tai_minus_monotonic_ns();
        let mut times = std::mem::take(&mut self.times);
        times.clear();
        times.extend((0..train.len()).map(|index| self.release_time(train.due_time_at(index), tai_ahead)));
        // The list is stored again, so that its memory is reused for the next train.
        self.times = times;
        let sent = send_each_frame(gone, |index, gone| {
            let early = train.due_time_at(index) - self.ahead;
            // The discipline holds at most `most` frames, so frame n is handed over when frame n - most has
            // certainly left.
            let room = index.checked_sub(self.most).map(|before| train.due_time_at(before) + self.slack);
            // Both conditions must hold: the frame is not held for too long, and the discipline has room.
            let at = sleep_until(room.map_or(early, |room| room.max(early))).at;
            let sent = self.socket.send_frame_at(train.frame(index), self.times[index]);
            let call = ProbeStamp::between_readings(StampSource::Program, at, now());
            flag_if_queue_full(sent, gone)?;
            gone.handed_over = Some(call);
            Ok(())
        });
        // The frames are still in the discipline. Their stamps arrive when it releases them.
        if let Some(last) = sent.count.checked_sub(1) {
            sleep_until(train.due_time_at(last) + self.slack);
        }
        self.account.fetch_stamps(sent.count, gone, &self.times, &|take| self.socket.drain_reports(take))?;
        self.account.flag_train_timing(train, gone);
        sent.result
    }

    fn lead_time(&self) -> Nanos {
        self.ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tai_offset_matches_monotonic_clock() {
        let ahead = tai_minus_monotonic_ns();
        let before = clock::monotonic_ns() + ahead;
        let tai = clock::tai_ns();
        let after = clock::monotonic_ns() + ahead;
        // The clocks cannot be compared better than this.
        assert!(before <= tai + 1_000_000 && tai <= after + 1_000_000, "{before} {tai} {after}");
    }
}
