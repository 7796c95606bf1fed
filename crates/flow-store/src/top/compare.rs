//! Changes between two sets of records: groups that are new, gone, grown or shrunk.
//!
//! Both sides are counted separately. The largest groups of each side are candidates. The sum of a candidate
//! on the other side is exact, too: one more scan counts it if it is not among the largest there. So every
//! number of the answer is exact. A group that is on neither list is at most as large as the smallest group of
//! each list, so its change is at most [`GroupComparison::uncompared_rate`].

use super::counter::CountedGroups;
use super::listed::{GroupSumRequest, sum_listed_groups_in_total};
use super::{GroupSum, GroupTotals, MAX_GROUPS, TopGroupsQuery, TopOrder, count_groups};
use crate::Error;
use crate::filter::FlowFilter;
use crate::grouping::{FlowGrouping, GroupValue};
use crate::scan::ScanTerms;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Maximum number of candidates of each side.
const MAX_CANDIDATES: usize = 1 << 17;
const NANOS_PER_SECOND: f64 = 1e9;
/// Minimum time that a side covers if its length was not given.
const MIN_WINDOW_LENGTH_NS: u64 = 1_000_000_000;

/// One of two sets of records.
#[derive(Clone, Debug)]
pub struct ComparedSide<'a> {
    pub files: &'a [PathBuf],
    pub filter: FlowFilter,
    /// Length of the time that the records cover. `None` means from the first to the last packet, but
    /// at least a second.
    pub length_ns: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct GroupComparisonQuery {
    pub grouping: FlowGrouping,
    /// A sum: bytes, packets or flows.
    pub order: TopOrder,
    /// Maximum number of changes that are shown.
    pub most: usize,
    /// Kinds of changes that are shown; an empty list means all.
    pub only: Vec<ChangeKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    New,
    Gone,
    Grown,
    Shrunk,
}

/// How a group differs between the two sides.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupChange {
    pub values: Vec<GroupValue>,
    pub kind: ChangeKind,
    /// Totals of the group on side A and on side B.
    pub sums: [GroupTotals; 2],
}

/// The changes between two sides.
#[derive(Clone, Debug, Default)]
pub struct GroupComparison {
    /// The largest changes, largest first.
    pub changes: Vec<GroupChange>,
    pub totals: [GroupSum; 2],
    pub lengths_ns: [u64; 2],
    /// Number of groups of each kind, including groups that are not shown.
    pub kinds: BTreeMap<ChangeKind, u64>,
    /// True if there are more groups than candidates: then `kinds` has only the kinds of the candidates.
    pub has_other_groups: bool,
    /// Changes up to this rate may be missing in `changes`, because not all groups could be compared; `None` if none
    /// can be missing.
    pub uncompared_rate: Option<f64>,
    /// True if files were removed or replaced while they were read.
    pub files_have_changed: bool,
}

impl TopOrder {
    /// Returns the number that this order compares: packets, flows, or bits for an order by bytes.
    fn compared_amount(self, sum: GroupTotals) -> u64 {
        match self {
            Self::Packets => sum.packets,
            Self::Flows => sum.flows,
            _ => sum.bytes.saturating_mul(8),
        }
    }
}

impl GroupComparison {
    /// The rate of a group on a side: bits, packets or flows per second.
    pub fn group_rate(&self, side: usize, sum: GroupTotals, order: TopOrder) -> f64 {
        order.compared_amount(sum) as f64 * NANOS_PER_SECOND / self.lengths_ns[side].max(1) as f64
    }

    /// The rate of a group on side B minus its rate on side A.
    pub fn rate_change(&self, sums: [GroupTotals; 2], order: TopOrder) -> f64 {
        self.group_rate(1, sums[1], order) - self.group_rate(0, sums[0], order)
    }

    fn kind_of(&self, sums: [GroupTotals; 2], order: TopOrder) -> Option<ChangeKind> {
        match sums.map(|sum| order.compared_amount(sum)) {
            [0, 0] => None,
            [0, _] => Some(ChangeKind::New),
            [_, 0] => Some(ChangeKind::Gone),
            _ => match self.rate_change(sums, order).total_cmp(&0.0) {
                Ordering::Greater => Some(ChangeKind::Grown),
                Ordering::Less => Some(ChangeKind::Shrunk),
                Ordering::Equal => None,
            },
        }
    }
}

