//! Finds the points at which a clock was set. There, the difference of two clocks jumps by more than the path between
//! the captures explains, and stays at the new level.
//!
//! The delay of the path varies, so a single difference proves nothing. At a step, the middle halves of the
//! differences in all later windows lie above or below those of all earlier windows. The gap is at least half as wide
//! as each side varies. A temporary delay is no step, because the windows after it have the same level as those before
//! it. The drift is removed first.
//!
//! Invariant: no window within [`MIN_STEP_DURATION_NS`] before a step has the level of a window within that time after
//! it, up to the next step.

use super::clock_relation::{StampPair, mean_stamp_time, median, signed_difference};

/// Number of pairs in a window: enough that single delayed packets do not affect the middle half of them.
const PAIRS_PER_WINDOW: usize = 32;
/// Minimum number of pairs on each side of a step.
const MIN_PAIRS_PER_END: usize = 8;
/// Distance, in pairs, between positions that are tested. The exact position is found afterwards.
const POSITION_STRIDE_PAIRS: usize = 8;
/// Minimum size of a step. Smaller changes count as drift or jitter.
const MIN_CLOCK_STEP_NS: i64 = 1_000_000;
/// Minimum time for which the new level must last, unless the next step or the end comes first. No queue delays
/// packets for that long.
const MIN_STEP_DURATION_NS: u64 = 30_000_000_000;
/// Maximum number of windows on each side that are compared. With many pairs, each window has more of them.
const MAX_WINDOWS: usize = 32;
/// Largest drift of a clock that is assumed, in seconds per second.
const MAX_DRIFT: f64 = 500e-6;

/// Range of the clock differences in one or several windows.
#[derive(Clone, Copy, Debug)]
struct DifferenceRange {
    lowest: i64,
    highest: i64,
}

impl DifferenceRange {
    fn merge_with(self, other: Self) -> Self {
        Self { lowest: self.lowest.min(other.lowest), highest: self.highest.max(other.highest) }
    }

    fn width(self) -> i64 {
        self.highest.saturating_sub(self.lowest)
    }

    /// Returns the gap between this range and a later one; zero or less if they overlap.
    fn gap_to(self, later: Self) -> i64 {
        let above = later.lowest.saturating_sub(self.highest);
        above.max(self.lowest.saturating_sub(later.highest))
    }

    /// Returns true if the two ranges are too far apart to be one level.
    fn is_clearly_apart_from(self, later: Self) -> bool {
        let gap = self.gap_to(later);
        gap >= MIN_CLOCK_STEP_NS && gap >= self.width().max(later.width()) / 2
    }
}

/// A position between two windows with differences that do not overlap.
#[derive(Clone, Copy, Debug)]
struct ClockStepCandidate {
    at: usize,
    gap: i64,
}

/// Finds the clock steps. Returns the indices of the pairs at which a new level begins, in order.
pub(super) fn find_clock_steps(pairs: &[StampPair]) -> Vec<usize> {
    let mut candidates = find_step_candidates(pairs);
    // The largest gaps are tested first: then a smaller one is judged only by the pairs between its neighbouring steps.
    candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.gap));
    let mut steps: Vec<usize> = Vec::new();
    for candidate in candidates {
        let next = steps.partition_point(|step| *step <= candidate.at);
        let from = next.checked_sub(1).map_or(0, |last| steps[last]);
        let to = steps.get(next).copied().unwrap_or(pairs.len());
        let at = refine_step_position(&pairs[from..to], candidate.at - from);
        let is_new = at >= MIN_PAIRS_PER_END && to - from - at >= MIN_PAIRS_PER_END;
        if is_new && is_step_lasting(&pairs[from..to], at) {
            steps.insert(next, from + at);
        }
    }
    steps
}

/// Finds positions that may be steps. Of neighbouring positions only the one with the largest gap is kept.
fn find_step_candidates(pairs: &[StampPair]) -> Vec<ClockStepCandidate> {
    let mut found: Vec<ClockStepCandidate> = Vec::new();
    let last = pairs.len().saturating_sub(MIN_PAIRS_PER_END);
    for at in (MIN_PAIRS_PER_END..=last).step_by(POSITION_STRIDE_PAIRS) {
        let before = middle_half_range(
            pairs[at.saturating_sub(PAIRS_PER_WINDOW)..at].iter().map(|pair| pair.ahead_ns),
        );
        let after = middle_half_range(
            pairs[at..pairs.len().min(at + PAIRS_PER_WINDOW)].iter().map(|pair| pair.ahead_ns),
        );
        let gap = before.gap_to(after);
        if gap < MIN_CLOCK_STEP_NS {
            continue;
        }
        match found.last_mut() {
            Some(known) if at - known.at < PAIRS_PER_WINDOW => {
                if gap > known.gap {
                    *known = ClockStepCandidate { at, gap };
                }
            }
            _ => found.push(ClockStepCandidate { at, gap }),
        }
    }
    found
}

/// Returns the range of the middle half of some differences.
fn middle_half_range(differences: impl Iterator<Item = i64>) -> DifferenceRange {
    let mut sorted: Vec<i64> = differences.collect();
    sorted.sort_unstable();
    // The outer quarters are left out, because they contain the packets with unusual delays.
    let quarter = sorted.len() / 4;
    DifferenceRange {
        lowest: sorted.get(quarter).copied().unwrap_or(0),
        highest: sorted.get((sorted.len() - quarter).saturating_sub(1)).copied().unwrap_or(0),
    }
}

