//! Describes how complete a meter's records are. Without this information, a meter that has just started would take
//! over. Its shortened records would count as exported, and the whole records that a standby kept would be discarded.

/// Time since which a meter has seen all traffic, and time since which its records are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterCoverage {
    /// The meter has seen all traffic since this time, in nanoseconds since 1970. A restart or a loss of
    /// packets sets a new time.
    pub seen_since_ns: u64,
    /// Records that leave the table from this time on, minus the margin, are whole: their flows began after
    /// `seen_since_ns`. `None` as long as flows may run that began earlier: then the meter is not ready.
    pub complete_from_ns: Option<u64>,
}

impl MeterCoverage {
    /// Coverage of a meter that has just started.
    pub const fn seen_since(seen_since_ns: u64) -> Self {
        Self { seen_since_ns, complete_from_ns: None }
    }
}

/// A watermark, and the time from which it holds: all records that left a table between the two times
/// have been exported whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExportedSpan {
    /// If this is [`NO_WHOLE_RECORD`], the records before the watermark have been exported, but they may lack
    /// the beginnings of flows.
    pub(super) whole_from_ns: u64,
    pub(super) watermark_ns: u64,
}

/// Value of `whole_from_ns` if no exported record is known to be complete.
pub const NO_WHOLE_RECORD: u64 = u64::MAX;

impl ExportedSpan {
    /// Returns the exported span of a member that takes over. `mark` is the span of its predecessor.
    pub(super) fn for_takeover(mark: Option<Self>, coverage: MeterCoverage) -> Self {
        let watermark_ns = mark.map_or(0, |mark| mark.watermark_ns);
        let whole_from_ns = match (coverage.complete_from_ns, mark) {
            // Flows may run that began before this member saw the traffic, so its
            // records may lack their beginnings.
            (None, _) => NO_WHOLE_RECORD,
            // The span continues without a gap. An incomplete predecessor had seen as much as this member;
            // otherwise it would not have been trusted.
            (Some(complete), Some(mark))
                if complete <= mark.watermark_ns && mark.whole_from_ns != NO_WHOLE_RECORD =>
            {
                mark.whole_from_ns
            }
            (Some(complete), _) => complete,
        };
        Self { whole_from_ns, watermark_ns }
    }

    /// Returns the known exported span after a trusted member has advertised the span `latest`. If that member's
    /// watermark is lower than its predecessor's, the lower one is taken, because it is safe.
    pub(super) fn merge_latest_span(mark: Option<Self>, latest: Self) -> Option<Self> {
        let is_whole = latest.whole_from_ns != NO_WHOLE_RECORD;
        if is_whole && latest.watermark_ns < latest.whole_from_ns {
            // The member still exports records from before it was complete.
            return mark;
        }
        // Only spans that touch become one: the time between two spans is unknown.
        let joins = mark.filter(|mark| latest.whole_from_ns <= mark.watermark_ns);
        let whole_from_ns =
            joins.map_or(latest.whole_from_ns, |mark| mark.whole_from_ns.min(latest.whole_from_ns));
        Some(Self { whole_from_ns, ..latest })
    }

    /// Returns the end of the span. While a new active member still exports records from before `whole_from_ns`, the
    /// span is empty, and this is its beginning.
    pub(super) const fn end_ns(self) -> u64 {
        if self.watermark_ns > self.whole_from_ns { self.watermark_ns } else { self.whole_from_ns }
    }
}
