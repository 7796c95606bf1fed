//! Counts groups exactly and in bounded memory, in as many scans as necessary.
//!
//! Each thread of a scan has a [`ScanCounter`]. If all groups fit, there is one scan. When the table of a counter is
//! full, it drops the groups with the larger hashes and counts the other groups to the end. So each scan counts the
//! groups of a range of hashes, the smallest range among its threads, and the next scan begins where this range ended.
//! From the moment the first table was full, a [`GroupSketch`] has an upper bound for every group: later scans pass
//! over groups that cannot be among the largest, so there are usually two scans. An order that is no sum, such as a
//! rate, has no such bound.
//!
//! Invariant: after a scan, the sum of a group in the table includes every record of the group.

use super::sketch::GroupSketch;
use super::table::{GroupTable, PendingRows, ROWS_PER_BATCH};
use super::{GroupSum, TopGroupsQuery, TopOrder};
use std::cmp::Ordering;
use std::sync::Arc;

type GroupKey = Box<[u8]>;

/// A range of hashes, both ends included.
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

/// Groups that may still be among the largest, by their upper bounds.
#[derive(Clone, Debug)]
struct PromisingGroups {
    sketch: Arc<GroupSketch>,
    /// Groups whose upper bound is less than this are not counted.
    least: u64,
}

/// Counts the records of one thread in one scan.
#[derive(Debug)]
pub(super) struct ScanCounter<'a> {
    question: &'a TopGroupsQuery,
    bound: usize,
    /// The hashes of the groups that this scan counts.
    range: HashRange,
    table: GroupTable,
    /// Rows that are in `scanned`, and not in the table yet.
    pending: PendingRows,
    /// Upper bounds of the sums of all groups. Present once the table was full in the first scan.
    sketch: Option<GroupSketch>,
    is_first_scan: bool,
    promising: Option<PromisingGroups>,
    scanned: GroupSum,
}

impl ScanCounter<'_> {
    /// Adds the values of a record to its group.
    pub(super) fn add_record(&mut self, key: &[u8], has: GroupSum) {
        self.scanned.add_sum(has);
        self.pending.add_row(self.table.hash_key(key), key, has);
        if self.pending.len() == ROWS_PER_BATCH {
            self.add_pending_rows();
        }
    }

    /// Adds the pending rows to their groups.
    fn add_pending_rows(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        let mut is_counted = [false; ROWS_PER_BATCH];
        for (is_counted, (hash, has)) in is_counted.iter_mut().zip(pending.rows()) {
            *is_counted = self.add_to_sketch_and_check_counted(*hash, *has);
        }
        self.table.add_rows_to_groups(&pending, &is_counted);
        self.drop_groups_if_table_full();
        // The next rows reuse its memory.
        pending.clear();
        self.pending = pending;
    }

    /// Adds a record to the sketch, if there is one. Returns whether this scan counts the record's group.
    fn add_to_sketch_and_check_counted(&mut self, hash: u64, has: GroupSum) -> bool {
        if let Some(sketch) = &mut self.sketch {
            sketch.add_amount(hash, has.order_value(self.question.order));
        }
        let is_promising = self
            .promising
            .as_ref()
            .is_none_or(|promising| promising.sketch.upper_bound(hash) >= promising.least);
        is_promising && self.range.contains(hash)
    }

    /// Makes room if the table is full: removes the groups with the larger hashes, which a later scan counts.
    fn drop_groups_if_table_full(&mut self) {
        // A range of a single hash cannot be halved: then slightly more groups than the bound are kept.
        while self.table.len() > self.bound && self.range.first < self.range.last {
            self.begin_sketch();
            self.narrow_hash_range(self.range.lower_half());
        }
    }

    /// Begins the sketch with the sums so far, if the order has upper bounds and this is the first scan.
    fn begin_sketch(&mut self) {
        let order = self.question.order;
        // With several orders, a group that is small in one of them may be large in another one.
        let has_bounds = order.is_sum_order() && self.question.more_orders.is_empty();
        if self.is_first_scan && self.sketch.is_none() && has_bounds {
            let mut sketch = GroupSketch::new();
            self.table.groups().for_each(|(hash, _, has)| sketch.add_amount(hash, has.order_value(order)));
            self.sketch = Some(sketch);
        }
    }

    fn narrow_hash_range(&mut self, range: HashRange) {
        self.range = range;
        // A later scan counts the removed groups from the start, so no partial sum is kept.
        self.table.retain_groups(|hash| range.contains(hash));
    }

    /// Adds the records of another thread.
    fn merge_counter(&mut self, mut other: Self) {
        self.scanned.merge_sum(other.scanned);
        if self.sketch.is_some() || other.sketch.is_some() {
            self.begin_sketch();
            other.begin_sketch();
        }
        if let (Some(sketch), Some(others)) = (&mut self.sketch, &other.sketch) {
            sketch.merge_sketch(others);
        }
        // Both counters have every record of their threads for the groups in both ranges.
        let range = if other.range.last < self.range.last { other.range } else { self.range };
        self.narrow_hash_range(range);
        for (hash, key, has) in other.table.groups().filter(|(hash, ..)| range.contains(*hash)) {
            self.table.add_to_group(hash, key, has);
        }
        // The merged table may hold as many groups as both together.
        self.bound += other.bound;
    }
}

