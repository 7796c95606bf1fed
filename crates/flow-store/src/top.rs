//! Finds the largest groups of records, in bounded memory.
//!
//! A record has two halves, one for each direction. If a grouping distinguishes source from destination, each half
//! counts separately, and the filter is applied to each half. So one-way and two-way records of the same traffic give
//! the same answer. In any other grouping, both halves count for one group.
//!
//! Groups that do not fit into memory are counted in further scans (`counter`).
//!
//! Invariant: the totals of a shown group include all of its records. All threads together count at most
//! [`MAX_GROUPS`] groups at once.

mod compare;
mod counter;
mod listed;
mod series;
mod sketch;
mod table;

use super::Error;
use super::filter::{FlowFilter, per_second};
use super::grouping::{FlowGrouping, GroupValue};
use super::scan::{RowChunk, ScanTerms, count_records};
pub use compare::{
    ChangeKind, ComparedSide, GroupChange, GroupComparison, GroupComparisonQuery, compare_groups,
};
use counter::{CountedGroups, GroupCounter};
use serde::Serialize;
pub use series::{MAX_SERIES, MAX_STEPS, TopSeries, TopSeriesError, compute_top_series};
use std::path::PathBuf;

/// Maximum number of groups counted at once.
pub const MAX_GROUPS: usize = 1 << 19;

#[derive(Clone, Debug)]
pub struct TopGroupsQuery {
    pub grouping: FlowGrouping,
    pub order: TopOrder,
    /// Further orders, which are answered in the same passes over the records.
    pub more_orders: Vec<TopOrder>,
    /// Maximum number of groups that are shown.
    pub most: usize,
    /// Groups with fewer packets are not shown.
    pub least_packets: u64,
    /// Groups with fewer bytes are not shown.
    pub least_bytes: u64,
}

impl TopGroupsQuery {
    /// Asks for the largest groups, without a minimum size.
    pub const fn new(grouping: FlowGrouping, order: TopOrder, most: usize) -> Self {
        Self { grouping, order, more_orders: Vec::new(), most, least_packets: 0, least_bytes: 0 }
    }

    /// All orders, the first one first.
    pub fn orders(&self) -> impl Iterator<Item = TopOrder> {
        [self.order].into_iter().chain(self.more_orders.iter().copied())
    }
}

/// The value that groups are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopOrder {
    Bytes,
    Packets,
    Flows,
    /// Packets per second, from the first to the last packet.
    PacketRate,
    /// Bits per second, from the first to the last packet.
    BitRate,
    /// Average bytes of a packet.
    PacketSize,
    /// The time from the first to the last packet.
    Duration,
}

/// Flows, packets and bytes of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupTotals {
    /// Number of flows. A flow with several records counts once, with its first record. A grouping that distinguishes
    /// source from destination counts each direction.
    pub flows: u64,
    pub packets: u64,
    pub bytes: u64,
}

/// The totals of a group, and the time of its first and last packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSum {
    pub sum: GroupTotals,
    /// Time of the first packet, nanoseconds since 1970.
    pub first_ns: u64,
    pub last_ns: u64,
    /// Number of records of sampled packets. The totals count only the packets that were metered.
    pub sampled_records: u64,
}

/// A group with its totals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopGroup {
    /// A value for each part of the grouping.
    pub values: Vec<GroupValue>,
    pub has: GroupSum,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopGroupsResult {
    /// The largest groups, largest first.
    pub groups: Vec<TopGroup>,
    /// The same for each of [`TopGroupsQuery::more_orders`].
    pub groups_in_more_orders: Vec<Vec<TopGroup>>,
    /// All groups together, including groups that are too small to be shown.
    pub total: GroupSum,
    /// Number of all groups.
    pub groups_seen: u64,
    /// True if `groups_seen` is an estimate, because the groups did not fit into memory. All other numbers are exact.
    pub groups_are_estimated: bool,
    /// True if files were removed or replaced between two scans: groups may lack records of these files.
    pub files_have_changed: bool,
}

