//! Values of address ranges, such as their countries: finds the value of an address, and the ranges of a value.

use crate::filter::ValueRange;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;

/// Ranges of addresses with their values. A range may contain other ranges: the value of the innermost one counts.
#[derive(Debug)]
pub(super) struct RangeList<T> {
    ranges: Vec<AddressRange>,
    values: Vec<T>,
    known: HashMap<T, u32>,
}

#[derive(Clone, Copy, Debug)]
struct AddressRange {
    first: u128,
    last: u128,
    /// Position of the value in `values`, counted from 1.
    entry: u32,
}

impl<T> Default for RangeList<T> {
    fn default() -> Self {
        Self { ranges: Vec::new(), values: Vec::new(), known: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash> RangeList<T> {
    pub(super) const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the entry of a value. A value that is new is stored; equal values share one entry.
    pub(super) fn intern_value(&mut self, value: T) -> u32 {
        if let Some(known) = self.known.get(&value) {
            return *known;
        }
        self.values.push(value.clone());
        // Each value takes at least one byte of the file, and files are shorter than 2^32 bytes.
        let entry = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        self.known.insert(value, entry);
        entry
    }

    /// Adds a range from its first to its last address.
    pub(super) fn add_entry(&mut self, first: u128, last: u128, entry: u32) {
        self.ranges.push(AddressRange { first, last, entry });
    }

    pub(super) fn add_range(&mut self, first: u128, last: u128, value: T) {
        let entry = self.intern_value(value);
        self.add_entry(first, last, entry);
    }

    /// The table of the ranges. An inner range overrides the range around it; of two equal ranges, the one that was added later counts.
    pub(super) fn into_table(mut self) -> AddressTable<T> {
        // The sort is stable, so that equal ranges stay in the order in which they were added. An outer range comes
        // before the ranges in it.
        self.ranges.sort_by_key(|range| (range.first, Reverse(range.last)));
        let mut table = AddressTable { starts: Vec::new(), entries: Vec::new(), values: self.values };
        let mut open: Vec<AddressRange> = Vec::new();
        for range in self.ranges {
            table.close_ranges_before(&mut open, Some(range.first));
            table.begin_entry(range.first, range.entry);
            open.push(range);
        }
        table.close_ranges_before(&mut open, None);
        table
    }
}

/// Values of addresses: each value applies from its start to the next start.
#[derive(Clone, Debug)]
pub(crate) struct AddressTable<T> {
    starts: Vec<u128>,
    /// Positions in `values`, counted from 1; 0 for addresses without a value.
    entries: Vec<u32>,
    values: Vec<T>,
}

impl<T> Default for AddressTable<T> {
    fn default() -> Self {
        Self { starts: Vec::new(), entries: Vec::new(), values: Vec::new() }
    }
}

impl<T> AddressTable<T> {
    pub(crate) const fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The value of an address; `None` if it has none.
    pub(crate) fn value_of(&self, address: [u8; 16]) -> Option<&T> {
        self.value_at(self.entry_at(u128::from_be_bytes(address)))
    }

    pub(crate) fn values(&self) -> &[T] {
        &self.values
    }

    /// The ranges of addresses whose value is wanted.
    pub(crate) fn ranges_with_value(&self, is_wanted: impl Fn(&T) -> bool) -> Vec<ValueRange> {
        // Each value is tested only once, because a country has thousands of ranges.
        let wanted: Vec<bool> = self.values.iter().map(is_wanted).collect();
        let is_wanted = |entry: u32| entry > 0 && wanted.get(entry as usize - 1).copied().unwrap_or(false);
        let ends = self.starts.iter().skip(1).map(|next| next - 1).chain([u128::MAX]);
        let ranges = self.starts.iter().zip(ends).zip(&self.entries);
        ranges
            .filter(|(_, entry)| is_wanted(**entry))
            .map(|((&least, greatest), _)| ValueRange { least, greatest })
            .collect()
    }

    /// Puts another table over this one: where `upper` has a value, it replaces the value of this table.
    pub(crate) fn overlay_table(&mut self, upper: Self) {
        // The values of `upper` are appended to the values of this table, so their positions rise by `behind`.
        let behind = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        let mut starts = [&self.starts[..], &upper.starts[..]].concat();
        starts.sort_unstable();
        starts.dedup();
        // Every start of either table may begin another value.
        let lower = std::mem::take(self);
        for start in starts {
            let entry = match upper.entry_at(start) {
                0 => lower.entry_at(start),
                entry => behind.saturating_add(entry),
            };
            self.begin_entry(start, entry);
        }
        self.values = lower.values;
        self.values.extend(upper.values);
    }

    fn entry_at(&self, address: u128) -> u32 {
        // The address is in the range with the last start that is not above it.
        let after = self.starts.partition_point(|start| *start <= address);
        if after == 0 { 0 } else { self.entries[after - 1] }
    }

    fn value_at(&self, entry: u32) -> Option<&T> {
        self.values.get((entry as usize).checked_sub(1)?)
    }

    /// Sets the entry of all addresses from `start` on. `start` is not before the last start.
    fn begin_entry(&mut self, start: u128, entry: u32) {
        if self.starts.last() == Some(&start) {
            // A range that begins at the same address replaces the last one: it is a smaller range inside of the
            // last one, or was added later.
            self.starts.pop();
            self.entries.pop();
        }
        // Neighbours with the same value are one range.
        if self.entries.last().copied().unwrap_or(0) != entry {
            self.starts.push(start);
            self.entries.push(entry);
        }
    }

    /// Closes the open ranges that end before the address `before`, or all of them if it is `None`;
    /// the innermost range first.
    fn close_ranges_before(&mut self, open: &mut Vec<AddressRange>, before: Option<u128>) {
        while let Some(inner) = open.pop_if(|inner| before.is_none_or(|before| inner.last < before)) {
            // Outer ranges that end no later have no addresses left. A well-formed file has no such ranges.
            while open.pop_if(|outer| outer.last <= inner.last).is_some() {}
            if let Some(next) = inner.last.checked_add(1) {
                self.begin_entry(next, open.last().map_or(0, |outer| outer.entry));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(ranges: &[(u128, u128, u32)]) -> AddressTable<u32> {
        let mut list = RangeList::default();
        for &(first, last, value) in ranges {
            list.add_range(first, last, value);
        }
        list.into_table()
    }

    fn value(table: &AddressTable<u32>, address: u128) -> Option<u32> {
        table.value_of(address.to_be_bytes()).copied()
    }

    #[test]
    fn innermost_range_decides_and_the_last_address_counts() {
        let table = table(&[(0, u128::MAX, 1), (10, 19, 2), (12, 13, 3), (u128::MAX, u128::MAX, 4)]);
        let found = [0, 9, 10, 12, 13, 14, 19, 20, u128::MAX - 1, u128::MAX].map(|at| value(&table, at));
        assert_eq!(found, [1, 1, 2, 3, 3, 2, 2, 1, 1, 4].map(Some));
        assert_eq!(table.ranges_with_value(|value| *value == 3), [ValueRange { least: 12, greatest: 13 }]);
        assert_eq!(table.ranges_with_value(|value| *value == 4).len(), 1);
    }

    #[test]
    fn upper_table_decides_where_it_has_a_value() {
        let mut lower = table(&[(0, 99, 1)]);
        lower.overlay_table(table(&[(10, 19, 2), (90, 120, 3)]));
        let found = [0, 10, 20, 95, 110, 121].map(|at| value(&lower, at));
        assert_eq!(found, [Some(1), Some(2), Some(1), Some(3), Some(3), None]);
        let mut empty = AddressTable::default();
        empty.overlay_table(table(&[(5, 5, 7)]));
        assert_eq!((value(&empty, 5), value(&empty, 6)), (Some(7), None));
    }

    proptest! {
        /// Prefixes in any order and with repeats, against a search of the longest one that fits.
        #[test]
        fn lookups_agree_with_the_longest_prefix(prefixes in prop::collection::vec((0_u128..64, 0_u32..6), 0..20)) {
            let ranges: Vec<_> = (0..).zip(&prefixes).map(|(n, &(at, bits))| {
                let first = at >> bits << bits;
                (first, first + (1 << bits) - 1, n)
            }).collect();
            let built = table(&ranges);
            for address in 0..130 {
                let fitting = ranges.iter().filter(|(first, last, _)| (*first..=*last).contains(&address));
                let longest = fitting.min_by_key(|(first, last, n)| (last - first, Reverse(*n)));
                prop_assert_eq!(value(&built, address), longest.map(|(_, _, n)| *n));
                for (_, _, n) in &ranges {
                    let is_in = built.ranges_with_value(|value| value == n).iter().any(|range| range.least <= address && address <= range.greatest);
                    prop_assert_eq!(is_in, value(&built, address) == Some(*n));
                }
            }
        }
    }
}
