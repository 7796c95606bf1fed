//! Sets of values as ranges. Numbers and addresses alike are unsigned integers of 128 bits.

use crate::rows::filter_rows;
use packetrig_units::clamp_to_u64;

/// A set of values: sorted ranges, which neither overlap nor touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RangeSet(Vec<ValueRange>);

/// All values from `least` to `greatest`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ValueRange {
    pub(crate) least: u128,
    pub(crate) greatest: u128,
}

impl ValueRange {
    pub(super) const ALL: Self = Self { least: 0, greatest: u128::MAX };

    pub(super) const fn from_value(value: u128) -> Self {
        Self { least: value, greatest: value }
    }
}

impl RangeSet {
    /// The set of values in any of these ranges.
    pub(super) fn new(mut ranges: Vec<ValueRange>) -> Self {
        // The ranges are sorted and joined once, so that each test of a row is a binary search.
        ranges.sort_unstable();
        let mut apart: Vec<ValueRange> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match apart.last_mut() {
                Some(last) if range.least <= last.greatest.saturating_add(1) => {
                    last.greatest = last.greatest.max(range.greatest);
                }
                _ => apart.push(range),
            }
        }
        Self(apart)
    }

    pub(super) fn complement(&self) -> Self {
        // `least` is the start of the next gap; `None` after a range that ends at the greatest value of all.
        let mut gaps = Vec::with_capacity(self.0.len() + 1);
        let mut least = Some(0);
        for range in &self.0 {
            if let Some(least) = least.filter(|&least| least < range.least) {
                gaps.push(ValueRange { least, greatest: range.least - 1 });
            }
            least = range.greatest.checked_add(1);
        }
        if let Some(least) = least {
            gaps.push(ValueRange { least, greatest: u128::MAX });
        }
        Self(gaps)
    }

    /// Returns whether a value is in the set.
    pub(super) fn contains(&self, value: u128) -> bool {
        // Most sets are a single range.
        if let [range] = self.0[..] {
            return value >= range.least && value <= range.greatest;
        }
        let after = self.0.partition_point(|range| range.least <= value);
        after > 0 && self.0[after - 1].greatest >= value
    }

    /// Removes the rows with a number outside the set.
    pub(super) fn retain_numbers(&self, numbers: &[u64], rows: &mut Vec<usize>) {
        // Most sets are a single range, and numbers have half the bits of addresses.
        if let [range] = self.0[..]
            && let Ok(least) = u64::try_from(range.least)
        {
            let width = clamp_to_u64(range.greatest) - least;
            return filter_rows(rows, |row| numbers[row].wrapping_sub(least) <= width);
        }
        filter_rows(rows, |row| self.contains(numbers[row].into()));
    }

    /// Returns whether any value between these bounds is in the set.
    pub(super) fn intersects(&self, bounds: ValueRange) -> bool {
        let after = self.0.partition_point(|range| range.least <= bounds.greatest);
        after > 0 && self.0[after - 1].greatest >= bounds.least
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(ranges: &[(u128, u128)]) -> RangeSet {
        RangeSet::new(ranges.iter().map(|&(least, greatest)| ValueRange { least, greatest }).collect())
    }

    #[test]
    fn range_set_joins_neighbours_and_complements() {
        assert_eq!(set(&[(5, 9), (1, 4), (20, 20)]), set(&[(1, 9), (20, 20)]));
        assert_eq!(set(&[(1, 9), (20, 20)]).complement(), set(&[(0, 0), (10, 19), (21, u128::MAX)]));
        assert_eq!(set(&[]).complement(), set(&[(0, u128::MAX)]));
        assert_eq!(set(&[(0, u128::MAX)]).complement(), set(&[]));
    }

    proptest! {
        #[test]
        fn range_set_contains_union_of_its_ranges(
            ranges in prop::collection::vec((0_u128..40, 0_u128..8), 0..12),
            value in 0_u128..60,
            width in 0_u128..10,
        ) {
            let pairs: Vec<_> = ranges.iter().map(|&(least, width)| (least, least + width)).collect();
            let is_in = |value: u128| pairs.iter().any(|&(least, greatest)| (least..=greatest).contains(&value));
            let set = set(&pairs);
            prop_assert_eq!(set.contains(value), is_in(value));
            prop_assert_eq!(set.complement().contains(value), !is_in(value));
            let mut rows = vec![0, 1];
            set.retain_numbers(&[value.try_into().unwrap(), u64::MAX], &mut rows);
            prop_assert_eq!(rows, if is_in(value) { vec![0] } else { vec![] });
            let bounds = ValueRange { least: value, greatest: value + width };
            prop_assert_eq!(set.intersects(bounds), (value..=value + width).any(is_in));
        }
    }
}
