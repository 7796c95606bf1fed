//! The send gate of a lease: a deadline after which a port must not send. The controller's leases set the
//! deadline; the senders check it themselves.
//!
//! Every sender compares the deadline with the clock before each piece of work of at most [`MAX_AHEAD`]. So
//! no message is needed to stop it: a node whose lease is not renewed stops by itself. A sender that finds
//! the gate shut stops permanently; a later deadline does not start it again.
//! Without a lease the gate is open, and checking it costs one load.
//!
//! Invariant: without a lease there is no deadline; with a lease, the deadline is never "for ever". Only the thread
//! that handles the lease sets the deadline, because `shut_now` reads it before it writes. No other data is published
//! with the deadline, so its memory ordering does not matter: a stricter one would not show the deadline sooner.

use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum duration of the work that a sender may have begun when the gate shuts.
pub const MAX_AHEAD: Nanos = Nanos::from_millis(10);

const OPEN_GATE: u64 = u64::MAX;

/// Returns how long the machine has been suspended since boot: `CLOCK_BOOTTIME` minus `CLOCK_MONOTONIC`. The result may
/// be slightly too small, but never too large.
pub fn suspended_time() -> Nanos {
    let boottime = clock::boottime_ns();
    Nanos::new(boottime.saturating_sub(clock::monotonic_ns()))
}

/// The gate that a sender checks before each piece of work. Clones share one deadline.
#[derive(Clone, Debug)]
pub struct SendGate {
    /// Nanoseconds of `CLOCK_BOOTTIME`, which continues while the machine is suspended.
    deadline: Arc<AtomicU64>,
}

impl Default for SendGate {
    fn default() -> Self {
        Self::without_lease()
    }
}

impl SendGate {
    /// Creates the gate of senders that need no lease: it never shuts.
    pub fn without_lease() -> Self {
        Self { deadline: Arc::new(AtomicU64::new(OPEN_GATE)) }
    }

    /// Creates the gate of senders under a lease that has not begun: it is shut until a deadline is set.
    pub fn under_lease() -> Self {
        // Time 0 of CLOCK_BOOTTIME is long past on any running machine.
        Self { deadline: Arc::new(AtomicU64::new(0)) }
    }

    /// Sets the deadline, in nanoseconds of `CLOCK_BOOTTIME`. Callers compute it from the time at which the renewal of
    /// the lease was *sent*, not from its arrival. A gate without a lease stays open.
    pub fn set_deadline(&self, boottime_ns: u64) {
        if self.is_leased() {
            // The value stays below OPEN_GATE: no deadline may turn a leased gate into one without a lease.
            self.deadline.store(boottime_ns.min(OPEN_GATE - 1), Ordering::Release);
        }
    }

    /// Sets the deadline ([`Self::set_deadline`]) to a time of the node's monotonic clock. `slept` is the result of
    /// [`suspended_time`] when the deadline was computed: if the machine sleeps after that, this does not extend the
    /// lease.
    pub fn extend_until(&self, until: MonoTime, slept: Nanos) {
        self.set_deadline((until + slept).as_nanos());
    }

    /// Shuts the gate now, if there is a lease.
    pub fn shut_now(&self) {
        if let Some(deadline) = self.deadline() {
            // The earlier of both times is set: shutting must not extend a lease that has ended already.
            self.set_deadline(deadline.min(clock::boottime_ns()));
        }
    }

    /// Returns whether the senders are under a lease.
    pub fn is_leased(&self) -> bool {
        self.deadline.load(Ordering::Relaxed) != OPEN_GATE
    }

    /// Returns the deadline in nanoseconds of `CLOCK_BOOTTIME`; `None` without a lease.
    pub fn deadline(&self) -> Option<u64> {
        Some(self.deadline.load(Ordering::Acquire)).filter(|deadline| *deadline != OPEN_GATE)
    }

    /// Returns the time until the lease ends, zero after its end; `None` without a lease.
    pub fn remaining_time(&self) -> Option<Nanos> {
        Some(Nanos::new(self.deadline()?.saturating_sub(clock::boottime_ns())))
    }

    /// Returns when the gate shut, as a time of the sender's clock, which shows `now`; not earlier than `not_before`.
    /// `None` while the gate is open.
    #[inline]
    pub fn shut_since(&self, now: MonoTime, not_before: MonoTime) -> Option<MonoTime> {
        let deadline = self.deadline()?;
        // The time since the end of the lease is the same on both clocks as long as the machine is awake. An
        // absolute time of CLOCK_BOOTTIME has no meaning on the sender's clock.
        let over = clock::boottime_ns().checked_sub(deadline)?;
        Some((now - Nanos::new(over)).max(not_before).min(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unleased_gate_ignores_deadline_and_shutdown() {
        let gate = SendGate::without_lease();
        gate.set_deadline(1);
        gate.shut_now();
        let now = MonoTime::from_nanos(5);
        assert_eq!((gate.is_leased(), gate.remaining_time(), gate.shut_since(now, now)), (false, None, None));
    }

    #[test]
    fn gate_converts_monotonic_deadline_to_same_instant() {
        let gate = SendGate::under_lease();
        let until = MonoTime::from_nanos(clock::monotonic_ns()) + Nanos::from_secs(100);
        gate.extend_until(until, suspended_time());
        let left = gate.remaining_time().expect("there is a lease");
        assert!(left <= Nanos::from_secs(100) && left > Nanos::from_secs(10), "{left}");
    }

    #[test]
    fn leased_gate_starts_shut_and_shuts_at_deadline() {
        let gate = SendGate::under_lease();
        let (start, now) = (MonoTime::from_nanos(1_000), MonoTime::from_nanos(u64::MAX));
        assert_eq!(gate.remaining_time(), Some(Nanos::ZERO));
        let copy = gate.clone();
        copy.set_deadline(clock::boottime_ns() + 3_600_000_000_000);
        assert!(gate.remaining_time() > Some(Nanos::from_secs(3_000)));
        assert_eq!(gate.shut_since(now, start), None);
        copy.set_deadline(u64::MAX);
        assert!(gate.is_leased(), "no lease is for ever");
        copy.set_deadline(clock::boottime_ns() - 1_000);
        let since = gate.shut_since(now, start).expect("it is shut");
        assert!(since < now && since > now - Nanos::from_secs(3_600));
        copy.set_deadline(0);
        assert_eq!(gate.shut_since(MonoTime::from_nanos(5_000), start), Some(start));
        copy.set_deadline(clock::boottime_ns() + 3_600_000_000_000);
        copy.shut_now();
        assert!(gate.shut_since(now, start).is_some());
    }
}
