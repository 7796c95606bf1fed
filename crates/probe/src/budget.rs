//! The limits of a target: a token bucket for probes, one for bits, and a total number of probes. All are checked
//! before every frame.
//!
//! Invariant: in any interval of `t` seconds, at most `burst + t * probes_per_s` probes are allowed, and at most
//! `burst * MAX_FRAME_BITS + t * bits_per_s` bits.

use crate::TargetLimits;
use packetrig_units::{MonoTime, Nanos, clamp_to_u64};

/// Reason why a frame must not be sent: the limit that it would exceed, or a lease that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetExceeded {
    #[error("at most {} probes/s (bursts of {}) are allowed to this target; send more slowly, or raise the \
        limit in a permit file (--permit, or the owner's /etc/packetrig/probe.toml)", .0.probes_per_s, .0.burst)]
    Probes(TargetLimits),
    #[error("at most {} bit/s (bursts of {} probes) are allowed to this target; send more slowly, or raise the \
        limit in a permit file (--permit, or the owner's /etc/packetrig/probe.toml)", .0.bits_per_s, .0.burst)]
    Bits(TargetLimits),
    #[error("at most {} probes in all are allowed to this target; send fewer, or raise the limit in a permit file (--permit, or the owner's /etc/packetrig/probe.toml)", .0.most)]
    Most(TargetLimits),
    #[error("the lease of this node has ended: its controller has not renewed it")]
    Lease,
}

/// Levels of the two token buckets of a target, and the number of frames that were deducted so far.
#[derive(Clone, Debug)]
pub struct ProbeBudget {
    limits: TargetLimits,
    probes: TokenBucket,
    bits: TokenBucket,
    taken: u64,
}

/// The level of a bucket, stored as the time at which the bucket is full again.
#[derive(Clone, Copy, Debug, Default)]
struct TokenBucket {
    full_at_ns: u64,
    /// Fraction of a nanosecond after `full_at_ns`, in units of 1/rate. Without it, rounding errors would add up to
    /// more than the rate.
    rest: u64,
}

impl TokenBucket {
    /// Returns the bucket after `amount` was taken at `at_ns`. The rate `per_s` is at least 1.
    fn after_deducting(self, amount: u64, per_s: u64, at_ns: u64) -> Self {
        let from = if self.full_at_ns < at_ns { Self { full_at_ns: at_ns, rest: 0 } } else { self };
        let total = u128::from(amount) * u128::from(Nanos::from_secs(1).as_u64()) + u128::from(from.rest);
        let (whole, rest) = (total / u128::from(per_s), total % u128::from(per_s));
        // The rest is smaller than the rate, so it fits into a `u64`.
        Self { full_at_ns: from.full_at_ns.saturating_add(clamp_to_u64(whole)), rest: clamp_to_u64(rest) }
    }
}

/// Bits of a full-size Ethernet frame without FCS. The bucket for bits holds `burst` such frames.
const MAX_FRAME_BITS: u64 = 1_514 * 8;

/// Resolution of the search for the start of a train: the start that is found may be this much later than necessary.
const START_SEARCH_RESOLUTION: Nanos = Nanos::from_millis(1);

impl ProbeBudget {
    pub const fn new(limits: TargetLimits) -> Self {
        const EMPTY: TokenBucket = TokenBucket { full_at_ns: 0, rest: 0 };
        Self { limits, probes: EMPTY, bits: EMPTY, taken: 0 }
    }

    pub const fn limits(&self) -> TargetLimits {
        self.limits
    }

    /// Returns this budget with other limits; probes and bits that were used stay used.
    #[must_use]
    pub const fn with_limits(self, limits: TargetLimits) -> Self {
        // `rest` is in units of the old rate, so it means nothing for the new one.
        let probes = TokenBucket { rest: 0, ..self.probes };
        let bits = TokenBucket { rest: 0, ..self.bits };
        Self { limits, probes, bits, ..self }
    }

    /// Returns whether both buckets are full at this time.
    pub const fn are_buckets_full(&self, at: MonoTime) -> bool {
        self.probes.full_at_ns <= at.as_nanos() && self.bits.full_at_ns <= at.as_nanos()
    }

    /// Returns the earliest time from `at` on at which a train may begin; it may be up to 1 ms later than necessary.
    /// `train` yields, for each frame, the time after the start of the train and the length in bytes. Fails if the
    /// train would exceed the limits even with full buckets.
    pub fn earliest_start(
        &self,
        at: MonoTime,
        train: impl Iterator<Item = (Nanos, u32)> + Clone,
    ) -> Result<MonoTime, BudgetExceeded> {
        // Full buckets are the best case: a train that does not fit then never fits.
        let full = at.max(MonoTime::from_nanos(self.probes.full_at_ns.max(self.bits.full_at_ns)));
        self.check_train(full, train.clone())?;
        let mut late = full;
        let mut early = at;
        // Until the train begins, the buckets only fill, so the check fails before one point in time and
        // succeeds after it. The interval is halved until that point is found: with two buckets and the
        // distances of a train there is no simple formula.
        while late.since(early) > START_SEARCH_RESOLUTION {
            let middle = early + Nanos::new(late.since(early).as_u64() / 2);
            if self.check_train(middle, train.clone()).is_ok() { late = middle } else { early = middle }
        }
        // The search never tries `at` itself. Usually the train fits at once; then it must
        // not begin `START_SEARCH_RESOLUTION` later.
        Ok(if self.check_train(at, train).is_ok() { at } else { late })
    }

    /// Checks whether the limits allow a whole train that begins at `begins`.
    fn check_train(
        &self,
        begins: MonoTime,
        mut train: impl Iterator<Item = (Nanos, u32)>,
    ) -> Result<(), BudgetExceeded> {
        let mut copy = self.clone();
        train.try_for_each(|(after, length)| copy.deduct_frame(begins + after, length))
    }

    /// Deducts a frame of `length` bytes with departure time `at` from both buckets; times must not decrease.
    /// A refusal deducts nothing.
    pub fn deduct_frame(&mut self, at: MonoTime, length: u32) -> Result<(), BudgetExceeded> {
        let at = at.as_nanos();
        let limits = self.limits;
        // The total is checked first: if it is used up, waiting does not help.
        if self.taken >= limits.most {
            return Err(BudgetExceeded::Most(limits));
        }
        // Each bucket is a virtual clock (GCRA, ITU-T I.371): a full bucket has its time in the past, and a
        // frame fits if the time at which the bucket is full again is at most one burst ahead.
        let room = refill_ns(u64::from(limits.burst), limits.probes_per_s);
        let probes = self.probes.after_deducting(1, limits.probes_per_s.max(1), at);
        if limits.probes_per_s == 0 || probes.full_at_ns - at > room {
            return Err(BudgetExceeded::Probes(limits));
        }
        // Both buckets are checked before either is charged.
        let room = refill_ns(u64::from(limits.burst).saturating_mul(MAX_FRAME_BITS), limits.bits_per_s);
        let bits = self.bits.after_deducting(u64::from(length) * 8, limits.bits_per_s.max(1), at);
        if limits.bits_per_s == 0 || bits.full_at_ns - at > room {
            return Err(BudgetExceeded::Bits(limits));
        }
        self.probes = probes;
        self.bits = bits;
        self.taken += 1;
        Ok(())
    }
}

/// Time in nanoseconds in which a bucket with the rate `per_s` refills by `amount`.
fn refill_ns(amount: u64, per_s: u64) -> u64 {
    // Saturating, because the limits of `TargetLimits::NONE` are the largest numbers.
    Nanos::from_secs(1).as_u64().saturating_mul(amount) / per_s.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: TargetLimits = TargetLimits { most: u64::MAX, ..TargetLimits::DEFAULT_LIMITS };

    #[test]
    fn rate_that_divides_no_second_is_kept_exactly() {
        for per_s in [3, 15_000_000, 3_000_000_000] {
            let mut bucket = TokenBucket::default();
            for _ in 0..1_000_000 {
                bucket = bucket.after_deducting(1, per_s, 0);
            }
            assert_eq!(bucket.full_at_ns, 1_000_000 * 1_000_000_000 / per_s, "{per_s}");
        }
    }

    fn taken(budget: &mut ProbeBudget, from: u64, every: u64, length: u32) -> usize {
        (0..100_000)
            .take_while(|n| budget.deduct_frame(MonoTime::from_nanos(from + n * every), length).is_ok())
            .count()
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut budget = ProbeBudget::new(LIMITS);
        assert_eq!(taken(&mut budget, 1_000, 0, 60), 50);
        assert_eq!(budget.deduct_frame(MonoTime::from_nanos(1_000), 60), Err(BudgetExceeded::Probes(LIMITS)));
        // Two more fit after a tenth of a second.
        assert_eq!(taken(&mut budget, 100_001_000, 0, 60), 2);
        let mut budget = ProbeBudget::new(LIMITS);
        assert_eq!(taken(&mut budget, 1_000, 50_000_000, 60), 100_000);
    }

    #[test]
    fn long_frames_are_bound_by_bits() {
        let limits = TargetLimits { probes_per_s: 1_000_000, ..LIMITS };
        let mut budget = ProbeBudget::new(limits);
        // 50 at once, and one more for each 12.1 ms that have gone by.
        assert_eq!(taken(&mut budget, 0, 1_000_000, 1_514), 54);
        assert_eq!(
            budget.deduct_frame(MonoTime::from_nanos(54_000_000), 1_514),
            Err(BudgetExceeded::Bits(limits))
        );
    }

    #[test]
    fn budget_delays_train_until_it_fits() {
        let mut budget = ProbeBudget::new(LIMITS);
        let train = |of: usize| std::iter::repeat_n((Nanos::ZERO, 60), of);
        let at = MonoTime::from_nanos(1_000_000_000);
        assert_eq!(budget.earliest_start(at, train(50)), Ok(at));
        assert_eq!(budget.earliest_start(at, train(51)), Err(BudgetExceeded::Probes(LIMITS)));
        for _ in 0..50 {
            budget.deduct_frame(at, 60).unwrap();
        }
        // Two of twenty a second.
        let begins = budget.earliest_start(at, train(2)).unwrap();
        let waits = begins.since(at);
        assert!(waits >= Nanos::from_millis(100) && waits <= Nanos::from_millis(101), "{waits}");
        budget.deduct_frame(begins, 60).unwrap();
        budget.deduct_frame(begins, 60).unwrap();
    }

    #[test]
    fn there_is_an_end_to_all() {
        let mut budget = ProbeBudget::new(TargetLimits { most: 3, ..LIMITS });
        assert_eq!(taken(&mut budget, 0, 1_000_000_000, 60), 3);
    }
}
