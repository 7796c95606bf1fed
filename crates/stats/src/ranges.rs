//! A set of frame numbers that is stored as ranges, with room for a fixed number of ranges.
//!
//! When there are more ranges, the two neighbours with the smallest hole between them are joined. Then the
//! set is no longer exact: [`NumberRanges::is_exact`] returns false, and its counts are only bounds.

use serde::{Deserialize, Serialize};

/// Maximum number of separate ranges.
const MAX_RANGES: usize = 512;

/// The numbers `first..=last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberRange {
    pub first: u64,
    pub last: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberRanges {
    /// The ranges, in ascending order.
    pub ranges: Vec<NumberRange>,
    /// Number of different numbers that were added. It may be too small if ranges were joined: a number between them
    /// then counts as repeated.
    pub numbers: u64,
    /// How many times a number was added that was already in the set.
    pub repeated: u64,
    /// True if ranges were joined: the numbers between them are in the set although they were never added.
    #[serde(default)]
    pub is_joined: bool,
}

impl NumberRanges {
    /// Returns whether the set contains exactly the added numbers.
    pub const fn is_exact(&self) -> bool {
        !self.is_joined
    }

    pub fn add_number(&mut self, number: u64) {
        // The number almost always follows the last one.
        if let Some(last) = self.ranges.last_mut()
            && last.last.checked_add(1) == Some(number)
        {
            last.last = number;
            self.numbers += 1;
            return;
        }
        // This is the first range that does not end before the number.
        let place = self.ranges.partition_point(|range| range.last < number);
        if self.ranges.get(place).is_some_and(|range| range.first <= number) {
            self.repeated += 1;
            return;
        }
        self.numbers += 1;
        self.insert_number(place, number);
    }

    fn insert_number(&mut self, place: usize, number: u64) {
        let follows = place > 0 && self.ranges[place - 1].last + 1 == number;
        let precedes = self.ranges.get(place).is_some_and(|range| number + 1 == range.first);
        match (follows, precedes) {
            (true, true) => {
                self.ranges[place - 1].last = self.ranges[place].last;
                self.ranges.remove(place);
            }
            (true, false) => self.ranges[place - 1].last = number,
            (false, true) => self.ranges[place].first = number,
            (false, false) => {
                self.ranges.insert(place, NumberRange { first: number, last: number });
                if self.ranges.len() > MAX_RANGES {
                    self.join_nearest_ranges();
                }
            }
        }
    }

    fn join_nearest_ranges(&mut self) {
        // The smallest hole adds the fewest numbers that were never added. The search is linear, but it runs
        // only if the set is full and a new range begins.
        let holes = self.ranges.windows(2).map(|pair| pair[1].first - pair[0].last);
        let Some((place, _)) = holes.enumerate().min_by_key(|(_, hole)| *hole) else { return };
        self.ranges[place].last = self.ranges[place + 1].last;
        self.ranges.remove(place + 1);
        self.is_joined = true;
    }

    /// Returns how many numbers of `first..=last` are in the set.
    pub fn count_numbers_within(&self, first: u64, last: u64) -> u64 {
        let from = self.ranges.partition_point(|range| range.last < first);
        let overlapping = self.ranges[from..].iter().take_while(|range| range.first <= last);
        // A set from another machine may contain overlapping or inverted ranges.
        let counts = overlapping
            .map(|range| range.last.min(last).saturating_add(1).saturating_sub(range.first.max(first)));
        counts.fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn full_range_set_merges_nearest_and_is_inexact() {
        let mut set = NumberRanges::default();
        for number in (0..2 * MAX_RANGES as u64).map(|n| 10 * n) {
            set.add_number(number);
        }
        assert!(set.ranges.len() <= MAX_RANGES && !set.is_exact());
        assert_eq!(set.numbers, 2 * MAX_RANGES as u64);
    }

    proptest! {
        #[test]
        fn it_is_a_set(numbers in prop::collection::vec(0u64..300, 0..300), from in 0u64..300, length in 0u64..300) {
            let mut set = NumberRanges::default();
            for number in &numbers {
                set.add_number(*number);
            }
            let oracle: BTreeSet<u64> = numbers.iter().copied().collect();
            prop_assert_eq!(set.numbers, oracle.len() as u64);
            prop_assert_eq!(set.repeated, (numbers.len() - oracle.len()) as u64);
            let within = oracle.range(from..=from + length).count() as u64;
            prop_assert_eq!(set.count_numbers_within(from, from + length), within);
            prop_assert!(set.is_exact());
        }
    }
}
