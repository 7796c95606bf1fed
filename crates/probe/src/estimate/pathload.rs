//! Estimates the available rate of a path: streams are sent faster and slower until the fastest rate is found
//! at which they do not queue (the method of pathload).
//!
//! The probes of a stream that is faster than the available rate wait longer and longer. Most streams of a
//! *fleet*, which all have one rate, have to agree. Rates at which they do not agree form a grey region,
//! because the available rate varies. The answer is a range, found by bisection.
//!
//! Invariant: `low <= grey <= high`. A stream counts with its rate as measured at departure; only a stream with too
//! many losses counts with the requested rate.

use super::gaps::{CompleteTrain, difference_ns, mean, median};
use super::settle::{TrainSettler, TrainShape, plan_spaced_probes};
use super::{
    DiscardedTrains, EstimateQuality, NoEstimateReason, RateEstimate, RateEstimator, TrainProbeTimes,
    TrainRequest, clamp_to_nanos, packets_per_frame,
};
use crate::ProbeKind;
use packetrig_units::Nanos;

mod trend;
use trend::{DelayTrend, classify_delay_trend};

/// Size of streams and fleets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetShape {
    /// Probes of a stream.
    pub probes: u32,
    /// Streams of a fleet.
    pub streams: usize,
    /// Maximum number of fleets.
    pub most: usize,
}

#[derive(Clone, Debug)]
pub struct PathloadEstimator {
    fleets: FleetShape,
    settle: TrainSettler,
    search: Option<RateSearch>,
    fleet: StreamFleet,
    tried: usize,
    /// True if too few streams of a fleet could be used.
    is_futile: bool,
    discarded: DiscardedTrains,
    sent: usize,
    used: usize,
}

/// Streams that were sent at one rate, and what they showed.
#[derive(Clone, Debug, Default)]
struct StreamFleet {
    asked: f64,
    trends: Vec<DelayTrend>,
    rates: Vec<f64>,
    streams: usize,
}

#[derive(Clone, Debug)]
struct RateSearch {
    low: f64,
    high: f64,
    /// True if the streams of a fleet queued at `high`; before that, `high` is only a guess.
    is_high_seen: bool,
    grey: Option<GreyRegion>,
    resolution: f64,
}

/// Rates at which the streams of a fleet disagree.
#[derive(Clone, Copy, Debug, PartialEq)]
struct GreyRegion {
    low: f64,
    high: f64,
}

/// Share of a fleet's streams that must agree. pathload uses 0.6: then, beside bursty traffic, only six of
/// ten ranges contained the available rate.
const DECIDING_STREAM_SHARE: f64 = 0.85;
/// Resolution of the search and minimum width of the answer, relative to the rate at which trains leave the path.
const ANSWER_RESOLUTION: f64 = 0.05;
/// Largest error of a stream's rate.
const MAX_STREAM_RATE_ERROR: f64 = 0.1;
/// Largest deviation of a probe's departure from an even stream, in gaps: a sender that catches up makes a
/// queue of its own.
const MAX_PROBE_OFFSET_GAPS: f64 = 4.0;
/// Delays that rise by less than this share of a stream's duration count as level.
const DELAY_NOISE_SHARE: f64 = 0.01;
/// The estimator gives up if this many times the streams of a fleet were sent at one rate without a verdict.
const MAX_FUTILE_FLEETS: usize = 2;
// Shorter streams have too few groups for a trend.
const MIN_STREAM_PROBES: u32 = 10;
/// A stream that loses more than this share counts as too fast.
const MAX_LOSS_SHARE: f64 = 0.03;

impl RateSearch {
    fn new(dispersion_rate: f64) -> Self {
        // The available rate is at most the rate at which trains leave the path (A <= ADR), apart from the
        // error of that rate.
        let high = 1.2 * dispersion_rate;
        Self {
            low: 0.0,
            high,
            is_high_seen: false,
            grey: None,
            resolution: ANSWER_RESOLUTION * dispersion_rate,
        }
    }

