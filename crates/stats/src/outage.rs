//! Outages of a stream: a list of the times without arrivals, each with the numbers of the lost frames and
//! the arrivals around them.
//!
//! An outage is a run of consecutive lost frames. It begins with the arrival of the last frame before it and
//! ends with the arrival of the first frame after it. The list has room for a fixed number of outages. When
//! the list is full, neighbouring outages are joined. The number of lost frames of a joined outage is still exact, but
//! some frames arrived during it.
//!
//! Invariant: the lost frames of all outages add up to the number of frames that were reported as lost.

use packetrig_units::{MonoTime, Nanos, clamp_to_u64};
use serde::{Deserialize, Serialize};

/// A time in which frames of a stream were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamOutage {
    /// Number of the first lost frame.
    pub first: u64,
    /// Number of the last lost frame.
    pub last: u64,
    /// Number of lost frames. If `gaps` is 1, these are all frames from `first` to `last`.
    pub frames: u64,
    /// Number of runs of lost frames in this outage.
    pub gaps: u64,
    /// Arrival of the last frame before the outage; absent if no frame arrived before it. If too many gaps were open
    /// at once, `begin` and `end` may be estimates.
    pub begin: Option<MonoTime>,
    /// Arrival of the first frame after the outage; absent if no frame arrived after it.
    pub end: Option<MonoTime>,
}

impl StreamOutage {
    /// Returns the time without arrivals; `None` at the start and end of a stream, and for joined outages.
    pub fn length(&self) -> Option<Nanos> {
        // Frames arrived between joined outages, so the time around all of them is not a single outage.
        let is_one = self.gaps == 1;
        if is_one { Some(self.end?.since(self.begin?)) } else { None }
    }

    fn join_next_outage(&mut self, next: &Self) {
        self.last = next.last;
        self.frames += next.frames;
        self.gaps += next.gaps;
        self.end = next.end;
    }
}

/// The outages of a stream at one receiver, in the order of the frame numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutageList {
    /// The outages, up to the limit of the list.
    pub outages: Vec<StreamOutage>,
    /// Number of all runs of lost frames, including the runs in joined outages.
    pub gaps: u64,
    /// The longest time between two arrivals with lost frames between them. It is exact even if outages are joined, but
    /// not if too many gaps were open at once.
    pub longest: Option<Nanos>,
    #[serde(skip)]
    limit: usize,
}

impl OutageList {
    /// Creates a list of at most `limit` outages; a limit below 2 counts as 2. When the list is full,
    /// neighbouring outages are joined.
    pub fn with_limit(limit: usize) -> Self {
        // Joining needs at least two outages.
        let limit = limit.max(2);
        Self { outages: Vec::with_capacity(limit), gaps: 0, longest: None, limit }
    }

    /// Adds a run of lost frames, whose numbers must be above all earlier ones. If the run directly follows the last
    /// outage, that outage is extended.
    pub fn push_outage(&mut self, outage: StreamOutage) {
        if let Some(last) = self.outages.last_mut()
            // Lost frames leave the sequence window one by one, so a run of them is added in parts.
            && last.last + 1 == outage.first
        {
            last.last = outage.last;
            last.frames += outage.frames;
            last.end = outage.end;
            self.longest = self.longest.max(last.length());
            return;
        }
        self.gaps += 1;
        // The longest time is stored separately, because a joined outage has no length any more.
        self.longest = self.longest.max(outage.length());
        if self.outages.len() == self.limit {
            self.join_neighbours();
        }
        self.outages.push(outage);
    }

    /// Joins every second outage with the one before it, and not only the two nearest ones: this halves the
    /// list at once, so joining is rarely needed in a long run.
    fn join_neighbours(&mut self) {
        let mut kept = 0;
        for from in (0..self.outages.len()).step_by(2) {
            // The list is changed in place, because this may run while frames arrive and must not allocate.
            let mut joined = self.outages[from];
            if let Some(next) = self.outages.get(from + 1) {
                joined.join_next_outage(next);
            }
            self.outages[kept] = joined;
            kept += 1;
        }
        self.outages.truncate(kept);
    }
}

/// The gaps in a stream that late frames may still fill: which frames are missing, and between which arrivals.
///
/// Gaps are opened in the ascending order of the frame numbers, and closed in the same order when their
/// frames are known to be lost.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenGaps {
    gaps: std::collections::VecDeque<OpenGap>,
}

#[derive(Clone, Copy, Debug)]
struct OpenGap {
    first: u64,
    end: u64,
    before: Option<MonoTime>,
    /// Absent for a gap at the end of the stream.
    after: Option<MonoTime>,
    /// The longest of the gaps that were joined here because too many gaps were open, with its own arrivals.
    longest: Option<JoinedGap>,
}

