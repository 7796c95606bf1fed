//! One stream of an engine: the counts that the engine reports, after a check that they are plausible.
//!
//! Invariant: counts never decrease, and are never more than the plan allows.

use super::messages::EngineStreamCount;
use crate::sender::LATE_FRAME_THRESHOLD;
use crate::stream::StreamSpec;
use packetrig_plan::timeline::SendPattern;
use packetrig_stats::content::ContentCounts;
use packetrig_stats::counts::{SinceStart, StreamTxCounts};
use packetrig_stats::latency::Latency;
use packetrig_stats::result::SendResult;
use packetrig_stats::series::RateSeries;
use packetrig_units::{FrameSize, MonoTime, Nanos};
use std::sync::Arc;

/// Significant digits of the send-time histograms, as in the generic sender.
const HISTOGRAM_DIGITS: u8 = 2;
/// Uncertainty of an engine's times: other programs may read the clock less exactly than packetrig.
const ENGINE_CLOCK_UNCERTAINTY: Nanos = Nanos::from_millis(100);
const SECOND: u64 = 1_000_000_000;

#[derive(Debug)]
pub(super) struct EngineStreamState {
    pub(super) spec: Arc<StreamSpec>,
    /// Lengths of the shortest and the longest frame, without FCS.
    bytes: [u64; 2],
    told: EngineStreamCount,
    first: Option<MonoTime>,
    last: Option<MonoTime>,
    counted_at: Option<MonoTime>,
    series: RateSeries,
}

impl EngineStreamState {
    pub(super) fn new(spec: Arc<StreamSpec>, bytes: [u64; 2], streams: usize) -> Self {
        let series = RateSeries::with_limit(spec.series_seconds_to_reserve(streams));
        let told = EngineStreamCount { stream: spec.number, ..EngineStreamCount::default() };
        Self { spec, bytes, told, first: None, last: None, counted_at: None, series }
    }

    /// Returns how many frames the engine gave to the kernel, including those that the kernel refused.
    pub(super) const fn attempted_frames(&self) -> u64 {
        self.told.frames.saturating_add(self.told.refused)
    }

    pub(super) const fn refused_frames(&self) -> u64 {
        self.told.refused
    }

    /// Stores the counts that the engine reports; an error explains why they are impossible. All frames must have been
    /// sent between the two times of `span`.
    pub(super) fn update_counts(
        &mut self,
        told: EngineStreamCount,
        start: MonoTime,
        span: (MonoTime, MonoTime),
    ) -> Result<(), String> {
        self.check_counts(&told, span)
            .map_err(|why| format!("its counts of stream {} {why}", told.stream))?;
        let frames = told.frames - self.told.frames;
        let bytes = add_fcs_bytes(told.bytes, told.frames) - add_fcs_bytes(self.told.bytes, self.told.frames);
        self.first = told.first_ns.map(MonoTime::from_nanos).or(self.first);
        self.last = told.last_ns.map(MonoTime::from_nanos).or(self.last);
        self.told = EngineStreamCount { bound_ns: told.bound_ns.or(self.told.bound_ns), ..told };
        if frames > 0 {
            // Frames are spread over the time since the last report: the engine reports totals only.
            let from = self.counted_at.or(self.first).unwrap_or(start).max(start);
            let until = self.last.unwrap_or(span.1).max(from);
            add_evenly_spread_frames(&mut self.series, start, (from, until), (frames, bytes));
            self.counted_at = Some(until);
        }
        Ok(())
    }

