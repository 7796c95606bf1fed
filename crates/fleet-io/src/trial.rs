//! Converts the report of a run to the result of a trial: measured values of the device, and faults of the rig that
//! make these values useless.

use packetrig_method::{LostFrames, StreamTrial, TimeRange, TrialLatency, TrialRequest, TrialResult};
use packetrig_report::outcome::RunState;
use packetrig_report::{
    FrameLoss, LatencyReport, MeanRate, OutageReport, OutageRow, RunReport, SentFrames, StreamReport,
};
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_units::{Nanos, clamp_to_u64};

/// Returns the result of the trial from the report of its run.
pub fn trial_result(order: &TrialRequest, report: &RunReport) -> TrialResult {
    let sent_late = frames_sent_late(order, report);
    let sent = || report.streams.iter().filter_map(|stream| stream.sent.as_ref());
    let lost = report.streams.iter().map(count_lost_frames).fold(LostFrames::default(), |all, lost| {
        LostFrames { least: all.least.saturating_add(lost.least), most: all.most.saturating_add(lost.most) }
    });
    TrialResult {
        intended: sent().map(|sent| sent.planned).fold(0, u64::saturating_add),
        sent: sent().map(|sent| sent.frames).fold(0, u64::saturating_add),
        sent_late,
        received: received_frames(report),
        lost,
        sending: report.sending.unwrap_or(Nanos::ZERO),
        latency: combine_stream_latencies(report),
        streams: report.streams.iter().map(build_stream_trial_result).collect(),
        caveats: report.caveats.iter().map(|caveat| format!("{}: {}", caveat.subject, caveat.text)).collect(),
        rig_fault: find_rig_fault(report, lost, sent_late),
        overhead: Nanos::ZERO,
        event_at: None,
        event_ended_at: None,
    }
}

/// Counts the distinct frames that arrived, over all streams.
fn received_frames(report: &RunReport) -> u64 {
    let arrived = report.streams.iter().filter_map(|stream| stream.received.as_ref());
    // Saturating: counts of other machines may be near `u64::MAX`.
    arrived.map(|arrived| arrived.sequence.unique).fold(0, u64::saturating_add)
}

/// Counts the lost frames of a stream. Without a loss count, between none and all of the sent frames may be lost.
fn count_lost_frames(stream: &StreamReport) -> LostFrames {
    match (&stream.loss, &stream.sent) {
        (Some(FrameLoss { lost, in_doubt, .. }), _) => {
            LostFrames { least: lost.saturating_sub(*in_doubt), most: *lost }
        }
        (None, Some(sent)) => LostFrames { least: 0, most: sent.frames },
        (None, None) => LostFrames::default(),
    }
}

fn build_stream_trial_result(stream: &StreamReport) -> StreamTrial {
    let sent = stream.sent.as_ref();
    let times = OutageTimes::from_stream(stream);
    StreamTrial {
        name: stream.name.clone(),
        sent: sent.map_or(0, |sent| sent.frames),
        lost: count_lost_frames(stream),
        rate: sent.and_then(|sent| sent.rate).map_or(0.0, MeanRate::frames_per_second),
        longest_outage: times.as_ref().map(|times| times.longest.most),
        least_longest_outage: times.as_ref().map(|times| times.longest.least),
        loss_of_connectivity: times.map(|times| times.in_all),
        last_loss: due_time_of_last_loss(stream),
    }
}

/// Duration of the outages of a stream: of all together, and of the longest one. The number of lost frames divided
/// by the rate gives only bounds: it misses the time in which the rig sent nothing, and is too long if a late rig
/// sent faster than planned.
struct OutageTimes {
    in_all: TimeRange,
    longest: TimeRange,
}

