//! The deadline at which the thread of a target gives up its remaining records at the end.
//!
//! After the last batch was offered, the thread continues as long as its target accepts data, and for some time
//! after that: the linger time, or as long as [`BackpressurePolicy`] allows. The thread does not wait a second
//! time for a target that was given up.

use crate::backpressure::{BackpressurePolicy, OutputProgress};
use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Time at which the last batch of all was offered to the targets, in nanoseconds of the monotonic clock; `u64::MAX`
/// while more batches may come. Clones share the time.
#[derive(Clone, Debug)]
pub(super) struct LastOfferTime(Arc<AtomicU64>);

impl LastOfferTime {
    pub(super) fn no_offer_yet() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// Starts the countdown: the last batch was offered.
    pub(super) fn start_countdown(&self, now_ns: u64) {
        // Relaxed is enough: the number stands alone, and a thread that reads
        // it late only waits a little longer.
        self.0.store(now_ns, Ordering::Relaxed);
    }
}

/// The deadline of one target.
#[derive(Clone, Debug)]
pub(super) struct SendDeadline {
    pub(super) last_offer: LastOfferTime,
    pub(super) linger: Nanos,
    pub(super) backpressure: BackpressurePolicy,
    pub(super) progress: OutputProgress,
}

impl SendDeadline {
    pub(super) fn record_accepted_send(&self) {
        self.progress.record_output_progress();
    }

    pub(super) fn set_connected(&self, is_connected: bool) {
        self.progress.set_connected(is_connected);
    }

    /// Returns the deadline as of now. It moves while the target accepts data.
    pub(super) fn deadline_ns(&self) -> u64 {
        let offered_ns = self.last_offer.0.load(Ordering::Relaxed);
        // A target that was given up at its queue has already used its time.
        if self.progress.is_given_up() {
            return offered_ns;
        }
        let wait_ns = self.backpressure.wait_after_last_batch_ns(self.progress.reach(), self.linger);
        // The sum saturates at `u64::MAX` while batches are still offered: the deadline is then never reached.
        offered_ns.max(self.progress.last_progress_ns()).saturating_add(wait_ns)
    }

    pub(super) fn is_past(&self) -> bool {
        clock::monotonic_ns() >= self.deadline_ns()
    }

    /// Reports whether to wait for a target that accepts no data now. If not, the target is given up for
    /// good: a new connection would accept data, but possibly nobody would read it.
    pub(super) fn may_wait_else_give_up(&self) -> bool {
        let is_past = self.is_past();
        if is_past {
            self.progress.mark_given_up();
        }
        !is_past
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backpressure::{OutputQueue, OutputReachability};
    use crossbeam_channel::bounded;

    fn deadline(last_offer: &LastOfferTime, policy: &BackpressurePolicy) -> SendDeadline {
        SendDeadline {
            last_offer: last_offer.clone(),
            linger: Nanos::from_secs(5),
            backpressure: policy.clone(),
            progress: OutputProgress::new(OutputReachability::Unreachable),
        }
    }

    #[test]
    fn it_moves_with_what_the_own_target_takes() {
        let (last_offer, policy) = (LastOfferTime::no_offer_yet(), BackpressurePolicy::default());
        let [taking, deaf] = [(); 2].map(|()| deadline(&last_offer, &policy));
        assert_eq!(taking.deadline_ns(), u64::MAX);
        last_offer.start_countdown(1000);
        assert_eq!(deaf.deadline_ns(), 1000 + deaf.linger.as_u64());
        taking.record_accepted_send();
        assert!(taking.deadline_ns() > deaf.deadline_ns() && !taking.is_past());
        assert!(deaf.is_past());
    }

    #[test]
    fn stalled_target_is_not_awaited_at_end() {
        let (last_offer, policy) =
            (LastOfferTime::no_offer_yet(), BackpressurePolicy::with_stall_timeouts([1; 3]));
        let dead = deadline(&last_offer, &policy);
        let (queue, _not_taken) = bounded(1);
        let queue = OutputQueue::with_progress(queue, &policy, dead.progress.clone());
        queue.try_send(0).unwrap();
        policy.enable_backpressure();
        OutputQueue::await_queue_room(&[queue]);
        assert!(!dead.is_past(), "batches are still offered");
        let now_ns = clock::monotonic_ns();
        last_offer.start_countdown(now_ns);
        assert_eq!(dead.deadline_ns(), now_ns);
    }
}
