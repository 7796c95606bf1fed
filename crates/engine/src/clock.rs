//! Clock for workers that reads the machine's monotonic time. Virtual time is in the `sim` back end.

use crate::port::WorkerClock;
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use std::cell::Cell;

/// Sleeping threads wake this long before the deadline; then the caller spins. Waking takes tens of microseconds on
/// an idle machine, so a shorter lead would make the sender late, and a longer one would only burn processor time.
pub const WAKE_UP_LEAD: Nanos = Nanos::from_micros(100);

/// Reads `CLOCK_MONOTONIC`. Each worker thread has its own clock: the first sleep reduces the thread's timer slack.
#[derive(Debug, Default)]
pub struct RealClock {
    prepared: Cell<bool>,
}

impl RealClock {
    /// Creates a clock for one worker thread.
    pub fn new() -> Self {
        Self::default()
    }

    fn tighten_timer_slack_once(&self) {
        if !self.prepared.replace(true) {
            // With the default slack the kernel may wake the thread 50 us late, which adds to the send-time error.
            drop(clock::tighten_timer_slack());
        }
    }
}

impl WorkerClock for RealClock {
    fn now(&self) -> MonoTime {
        MonoTime::from_nanos(clock::monotonic_ns())
    }

    fn wait_until(&self, until: MonoTime) {
        let wake = until - WAKE_UP_LEAD;
        if wake > self.now() {
            self.tighten_timer_slack_once();
            clock::sleep_until_ns(wake.as_nanos());
        } else {
            // The deadline is too near to sleep: the caller repeats the call until it has passed.
            clock::hint_busy_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_no_earlier_than_the_lead() {
        let clock = RealClock::new();
        let until = clock.now() + Nanos::from_millis(3);
        clock.wait_until(until);
        assert!(clock.now() >= until - WAKE_UP_LEAD);
    }

    #[test]
    fn clock_wait_for_past_or_near_never_sleeps() {
        let clock = RealClock::new();
        clock.wait_until(MonoTime::from_nanos(0));
        clock.wait_until(clock.now() + Nanos::from_micros(10));
        assert!(!clock.prepared.get(), "no sleep was needed");
    }
}
