//! The highest load that loses nothing, by bisection.
//!
//! Pure: it says which load to try next, and takes the result. A load that failed once has failed. To pass, a load must pass
//! as often as the caller asks.
//!
//! Invariant: the load found is the highest that passed, and nothing tried above it did.

/// A search from a highest load downwards.
#[derive(Clone, Debug)]
pub struct ZeroLoss {
    low: u64,
    high: u64,
    /// The load being tried, and how often it has passed; `None` when the search is over.
    trying: Option<(u64, u32)>,
    /// The search is over when the interval is at most this many thousandths of its upper end.
    width: u64,
    /// Times a load must pass.
    repeats: u32,
}

impl ZeroLoss {
    /// Tries `high` first, then between it and nothing.
    pub fn new(high: u64, width: u64, repeats: u32) -> Self {
        Self { low: 0, high, trying: (high > 0).then_some((high, 0)), width, repeats: repeats.max(1) }
    }

    /// The load to try next; `None` when the search is over.
    pub fn load(&self) -> Option<u64> {
        self.trying.map(|(load, _)| load)
    }

    /// How the load just tried went.
    pub fn tell(&mut self, passed: bool) {
        let Some((load, times)) = self.trying else { return };
        if passed && times + 1 < self.repeats {
            self.trying = Some((load, times + 1));
            return;
        }
        if passed {
            self.low = load;
        } else {
            self.high = load;
        }
        // A load that failed stays above: loss is not always repeatable, so trying it again until it passes would find a load
        // that is too high.
        let room = self.high - self.low;
        // With a width of 0 the search would not end by the second condition: then it ends at neighbouring numbers.
        let over = room <= 1 || room.saturating_mul(1000) <= self.high.saturating_mul(self.width);
        self.trying = (!over).then_some((self.low + room / 2, 0));
    }

    /// The highest load that passed; 0 if none did.
    pub fn found(&self) -> u64 {
        self.low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_load_that_fails_once_is_too_much_however_often_it_passed() {
        let mut search = ZeroLoss::new(100, 10, 3);
        for passed in [true, true, false] {
            assert_eq!(search.load(), Some(100));
            search.tell(passed);
        }
        assert_eq!((search.load(), search.found()), (Some(50), 0));
    }

    #[test]
    fn the_highest_load_is_the_answer_if_it_passes() {
        let mut search = ZeroLoss::new(100, 10, 1);
        search.tell(true);
        assert_eq!((search.load(), search.found()), (None, 100));
        assert_eq!(ZeroLoss::new(0, 10, 1).load(), None);
    }

    proptest! {
        #[test]
        fn the_limit_is_found_within_the_width(limit in 1u64..5_000_000, above in 0u64..5_000_000) {
            let mut search = ZeroLoss::new(limit + above, 10, 2);
            let mut trials = 0;
            while let Some(load) = search.load() {
                search.tell(load <= limit);
                trials += 1;
                prop_assert!(trials < 100);
            }
            prop_assert!(search.found() <= limit);
            prop_assert!(search.found() + (limit + above) / 100 + 1 >= limit);
        }
    }
}