/// Counts groups over all scans.
#[derive(Debug)]
pub(super) struct GroupCounter<'a> {
    question: &'a TopGroupsQuery,
    thread_bound: usize,
    /// An empty table. The tables of all threads are copies of it, so that a key has the same hash in all of them.
    empty: GroupTable,
    range: HashRange,
    is_first_scan: bool,
    promising: Option<PromisingGroups>,
    sketch: Option<Arc<GroupSketch>>,
    counted: CountedGroups,
}

/// Result of all scans so far.
#[derive(Debug, Default)]
pub(super) struct CountedGroups {
    /// For each order, the largest groups, largest first.
    pub(super) largest: Vec<Vec<(GroupKey, GroupSum)>>,
    pub(super) total: GroupSum,
    pub(super) groups: u64,
    pub(super) groups_are_estimated: bool,
    /// True if two scans read different records.
    pub(super) has_changed: bool,
}

impl<'a> GroupCounter<'a> {
    /// Counts at most `bound` groups at once; each of the `threads` threads may count an equal part of them.
    pub(super) fn new(question: &'a TopGroupsQuery, bound: usize, threads: usize) -> Self {
        Self {
            question,
            thread_bound: (bound / threads.max(1)).max(1),
            empty: GroupTable::default(),
            range: HashRange::ALL,
            is_first_scan: true,
            promising: None,
            sketch: None,
            counted: CountedGroups {
                largest: question.orders().map(|_| Vec::new()).collect(),
                ..CountedGroups::default()
            },
        }
    }

    /// Makes a counter for one thread of the next scan.
    pub(super) fn scan_counter(&self) -> ScanCounter<'a> {
        ScanCounter {
            question: self.question,
            bound: self.thread_bound,
            range: self.range,
            table: self.empty.clone(),
            pending: PendingRows::default(),
            sketch: None,
            is_first_scan: self.is_first_scan,
            promising: self.promising.clone(),
            scanned: GroupSum::default(),
        }
    }

    /// Ends a scan over all records, with the counters of its threads. Returns `false` if another scan is needed.
    pub(super) fn end_scan(&mut self, mut counters: Vec<ScanCounter<'a>>) -> bool {
        counters.iter_mut().for_each(ScanCounter::add_pending_rows);
        let merged = counters.into_iter().reduce(|mut all, other| {
            all.merge_counter(other);
            all
        });
        let scan = merged.unwrap_or_else(|| self.scan_counter());
        if self.is_first_scan {
            self.counted.total = scan.scanned;
        }
        // Every scan sees all records, so a different total means that files have changed in between.
        self.counted.has_changed |= scan.scanned != self.counted.total;
        self.counted.groups += scan.table.len() as u64;
        self.retain_largest_groups(&scan.table);
        self.sketch = self.sketch.take().or_else(|| scan.sketch.map(Arc::new));
        if scan.range.last == u64::MAX {
            return true;
        }
        self.is_first_scan = false;
        // `last` is below `u64::MAX` here, so the sum does not overflow.
        self.range = HashRange { first: scan.range.last + 1, last: u64::MAX };
        self.skip_small_groups();
        false
    }

    /// Makes later scans skip groups that cannot be among the largest.
    fn skip_small_groups(&mut self) {
        let TopGroupsQuery { order, most, .. } = *self.question;
        if let Some(sketch) = &self.sketch
            && let Some(largest) = self.counted.largest.first()
            && largest.len() == most
        {
            // A group of equal size may still come before the last one, because its key may be smaller.
            let least = largest.last().map_or(u64::MAX, |(_, has)| has.order_value(order));
            self.promising = Some(PromisingGroups { sketch: Arc::clone(sketch), least });
            self.counted.groups_are_estimated = true;
        }
    }

    /// Keeps the largest groups of earlier scans and of `table`, at most as many as are shown.
    fn retain_largest_groups(&mut self, table: &GroupTable) {
        let TopGroupsQuery { most, least_packets, least_bytes, .. } = *self.question;
        for (order, largest) in self.question.orders().zip(&mut self.counted.largest) {
            let earlier = std::mem::take(largest);
            let mut ranked: Vec<_> = earlier.iter().map(|(key, has)| (&key[..], *has)).collect();
            ranked.extend(
                table
                    .groups()
                    .map(|(_, key, has)| (key, has))
                    .filter(|(_, has)| has.sum.packets >= least_packets && has.sum.bytes >= least_bytes),
            );
            // Only the shown groups are sorted: there may be half a million other groups.
            if ranked.len() > most && most > 0 {
                ranked.select_nth_unstable_by(most - 1, |one, other| compare_rank(order, one, other));
            }
            ranked.truncate(most);
            ranked.sort_unstable_by(|one, other| compare_rank(order, one, other));
            *largest = ranked.into_iter().map(|(key, has)| (key.into(), has)).collect();
        }
    }

    pub(super) fn into_counted(mut self) -> CountedGroups {
        if let (true, Some(sketch)) = (self.counted.groups_are_estimated, &self.sketch) {
            self.counted.groups = sketch.estimate_groups();
        }
        self.counted
    }
}

/// Compares two groups: the larger one first, and of equal ones that with the smaller key.
fn compare_rank(order: TopOrder, one: &(&[u8], GroupSum), other: &(&[u8], GroupSum)) -> Ordering {
    let by_size = other.1.order_value(order).cmp(&one.1.order_value(order));
    by_size.then_with(|| one.0.cmp(other.0))
}