    /// The rate to try next; `None` if the range is narrow enough. Widens the range as long as no stream has queued.
    fn choose_next_rate(&mut self) -> Option<f64> {
        let fine = self.resolution;
        let low = self.low;
        let high = self.high;
        // Bisect above the grey region first, then below it: inside it the streams disagree, whatever the rate.
        let next = match self.grey {
            Some(grey) if high - grey.high > fine => Some(f64::midpoint(grey.high, high)),
            Some(grey) if grey.low - low > fine => Some(f64::midpoint(low, grey.low)),
            None if high - low > fine => Some(f64::midpoint(low, high)),
            _ => None,
        };
        if next.is_none() && !self.is_high_seen {
            // No stream has queued yet, so `high` is only the first guess, and the available rate may be
            // above it. Streams below the old `high` did not queue, so the new range begins just below it.
            self.low = low.max(high - fine);
            self.high = high * 1.5;
            return Some(f64::midpoint(self.low, self.high));
        }
        next
    }

    fn add_verdict(&mut self, rate: f64, trend: DelayTrend) {
        match trend {
            DelayTrend::Rising => {
                self.high = self.high.min(rate);
                self.is_high_seen = true;
            }
            DelayTrend::Level => self.low = self.low.max(rate),
            DelayTrend::Unclear => {
                let grey = self.grey.unwrap_or(GreyRegion { low: rate, high: rate });
                self.grey = Some(GreyRegion { low: grey.low.min(rate), high: grey.high.max(rate) });
            }
        }
        // The available rate varies, so a later fleet may contradict an earlier one. Then `low` is lowered to `high`,
        // because the module guarantees `low <= high`.
        self.low = self.low.min(self.high);
        let low = self.low;
        let high = self.high;
        self.grey = self
            .grey
            // A grey region outside the range no longer says anything about the available rate.
            .filter(|grey| grey.low < high && grey.high > low)
            .map(|grey| GreyRegion { low: grey.low.max(low), high: grey.high.min(high) });
    }
}

impl StreamFleet {
    /// The trend of most streams of the fleet, as soon as the remaining streams cannot change it.
    fn decide_fleet_trend(&self, streams: usize) -> Option<DelayTrend> {
        let need = DECIDING_STREAM_SHARE * streams as f64;
        let rising = self.count_trend(DelayTrend::Rising);
        let level = self.count_trend(DelayTrend::Level);
        let open = streams.saturating_sub(self.trends.len()) as f64;
        if rising >= need {
            Some(DelayTrend::Rising)
        } else if level >= need {
            Some(DelayTrend::Level)
        } else {
            // Even if all remaining streams agreed with the larger group, that group would not decide.
            (rising.max(level) + open < need).then_some(DelayTrend::Unclear)
        }
    }

    fn count_trend(&self, trend: DelayTrend) -> f64 {
        self.trends.iter().filter(|seen| **seen == trend).count() as f64
    }
}

impl PathloadEstimator {
    pub fn new(fleets: FleetShape, shape: TrainShape) -> Self {
        // The limits of the target treat a stream as a burst, so it has at most as many probes as a train.
        let fleets = FleetShape { probes: fleets.probes.min(shape.longest), ..fleets };
        Self {
            fleets,
            settle: TrainSettler::new(shape),
            search: None,
            fleet: StreamFleet::default(),
            tried: 0,
            is_futile: false,
            discarded: DiscardedTrains::default(),
            sent: 0,
            used: 0,
        }
    }

