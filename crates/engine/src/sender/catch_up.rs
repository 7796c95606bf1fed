//! Brings a sender that was held up back to its schedule.
//!
//! A sender that is behind by more than [`ON_TIME_TOLERANCE`] sends at 5/4 of the planned rate until it is on
//! time again. It keeps to that rate in every millisecond, not on average, so that a device that can carry 5/4 of
//! the plan loses nothing.
//!
//! A sender that loses more than a fifth of its time to short hold-ups cannot recover like that: it would fall behind
//! faster than it catches up. As long as it loses that much, it catches up hold-ups of up to [`MAX_HOLD_UP`] at once.
//!
//! The rule uses a *lag*: the sender acts as if the time were earlier by the lag, and the lag shrinks by a quarter of
//! the time that passes. `bpf/send.bpf.c` implements the same rule for live frames.

use super::stalls::StallLog;
use crate::clock::WAKE_UP_LEAD;
use packetrig_stats::port_event::PortEvent;
use packetrig_units::{MonoTime, Nanos};

/// Lateness up to which a sender counts as on time: a thread that spins until a frame is due is that late.
pub(crate) const ON_TIME_TOLERANCE: Nanos = Nanos::from_micros(10);
/// A sender that is behind sends this fraction (1 / `CATCH_UP_DIVISOR`) faster than planned until it has caught up.
pub(crate) const CATCH_UP_DIVISOR: u64 = 4;

/// A sender that catches up sleeps only if it has to wait at least this long. It spins through shorter waits.
const MIN_SLEEP_WAIT: Nanos = Nanos::from_millis(1);
/// Time over which a sender adds up its hold-ups.
pub(crate) const HOLD_UP_WINDOW: Nanos = Nanos::from_millis(100);
/// Longest delay that a sender with too little processor time catches up at once.
pub(crate) const MAX_HOLD_UP: Nanos = Nanos::from_millis(10);

/// Time that a sender lost to hold-ups, in windows of [`HOLD_UP_WINDOW`].
#[derive(Clone, Debug, Default)]
struct HoldUpMeter {
    window_start: MonoTime,
    /// Sum of the hold-ups in this window. At most [`MAX_HOLD_UP`] of each counts: the rest is caught up slowly.
    lost: Nanos,
    /// Delay of the last frame beyond the lag.
    excess: Nanos,
    /// True if the sender lost more time in the last window than it can catch up in a window.
    is_starved: bool,
}

impl HoldUpMeter {
    /// Adds the delay of a frame beyond the lag. Only its growth since the last frame counts: the rest
    /// is an earlier hold-up.
    fn add_delay(&mut self, excess: Nanos, now: MonoTime) {
        let elapsed = now.since(self.window_start);
        if elapsed > HOLD_UP_WINDOW {
            // Catching up gains a quarter of the time that is not lost, so a fifth of the whole time.
            self.is_starved = self.lost.as_u64().saturating_mul(CATCH_UP_DIVISOR + 1) > elapsed.as_u64();
            self.window_start = now;
            self.lost = Nanos::ZERO;
        }
        let held_up = excess.saturating_sub(self.excess);
        if held_up > ON_TIME_TOLERANCE {
            self.lost += held_up.min(MAX_HOLD_UP);
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SenderLag {
    /// Delay of the sender at `since`.
    lag: Nanos,
    since: MonoTime,
    hold_ups: HoldUpMeter,
    stalls: StallLog,
}

impl SenderLag {
    /// Returns how far behind its schedule the sender stays at `now`, so that it does not catch up too fast.
    pub(crate) fn current_lag(&self, now: MonoTime) -> Nanos {
        // The lag shrinks by a quarter of the time that passes, so the sender's clock runs at 5/4 while it catches up.
        let made_good = Nanos::new(now.since(self.since).as_u64() / CATCH_UP_DIVISOR);
        self.lag.saturating_sub(made_good)
    }

    /// Returns the time up to which due frames may leave.
    pub(crate) fn latest_allowed_due_time(&self, now: MonoTime) -> MonoTime {
        now - self.current_lag(now)
    }

    /// Returns when a frame that is due at `due` may leave if the lag stays as it is `now`. The lag shrinks, so the
    /// frame may leave earlier.
    pub(crate) fn release_time(&self, due: MonoTime, now: MonoTime) -> MonoTime {
        due + self.current_lag(now)
    }

    /// Returns until when to wait for the frame that may leave at `release`. A sender that catches up spins instead of
    /// sleeping: each late wake-up would make it later.
    pub(crate) fn wait_deadline(&self, release: MonoTime, now: MonoTime) -> MonoTime {
        let spins = self.current_lag(now) > Nanos::ZERO && release.since(now) < MIN_SLEEP_WAIT;
        if spins { release.min(now + WAKE_UP_LEAD) } else { release }
    }

    /// Updates the lag from the earliest frame that has not left. Called before each frame: a thread can be held up
    /// between any two of them.
    pub(crate) fn update_lag(&mut self, due: MonoTime, now: MonoTime) {
        let behind = now.since(due);
        // The common case comes first, because this runs before every frame.
        if self.lag == Nanos::ZERO && behind <= ON_TIME_TOLERANCE {
            self.hold_ups.excess = Nanos::ZERO;
            return;
        }
        let lag = self.current_lag(now);
        self.hold_ups.add_delay(behind.saturating_sub(lag), now);
        let slack = if self.hold_ups.is_starved { MAX_HOLD_UP } else { ON_TIME_TOLERANCE };
        if behind > lag + slack {
            // The sender makes up for the slack at once. It catches up slowly only for the lateness beyond the slack.
            self.lag = behind.saturating_sub(slack);
            self.since = now;
        } else if lag == Nanos::ZERO {
            self.lag = Nanos::ZERO;
        }
        self.hold_ups.excess = behind.saturating_sub(self.current_lag(now));
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
            while (sent.len() as u64) < frames && due(&sent) <= catch_up.latest_allowed_due_time(at(now)) {
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
    fn repeatedly_stalled_sender_keeps_its_rate() {
        let held_up: Vec<_> = (0..600).map(|n| (n * 10_000, n * 10_000 + 3_000)).collect();
        let sent = departures(200, 30_000, &held_up);
        let late = |n: usize| sent[n] - 200 * n as u64;
        let latest = (0..30_000).map(late).max().unwrap();
        // It loses 30 ms in the first window, of which it makes good 18 ms.
        assert!((10_000..=33_000).contains(&latest), "{latest}");
        assert!((1_250..29_990).all(|n| late(n) <= 10_000), "from 250 ms on");
    }

    #[test]
    fn starved_sender_recovers_slowly_once_it_has_its_time() {
        let held_up: Vec<_> = (0..30).map(|n| (n * 10_000, n * 10_000 + 3_000)).collect();
        let sent = departures(200, 5_000, &[held_up, vec![(500_000, 550_000)]].concat());
        let within = |from: u64, until: u64| sent.iter().filter(|at| (from..until).contains(*at)).count();
        assert!((624..=626).contains(&within(550_000, 650_000)), "{}", within(550_000, 650_000));
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
            gap in 5u64..400, stalls in prop::collection::vec((0u64..200_000, 1u64..4_000), 0..6)
        ) {
            // Five stalls of 4 ms in 100 ms are what a sender recovers from slowly.
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
