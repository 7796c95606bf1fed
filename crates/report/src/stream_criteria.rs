//! The criteria on a stream: the figure that each criterion judges, with the bounds of this figure.
//!
//! docs/book/figures.md defines each figure.

use super::judgement::{
    CriterionResult, StreamFinding, compute_allowed_count, describe_bounded_time, describe_frame_count,
};
use super::{AcceptanceCriteria, ArrivedFrames, LatencyLimit, StreamReport};
use packetrig_stats::bounded::{BoundReason, Bounded};
use packetrig_units::{Nanos, Ratio, Share, clamp_to_u64};

impl StreamReport {
    /// Describes the criteria on frame counts (loss, duplicates, damage, misdelivery) that have the result
    /// `wanted` for this stream.
    pub fn list_criteria_with_result(
        &self,
        wanted: CriterionResult,
        criteria: &AcceptanceCriteria,
    ) -> Vec<String> {
        let judged = [
            self.judge_loss(criteria.max_loss),
            self.judge_duplicates(criteria.max_duplicates),
            self.judge_damage(criteria.max_damaged),
            self.judge_misdelivery(criteria.max_misdelivered),
        ];
        let found = judged.into_iter().flatten().filter(|finding| finding.result == wanted);
        found.map(|finding| format!("stream {}: {}", self.name, finding.measured)).collect()
    }

    pub(super) fn judge_loss(&self, limit: Share) -> Option<StreamFinding> {
        let loss = self.loss?;
        let contents = self.contents.unwrap_or_default();
        // Numbered frames and frames compared by content are disjoint, so one limit applies to their sum.
        let expected = loss.expected.saturating_add(contents.compared);
        let lost = Bounded::exactly(loss.lost.saturating_add(contents.lost));
        let in_doubt = loss.in_doubt.saturating_add(contents.in_doubt);
        let lost = lost.lower_lower_bound(lost.value.saturating_sub(in_doubt), BoundReason::RigLosses);
        let stale = self.received.as_ref().map_or(0, |got| got.sequence.stale);
        let words = describe_frame_count(&lost, expected, "lost");
        let measured = match stale {
            0 => words,
            _ => format!(
                "{words}; frames that arrived more than 65536 frames late, which count as lost: {stale}"
            ),
        };
        Some(StreamFinding::at_most(compute_allowed_count(limit, expected), lost, measured))
    }

    /// Judges a count of frames that has no error, because the receivers count it themselves.
    pub(super) fn judge_exact_count(
        &self,
        limit: Share,
        count: fn(&ArrivedFrames) -> u64,
        what: &str,
    ) -> Option<StreamFinding> {
        let received = self.received.as_ref().filter(|_| self.measured)?;
        let frames = Bounded::exactly(count(received));
        let expected = self.loss.map_or(received.frames, |loss| loss.expected);
        let measured = describe_frame_count(&frames, expected, what);
        Some(StreamFinding::at_most(compute_allowed_count(limit, expected), frames, measured))
    }

    pub(super) fn judge_duplicates(&self, limit: Share) -> Option<StreamFinding> {
        let received = self.received.as_ref().filter(|_| self.measured)?;
        let copies = self.count_copies_with_bounds(received);
        let stale = received.sequence.stale;
        let has_extra = self.loss.is_some_and(|loss| loss.extra > 0);
        let what = match (has_extra, stale) {
            (true, _) => " arrived, or more frames than expected (check rx_tx_ratio)".to_owned(),
            (false, 0) => " arrived".to_owned(),
            (false, stale) => {
                format!(
                    " arrived, if all frames that arrived more than 65536 frames late ({stale}) are copies"
                )
            }
        };
        let expected = self.loss.map_or(received.frames, |loss| loss.expected);
        let ratio = Ratio::new(copies.most, expected);
        let measured = format!("{} copies of {expected} expected frames{what} ({ratio})", copies.most);
        Some(StreamFinding::at_most(compute_allowed_count(limit, expected), copies, measured))
    }

    /// Number of copies that arrived as the plan expects, without the first arrival of each frame.
    pub(super) fn expected_copies(&self) -> u64 {
        let Some((loss, received)) = self.loss.zip(self.received.as_ref()) else { return 0 };
        let copies = loss.expected.saturating_sub(loss.lost).saturating_sub(received.sequence.unique);
        if loss.counts_copies { copies } else { 0 }
    }

