//! How the largest groups change over time.

use super::listed::{GroupSumRequest, ListedSums, TimeSteps, sum_listed_groups_by_step};
use super::{GroupTotals, MAX_GROUPS, TopGroupsQuery, TopGroupsResult, build_top_answer, count_groups};
use crate::Error;
use crate::filter::FlowFilter;
use crate::scan::ScanTerms;
use packetrig_units::{Nanos, clamp_to_usize};
use std::path::PathBuf;

/// Maximum number of steps of a series.
pub const MAX_STEPS: usize = 10_000;
/// Maximum number of series. It bounds the memory of each reading thread.
pub const MAX_SERIES: usize = 100;

/// The largest groups, and their sums in steps of time.
#[derive(Clone, Debug)]
pub struct TopSeries {
    pub top: TopGroupsResult,
    /// Start of the first step, nanoseconds since 1970.
    pub first_ns: u64,
    pub step_ns: u64,
    /// The sums of each group of `top` in each step. A flow counts in the step that contains its start.
    pub series: Vec<Vec<GroupTotals>>,
}

/// Reason why the series cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum TopSeriesError {
    #[error(transparent)]
    Read(#[from] Error),
    #[error(
        "with steps of {step}, the series would have {steps} steps, but at most {MAX_STEPS} are allowed; use steps of {longer} or \
         more"
    )]
    TooManySteps { step: Nanos, steps: u64, longer: Nanos },
    #[error("{0} groups were requested, but at most {MAX_SERIES} groups can have a series")]
    TooManySeries(usize),
}

/// The largest groups of the records that a filter selects, and their sums in steps of time.
pub fn compute_top_series(
    files: &[PathBuf],
    filter: &FlowFilter,
    question: &TopGroupsQuery,
    step: Nanos,
) -> Result<TopSeries, TopSeriesError> {
    if question.most > MAX_SERIES {
        return Err(TopSeriesError::TooManySeries(question.most));
    }
    let terms = ScanTerms::default();
    let mut counted = count_groups(&terms, files, filter, question, MAX_GROUPS)?;
    let steps = time_steps_between(counted.total.first_ns, counted.total.last_ns, step)?;
    let keys: Vec<_> = counted.largest.iter().take(1).flatten().map(|(key, _)| key.clone()).collect();
    let listed = GroupSumRequest { terms: &terms, files, filter, grouping: &question.grouping, keys: &keys };
    let ListedSums { sums: mut series, scanned } = sum_listed_groups_by_step(&listed, steps)?;
    counted.has_changed |= scanned != counted.total;
    // A record counts in the step of its start, so the steps after the last start are empty, although flows last
    // longer.
    let used = series.iter().filter_map(|sums| sums.iter().rposition(|sum| *sum != GroupTotals::default()));
    let used = used.max().map_or(0, |last| last + 1);
    for sums in &mut series {
        sums.truncate(used);
    }
    let TimeSteps { first_ns, length_ns, .. } = steps;
    Ok(TopSeries { top: build_top_answer(question, counted), first_ns, step_ns: length_ns, series })
}

/// The steps from the first to the last packet.
fn time_steps_between(first_ns: u64, last_ns: u64, step: Nanos) -> Result<TimeSteps, TopSeriesError> {
    // A length of zero would be a division by zero.
    let length_ns = step.as_u64().max(1);
    let first_ns = first_ns - first_ns % length_ns;
    let count = last_ns.saturating_sub(first_ns) / length_ns + 1;
    if count > MAX_STEPS as u64 {
        // The step is rounded up to whole seconds, or milliseconds for short spans.
        let least = last_ns.saturating_sub(first_ns).div_ceil(MAX_STEPS as u64 - 1);
        let unit = if least > 1_000_000_000 { 1_000_000_000 } else { 1_000_000 };
        let longer = Nanos::new(least.next_multiple_of(unit));
        return Err(TopSeriesError::TooManySteps { step, steps: count, longer });
    }
    Ok(TimeSteps { first_ns, length_ns, count: clamp_to_usize(count) })
}

#[cfg(test)]
mod tests;
