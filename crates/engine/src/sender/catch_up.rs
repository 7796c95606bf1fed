//! Returns a sender that was held up to its schedule.
//!
//! A sender that is behind by more than [`ON_TIME_TOLERANCE`] sends at the planned rate and a quarter more until it is on time
//! again: in every millisecond, not on average, so that a device with that reserve carries it.
//!
//! A sender that has not been on time for [`ALWAYS_LATE_AFTER`] gets too little of its processor to recover like that. Then it
//! makes good hold-ups of up to [`MAX_HOLD_UP`] at once, because otherwise its delay would keep growing.
//!
//! The rule uses a *lag*: the sender acts as if it were `lag` earlier, and the lag shrinks by a quarter of the time
//! that passes. `bpf/send.bpf.c` implements the same rule for live frames.

use super::stalls::StallLog;
use crate::clock::WAKE_UP_LEAD;
use packetrig_stats::port_event::PortEvent;
use packetrig_units::{MonoTime, Nanos};

/// Lateness up to which a sender counts as on time: a thread that spins until a frame is due is that late.
pub(crate) const ON_TIME_TOLERANCE: Nanos = Nanos::from_micros(10);
/// A sender that is behind sends this fraction (1 / `CATCH_UP_DIVISOR`) faster than its schedule until it has caught up.
pub(crate) const CATCH_UP_DIVISOR: u64 = 4;

/// A sender that catches up sleeps only through waits longer than this.
const MIN_SLEEP_WAIT: Nanos = Nanos::from_millis(1);
/// Time after which a late sender makes hold-ups good at once. A stall of up to a quarter of it is recovered within it.
pub(crate) const ALWAYS_LATE_AFTER: Nanos = Nanos::from_secs(1);
/// Delay that a sender that is always late makes good at once.
pub(crate) const MAX_HOLD_UP: Nanos = Nanos::from_millis(10);

#[derive(Clone, Debug, Default)]
pub(crate) struct SenderLag {
    /// Delay of the sender at `since`.
    lag: Nanos,
    since: MonoTime,
    /// Time since when it has not been on time.
    late_since: Option<MonoTime>,
    stalls: StallLog,
}

impl SenderLag {
    /// Returns how far behind its schedule the sender must stay.
    pub(crate) fn current_lag(&self, now: MonoTime) -> Nanos {
        // The lag shrinks by a quarter of the time that passes, so the sender's clock runs at 5/4 while it catches up.
        let made_good = Nanos::new(now.since(self.since).as_u64() / CATCH_UP_DIVISOR);
        self.lag.saturating_sub(made_good)
    }

    /// Returns the time up to which due frames may leave.
    pub(crate) fn schedule_time(&self, now: MonoTime) -> MonoTime {
        now - self.current_lag(now)
    }

    /// Returns when a frame that is due at `due` may leave, at the latest.
    pub(crate) fn release_time(&self, due: MonoTime, now: MonoTime) -> MonoTime {
        due + self.current_lag(now)
    }

    /// Returns until when to wait for the frame that may leave at `release`. A sender that catches up spins instead of
    /// sleeping: each late wake-up would make it later.
    pub(crate) fn wait_until(&self, release: MonoTime, now: MonoTime) -> MonoTime {
        let spins = self.current_lag(now) > Nanos::ZERO && release.since(now) < MIN_SLEEP_WAIT;
        if spins { release.min(now + WAKE_UP_LEAD) } else { release }
    }

    /// Updates the lag from the earliest frame that has not left. Called before each frame: a thread can be held up
    /// between any two of them.
    pub(crate) fn update_lag(&mut self, due: MonoTime, now: MonoTime) {
        let behind = now.since(due);
        // The common case first: this runs before every frame.
        if self.lag == Nanos::ZERO && behind <= ON_TIME_TOLERANCE {
            return;
        }
        let lag = self.current_lag(now);
        let late_since = *self.late_since.get_or_insert(now);
        let slack = if now.since(late_since) > ALWAYS_LATE_AFTER { MAX_HOLD_UP } else { ON_TIME_TOLERANCE };
        if behind > lag + slack {
            // The sender makes up for the slack at once. It catches up slowly only for the lateness beyond the slack.
            self.lag = behind.saturating_sub(slack);
            self.since = now;
        } else if lag == Nanos::ZERO {
            self.lag = Nanos::ZERO;
            self.late_since = None;
        }
        let is_on_time = self.lag == Nanos::ZERO;
        self.stalls.record_lag(if is_on_time { Nanos::ZERO } else { behind }, now);
    }