    /// Counts the copies and the frames beyond the expected ones. The upper bound includes frames that arrived too late
    /// to be distinguished from copies.
    fn count_copies_with_bounds(&self, received: &ArrivedFrames) -> Bounded<u64> {
        let loss = self.loss.unwrap_or_default();
        // If the plan expects several copies at a receiver, only further copies are too many.
        let twice = if loss.counts_copies { 0 } else { received.sequence.duplicates };
        let copies = Bounded::exactly(twice.saturating_add(loss.extra));
        // If an engine counts too few of its sent frames, the uncounted frames look like copies.
        let least = copies.value.saturating_sub(loss.extra_in_doubt);
        let most = copies.value.saturating_add(received.sequence.stale);
        copies.lower_lower_bound(least, BoundReason::RigLosses).raise_upper_bound(most, BoundReason::Stale)
    }

    pub(super) fn judge_damage(&self, limit: Share) -> Option<StreamFinding> {
        let what = "arrived with a damaged payload or tag";
        self.judge_exact_count(limit, |received| received.corrupt.saturating_add(received.unnumbered), what)
    }

    pub(super) fn judge_misdelivery(&self, limit: Share) -> Option<StreamFinding> {
        let expected = self.loss?.expected;
        let limit = compute_allowed_count(limit, expected);
        let Some(astray) = &self.misdelivery else {
            let measured = format!("0 of {expected} frames arrived at other ports");
            return Some(StreamFinding::at_most(limit, Bounded::exactly(0), measured));
        };
        // A flooded frame arrives at several wrong ports, but it counts as one frame.
        let frames = Bounded::exactly(astray.frames.saturating_sub(astray.to_groups).min(expected));
        Some(StreamFinding::at_most(limit, frames, astray.to_string()))
    }

    pub(super) fn judge_latency(&self, limit: LatencyLimit) -> Option<StreamFinding> {
        // If no frame arrived, there is no latency to judge; the loss criterion covers this case.
        self.received.as_ref().filter(|got| got.frames > 0)?;
        let bounds = self.latency.as_ref().and_then(|latency| latency.bounds);
        let Some(latency) = bounds.map(|bounds| bounds.bounds_of_figure(limit.figure)) else {
            return Some(StreamFinding::unknown(format!("latency {} was not measured", limit.figure)));
        };
        let measured = format!("{} {}", limit.figure, describe_bounded_time(&latency));
        Some(StreamFinding::at_most(limit.limit.as_u64(), latency.map(Nanos::as_u64), measured))
    }

    pub(super) fn judge_jitter(&self, limit: Nanos) -> Option<StreamFinding> {
        // Jitter needs at least two arrivals.
        self.received.as_ref().filter(|got| got.frames > 1)?;
        let Some(jitter) = self.largest_jitter else {
            return Some(StreamFinding::unknown("jitter was not measured".to_owned()));
        };
        let measured = format!("largest jitter {}", describe_bounded_time(&jitter));
        Some(StreamFinding::at_most(limit.as_u64(), jitter.map(Nanos::as_u64), measured))
    }

    pub(super) fn judge_outage(&self, limit: Nanos) -> Option<StreamFinding> {
        self.loss?;
        let Some(outages) = &self.outages else {
            let measured = "outages are unknown, because several receivers share the stream".to_owned();
            return Some(StreamFinding::unknown(measured));
        };
        let longest = outages.longest_length.unwrap_or(Bounded::exactly(Nanos::ZERO));
        let measured = format!("longest outage {}", describe_bounded_time(&longest));
        Some(StreamFinding::at_most(limit.as_u64(), longest.map(Nanos::as_u64), measured))
    }

    pub(super) fn judge_rate(&self, limit: Share) -> Option<StreamFinding> {
        let asked = self.asked_milli?;
        let Some(delivered) = self.delivered_milli else {
            return Some(StreamFinding::unknown("the rate was not measured".to_owned()));
        };
        let Bounded { least, most, why, .. } = delivered;
        let share = Ratio::new(delivered.value, asked);
        let mut measured = format!("{} of {} frames/s ({share})", delivered.value / 1000, asked / 1000);
        if !delivered.is_exact() {
            let range = format!(", between {} and {} ({why})", least / 1000, most / 1000);
            measured.push_str(&range);
        }
        Some(StreamFinding::at_least(compute_allowed_count(limit, asked), delivered, measured))
    }