    fn check_counts(
        &self,
        told: &EngineStreamCount,
        (from, now): (MonoTime, MonoTime),
    ) -> Result<(), String> {
        let EngineStreamCount { frames, bytes, refused, .. } = *told;
        let before = self.told;
        if frames < before.frames || bytes < before.bytes || refused < before.refused {
            return Err(format!("decrease: {frames} frames after {}", before.frames));
        }
        // The counts come from another program, so every sum must be checked for overflow.
        let taken = frames.checked_add(refused).ok_or("are too large")?;
        if let Some(total) = self.spec.timeline.total_frames().filter(|total| taken > *total) {
            return Err(format!("add up to {taken} frames, but the plan has {total}"));
        }
        let [shortest, longest] = self.bytes.map(|bytes| bytes.saturating_mul(frames));
        if !(shortest..=longest).contains(&bytes) {
            return Err(format!(
                "are impossible: {frames} frames have {shortest} to {longest} B without FCS, not {bytes}"
            ));
        }
        let possible =
            (from - ENGINE_CLOCK_UNCERTAINTY).as_nanos()..=(now + ENGINE_CLOCK_UNCERTAINTY).as_nanos();
        let times = [told.first_ns, told.last_ns];
        if let Some(wrong) = times.into_iter().flatten().find(|time| !possible.contains(time)) {
            return Err(format!("contain the time {wrong} ns, which is not between the start and now"));
        }
        match times {
            [Some(first), Some(last)] if first > last => {
                Err("say that the last frame left before the first one".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Returns how late the first frame left (zero if early); `None` if its time is unknown.
    pub(super) fn start_lag(&self, start: MonoTime) -> Option<Nanos> {
        self.first.map(|first| first.since(start + self.spec.timeline.delay))
    }

    /// Returns how early the first frame left (zero if late); `None` if its time is unknown.
    pub(super) fn start_lead(&self, start: MonoTime) -> Option<Nanos> {
        self.first.map(|first| (start + self.spec.timeline.delay).since(first))
    }

    /// Returns by when the stream should be over, counted from the start: its time limit, or its planned duration plus
    /// one half. `None` if the stream is endless.
    pub(super) fn latest_end(&self) -> Option<Nanos> {
        let end = self.spec.timeline.end_time()?;
        // A stream with a time limit ends at that time, even if frames are left.
        let is_timed = matches!(self.spec.timeline.shape, SendPattern::Within(_));
        Some(if is_timed { end } else { end + Nanos::new(end.as_u64() / 2) })
    }

    /// Returns how many frames the stream should have sent by its end, or by the stop.
    fn planned_frames(&self, start: Option<MonoTime>, stopped: Option<MonoTime>) -> u64 {
        let total = self.spec.timeline.total_frames();
        match (start, stopped, total) {
            (None, _, _) => 0,
            (Some(_), None, Some(total)) => total,
            (Some(start), stopped, _) => {
                // Time counts from the engine's own first frame: its late start is reported separately.
                let end = stopped.or(self.last).unwrap_or(start);
                let elapsed = end.since(self.first.unwrap_or(start)) + self.spec.timeline.delay;
                let due = self.spec.timeline.frames_due_before(elapsed);
                // The value is never below the frames taken: an engine may be ahead of its schedule.
                due.min(total.unwrap_or(u64::MAX)).max(self.attempted_frames())
            }
        }
    }

    pub(super) fn stream_counts(&self, start: Option<MonoTime>, is_sending: bool) -> StreamTxCounts {
        let frames = self.attempted_frames();
        let bytes = add_fcs_bytes(self.told.bytes, self.told.frames);
        // Only the lateness of the first frame is known: the other frames count as equally late.
        let is_late =
            start.and_then(|start| self.start_lag(start)).is_some_and(|lag| lag > LATE_FRAME_THRESHOLD);
        StreamTxCounts {
            frames,
            bytes,
            late: if is_late { frames } else { 0 },
            first: self.first,
            last: self.last,
            since_start: SinceStart { frames, bytes, first: self.first, last: self.last },
            is_sending,
            ..StreamTxCounts::default()
        }
    }

    pub(super) fn into_result(self, start: Option<MonoTime>, stopped: Option<MonoTime>) -> SendResult {
        let mut send_error = Latency::with_digits(HISTOGRAM_DIGITS);
        start.and_then(|start| self.start_lag(start)).into_iter().for_each(|lag| send_error.record_time(lag));
        let mut stamp_bound = Latency::with_digits(HISTOGRAM_DIGITS);
        self.told.bound_ns.into_iter().for_each(|bound| stamp_bound.record_time(Nanos::new(bound)));
        SendResult {
            stream: self.spec.number.into(),
            counts: self.stream_counts(start, false),
            planned: self.planned_frames(start, stopped),
            send_error,
            stamp_bound,
            series: self.series,
            untagged_contents: ContentCounts::default(),
        }
    }
}

fn add_fcs_bytes(bytes: u64, frames: u64) -> u64 {
    bytes.saturating_add(frames.saturating_mul(FrameSize::FCS.into()))
}

/// Adds frames and bytes to the seconds of the series, as if they were sent evenly between two times.
fn add_evenly_spread_frames(
    series: &mut RateSeries,
    origin: MonoTime,
    (from, until): (MonoTime, MonoTime),
    (frames, bytes): (u64, u64),
) {
    let length = u128::from(until.since(from).as_u64());
    let share = |all: u64, part: u64| match u128::from(all).saturating_mul(part.into()).checked_div(length) {
        Some(share) => u64::try_from(share).unwrap_or(all).min(all),
        None => all,
    };
    let mut at = from;
    let mut added = (0, 0);
    while at < until {
        let since = at.since(origin).as_u64();
        let next = (origin + Nanos::new((since / SECOND + 1) * SECOND)).min(until);
        let elapsed = next.since(from).as_u64();
        // The shares are computed from the totals: differences of rounded seconds would add up their rounding errors.
        let by_then = (share(frames, elapsed), share(bytes, elapsed));
        series.add_frames(origin, at, by_then.0 - added.0, by_then.1 - added.1);
        added = by_then;
        at = next;
    }
    // The last second gets the remaining frames, so that rounding loses none.
    series.add_frames(origin, until, frames - added.0, bytes - added.1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spread_frames_cover_seconds_without_loss(
            from in 0u64..5_000_000_000, length in 0u64..5_000_000_000, frames in 0u64..10_000_000, size in 60u64..1500,
        ) {
            let origin = MonoTime::from_nanos(7);
            let from = origin + Nanos::new(from);
            let until = from + Nanos::new(length);
            let mut series = RateSeries::with_limit(20);
            add_evenly_spread_frames(&mut series, origin, (from, until), (frames, frames * size));
            let all = series.seconds.iter().fold((0, 0), |sum, second| (sum.0 + second.0, sum.1 + second.1));
            prop_assert_eq!(all, (frames, frames * size));
            let whole = series.seconds.iter().map(|(frames, _)| *frames).max().unwrap_or(0);
            // No second has more than its share, but for rounding.
            prop_assert!(length < SECOND || u128::from(whole) <= u128::from(frames) * u128::from(SECOND) / u128::from(length) + 2);
        }
    }
}