impl OutageTimes {
    /// Computes the times from a stream's report; `None` without a rate or a list of outages.
    fn from_stream(stream: &StreamReport) -> Option<Self> {
        let rate = stream.asked_milli.map(|milli| milli as f64 / 1e3);
        let rate = rate.or_else(|| Some(stream.sent.as_ref()?.rate?.frames_per_second()))?;
        let outages = stream.outages.as_ref().filter(|_| rate > 0.0)?;
        Some(Self::from_outages(outages, count_lost_frames(stream), 1e9 / rate, largest_send_delay(stream)))
    }

    fn from_outages(outages: &OutageReport, lost: LostFrames, interval: f64, late: Nanos) -> Self {
        let least: Vec<Nanos> =
            outages.listed.iter().map(|row| minimum_outage_length(row, interval, late)).collect();
        let silence: f64 = outages.listed.iter().map(|row| unexplained_silence(row, interval)).sum();
        let in_all = least.iter().fold(Nanos::ZERO, |all, one| all + *one);
        let by_frames = rounded_nanos(lost.most as f64 * interval + silence);
        // While a late rig sends nothing, an outage loses no frame, so the upper bounds are at least the delay.
        Self {
            in_all: TimeRange {
                least: in_all.min(duration_of_frames(lost.least, interval)),
                most: by_frames.max(late),
            },
            longest: TimeRange {
                least: least.into_iter().max().unwrap_or(Nanos::ZERO),
                most: outages.longest.unwrap_or(Nanos::ZERO).max(late),
            },
        }
    }
}

/// Returns the largest delay of a frame's departure after its due time, with the error of the timestamp added; 0 if the
/// sender did not report.
fn largest_send_delay(stream: &StreamReport) -> Nanos {
    let Some(sent) = &stream.sent else { return Nanos::ZERO };
    let errors = [sent.send_error, sent.stamp_bound].into_iter().flatten();
    errors.fold(Nanos::ZERO, |sum, error| sum + error.max)
}

/// Minimum duration of an outage, from the departure of its first lost frame to that of its last one. Only frames
/// that are certainly lost count. The first frame may have left late; if the outage joins several gaps, this may be
/// so for each gap.
fn minimum_outage_length(row: &OutageRow, interval: f64, late: Nanos) -> Nanos {
    let certain = duration_of_frames(row.frames.saturating_sub(row.in_doubt), interval);
    certain.saturating_sub(Nanos::new(late.as_u64().saturating_mul(row.gaps.max(1))))
}

/// Time between the arrivals around an outage that the missing frames do not explain at the planned rate, in
/// nanoseconds. In that time the rig sent nothing, or the device delayed frames.
fn unexplained_silence(row: &OutageRow, interval: f64) -> f64 {
    let Some((begin, end)) = row.begin.zip(row.end) else { return 0.0 };
    // With n lost frames, n + 1 intervals lie between the arrivals around them.
    let planned = (row.last.saturating_sub(row.first) + 2) as f64 * interval;
    (end.saturating_sub(begin).as_u64() as f64 - planned).max(0.0)
}

fn duration_of_frames(frames: u64, interval: f64) -> Nanos {
    rounded_nanos(frames as f64 * interval)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast saturates; times are not negative"
)]
fn rounded_nanos(ns: f64) -> Nanos {
    Nanos::new(ns.round() as u64)
}

/// Due time of the last lost frame, relative to the due time of the stream's first frame.
fn due_time_of_last_loss(stream: &StreamReport) -> Option<Nanos> {
    let last = stream.outages.as_ref()?.listed.iter().map(|row| row.last).max()?;
    let milli = u128::from(stream.asked_milli?);
    // The rate is in thousandths of a frame per second, so 10^12 over the
    // rate is one interval in nanoseconds.
    (milli > 0).then(|| Nanos::new(clamp_to_u64(u128::from(last) * 1_000_000_000_000 / milli)))
}

