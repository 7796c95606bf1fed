//! Measures how long this process has waited for a processor: adds up how much later than requested it was woken.

use packetrig_fleet::hello::STARVATION_WINDOW;
use packetrig_units::{MonoTime, Nanos};

/// Longest delay of a wake-up that is not counted, because it is usual on a busy machine.
const USUAL_WAKE_UP_DELAY: Nanos = Nanos::from_millis(50);

/// Sum of the delays in the last one to two windows of [`STARVATION_WINDOW`].
#[derive(Debug)]
pub(crate) struct StarvationMeter {
    window_began: MonoTime,
    current: Nanos,
    before: Nanos,
}

impl StarvationMeter {
    pub(crate) const fn new(now: MonoTime) -> Self {
        Self { window_began: now, current: Nanos::ZERO, before: Nanos::ZERO }
    }

    /// Records a wait: `asked` is its planned length, `took` its real length.
    pub(crate) fn record_wait(&mut self, asked: Nanos, took: Nanos, now: MonoTime) {
        self.advance_starvation_window(now);
        let late = took.saturating_sub(asked);
        if late > USUAL_WAKE_UP_DELAY {
            self.current += late;
        }
    }

    pub(crate) fn recent_starvation(&mut self, now: MonoTime) -> Nanos {
        self.advance_starvation_window(now);
        self.before + self.current
    }

    fn advance_starvation_window(&mut self, now: MonoTime) {
        let since = now.since(self.window_began);
        if since < STARVATION_WINDOW {
            return;
        }
        // After two windows, no event of the first window counts any more.
        let is_next = since.as_u64() < 2 * STARVATION_WINDOW.as_u64();
        self.before = if is_next { self.current } else { Nanos::ZERO };
        self.current = Nanos::ZERO;
        self.window_began = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_wake_ups_are_added_up_and_forgotten() {
        let at = |ms: u64| MonoTime::from_nanos(ms * 1_000_000);
        let ms = Nanos::from_millis;
        let mut meter = StarvationMeter::new(at(0));
        for turn in 1..10 {
            meter.record_wait(ms(10), ms(410), at(turn * 410));
            meter.record_wait(ms(10), ms(40), at(turn * 410));
        }
        assert_eq!(meter.recent_starvation(at(4000)), ms(3600));
        assert_eq!(meter.recent_starvation(at(19_900)), ms(3600), "the window before still counts");
        assert_eq!(meter.recent_starvation(at(40_000)), Nanos::ZERO);
        // A machine that stood still.
        meter.record_wait(ms(10), ms(60_010), at(80_000));
        assert_eq!(meter.recent_starvation(at(80_000)), Nanos::from_secs(60));
    }
}