pub(super) const TOP_COLUMNS: [&str; 8] = [
    "flowStartNanoseconds",
    "flowEndNanoseconds",
    "packetDeltaCount",
    "octetDeltaCount",
    "reversePacketDeltaCount",
    "reverseOctetDeltaCount",
    "flowPart",
    "samplingInterval",
];

/// The largest groups of the records that a filter selects.
pub fn find_top_groups(
    files: &[PathBuf],
    filter: &FlowFilter,
    question: &TopGroupsQuery,
) -> Result<TopGroupsResult, Error> {
    find_top_groups_with_limits(&ScanTerms::default(), files, filter, question)
}

/// Like [`find_top_groups`], with limits for the scan.
pub fn find_top_groups_with_limits(
    terms: &ScanTerms<'_>,
    files: &[PathBuf],
    filter: &FlowFilter,
    question: &TopGroupsQuery,
) -> Result<TopGroupsResult, Error> {
    find_top_groups_within_bound(terms, files, filter, question, MAX_GROUPS)
}

fn find_top_groups_within_bound(
    terms: &ScanTerms<'_>,
    files: &[PathBuf],
    filter: &FlowFilter,
    question: &TopGroupsQuery,
    bound: usize,
) -> Result<TopGroupsResult, Error> {
    Ok(build_top_answer(question, count_groups(terms, files, filter, question, bound)?))
}

/// Counts all groups, and keeps the largest ones with their keys.
fn count_groups(
    terms: &ScanTerms<'_>,
    files: &[PathBuf],
    filter: &FlowFilter,
    question: &TopGroupsQuery,
    bound: usize,
) -> Result<CountedGroups, Error> {
    let scan = TopScan::new(&question.grouping, filter).merging_records();
    let wanted = [&question.grouping.needed_columns()[..], &TOP_COLUMNS[..]].concat();
    let mut counter = GroupCounter::new(question, bound, terms.reader_count());
    loop {
        let counters = count_records(
            terms,
            files,
            &scan.selection(),
            &wanted,
            || counter.scan_counter(),
            |counter, chunk, rows| {
                scan.count_chunk(chunk, rows, &mut |key: &[u8], has| counter.add_record(key, has));
            },
        )?;
        // Each scan ends with a greater hash than the one before, so the loop ends.
        if counter.end_scan(counters) {
            return Ok(counter.into_counted());
        }
    }
}

/// The half of a record that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlowDirection {
    Forward,
    Reverse,
    Both,
}

/// What a scan counts: the records that a filter selects, by group, and for each direction if the grouping
/// distinguishes them.
pub(super) struct TopScan<'a> {
    grouping: &'a FlowGrouping,
    filter: &'a FlowFilter,
    reverse: FlowFilter,
    /// True if the caller only adds up sums: it may get one sum of several records of a group.
    merges_records: bool,
}

impl<'a> TopScan<'a> {
    pub(super) fn new(grouping: &'a FlowGrouping, filter: &'a FlowFilter) -> Self {
        Self { grouping, filter, reverse: filter.to_reversed(), merges_records: false }
    }

    /// A scan for a caller that may get one sum of several records of a group.
    fn merging_records(self) -> Self {
        Self { merges_records: true, ..self }
    }

    /// The filter of the scan, which reads each record once. If the grouping distinguishes directions, it selects a record
    /// if either half matches, and `count_chunk` filters each half again. Otherwise it is the query's own filter.
    pub(super) fn selection(&self) -> FlowFilter {
        if self.grouping.distinguishes_direction() {
            self.filter.or(&self.reverse)
        } else {
            self.filter.clone()
        }
    }