/// Latency over all streams: smallest minimum, largest maximum, and mean weighted by frames. Percentiles are those of
/// the worst stream, because percentiles of streams cannot be combined.
fn combine_stream_latencies(report: &RunReport) -> Option<TrialLatency> {
    let streams: Vec<&LatencyReport> = report
        .streams
        .iter()
        .filter_map(|stream| stream.latency.as_ref())
        .filter(|one| one.count > 0)
        .collect();
    let frames: u64 = streams.iter().map(|one| one.count).sum();
    // A sum of all delays in nanoseconds may exceed 64 bits.
    let weighted: u128 =
        streams.iter().map(|one| u128::from(one.mean.as_u64()) * u128::from(one.count)).sum();
    Some(TrialLatency {
        frames,
        min: streams.iter().map(|one| one.min).min()?,
        mean: Nanos::new(clamp_to_u64(weighted.checked_div(u128::from(frames))?)),
        p50: streams.iter().map(|one| one.p50).max()?,
        p99: streams.iter().map(|one| one.p99).max()?,
        max: streams.iter().map(|one| one.max).max()?,
        bound: streams.iter().map(|one| mean_error_bound(one)).max().unwrap_or(Nanos::MAX),
    })
}

/// Maximum error of the mean latency; `Nanos::MAX` for a report without bounds.
fn mean_error_bound(latency: &LatencyReport) -> Nanos {
    latency.bounds.map_or(Nanos::MAX, |bounds| {
        let mean = bounds.mean;
        mean.value.saturating_sub(mean.least).max(mean.most.saturating_sub(mean.value))
    })
}

/// Losses in doubt are negligible up to the losses divided by this number.
const NEGLIGIBLE_DOUBT_DIVISOR: u64 = 10;

/// Returns the reason why the rig may have falsified the trial, so that it proves nothing about the device; `None` if
/// there is no such reason.
fn find_rig_fault(report: &RunReport, lost: LostFrames, sent_late: u64) -> Option<String> {
    if report.outcome.state() != RunState::Complete {
        return Some(format!("the outcome of the run is {}", report.outcome.state()));
    }
    if !report.coverage.is_full() {
        return Some("a node did not report".to_owned());
    }
    if let Some(first) = report.imbalances.first() {
        return Some(format!("the ledger does not balance: {first}"));
    }
    let unsent: u64 =
        report.streams.iter().filter_map(|stream| stream.sent.as_ref()).map(unsent_frames).sum();
    if unsent > 0 {
        return Some(format!("the rig did not send {unsent} of the frames that were due"));
    }
    if let Some(caveat) = report.caveats.iter().find(|caveat| is_caveat_about_rig(caveat)) {
        return Some(format!("{}: {}", caveat.subject, caveat.text));
    }
    // If the device certainly lost frames, a small number of doubtful frames changes the result little.
    let matters =
        |frames: u64| frames > 0 && (lost.least == 0 || frames > lost.most / NEGLIGIBLE_DOUBT_DIVISOR);
    let doubtful = lost.most.saturating_sub(lost.least);
    if matters(doubtful) {
        return Some(format!("the rig may have lost {doubtful} of the frames"));
    }
    matters(sent_late)
        .then(|| format!("the rig sent {sent_late} of the frames after the planned end of the trial"))
}

const fn unsent_frames(sent: &SentFrames) -> u64 {
    sent.unsent
}

/// Up to this deviation of the rate below the plan, in millionths, a trial counts as sent at the ordered load.
const NEGLIGIBLE_SLOWNESS_PPM: u64 = 5_000;
/// Up to this delay a trial counts as sent on time, because a sender in software is never on time to the microsecond.
const NEGLIGIBLE_DELAY: Nanos = Nanos::from_millis(2);

/// Counts the frames that left after the planned end of the trial, of streams that were sent too slowly. Trials with
/// an event are not checked, because they measure the effect of the event, which does not depend on the load.
fn frames_sent_late(order: &TrialRequest, report: &RunReport) -> u64 {
    if order.event.is_some() {
        return 0;
    }
    let sent = report.streams.iter().filter_map(|stream| stream.sent.as_ref());
    sent.filter_map(count_late_frames).fold(0, u64::saturating_add)
}

