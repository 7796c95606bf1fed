//! Sums of given groups, in total or for each step of time. Memory is needed for these groups only.

use super::{GroupSum, GroupTotals, TOP_COLUMNS, TopScan};
use crate::Error;
use crate::filter::FlowFilter;
use crate::grouping::FlowGrouping;
use crate::key_hash::KeyHasherBuilder;
use crate::scan::{RowChunk, ScanTerms, count_records};
use std::collections::HashMap;
use std::path::PathBuf;

/// The listed groups, by key, with their indexes in the answer.
type ListedKeys = HashMap<Box<[u8]>, usize, KeyHasherBuilder>;

/// Groups that are given by their keys, and the records that are counted for them.
pub(super) struct GroupSumRequest<'a> {
    pub(super) terms: &'a ScanTerms<'a>,
    pub(super) files: &'a [PathBuf],
    pub(super) filter: &'a FlowFilter,
    pub(super) grouping: &'a FlowGrouping,
    pub(super) keys: &'a [Box<[u8]>],
}

/// Steps of time, of equal length.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeSteps {
    /// Nanoseconds since 1970; a multiple of the length.
    pub(super) first_ns: u64,
    pub(super) length_ns: u64,
    pub(super) count: usize,
}

impl TimeSteps {
    /// The step of a time, if the time belongs to one of the steps.
    fn step_index_at(self, at_ns: u64) -> Option<usize> {
        let step = at_ns.checked_sub(self.first_ns)? / self.length_ns;
        usize::try_from(step).ok().filter(|step| *step < self.count)
    }
}

/// The sums of the groups, and the sum of all records that were read. If the latter differs from that of an
/// earlier scan, files have changed.
pub(super) struct ListedSums<T> {
    pub(super) sums: Vec<T>,
    pub(super) scanned: GroupSum,
}

/// The sum of each listed group over the records that a filter selects.
pub(super) fn sum_listed_groups_in_total(
    groups: &GroupSumRequest<'_>,
) -> Result<ListedSums<GroupSum>, Error> {
    let none = vec![GroupSum::default(); groups.keys.len()];
    let ListedSums { sums: counted, scanned } = sum_listed_groups(groups, &none, |sums, place, has| {
        sums[place].add_sum(has);
    })?;
    let sums = counted.into_iter().fold(none, |mut all, more| {
        all.iter_mut().zip(more).for_each(|(sum, more)| sum.merge_sum(more));
        all
    });
    Ok(ListedSums { sums, scanned })
}

/// Sums each listed group per time step. A flow counts in the step in which it began.
pub(super) fn sum_listed_groups_by_step(
    groups: &GroupSumRequest<'_>,
    steps: TimeSteps,
) -> Result<ListedSums<Vec<GroupTotals>>, Error> {
    let none = vec![vec![GroupTotals::default(); steps.count]; groups.keys.len()];
    let ListedSums { sums: counted, scanned } = sum_listed_groups(groups, &none, |series, place, has| {
        // `first_ns` of a single record is the start of its flow.
        if let Some(step) = steps.step_index_at(has.first_ns) {
            series[place][step].add_totals(has.sum);
        }
    })?;
    let sums = counted.into_iter().fold(none, |mut all, more| {
        for (sum, more) in all.iter_mut().flatten().zip(more.into_iter().flatten()) {
            sum.add_totals(more);
        }
        all
    });
    Ok(ListedSums { sums, scanned })
}

fn sum_listed_groups<C: Clone + Send + Sync>(
    groups: &GroupSumRequest<'_>,
    empty: &C,
    add: impl Fn(&mut C, usize, GroupSum) + Sync,
) -> Result<ListedSums<C>, Error> {
    let &GroupSumRequest { terms, files, filter, grouping, keys } = groups;
    let listed: ListedKeys = keys.iter().cloned().zip(0..).collect();
    let scan = TopScan::new(grouping, filter);
    let wanted = [&grouping.needed_columns()[..], &TOP_COLUMNS[..]].concat();
    let count = |(scanned, counter): &mut (GroupSum, C), chunk: &RowChunk, rows: &[usize]| {
        scan.count_chunk(chunk, rows, &mut |key: &[u8], has: GroupSum| {
            scanned.add_sum(has);
            if let Some(&place) = listed.get(key) {
                add(counter, place, has);
            }
        });
    };
    let new_counter = || (GroupSum::default(), empty.clone());
    let counted = count_records(terms, files, &scan.selection(), &wanted, new_counter, count)?;
    let mut found = ListedSums { sums: Vec::with_capacity(counted.len()), scanned: GroupSum::default() };
    for (scanned, counter) in counted {
        found.scanned.merge_sum(scanned);
        found.sums.push(counter);
    }
    Ok(found)
}