    /// Calls `add` with the key and the sum of each half of a record that is selected, or of several such halves.
    // Generic, so that the call in the inner loop is inlined.
    pub(super) fn count_chunk(
        &self,
        chunk: &RowChunk,
        rows: &[usize],
        add: &mut impl FnMut(&[u8], GroupSum),
    ) {
        // Both halves of a record have the same key, so a record is counted once and filtered as a whole.
        if !self.grouping.distinguishes_direction() {
            return self.count_rows(chunk, rows, FlowDirection::Both, add);
        }
        if self.filter.selects_all() {
            // A half without packets is not counted, so no half needs to be filtered.
            self.count_rows(chunk, rows, FlowDirection::Forward, add);
            return self.count_rows(chunk, rows, FlowDirection::Reverse, add);
        }
        let forward = self.filter.select_among(chunk, rows.to_vec());
        self.count_rows(chunk, &forward, FlowDirection::Forward, add);
        let reverse = self.reverse.select_among(chunk, rows.to_vec());
        self.count_rows(chunk, &reverse, FlowDirection::Reverse, add);
    }

    fn count_rows(
        &self,
        chunk: &RowChunk,
        rows: &[usize],
        direction: FlowDirection,
        add: &mut impl FnMut(&[u8], GroupSum),
    ) {
        let keys = self.grouping.group_keys_of_rows(chunk, direction == FlowDirection::Reverse);
        // The columns are looked up once for the chunk and not for each row.
        let columns = TOP_COLUMNS.map(|name| chunk.column(name).numbers_of_first_rows(chunk.rows));
        let columns = columns.each_ref().map(|numbers| &numbers[..]);
        let sums = rows.iter().map(|&row| (row, sum_record_half(&columns, row, direction)));
        // A half without packets does not count as a separate record.
        let sums = sums.filter(|(_, has)| has.sum != GroupTotals::default());
        // One buffer for all rows: only new groups allocate.
        let mut key = Vec::new();
        match keys.key_codes().filter(|(_, values)| self.merges_records && *values <= rows.len()) {
            Some((codes, values)) => {
                for (row, has) in sum_by_code(sums, codes, values) {
                    keys.write_group_key(row, &mut key);
                    add(&key, has);
                }
            }
            None => sums.for_each(|(row, has)| {
                keys.write_group_key(row, &mut key);
                add(&key, has);
            }),
        }
    }
}

/// Adds up the sums of rows with the same code. Returns a row of each code, and the code's sum.
fn sum_by_code(
    sums: impl Iterator<Item = (usize, GroupSum)>,
    codes: &[u32],
    values: usize,
) -> impl Iterator<Item = (usize, GroupSum)> {
    let mut by_code = vec![(0, GroupSum::default()); values];
    for (row, has) in sums {
        let (last_row, sum) = &mut by_code[codes[row] as usize];
        *last_row = row;
        sum.add_sum(has);
    }
    by_code.into_iter().filter(|(_, has)| has.sum != GroupTotals::default())
}

fn build_top_answer(question: &TopGroupsQuery, counted: CountedGroups) -> TopGroupsResult {
    let mut in_orders = counted.largest.into_iter().map(|largest| {
        let groups = largest.into_iter();
        groups.map(|(key, has)| TopGroup { values: question.grouping.read_values(&key), has }).collect()
    });
    TopGroupsResult {
        groups: in_orders.next().unwrap_or_default(),
        groups_in_more_orders: in_orders.collect(),
        total: counted.total,
        groups_seen: counted.groups,
        groups_are_estimated: counted.groups_are_estimated,
        files_have_changed: counted.has_changed,
    }
}