/// Returns the position near `about` that best separates the pairs of the earlier level from those of the later level.
fn refine_step_position(pairs: &[StampPair], about: usize) -> usize {
    let near = &pairs[about.saturating_sub(PAIRS_PER_WINDOW)..pairs.len().min(about + PAIRS_PER_WINDOW)];
    let begin = about.saturating_sub(PAIRS_PER_WINDOW);
    let (before, after) =
        (middle_difference(&near[..about - begin]), middle_difference(&near[about - begin..]));
    let limit = before.midpoint(after);
    let is_after = |pair: &StampPair| (pair.ahead_ns > limit) == (after > before);
    // For each position, the pairs on the wrong side are counted: pairs before it with the later level, and pairs
    // after it with the earlier level.
    let mut wrong = near.iter().filter(|pair| !is_after(pair)).count();
    let mut best = (wrong, 0);
    for (index, pair) in near.iter().enumerate() {
        wrong = if is_after(pair) { wrong + 1 } else { wrong - 1 };
        best = best.min((wrong, index + 1));
    }
    begin + best.1
}

/// Returns true if all windows after a position, within [`MIN_STEP_DURATION_NS`], are above or below
/// all windows before it.
fn is_step_lasting(pairs: &[StampPair], at: usize) -> bool {
    let (last, next) = (pairs[at - 1], pairs[at]);
    // Each side is measured in its own stamps, because the stamps of the two sides differ by the step.
    let near_before = pairs[..at].iter().rev().take_while(|pair| is_near(pair, last)).count();
    let near_after = pairs[at..].iter().take_while(|pair| is_near(pair, next)).count();
    // Both sides are divided into windows beginning at the position, so that the windows next to it are complete.
    let before = &pairs[at - near_before.max(MIN_PAIRS_PER_END)..at];
    let after = &pairs[at..pairs.len().min(at + near_after.max(MIN_PAIRS_PER_END))];
    let before: Vec<&[StampPair]> = before.rchunks(window_length(before.len())).collect();
    let after: Vec<&[StampPair]> = after.chunks(window_length(after.len())).collect();
    let drift = median_drift_of_sides(&[&before, &after]);
    // Each side uses the time of its own pair at the step, because the times may come from the clock that was set.
    let (before, after) = (
        difference_range_without_drift(&before, last.at_ns, drift),
        difference_range_without_drift(&after, next.at_ns, drift),
    );
    before.zip(after).is_some_and(|(before, after)| before.is_clearly_apart_from(after))
}

const fn is_near(pair: &StampPair, here: StampPair) -> bool {
    pair.at_ns.abs_diff(here.at_ns) <= MIN_STEP_DURATION_NS
}

/// Returns the centre of the middle half of the pairs' differences.
fn middle_difference(pairs: &[StampPair]) -> i64 {
    let envelope = middle_half_range(pairs.iter().map(|pair| pair.ahead_ns));
    envelope.lowest.midpoint(envelope.highest)
}

/// Returns the range of the differences of these windows after the drift since `here_ns` was removed; `None` without a
/// window that has enough pairs.
fn difference_range_without_drift(
    windows: &[&[StampPair]],
    here_ns: u64,
    drift: f64,
) -> Option<DifferenceRange> {
    let whole = windows.iter().filter(|window| window.len() >= MIN_PAIRS_PER_END);
    let each =
        whole.map(|window| middle_half_range(window.iter().map(|pair| remove_drift(pair, here_ns, drift))));
    each.reduce(DifferenceRange::merge_with)
}

/// Returns the number of pairs per window when `pairs` are divided into at most [`MAX_WINDOWS`] windows.
fn window_length(pairs: usize) -> usize {
    PAIRS_PER_WINDOW.max(pairs.div_ceil(MAX_WINDOWS))
}

/// Returns the drift in seconds per second: the median slope over all pairs of windows on the same side of a position.
fn median_drift_of_sides(sides: &[&[&[StampPair]]]) -> f64 {
    let mut slopes = Vec::new();
    for side in sides {
        let points: Vec<WindowPoint> = side.iter().map(|window| WindowPoint::from_window(window)).collect();
        for (index, one) in points.iter().enumerate() {
            slopes.extend(points[index + 1..].iter().filter_map(|other| one.slope_to(other)));
        }
    }
    slopes.sort_by(f64::total_cmp);
    slopes.get(slopes.len() / 2).map_or(0.0, |slope| slope.clamp(-MAX_DRIFT, MAX_DRIFT))
}

fn remove_drift(pair: &StampPair, here_ns: u64, drift: f64) -> i64 {
    let since = signed_difference(pair.at_ns, here_ns);
    #[expect(clippy::cast_possible_truncation, reason = "a float becomes the nearest integer that there is")]
    let drifted = (since as f64 * drift).round() as i64;
    pair.ahead_ns.saturating_sub(drifted)
}

/// Mean time and median difference of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowPoint {
    pub(super) at_ns: u64,
    pub(super) ahead_ns: i64,
}

impl WindowPoint {
    pub(super) fn from_window(window: &[StampPair]) -> Self {
        Self { at_ns: mean_stamp_time(window), ahead_ns: median(window.iter().map(|pair| pair.ahead_ns)) }
    }

    /// Returns the slope of the difference from this point to another, in seconds per second; `None` if both
    /// have the same time.
    pub(super) fn slope_to(&self, other: &Self) -> Option<f64> {
        let length = signed_difference(other.at_ns, self.at_ns);
        (length != 0).then(|| other.ahead_ns.saturating_sub(self.ahead_ns) as f64 / length as f64)
    }
}