fn count_late_frames(sent: &SentFrames) -> Option<u64> {
    let taken = sent.first.zip(sent.last).map(|(first, last)| last.saturating_sub(first));
    count_frames_sent_after_end(sent.frames, taken?, sent.rate_error_ppm?)
}

fn count_frames_sent_after_end(frames: u64, taken: Nanos, rate_error_ppm: i64) -> Option<u64> {
    // A sender that was too fast has a positive error, and no late frames.
    let slower = u128::from(rate_error_ppm.min(0).unsigned_abs());
    // The number is rounded up: a part of a frame that is late counts as a late frame.
    let share = |of: u64| clamp_to_u64((u128::from(of) * slower).div_ceil(1_000_000));
    let is_negligible = slower <= u128::from(NEGLIGIBLE_SLOWNESS_PPM)
        || Nanos::new(share(taken.as_u64())) <= NEGLIGIBLE_DELAY;
    (!is_negligible).then(|| share(frames))
}

/// Returns whether a caveat matters and is about the rig. A load near the rig's own limit is also about the rig,
/// because then the rig itself may have lost frames.
fn is_caveat_about_rig(caveat: &Caveat) -> bool {
    caveat.matters && !matches!(caveat.doubt, CaveatKind::ForeignFrames | CaveatKind::Clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: f64 = 1e6;

    /// An outage of a stream of 1000 frames per second.
    fn outage(frames: u64, arrivals_apart_ms: u64) -> OutageRow {
        OutageRow {
            port: "rx".to_owned(),
            first: 1000,
            last: 999 + frames,
            frames,
            gaps: 1,
            begin: Some(Nanos::from_millis(999)),
            end: Some(Nanos::from_millis(999 + arrivals_apart_ms)),
            in_doubt: 0,
            length: None,
        }
    }

    fn silence_ms(row: &OutageRow) -> f64 {
        unexplained_silence(row, INTERVAL) / 1e6
    }

    #[test]
    fn slow_sender_frames_are_late_beyond_half_percent() {
        let late = |ppm, taken_ms| count_frames_sent_after_end(10_000, Nanos::from_millis(taken_ms), ppm);
        assert_eq!(
            [(40_000, 1000), (-5_000, 1000), (-10_000, 200)].map(|(ppm, ms)| late(ppm, ms)),
            [None; 3]
        );
        // 300 ms that took 315.
        assert_eq!(late(-47_619, 315), Some(477));
    }

    #[test]
    fn punctual_rig_measures_outage_to_the_frame() {
        let row = outage(300, 301);
        assert!(silence_ms(&row).abs() < 1e-9);
        assert_eq!(minimum_outage_length(&row, INTERVAL, Nanos::ZERO), Nanos::from_millis(300));
    }

    #[test]
    fn stalled_rig_bounds_outage_from_both_sides() {
        // 316 ms, of which the rig sent nothing for 118.
        let row = outage(198, 317);
        assert!((silence_ms(&row) - 118.0).abs() < 1e-9, "{}", silence_ms(&row));
        assert_eq!(minimum_outage_length(&row, INTERVAL, Nanos::from_millis(150)), Nanos::from_millis(48));
    }

    #[test]
    fn outage_during_sender_stall_loses_no_frames() {
        let times = OutageTimes::from_outages(
            &OutageReport::default(),
            LostFrames::default(),
            INTERVAL,
            Nanos::from_millis(150),
        );
        let wanted = TimeRange { least: Nanos::ZERO, most: Nanos::from_millis(150) };
        assert_eq!((times.in_all, times.longest), (wanted, wanted));
    }

    #[test]
    fn doubtful_frames_and_gaps_shorten_least_outage() {
        let row = OutageRow { in_doubt: 100, gaps: 3, ..outage(200, 201) };
        assert_eq!(minimum_outage_length(&row, INTERVAL, Nanos::from_millis(10)), Nanos::from_millis(70));
        let open = OutageRow { end: None, ..outage(200, 0) };
        assert!(silence_ms(&open).abs() < 1e-9);
    }
}
