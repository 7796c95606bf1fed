//! Faults of frames: at known positions, or by chance from a seed.

use packetrig_wire::pattern::keyed_mix;
use std::collections::BTreeSet;

/// Condition under which a simulated fault happens. Positions count all frames that enter the link, from 0; for
/// refusals, all frames that leave the transmit ring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultChance {
    at: BTreeSet<u64>,
    per_million: u32,
}

impl FaultChance {
    pub const NEVER: Self = Self { at: BTreeSet::new(), per_million: 0 };

    /// The fault happens at these positions only.
    pub fn at_positions(positions: impl IntoIterator<Item = u64>) -> Self {
        Self { at: positions.into_iter().collect(), per_million: 0 }
    }

    /// The fault happens at random: to this many of a million frames on average.
    pub const fn per_million(per_million: u32) -> Self {
        Self { at: BTreeSet::new(), per_million }
    }

    /// Returns whether the fault happens at `position`.
    pub(crate) fn is_faulty_at(&self, position: u64, dice: &mut SeededDice) -> bool {
        self.at.contains(&position)
            || (self.per_million > 0 && dice.draw_number_below(1_000_000) < self.per_million.into())
    }
}

/// Generator of random numbers; the same seed gives the same sequence on every machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeededDice {
    seed: u64,
    rolls: u64,
}

impl SeededDice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { seed, rolls: 0 }
    }

    /// Returns the next random number below `limit`, which must not be zero.
    pub(crate) fn draw_number_below(&mut self, limit: u64) -> u64 {
        self.rolls += 1;
        // A hash of seed and roll number gives the same numbers on every platform.
        keyed_mix(self.seed, self.rolls) % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_chance_matches_its_rate_and_is_repeatable() {
        let strikes = |seed| {
            let mut dice = SeededDice::new(seed);
            let chance = FaultChance::per_million(100_000);
            (0..100_000).filter(|n| chance.is_faulty_at(*n, &mut dice)).collect::<Vec<_>>()
        };
        assert!((9_500..10_500).contains(&strikes(1).len()));
        assert_eq!(strikes(1), strikes(1));
        assert_ne!(strikes(1), strikes(2));
    }

    #[test]
    fn positions_are_exact() {
        let mut dice = SeededDice::new(0);
        let chance = FaultChance::at_positions([3, 5]);
        assert_eq!((0..10).filter(|n| chance.is_faulty_at(*n, &mut dice)).collect::<Vec<_>>(), [3, 5]);
    }
}
