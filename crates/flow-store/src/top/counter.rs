//! Counts groups exactly, in bounded memory, with as many scans as that takes.
//!
//! While all groups fit, there is one scan. When the table is full, the groups with the larger hashes leave it, and it counts the others
//! to the end. So each scan counts the groups of a range of hashes, and the next one begins where it ended. From the moment the first
//! table was full, a [`GroupSketch`] has a bound from above for every group: later scans pass over groups that cannot be among the
//! largest, so there are usually two scans. An order that is no sum, such as a rate, has no such bound.
//!
//! Invariant: the sum of a group in the table includes every record of the group so far.

use super::sketch::GroupSketch;
use super::{GroupSum, TopQuestion};
use crate::key_hash::KeyHashes;
use std::collections::HashMap;
use std::hash::BuildHasher as _;

type GroupKey = Box<[u8]>;

/// Hashes, both ends included.
#[derive(Clone, Copy, Debug)]
struct HashRange {
    first: u64,
    last: u64,
}

impl HashRange {
    const ALL: Self = Self { first: 0, last: u64::MAX };

    const fn contains(self, hash: u64) -> bool {
        self.first <= hash && hash <= self.last
    }

    const fn lower_half(self) -> Self {
        Self { last: self.first + (self.last - self.first) / 2, ..self }
    }
}

#[derive(Debug)]
pub(super) struct GroupCounter<'a> {
    question: &'a TopQuestion,
    bound: usize,
    hashes: KeyHashes,
    /// The groups of this scan.
    range: HashRange,
    sums: HashMap<GroupKey, GroupSum, KeyHashes>,
    sketch: Option<GroupSketch>,
    is_first_scan: bool,
    /// Groups with less than this are not counted.
    least: u64,
    scanned: GroupSum,
    counted: CountedGroups,
}

/// Result of all scans so far.
#[derive(Debug, Default)]
pub(super) struct CountedGroups {
    /// The largest groups, largest first.
    pub(super) largest: Vec<(GroupKey, GroupSum)>,
    pub(super) total: GroupSum,
    pub(super) groups: u64,
    pub(super) groups_are_estimated: bool,
    /// Two scans had different records.
    pub(super) has_changed: bool,
}

impl<'a> GroupCounter<'a> {
    pub(super) fn new(question: &'a TopQuestion, bound: usize) -> Self {
        Self {
            question,
            bound,
            hashes: KeyHashes::default(),
            range: HashRange::ALL,
            sums: HashMap::default(),
            sketch: None,
            is_first_scan: true,
            least: 0,
            scanned: GroupSum::default(),
            counted: CountedGroups::default(),
        }
    }

    /// Adds the values of a record to its group.
    pub(super) fn add_record(&mut self, key: &[u8], has: GroupSum) {
        self.scanned.add_sum(has);
        if !self.is_of_scan(key, has) {
            return;
        }
        if let Some(sum) = self.sums.get_mut(key) {
            sum.add_sum(has);
            return;
        }
        // Allocates only for new groups; most records belong to known ones.
        self.sums.insert(key.into(), has);
        // A range of a single hash cannot be halved: then a few groups more than the bound are kept.
        if self.sums.len() > self.bound && self.range.first < self.range.last {
            self.narrow_range();
        }
    }

    /// Returns whether this scan counts the group.
    fn is_of_scan(&mut self, key: &[u8], has: GroupSum) -> bool {
        // The common case: while all groups fit, no hash is needed.
        if self.is_first_scan && self.range.last == u64::MAX {
            return true;
        }
        let hash = self.hashes.hash_one(key);
        if let Some(sketch) = &mut self.sketch {
            if self.is_first_scan {
                sketch.add_amount(hash, has.order_value(self.question.order));
            } else if sketch.upper_bound(hash) < self.least {
                return false;
            }
        }
        self.range.contains(hash)
    }

    /// Makes room in the full table: leaves the groups with the larger hashes to a later scan.
    fn narrow_range(&mut self) {
        let order = self.question.order;
        if self.is_first_scan && self.sketch.is_none() && order.is_sum() {
            let mut sketch = GroupSketch::new();
            self.sums
                .iter()
                .for_each(|(key, has)| sketch.add_amount(self.hashes.hash_one(key), has.order_value(order)));
            self.sketch = Some(sketch);
        }
        self.range = self.range.lower_half();
        let Self { sums, range, hashes, .. } = self;
        // About half of the groups leave. They are counted from the start in a later scan, so no partial sum is kept.
        sums.retain(|key, _| range.contains(hashes.hash_one(key)));
    }

    /// Ends a scan over all records. Returns `false` if another scan is needed.
    pub(super) fn end_scan(&mut self) -> bool {
        let scanned = std::mem::take(&mut self.scanned);
        if self.is_first_scan {
            self.counted.total = scanned;
        }
        // Every scan sees all records, so a different total means that files have changed in between.
        self.counted.has_changed |= scanned != self.counted.total;
        self.counted.groups += self.sums.len() as u64;
        self.keep_largest();
        if self.range.last == u64::MAX {
            return true;
        }
        self.is_first_scan = false;
        // `last` is below `u64::MAX` here, so the sum does not overflow.
        self.range = HashRange { first: self.range.last + 1, last: u64::MAX };
        let TopQuestion { order, most, .. } = *self.question;
        if let Some(sketch) = &self.sketch
            && self.counted.largest.len() == most
        {
            // An equal one may still come before the last one: its key may be smaller.
            self.least = self.counted.largest.last().map_or(u64::MAX, |(_, has)| has.order_value(order));
            self.counted.groups_are_estimated = true;
            self.counted.groups = sketch.estimate_groups();
        }
        false
    }

    /// Keeps the groups that may be shown.
    fn keep_largest(&mut self) {
        let TopQuestion { order, most, least_packets, least_bytes, .. } = *self.question;
        let largest = &mut self.counted.largest;
        largest.extend(
            self.sums
                .drain()
                .filter(|(_, has)| has.sum.packets >= least_packets && has.sum.bytes >= least_bytes),
        );
        largest.sort_unstable_by(|(one, has), (other, more)| {
            more.order_value(order).cmp(&has.order_value(order)).then_with(|| one.cmp(other))
        });
        largest.truncate(most);
    }

    pub(super) fn into_counted(mut self) -> CountedGroups {
        if let (true, Some(sketch)) = (self.counted.groups_are_estimated, &self.sketch) {
            self.counted.groups = sketch.estimate_groups();
        }
        self.counted
    }
}