/// The totals of a record in a direction, from its values in the order of [`TOP_COLUMNS`].
#[inline]
fn sum_record_half(columns: &[&[u64]; TOP_COLUMNS.len()], row: usize, direction: FlowDirection) -> GroupSum {
    // Each column by itself: `map` over the array is a call for each value.
    let [first_ns, last_ns, packets, bytes, packets_back, bytes_back, part, sampling] = columns;
    let at = |numbers: &[u64]| numbers.get(row).copied().unwrap_or(0);
    let (first_ns, last_ns, part, sampling) = (at(first_ns), at(last_ns), at(part), at(sampling));
    let (packets, bytes) = (at(packets), at(bytes));
    let (packets_back, bytes_back) = (at(packets_back), at(bytes_back));
    // A long flow has several records; only its first part counts as a flow.
    let first_part = u64::from(part == 0);
    let sum = match direction {
        FlowDirection::Forward => {
            GroupTotals { flows: if packets > 0 { first_part } else { 0 }, packets, bytes }
        }
        FlowDirection::Reverse => GroupTotals {
            flows: if packets_back > 0 { first_part } else { 0 },
            packets: packets_back,
            bytes: bytes_back,
        },
        FlowDirection::Both => GroupTotals {
            flows: first_part,
            packets: packets.saturating_add(packets_back),
            bytes: bytes.saturating_add(bytes_back),
        },
    };
    GroupSum { sum, first_ns, last_ns, sampled_records: u64::from(sampling > 1) }
}

impl TopOrder {
    /// Returns whether the order is by a sum over the records of a group. A sum only grows while records are read.
    #[must_use]
    pub const fn is_sum_order(self) -> bool {
        matches!(self, Self::Bytes | Self::Packets | Self::Flows)
    }
}

impl GroupSum {
    /// The value that the group is ordered by. Rates are rounded down here; they are zero if the duration is zero.
    pub fn order_value(&self, order: TopOrder) -> u64 {
        let duration_ns = self.duration_ns();
        let GroupTotals { flows, packets, bytes } = self.sum;
        match order {
            TopOrder::Bytes => bytes,
            TopOrder::Packets => packets,
            TopOrder::Flows => flows,
            TopOrder::PacketRate => per_second(packets, 1, duration_ns),
            TopOrder::BitRate => per_second(bytes, 8, duration_ns),
            TopOrder::PacketSize => bytes.checked_div(packets).unwrap_or(0),
            TopOrder::Duration => duration_ns,
        }
    }

    /// Packets per second, with decimals; `None` if the duration is zero.
    pub fn packet_rate(&self) -> Option<f64> {
        ratio_to_three_decimals(self.sum.packets as f64 * 1e9, self.duration_ns())
    }

    /// Bits per second, with decimals; `None` if the duration is zero.
    pub fn bit_rate(&self) -> Option<f64> {
        ratio_to_three_decimals(self.sum.bytes as f64 * 8e9, self.duration_ns())
    }

    /// Average bytes of a packet, with decimals; `None` without packets.
    pub fn packet_size(&self) -> Option<f64> {
        ratio_to_three_decimals(self.sum.bytes as f64, self.sum.packets)
    }

    const fn duration_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns)
    }

    /// Adds a sum that may be empty, such as the sum of a thread that has read no records.
    fn merge_sum(&mut self, other: Self) {
        if other.sum != GroupTotals::default() {
            self.add_sum(other);
        }
    }

    /// Adds a sum that is not empty. An empty sum has no times, so the first sum that is added sets `first_ns`.
    fn add_sum(&mut self, other: Self) {
        let is_first = self.sum == GroupTotals::default();
        self.first_ns = if is_first { other.first_ns } else { self.first_ns.min(other.first_ns) };
        self.last_ns = self.last_ns.max(other.last_ns);
        self.sum.add_totals(other.sum);
        self.sampled_records += other.sampled_records;
    }
}

/// A quotient, rounded to three decimals: more would only be rounding noise of binary fractions. `None` if
/// the divisor is zero.
fn ratio_to_three_decimals(of: f64, per: u64) -> Option<f64> {
    (per > 0).then(|| (of / per as f64 * 1000.0).round() / 1000.0)
}

impl GroupTotals {
    pub fn add_totals(&mut self, other: Self) {
        self.flows = self.flows.saturating_add(other.flows);
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

#[cfg(test)]
mod tests;