    /// Judges the share of sent frames that receivers can recognise.
    pub(super) fn judge_verified(&self, limit: Share) -> Option<StreamFinding> {
        let sent = self.sent.as_ref().filter(|sent| self.loss.is_some() && sent.frames > 0)?;
        let compared = self.contents.map_or(0, |contents| contents.compared);
        let verified = sent.frames.saturating_sub(sent.untagged).saturating_add(compared);
        let measured = format!(
            "{verified} of {} frames can be verified, {compared} of them by their content ({})",
            sent.frames,
            Ratio::new(verified, sent.frames)
        );
        let limit = compute_allowed_count(limit, sent.frames);
        Some(StreamFinding::at_least(limit, Bounded::exactly(verified), measured).limit_to_inconclusive())
    }

    pub(super) fn judge_lateness(&self, limit: Nanos) -> Option<StreamFinding> {
        let latest = self.sent.as_ref()?.send_error?.max;
        let measured = format!("frames left up to {latest} before or after their due time");
        let late = Bounded::exactly(latest.as_u64());
        Some(StreamFinding::at_most(limit.as_u64(), late, measured).limit_to_inconclusive())
    }

    /// Distinct frames that arrived per second, in thousandths: their number divided by the requested time,
    /// or by the actual time if that is longer.
    ///
    /// The lower bound is the measured rate. The upper bound adds the frames that the rig did not send or may
    /// have lost. It also removes the time by which the sender's stamps show that it was slower than planned.
    /// A count of frames within a time is exact to one frame.
    pub(super) fn delivered_rate_milli(&self) -> Option<Bounded<u64>> {
        let asked = u128::from(self.asked_milli.filter(|asked| *asked > 0)?);
        let (sent, received, loss) = (self.sent.as_ref()?, self.received.as_ref()?, self.loss?);
        let planned_span = |frames: u64| u128::from(frames) * NANOS_MILLI / asked;
        let interval = planned_span(1);
        // The minimum is 1, because the rates below are divided by this time.
        let window = planned_span(sent.planned).max(1);
        let taken = window.max(frame_span_nanos(received.first, received.last) + interval);
        let longer = frame_span_nanos(sent.first, sent.last)
            .saturating_sub(planned_span(sent.planned.saturating_sub(1)));
        // Copies of one frame at several receivers count as one frame.
        let copies = u128::from(loss.expected).max(1);
        let of_sent = |frames: u64| u128::from(frames) * u128::from(sent.frames) / copies;
        let arrived = of_sent(loss.expected.saturating_sub(loss.lost));
        let with_doubt = of_sent(loss.expected.saturating_sub(loss.lost.saturating_sub(loss.in_doubt)));
        // The first frame may have left at its stamp, and the last one later by the stamp's bound.
        let unsure = sent.stamp_bound.as_ref().map_or(0, |bound| u128::from(bound.max.as_u64()));
        let stamped = window.max(taken.saturating_sub(unsure));
        let fastest = window.max(stamped.saturating_sub(longer));
        let counted = u128::from(taken > window);
        Some(
            Bounded::exactly(milli_rate_of(arrived, taken))
                .raise_upper_bound(milli_rate_of(arrived + counted, taken), BoundReason::Counting)
                .raise_upper_bound(milli_rate_of(arrived + counted, stamped), BoundReason::SendStamps)
                .raise_upper_bound(milli_rate_of(arrived + counted, fastest), BoundReason::SentLate)
                .raise_upper_bound(milli_rate_of(with_doubt + counted, fastest), BoundReason::RigLosses)
                .raise_upper_bound(
                    milli_rate_of(with_doubt + counted + u128::from(sent.unsent), fastest),
                    BoundReason::Unsent,
                ),
        )
    }
}

/// Nanoseconds from the first to the last frame; 0 if one of the times is unknown.
fn frame_span_nanos(first: Option<Nanos>, last: Option<Nanos>) -> u128 {
    first.zip(last).map_or(0, |(first, last)| last.saturating_sub(first).as_u64().into())
}

/// Frames per second, in thousandths, of `frames` frames in `time` nanoseconds.
fn milli_rate_of(frames: u128, time: u128) -> u64 {
    clamp_to_u64(frames * NANOS_MILLI / time)
}

/// Nanoseconds in a second, times 1000: frames times this number, divided by a time in nanoseconds, are thousandths of
/// a frame per second.
const NANOS_MILLI: u128 = 1_000_000_000_000;
