//! Retries of failed writes and deliveries, with growing waits.

use packetrig_units::{MonoTime, Nanos};

/// Wait after the first failure; it doubles with each further failure.
const FIRST_RETRY_WAIT: Nanos = Nanos::from_secs(1);
const MAX_RETRY_WAIT: Nanos = Nanos::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct RetryTimer {
    planned: Option<PlannedRetry>,
}

#[derive(Debug)]
struct PlannedRetry {
    at: MonoTime,
    /// Wait after this attempt, if it fails, too.
    next_wait: Nanos,
}

impl RetryTimer {
    /// Returns whether the next attempt may be made: the last attempt succeeded, or failed
    /// long enough ago. Without a time (`now`), an attempt may always be made.
    pub(super) fn is_due(&self, now: Option<MonoTime>) -> bool {
        self.planned.as_ref().is_none_or(|planned| now.is_none_or(|now| now >= planned.at))
    }

    /// Notes the result of an attempt, and plans the next one after a failure.
    pub(super) fn schedule_after_attempt(&mut self, is_ok: bool, now: Option<MonoTime>) {
        // A success forgets the waits before it: the next failure starts with the first wait again.
        let wait = self.planned.take().map_or(FIRST_RETRY_WAIT, |planned| planned.next_wait);
        let doubled = Nanos::new((wait.as_u64() * 2).min(MAX_RETRY_WAIT.as_u64()));
        // Before the first tick the time is unknown: that tick then finds the retry due.
        let now = now.unwrap_or(MonoTime::from_nanos(0));
        let at = MonoTime::from_nanos(now.as_nanos() + wait.as_u64());
        self.planned = (!is_ok).then_some(PlannedRetry { at, next_wait: doubled });
    }
}