    /// Slow streams have shorter frames, about one frame per 0.5 ms, so that a stream does not last too long.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to the lengths of frames"
    )]
    fn frame_length(&self, rate: f64) -> u32 {
        let longest = self.settle.shape().length;
        (rate / 8.0 * 0.000_5).clamp(f64::from(longest.min(300)), f64::from(longest)) as u32
    }

    fn stream_gap(&self, rate: f64) -> f64 {
        f64::from(self.frame_length(rate)) * 8e9 / rate
    }

    /// Number of probes before a stream, which empty a token bucket. Their queue is soon gone if the stream
    /// is not too fast; meanwhile delays fall, which does not count as a rise. The minimum is one: a bucket
    /// for one long frame, which trains of long frames do not show, lets several short probes pass.
    fn primer_count(&self) -> u32 {
        let settled = self.settle.settling_result().and_then(|settled| settled.as_ref().ok());
        settled.filter(|settled| settled.hidden > 0).map_or(1, |settled| settled.primers)
    }

    fn plan_stream(&self, rate: f64) -> TrainRequest {
        let length = self.frame_length(rate);
        let gap = clamp_to_nanos(self.stream_gap(rate));
        let primers = self.primer_count();
        let measured = self
            .fleets
            .probes
            .min(self.settle.shape().longest.saturating_sub(primers))
            .max(MIN_STREAM_PROBES);
        // A pause as long as the stream halves the mean load and lets the queue drain.
        let takes = clamp_to_nanos(f64::from(measured) * gap.as_u64() as f64);
        let mut probes = plan_spaced_probes(primers, measured, ProbeKind::Train, length, gap);
        for primer in probes.iter_mut().filter(|probe| probe.kind == ProbeKind::Primer) {
            primer.length = self.settle.shape().length;
        }
        let settled = self.settle.settling_result().and_then(|settled| settled.as_ref().ok());
        let rest = settled.map_or(Nanos::ZERO, |settled| settled.least_pause(self.sent == 1));
        TrainRequest { probes, pause: self.settle.shape().pause.max(takes).max(rest) }
    }

    fn add_stream(&mut self, train: &[TrainProbeTimes]) {
        let stream: Vec<_> = train.iter().filter(|probe| probe.kind != ProbeKind::Primer).copied().collect();
        let came: Vec<_> = stream.iter().filter(|probe| probe.came.is_some()).copied().collect();
        let is_lossy = (stream.len() - came.len()) as f64 > MAX_LOSS_SHARE * stream.len() as f64;
        if is_lossy {
            // pathload takes loss as a sign that the stream made a queue overflow.
            return self.add_trend(DelayTrend::Rising, self.fleet.asked);
        }
        let Some(whole) = CompleteTrain::from_train(&came, &mut self.discarded) else { return };
        let gap = self.stream_gap(self.fleet.asked);
        let places: Vec<_> = departure_offsets(&stream).map(|(nth, left)| left - nth as f64 * gap).collect();
        // `places` are the deviations of the measured departures from an even stream. The median removes a common
        // shift, so that one late start does not count.
        let middle = median(&places);
        // Lost probes were sent, too, so the rate of the probes that arrived is scaled up to all probes.
        let rate = whole.bits_between_probes(0, whole.last_index()) * 1e9
            / whole.departure_gap(0, whole.last_index()).max(1.0)
            * (stream.len() - 1) as f64
            / whole.last_index() as f64;
        let is_off = (rate / self.fleet.asked - 1.0).abs() > MAX_STREAM_RATE_ERROR;
        if is_off || places.iter().any(|place| (place - middle).abs() > MAX_PROBE_OFFSET_GAPS * gap) {
            self.discarded.unlike += 1;
            return;
        }
        // The first fifth of the probes may still wait behind the primers.
        let from = came.len() / 5;
        let delays: Vec<_> = (from..came.len()).map(|nth| whole.probe_delay(nth)).collect();
        let noise = whole
            .gap_uncertainty(from, whole.last_index())
            .max(DELAY_NOISE_SHARE * whole.departure_gap(from, whole.last_index()));
        self.add_trend(classify_delay_trend(&delays, noise), rate);
    }

    fn add_trend(&mut self, trend: DelayTrend, rate: f64) {
        self.fleet.trends.push(trend);
        self.fleet.rates.push(rate);
        self.used += 1;
    }

    /// Chooses the next rate once the fleet has a verdict.
    fn advance_search(&mut self) {
        let Some(search) = &mut self.search else { return };
        let asked = self.fleet.asked;
        if asked > 0.0 {
            let verdict = self.fleet.decide_fleet_trend(self.fleets.streams);
            // Unusable streams have no trend, so a fleet could otherwise go on for ever.
            if verdict.is_none() && self.fleet.streams >= MAX_FUTILE_FLEETS * self.fleets.streams {
                self.is_futile = true;
                self.fleet = StreamFleet::default();
                return;
            }
            let Some(verdict) = verdict else { return };
            // These rates were measured at departure; only streams with too many losses have the requested rate.
            search.add_verdict(mean(&self.fleet.rates), verdict);
        }
        self.tried += 1;
        // The rate 0 ends the search.
        let next = search.choose_next_rate().filter(|_| self.tried <= self.fleets.most);
        self.fleet = StreamFleet { asked: next.unwrap_or(0.0), ..StreamFleet::default() };
    }
}

