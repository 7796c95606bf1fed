//! Time spans of packets that are stored, or count as stored.

/// Maximum number of separate intervals. Setting a clock leaves one interval before and one after the step, and a clock
/// may be set again.
const MAX_INTERVALS: usize = 4;
/// Longest silence inside of one interval.
const MAX_SILENCE_IN_INTERVAL_NS: u64 = 1_500_000_000;

/// The first and the last time of a span, in nanoseconds.
pub(super) type TimeSpan = [u64; 2];

/// Up to four disjoint time intervals, in common time (see [`MeterClocks`](super::clocks::MeterClocks)). Several are
/// needed, because setting a clock leaves a gap without packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SharedTimeIntervals {
    /// The intervals in order. An interval that ends at 0 is not used.
    spans: [TimeSpan; MAX_INTERVALS],
}

impl SharedTimeIntervals {
    fn spans(&self) -> impl Iterator<Item = TimeSpan> {
        self.spans.into_iter().filter(|span| span[1] > 0)
    }

    /// Returns the latest time; 0 if there is none.
    pub(super) fn latest_ns(&self) -> u64 {
        self.spans().map(|span| span[1]).max().unwrap_or(0)
    }

    /// Returns whether a time lies within one of the intervals.
    pub(super) fn contains(&self, at_ns: u64) -> bool {
        self.spans().any(|[from_ns, to_ns]| from_ns <= at_ns && at_ns <= to_ns)
    }

    /// Returns whether one of the intervals comes within a margin of a span.
    pub(super) fn has_time_near(&self, [from_ns, to_ns]: TimeSpan, margin_ns: u64) -> bool {
        // An end of `u64::MAX` is an open one, see `SideReport::possible_packet_times`.
        self.spans().any(|span| from_ns <= span[1] + margin_ns && span[0] <= to_ns.saturating_add(margin_ns))
    }

    /// Returns whether all intervals lie within a span, farther than a margin from its ends.
    pub(super) fn is_within(&self, [from_ns, to_ns]: TimeSpan, margin_ns: u64) -> bool {
        self.spans().all(|span| from_ns + margin_ns < span[0] && span[1] + margin_ns < to_ns)
    }

    /// Adds an interval. If there are too many, the two that are nearest to each other become one.
    pub(super) fn add_span(&mut self, span: TimeSpan) {
        let mut all = [span; MAX_INTERVALS + 1];
        all[..MAX_INTERVALS].copy_from_slice(&self.spans);
        all.sort_unstable();
        let mut kept = [TimeSpan::default(); MAX_INTERVALS + 1];
        let mut count = 0;
        // The spans are in the order of their starts, so one pass joins neighbours. Unused spans are
        // zero and come first.
        for span in all.into_iter().filter(|span| span[1] > 0) {
            match kept[..count].last_mut() {
                Some(last) if span[0] <= last[1].saturating_add(MAX_SILENCE_IN_INTERVAL_NS) => {
                    last[1] = last[1].max(span[1]);
                }
                _ => {
                    kept[count] = span;
                    count += 1;
                }
            }
        }
        if count > MAX_INTERVALS {
            // Spans that touch were joined above, so the next one always begins later.
            let at = (0..MAX_INTERVALS).min_by_key(|at| kept[at + 1][0] - kept[*at][1]).unwrap_or(0);
            kept[at][1] = kept[at + 1][1];
            kept[at + 1..].rotate_left(1);
        }
        self.spans.copy_from_slice(&kept[..MAX_INTERVALS]);
    }

    pub(super) fn add_all(&mut self, other: Self) {
        other.spans().for_each(|span| self.add_span(span));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000_000;

    fn times_at(minutes: impl IntoIterator<Item = u64>) -> SharedTimeIntervals {
        let mut times = SharedTimeIntervals::default();
        minutes.into_iter().for_each(|minute| times.add_span([minute * MINUTE, minute * MINUTE + 5]));
        times
    }

    #[test]
    fn times_far_apart_leave_a_hole() {
        assert!(!SharedTimeIntervals::default().has_time_near([0, u64::MAX], 0));
        let mut times = times_at([100, 40]);
        times.add_span([100 * MINUTE + MAX_SILENCE_IN_INTERVAL_NS, 101 * MINUTE]);
        assert_eq!(times.latest_ns(), 101 * MINUTE);
        assert!(
            times.contains(100 * MINUTE + 7) && !times.contains(99 * MINUTE) && times.contains(40 * MINUTE)
        );
        assert!(!times.has_time_near([41 * MINUTE, 99 * MINUTE], MINUTE / 2));
        assert!(times.has_time_near([41 * MINUTE, 99 * MINUTE], MINUTE));
        assert!(
            times.is_within([39 * MINUTE, 102 * MINUTE], 0)
                && !times.is_within([41 * MINUTE, 102 * MINUTE], 0)
        );
    }

    #[test]
    fn nearest_intervals_become_one() {
        let times = times_at([200, 100, 60, 400, 10]);
        assert!(times.contains(80 * MINUTE) && !times.contains(30 * MINUTE));
        let mut others = times_at([20]);
        others.add_all(times);
        assert!(
            others.contains(15 * MINUTE) && others.contains(80 * MINUTE) && !others.contains(40 * MINUTE)
        );
    }
}
