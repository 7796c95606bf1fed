//! A run as a trial of a test method: what its report says about the device, and what keeps it from being a fact.

use packetrig_fleet::outcome::RunState;
use packetrig_fleet::report::{FrameLoss, LatencyReport, MeanRate, RunReport, SentFrames, StreamReport};
use packetrig_method::{LostFrames, StreamTrial, TrialLatency, TrialResult};
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_units::{Nanos, clamp_to_u64};

/// The result of the trial that this run was.
pub fn trial_result(report: &RunReport) -> TrialResult {
    let sent = || report.streams.iter().filter_map(|stream| stream.sent.as_ref());
    let lost = report.streams.iter().map(lost_of).fold(LostFrames::default(), |all, lost| LostFrames {
        least: all.least.saturating_add(lost.least),
        most: all.most.saturating_add(lost.most),
    });
    TrialResult {
        intended: sent().map(|sent| sent.planned).fold(0, u64::saturating_add),
        sent: sent().map(|sent| sent.frames).fold(0, u64::saturating_add),
        received: received(report),
        lost,
        sending: report.sending.unwrap_or(Nanos::ZERO),
        latency: latency(report),
        streams: report.streams.iter().map(stream_trial).collect(),
        caveats: report.caveats.iter().map(|caveat| format!("{}: {}", caveat.subject, caveat.text)).collect(),
        rig_fault: rig_fault(report, lost),
        overhead: Nanos::ZERO,
        event_at: None,
    }
}

/// Different frames that arrived.
fn received(report: &RunReport) -> u64 {
    let arrived = report.streams.iter().filter_map(|stream| stream.received.as_ref());
    arrived.map(|arrived| arrived.sequence.unique).fold(0, u64::saturating_add)
}

/// Without an account of losses, nothing shows that a frame arrived: then all may be lost, and none is for certain.
fn lost_of(stream: &StreamReport) -> LostFrames {
    match (&stream.loss, &stream.sent) {
        (Some(FrameLoss { lost, in_doubt, .. }), _) => {
            LostFrames { least: lost.saturating_sub(*in_doubt), most: *lost }
        }
        (None, Some(sent)) => LostFrames { least: 0, most: sent.frames },
        (None, None) => LostFrames::default(),
    }
}

fn stream_trial(stream: &StreamReport) -> StreamTrial {
    let sent = stream.sent.as_ref();
    StreamTrial {
        name: stream.name.clone(),
        sent: sent.map_or(0, |sent| sent.frames),
        lost: lost_of(stream),
        rate: sent.and_then(|sent| sent.rate).map_or(0.0, MeanRate::frames_per_second),
        longest_outage: stream.outages.as_ref().and_then(|outages| outages.longest),
        last_loss: last_loss(stream),
    }
}

/// When the last lost frame was due, after the first frame of its stream.
fn last_loss(stream: &StreamReport) -> Option<Nanos> {
    let last = stream.outages.as_ref()?.listed.iter().map(|row| row.last).max()?;
    let milli = u128::from(stream.asked_milli?);
    (milli > 0).then(|| Nanos::new(clamp_to_u64(u128::from(last) * 1_000_000_000_000 / milli)))
}

/// Latency over all streams: least of the least, greatest of the greatest, means weighted by frames. A percentile is the
/// worst among the streams, because percentiles cannot be added.
fn latency(report: &RunReport) -> Option<TrialLatency> {
    let streams: Vec<&LatencyReport> = report
        .streams
        .iter()
        .filter_map(|stream| stream.latency.as_ref())
        .filter(|one| one.count > 0)
        .collect();
    let frames: u64 = streams.iter().map(|one| one.count).sum();
    let weighted: u128 =
        streams.iter().map(|one| u128::from(one.mean.as_u64()) * u128::from(one.count)).sum();
    Some(TrialLatency {
        frames,
        min: streams.iter().map(|one| one.min).min()?,
        mean: Nanos::new(clamp_to_u64(weighted.checked_div(u128::from(frames))?)),
        p50: streams.iter().map(|one| one.p50).max()?,
        p99: streams.iter().map(|one| one.p99).max()?,
        max: streams.iter().map(|one| one.max).max()?,
        bound: streams.iter().filter_map(|one| one.error.p99()).max().unwrap_or(Nanos::MAX),
    })
}

/// Why the trial is no fact about the device, if it is none.
fn rig_fault(report: &RunReport, lost: LostFrames) -> Option<String> {
    if report.outcome.state() != RunState::Complete {
        return Some(format!("the run ended {}", report.outcome.state()));
    }
    if !report.coverage.is_full() {
        return Some("a node did not report".to_owned());
    }
    if let Some(first) = report.imbalances.first() {
        return Some(format!("the ledger does not balance: {first}"));
    }
    let unsent: u64 = report.streams.iter().filter_map(|stream| stream.sent.as_ref()).map(unsent).sum();
    if unsent > 0 {
        return Some(format!("the rig did not send {unsent} of the frames that were due"));
    }
    if let Some(caveat) = report.caveats.iter().find(|caveat| is_of_rig(caveat)) {
        return Some(format!("{}: {}", caveat.subject, caveat.text));
    }
    let doubtful = lost.most.saturating_sub(lost.least);
    (doubtful > 0).then(|| format!("the rig may have lost {doubtful} of the frames"))
}

const fn unsent(sent: &SentFrames) -> u64 {
    sent.unsent
}

/// Whether a doubt that matters is about the rig. Loss near the rig's own limit may be the rig's.
fn is_of_rig(caveat: &Caveat) -> bool {
    caveat.matters && !matches!(caveat.doubt, CaveatKind::ForeignFrames | CaveatKind::Clock)
}
