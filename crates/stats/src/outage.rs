//! Outages of a stream: a list of the times when frames were missing, each with its frame numbers and the arrivals around it.
//!
//! An outage is a run of consecutive lost frames. It begins with the arrival of the last frame before it and ends with the
//! arrival of the first frame after it. The list has room for a fixed number of outages. When it is full, neighbours are
//! joined: a joined outage still counts its lost frames exactly, but frames between them arrived.
//!
//! Invariant: the lost frames of all outages add up to the frames that were reported lost.

use packetrig_units::{MonoTime, Nanos, clamp_to_u64};
use serde::{Deserialize, Serialize};

/// A time without some frames of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamOutage {
    /// Number of the first lost frame.
    pub first: u64,
    /// Number of the last lost frame.
    pub last: u64,
    /// Lost frames. All from `first` to `last` if `gaps` is 1.
    pub frames: u64,
    /// Number of runs of lost frames in this outage.
    pub gaps: u64,
    /// Arrival of the last frame before the outage; absent if none arrived before.
    pub begin: Option<MonoTime>,
    /// Arrival of the first frame after the outage; absent if none arrived after.
    pub end: Option<MonoTime>,
}

impl StreamOutage {
    /// Returns the time without arrivals. Absent at the ends of a stream, and for joined outages.
    pub fn length(&self) -> Option<Nanos> {
        // Frames arrived between joined outages, so the time around all of them is not one outage.
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

/// The outages of a stream at one receiver, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutageList {
    /// The outages, at most as many as there is room for.
    pub outages: Vec<StreamOutage>,
    /// Number of all runs of lost frames, including runs in joined outages.
    pub gaps: u64,
    /// The longest time between two arrivals with lost frames between them; exact also where outages are joined.
    pub longest: Option<Nanos>,
    #[serde(skip)]
    limit: usize,
}

impl OutageList {
    /// A list of this many outages at most, and of two at least. Beyond the limit, neighbours are joined.
    pub fn with_limit(limit: usize) -> Self {
        // Joining needs a neighbour.
        let limit = limit.max(2);
        Self { outages: Vec::with_capacity(limit), gaps: 0, longest: None, limit }
    }

    /// Adds a run of lost frames; its numbers are above all earlier ones. A run that continues the last one extends it.
    pub fn push_outage(&mut self, outage: StreamOutage) {
        if let Some(last) = self.outages.last_mut()
            // Lost frames leave the window one by one, so a run of them comes in parts.
            && last.last + 1 == outage.first
        {
            last.last = outage.last;
            last.frames += outage.frames;
            last.end = outage.end;
            self.longest = self.longest.max(last.length());
            return;
        }
        self.gaps += 1;
        // The number is kept beside the list: a joined outage has no length any more.
        self.longest = self.longest.max(outage.length());
        if self.outages.len() == self.limit {
            self.join_neighbours();
        }
        self.outages.push(outage);
    }

    /// Joins every second outage with the one before it. It joins pairs of neighbours, not the nearest ones: that halves the
    /// list at once, so a long run joins seldom.
    fn join_neighbours(&mut self) {
        let mut kept = 0;
        for from in (0..self.outages.len()).step_by(2) {
            // The list is changed in place: it has a fixed length, and this may run while frames arrive.
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

/// The gaps in a stream that may still be filled by late frames: which frames were missing, between which arrivals.
///
/// Gaps are opened in ascending order of numbers, and closed in that order when their frames are known to be lost.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenGaps {
    gaps: std::collections::VecDeque<OpenGap>,
}

#[derive(Clone, Copy, Debug)]
struct OpenGap {
    first: u64,
    end: u64,
    before: Option<MonoTime>,
    /// Absent for the frames at the end of a stream.
    after: Option<MonoTime>,
    /// The longest of several gaps that were joined here for lack of room: the arrivals belong only to this gap.
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
    /// Returns the gap for joining it with another one; `None` at the ends of a stream.
    fn as_joined(&self) -> Option<JoinedGap> {
        let Self { first, end, before, after, longest } = *self;
        longest.or_else(|| Some(JoinedGap { first, end, before: before?, after: after? }))
    }

    fn join_next_outage(&mut self, next: &Self) {
        // `max_by_key` returns the last of equal ones, so the reversed order keeps the first.
        let all = [next.as_joined(), self.as_joined()].into_iter().flatten();
        self.longest = all.max_by_key(JoinedGap::length);
        self.end = next.end;
        self.after = next.after;
    }
}

/// Gaps that are kept open at once. Beyond that, the two latest are joined.
const MAX_OPEN_GAPS: usize = 1024;

impl OpenGaps {
    pub(crate) fn new() -> Self {
        Self { gaps: std::collections::VecDeque::with_capacity(MAX_OPEN_GAPS) }
    }

    /// Frames `first..end` are missing between two arrivals.
    pub(crate) fn open_gap(&mut self, first: u64, end: u64, before: Option<MonoTime>, after: MonoTime) {
        let gap = OpenGap { first, end, before, after: Some(after), longest: None };
        let is_full = self.gaps.len() == MAX_OPEN_GAPS;
        match self.gaps.back_mut().filter(|_| is_full) {
            // Frames that arrived between the two are inside the joined gap now. They are not lost, so no
            // outage is requested for them.
            Some(last) => last.join_next_outage(&gap),
            None => self.gaps.push_back(gap),
        }
    }

    /// Frames `first..end` are missing after the last arrival of the stream.
    pub(crate) fn open_gap_at_end(&mut self, first: u64, end: u64, before: Option<MonoTime>) {
        // This may be one more than the limit. The stream is over, so no other outage follows.
        self.gaps.push_back(OpenGap { first, end, before, after: None, longest: None });
    }

    /// Returns the outage of the lost frames `first..=last`. Gaps below `first` are closed: they are not needed again.
    pub(crate) fn outage_of_lost_frames(&mut self, first: u64, last: u64) -> StreamOutage {
        while self.gaps.front().is_some_and(|gap| gap.end <= first) {
            self.gaps.pop_front();
        }
        // Late frames may have filled parts of a gap, so several outages may lie in one gap; each
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
                Some(_) => narrow_outage(&mut outage, gap),
                None => {}
            }
        }
        outage
    }
}

/// Estimates the arrivals around a run within joined gaps: frames are taken to be evenly spaced.
fn narrow_outage(outage: &mut StreamOutage, gap: &OpenGap) {
    let Some((before, after)) = gap.before.zip(gap.after) else { return };
    outage.begin = Some(interpolate_arrival(gap, before, after, outage.first));
    // The outage ends with the frame after it, and the function counts from the frame before a number.
    outage.end = Some(interpolate_arrival(gap, before, after, outage.last + 2).min(after));
}

/// Returns the time at which frame `number - 1` would have arrived. The frame before the gap came at
/// `before`, the one after it at `after`.
fn interpolate_arrival(gap: &OpenGap, before: MonoTime, after: MonoTime, number: u64) -> MonoTime {
    let span = u128::from(after.since(before).as_u64());
    // From the frame before the gap to the frame after it, there is one step more than there are missing frames.
    let steps = u128::from(gap.end + 1 - gap.first);
    before + Nanos::new(clamp_to_u64(span * u128::from(number - gap.first) / steps))
}

#[cfg(test)]
mod tests;