    /// Returns the periods in which the sender was behind.
    pub(crate) fn stall_events(&self) -> Vec<PortEvent> {
        self.stalls.events()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(us: u64) -> MonoTime {
        MonoTime::default() + Nanos::from_micros(us)
    }

    /// Simulates a sender of a frame each `gap` that cannot send during these times; returns when it sent which frame.
    fn departures(gap: u64, frames: u64, stalls: &[(u64, u64)]) -> Vec<u64> {
        let (mut catch_up, mut sent) = (SenderLag::default(), Vec::new());
        for now in 0..10_000_000 {
            let next = sent.len() as u64;
            if next == frames {
                break;
            }
            if stalls.iter().any(|(from, until)| (*from..*until).contains(&now)) {
                continue;
            }
            catch_up.update_lag(at(gap * next), at(now));
            let due = |sent: &Vec<u64>| at(gap * sent.len() as u64);
            while (sent.len() as u64) < frames && due(&sent) <= catch_up.schedule_time(at(now)) {
                sent.push(now);
            }
        }
        sent
    }

    #[test]
    fn late_wakeup_is_not_a_stall() {
        let sent = departures(2, 500, &[(200, 210)]);
        assert_eq!(sent.iter().filter(|at| **at == 210).count(), 6);
        assert_eq!(sent[499], 998);
    }

    #[test]
    fn stalled_sender_catches_up_at_five_quarters_rate() {
        let sent = departures(200, 10_000, &[(100_000, 300_000)]);
        let within = |from: u64, until: u64| sent.iter().filter(|at| (from..until).contains(*at)).count();
        assert!((3_124..=3_126).contains(&within(300_000, 800_000)), "{}", within(300_000, 800_000));
        // 200 ms of lag take 800 ms.
        assert_eq!(sent[9_999], 9_999 * 200);
        assert!(within(1_090_000, 1_110_000) < 126);
        assert_eq!(within(1_200_000, 1_400_000), 1_000);
    }

    #[test]
    fn repeatedly_stalled_sender_lag_stays_bounded() {
        let held_up: Vec<_> = (0..600).map(|n| (n * 10_000, n * 10_000 + 3_000)).collect();
        let sent = departures(200, 30_000, &held_up);
        let late = |n: usize| sent[n] - 200 * n as u64;
        assert!(late(29_990) <= 10_000 && late(5_000) > 50_000, "{} {}", late(29_990), late(5_000));
    }

    #[test]
    fn stall_event_lasts_until_sender_is_on_time() {
        use packetrig_stats::port_event::PortEventKind;
        let mut catch_up = SenderLag::default();
        catch_up.update_lag(at(100_000), at(300_000));
        catch_up.update_lag(at(1_400_000), at(1_400_000));
        let what = PortEventKind::SenderStalled { most_late: Nanos::from_millis(200) };
        let stall = PortEvent { what, from: at(100_000), until: Some(at(1_400_000)), only_sending: true };
        assert_eq!(catch_up.stall_events(), [stall]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn catch_up_rate_is_bounded_in_every_millisecond(
            gap in 5u64..400, stalls in prop::collection::vec((0u64..200_000, 1u64..50_000), 0..6)
        ) {
            let stalls: Vec<_> = stalls.iter().map(|(from, length)| (*from, from + length)).collect();
            let sent = departures(gap, 400_000 / gap, &stalls);
            let most = (1250 + ON_TIME_TOLERANCE.as_u64() / 1000) / gap + 2;
            for (first, from) in sent.iter().enumerate() {
                let within = sent[first..].iter().take_while(|at| **at < from + 1000).count() as u64;
                prop_assert!(within <= most, "{within} of at most {most} from {from} us on");
            }
        }
    }
}