impl RateEstimator for PathloadEstimator {
    fn name(&self) -> &'static str {
        "pathload"
    }

    fn next_train(&mut self) -> Option<TrainRequest> {
        let dispersion_rate = match self.settle.settling_result() {
            None => return Some(self.settle.next_train()),
            Some(Err(_)) => return None,
            Some(Ok(settled)) => settled.bits_per_s,
        };
        // The settling trains must be finished, because the search begins with the rate at which they left
        // the path.
        if self.search.is_none() {
            self.search = Some(RateSearch::new(dispersion_rate));
            self.advance_search();
        }
        (self.fleet.asked > 0.0).then(|| {
            self.sent += 1;
            self.fleet.streams += 1;
            self.plan_stream(self.fleet.asked)
        })
    }

    fn add_train(&mut self, train: &[TrainProbeTimes]) {
        if self.search.is_none() {
            return self.settle.add_train(train);
        }
        self.add_stream(train);
        self.advance_search();
    }

    fn estimate_rate(&self) -> Result<RateEstimate, NoEstimateReason> {
        let trains = self.settle.sent_trains() + self.sent;
        if let Some(Err(none)) = self.settle.settling_result() {
            return Err(none.clone());
        }
        let Some(search) = &self.search else {
            return Err(NoEstimateReason::TooFew { have: 0, wanted: 1, trains, discarded: self.discarded });
        };
        if self.is_futile {
            return Err(NoEstimateReason::TooFew {
                have: self.used,
                wanted: trains,
                trains,
                discarded: self.discarded,
            });
        }
        // A copy is used, because `choose_next_rate` widens the range as long as no stream has queued.
        let is_done = search.clone().choose_next_rate().is_none();
        if !is_done {
            let low = search.low / 1e6;
            let high = search.high / 1e6;
            let what = format!("the search stopped between {low:.3} and {high:.3} Mbit/s");
            return Err(NoEstimateReason::NotConverged { trains, what });
        }
        // After contradicting fleets both ends may coincide, so the answer is never narrower than the
        // resolution. A stream counts as level if its delays rise by less than the noise, so it may be faster
        // than the available rate, by 1.5 times the noise: the trend is measured from the middle of the first
        // group to that of the last.
        let low =
            (search.low / (1.0 + 1.5 * DELAY_NOISE_SHARE)).min(search.high - search.resolution).max(0.0);
        let middle = f64::midpoint(low, search.high);
        Ok(RateEstimate {
            method: self.name(),
            bits_per_s: middle,
            low,
            high: search.high,
            packets_per_frame: packets_per_frame(self.frame_length(middle)),
            quality: EstimateQuality {
                trains,
                used: self.used,
                share: self.used as f64 / self.sent.max(1) as f64,
                spread: (search.high - low) / middle.max(1.0),
                primers: self.primer_count(),
                discarded: self.discarded,
                ..EstimateQuality::default()
            },
        })
    }
}

/// For each probe with a known departure: its index, and how long after the first one it left.
fn departure_offsets(stream: &[TrainProbeTimes]) -> impl Iterator<Item = (usize, f64)> {
    let first = stream.iter().find_map(|probe| probe.left).unwrap_or(0);
    stream.iter().enumerate().filter_map(move |(nth, probe)| Some((nth, difference_ns(first, probe.left?))))
}

#[cfg(test)]
mod tests;