/// Compares two sets of records.
pub fn compare_groups(
    sides: [&ComparedSide<'_>; 2],
    question: &GroupComparisonQuery,
) -> Result<GroupComparison, Error> {
    compare_groups_within_bound(sides, question, MAX_CANDIDATES, MAX_GROUPS)
}

pub(super) fn compare_groups_within_bound(
    sides: [&ComparedSide<'_>; 2],
    question: &GroupComparisonQuery,
    candidates: usize,
    bound: usize,
) -> Result<GroupComparison, Error> {
    let terms = ScanTerms::default();
    let asked = TopGroupsQuery::new(question.grouping.clone(), question.order, candidates);
    let counted = sides.map(|side| count_groups(&terms, side.files, &side.filter, &asked, bound));
    let [before, after] = counted;
    let counted = [before?, after?];
    let mut answer = GroupComparison {
        totals: counted.each_ref().map(|side| side.total),
        lengths_ns: [0, 1].map(|side| compared_time_length(sides[side], counted[side].total)),
        has_other_groups: !counted.iter().all(is_complete),
        files_have_changed: counted.iter().any(|side| side.has_changed),
        ..GroupComparison::default()
    };
    answer.uncompared_rate = uncompared_rate(&answer, &counted, question.order);
    let sums = sum_candidates_on_both_sides(&terms, sides, question, counted, &mut answer)?;
    answer.rank_changes(question, sums);
    Ok(answer)
}

fn compared_time_length(side: &ComparedSide<'_>, total: GroupSum) -> u64 {
    side.length_ns.unwrap_or_else(|| total.duration_ns().max(MIN_WINDOW_LENGTH_NS))
}

/// Returns whether every group of a side is among its largest ones.
fn is_complete(side: &CountedGroups) -> bool {
    !side.groups_are_estimated && side.groups == side.largest[0].len() as u64
}

/// The largest rate that a group can have on either side if it is not a candidate; `None` if all are candidates.
fn uncompared_rate(answer: &GroupComparison, counted: &[CountedGroups; 2], order: TopOrder) -> Option<f64> {
    let rates = [0, 1].into_iter().filter(|&side| !is_complete(&counted[side])).map(|side| {
        let least = counted[side].largest[0].last().map_or_else(GroupTotals::default, |(_, has)| has.sum);
        answer.group_rate(side, least, order)
    });
    rates.max_by(f64::total_cmp)
}

type GroupSumsBySide = BTreeMap<Box<[u8]>, [GroupTotals; 2]>;
/// Like [`GroupSumsBySide`]; `None` where a side has not counted the group yet.
type KnownGroupSumsBySide = BTreeMap<Box<[u8]>, [Option<GroupTotals>; 2]>;

/// The sums of all candidates on both sides. Scans a side again for candidates that its own list does not have.
fn sum_candidates_on_both_sides(
    terms: &ScanTerms<'_>,
    sides: [&ComparedSide<'_>; 2],
    question: &GroupComparisonQuery,
    counted: [CountedGroups; 2],
    answer: &mut GroupComparison,
) -> Result<GroupSumsBySide, Error> {
    let are_complete = counted.each_ref().map(is_complete);
    let mut sums = KnownGroupSumsBySide::new();
    for (side, counted) in counted.into_iter().enumerate() {
        for (key, has) in counted.largest.into_iter().flatten() {
            sums.entry(key).or_default()[side] = Some(has.sum);
        }
    }
    for side in [0, 1] {
        let unknown = sums.iter().filter(|(_, known)| known[side].is_none()).map(|(key, _)| key.clone());
        let unknown: Vec<_> = unknown.collect();
        // A group that is not in a complete list has no records on that side.
        if are_complete[side] || unknown.is_empty() {
            continue;
        }
        let ComparedSide { files, filter, .. } = sides[side];
        let grouping = &question.grouping;
        let found =
            sum_listed_groups_in_total(&GroupSumRequest { terms, files, filter, grouping, keys: &unknown })?;
        answer.files_have_changed |= found.scanned != answer.totals[side];
        for (key, has) in unknown.into_iter().zip(found.sums) {
            sums.entry(key).or_default()[side] = Some(has.sum);
        }
    }
    Ok(sums.into_iter().map(|(key, sums)| (key, sums.map(Option::unwrap_or_default))).collect())
}

impl GroupComparison {
    /// Counts the kinds of changes, and keeps the largest ones.
    fn rank_changes(&mut self, question: &GroupComparisonQuery, sums: GroupSumsBySide) {
        let order = question.order;
        let mut changed = Vec::new();
        for (key, sums) in sums {
            let Some(kind) = self.kind_of(sums, order) else { continue };
            *self.kinds.entry(kind).or_default() += 1;
            if question.only.is_empty() || question.only.contains(&kind) {
                changed.push((self.rate_change(sums, order).abs(), key, kind, sums));
            }
        }
        // Of equal changes, the one with the smaller key comes first.
        changed.sort_by(|one, other| other.0.total_cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
        changed.truncate(question.most);
        // If the list is full and its smallest change is at least the largest uncompared rate, no larger change
        // can be missing: then `uncompared_rate` is cleared.
        let smallest = changed.last().map_or(0.0, |(change, ..)| *change);
        let is_full = changed.len() == question.most;
        self.uncompared_rate = self.uncompared_rate.filter(|rate| !is_full || smallest < *rate);
        let changes = changed.into_iter().map(|(_, key, kind, sums)| GroupChange {
            values: question.grouping.read_values(&key),
            kind,
            sums,
        });
        self.changes = changes.collect();
    }
}

#[cfg(test)]
mod tests;