/// A gap within a joined one.
#[derive(Clone, Copy, Debug)]
struct JoinedGap {
    first: u64,
    end: u64,
    before: MonoTime,
    after: MonoTime,
}

impl JoinedGap {
    fn length(&self) -> Nanos {
        self.after.since(self.before)
    }
}

impl OpenGap {
    /// Returns the longest of the gaps that this one contains, or this gap itself; `None` at the start or
    /// end of a stream.
    fn longest_known_gap(&self) -> Option<JoinedGap> {
        let Self { first, end, before, after, longest } = *self;
        longest.or_else(|| Some(JoinedGap { first, end, before: before?, after: after? }))
    }

    fn join_next_gap(&mut self, next: &Self) {
        // `max_by_key` returns the last of equal elements, so in this order the earlier gap is kept.
        let all = [next.longest_known_gap(), self.longest_known_gap()].into_iter().flatten();
        self.longest = all.max_by_key(JoinedGap::length);
        self.end = next.end;
        self.after = next.after;
    }
}

/// Maximum number of open gaps. If there are more, the two latest ones are joined.
const MAX_OPEN_GAPS: usize = 1024;

impl OpenGaps {
    pub(crate) fn new() -> Self {
        Self { gaps: std::collections::VecDeque::with_capacity(MAX_OPEN_GAPS) }
    }

    /// Opens the gap of the frames `first..end`, which are missing between two arrivals.
    pub(crate) fn open_gap(&mut self, first: u64, end: u64, before: Option<MonoTime>, after: MonoTime) {
        let gap = OpenGap { first, end, before, after: Some(after), longest: None };
        let is_full = self.gaps.len() == MAX_OPEN_GAPS;
        match self.gaps.back_mut().filter(|_| is_full) {
            // The frames that arrived between the two gaps are inside the joined gap now. They are not lost,
            // so no outage is computed for them.
            Some(last) => last.join_next_gap(&gap),
            None => self.gaps.push_back(gap),
        }
    }

    /// Opens the gap of the frames `first..end`, which are missing after the last arrival of the stream.
    pub(crate) fn open_gap_at_end(&mut self, first: u64, end: u64, before: Option<MonoTime>) {
        // This may exceed the limit by one. The stream is over, so no other gap follows.
        self.gaps.push_back(OpenGap { first, end, before, after: None, longest: None });
    }

    /// Returns the outage of the lost frames `first..=last`. Gaps that end before `first` are closed, because
    /// they are not needed again.
    pub(crate) fn take_outage_of_lost_frames(&mut self, first: u64, last: u64) -> StreamOutage {
        while self.gaps.front().is_some_and(|gap| gap.end <= first) {
            self.gaps.pop_front();
        }
        // Late frames may have filled parts of a gap, so one gap may contain several outages, each of which
        // is looked up separately.
        let gap = self.gaps.front().filter(|gap| gap.first <= first);
        let mut outage =
            StreamOutage { first, last, frames: last + 1 - first, gaps: 1, begin: None, end: None };
        if let Some(gap) = gap {
            outage.begin = gap.before;
            outage.end = gap.after;
            match gap.longest {
                // The longest of the joined gaps has kept its own arrivals, so its outage is exact.
                Some(longest) if (longest.first..longest.end).contains(&first) => {
                    (outage.begin, outage.end) = (Some(longest.before), Some(longest.after));
                }
                Some(_) => estimate_outage_times(&mut outage, gap),
                None => {}
            }
        }
        outage
    }
}

/// Estimates `begin` and `end` of an outage inside joined gaps, as if all frames of the gap were
/// due at equal intervals.
fn estimate_outage_times(outage: &mut StreamOutage, gap: &OpenGap) {
    let Some((before, after)) = gap.before.zip(gap.after) else { return };
    outage.begin = Some(interpolate_arrival(gap, before, after, outage.first));
    // The outage ends with the arrival of frame `last + 1`, and the function takes the number of
    // the frame after that.
    outage.end = Some(interpolate_arrival(gap, before, after, outage.last + 2).min(after));
}

/// Returns the estimated arrival of frame `number - 1`. The frame before the gap arrived at `before`, the
/// frame after the gap at `after`.
fn interpolate_arrival(gap: &OpenGap, before: MonoTime, after: MonoTime, number: u64) -> MonoTime {
    let span = u128::from(after.since(before).as_u64());
    // From the frame before the gap to the frame after it, there is one interval more than there are missing frames.
    let steps = u128::from(gap.end + 1 - gap.first);
    before + Nanos::new(clamp_to_u64(span * u128::from(number - gap.first) / steps))
}

#[cfg(test)]
mod tests;
