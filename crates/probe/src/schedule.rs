//! Schedules: when each probe is to be released, relative to a start that is not known yet.
//!
//! Invariant: departure times never decrease, numbers count from zero without a gap, and no schedule is longer than [`MAX_SCHEDULED_PROBES`].

use packetrig_units::Nanos;
use packetrig_wire::pattern::keyed_mix;
use serde::{Deserialize, Serialize};

/// Longest schedule, in probes.
pub const MAX_SCHEDULED_PROBES: usize = 10_000_000;

/// The purpose of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeKind {
    Single,
    /// Sent before other probes, to wake the path and empty its token buckets; not measured.
    Primer,
    /// Sent after other probes, so that they are not the end of a burst; not measured.
    Tail,
    Pair,
    /// One of many at a steady distance.
    Train,
    /// One of many at shrinking distances.
    Chirp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedProbe {
    /// Number of the probe in the schedule.
    pub number: u32,
    /// Number of its train or pair; a single probe is a train of one.
    pub train: u32,
    pub kind: ProbeKind,
    /// Time from the start to its departure.
    pub at: Nanos,
    /// Bytes of its frame, without FCS.
    pub length: u32,
}

/// Reason why a list of probes is not a valid schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleRefusal {
    #[error("a schedule needs at least one probe")]
    Empty,
    #[error("a schedule has at most {MAX_SCHEDULED_PROBES} probes, not {0}")]
    TooLong(usize),
    #[error(
        "probe {0} (counted from 0) is due earlier than the probe before it; sort the probes by departure time"
    )]
    Backwards(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ProbeSchedule(Vec<PlannedProbe>);

impl ProbeSchedule {
    /// Makes a schedule of these probes, in this order, and numbers them from zero.
    pub fn new(mut planned: Vec<PlannedProbe>) -> Result<Self, ScheduleRefusal> {
        if planned.is_empty() {
            return Err(ScheduleRefusal::Empty);
        }
        if planned.len() > MAX_SCHEDULED_PROBES {
            return Err(ScheduleRefusal::TooLong(planned.len()));
        }
        if let Some(at) = planned.windows(2).position(|two| two[1].at < two[0].at) {
            return Err(ScheduleRefusal::Backwards(at + 1));
        }
        // Callers find the record of a probe by this number, so it must be the index.
        for (number, probe) in (0..).zip(&mut planned) {
            probe.number = number;
        }
        Ok(Self(planned))
    }

    /// Single probes, one per interval.
    pub fn periodic(count: u32, every: Nanos, length: u32) -> Result<Self, ScheduleRefusal> {
        Self::periodic_trains(count, every, ScheduledTrain { of: 1, gap: Nanos::ZERO, length })
    }

    /// Single probes at distances drawn from an exponential distribution. Such probes see the mean state of the path
    /// (PASTA, RFC 2330, 11.1.1), because they cannot be synchronous with periodic events on the path.
    pub fn poisson(count: u32, mean: Nanos, length: u32, seed: u64) -> Result<Self, ScheduleRefusal> {
        let mut at = Nanos::ZERO;
        Self::new(
            (0..count)
                .map(|train| {
                    let planned = PlannedProbe { number: 0, train, kind: ProbeKind::Single, at, length };
                    // The drawn value depends only on the number, so the schedule can be computed
                    // again from its seed.
                    at += draw_exponential_sample(seed, u64::from(train), mean);
                    planned
                })
                .collect(),
        )
    }

    /// Trains, one per interval.
    pub fn periodic_trains(count: u32, every: Nanos, train: ScheduledTrain) -> Result<Self, ScheduleRefusal> {
        let starts = (0..count).map(|number| Nanos::new(every.as_u64().saturating_mul(number.into())));
        Self::schedule_trains_at(starts, train)
    }

    /// A train at each of these times.
    pub fn schedule_trains_at(
        starts: impl IntoIterator<Item = Nanos>,
        train: ScheduledTrain,
    ) -> Result<Self, ScheduleRefusal> {
        let all = (0..).zip(starts).flat_map(|(number, start)| train.probes_from(number, start));
        Self::new(all.collect())
    }

    pub fn probes(&self) -> &[PlannedProbe] {
        &self.0
    }

    /// The trains: consecutive probes with the same train number.
    pub fn iter_trains(&self) -> impl Iterator<Item = &[PlannedProbe]> {
        self.0.chunk_by(|one, other| one.train == other.train)
    }

    /// Time from the start to the last probe.
    pub fn last_departure(&self) -> Nanos {
        self.0.last().map_or(Nanos::ZERO, |last| last.at)
    }

    /// Returns a name that is equal for schedules with the same times, lengths and trains, and
    /// almost certainly different otherwise.
    pub fn fingerprint(&self) -> String {
        let mut sum = self.0.len() as u64;
        for probe in &self.0 {
            // The name includes neither the numbers, which follow from the order, nor the kinds, which change
            // nothing on the wire.
            let place = u64::from(probe.train) << 32 | u64::from(probe.length);
            sum = keyed_mix(keyed_mix(sum, probe.at.as_u64()), place);
        }
        format!("{sum:016x}")
    }

    /// Bytes of the longest frame.
    pub fn longest_frame(&self) -> u32 {
        self.0.iter().map(|probe| probe.length).max().unwrap_or(0)
    }
}

/// A train: `of` probes, `gap` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledTrain {
    pub of: u32,
    pub gap: Nanos,
    pub length: u32,
}

impl ScheduledTrain {
    fn probes_from(self, train: u32, start: Nanos) -> impl Iterator<Item = PlannedProbe> {
        let kind = match self.of {
            1 => ProbeKind::Single,
            2 => ProbeKind::Pair,
            _ => ProbeKind::Train,
        };
        (0..self.of).map(move |nth| PlannedProbe {
            number: 0,
            train,
            kind,
            at: start + Nanos::new(self.gap.as_u64().saturating_mul(nth.into())),
            length: self.length,
        })
    }
}

/// The `n`th value of a sequence that `seed` draws from an exponential distribution.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positive, and cut off at the longest time"
)]
fn draw_exponential_sample(seed: u64, n: u64, mean: Nanos) -> Nanos {
    // The share is in (0, 1], so its logarithm is finite; a float holds 53 bits.
    let share = ((keyed_mix(seed, n) >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    Nanos::new((-share.ln() * mean.as_u64() as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trains_are_numbered_through() {
        let train = ScheduledTrain { of: 3, gap: Nanos::from_micros(10), length: 60 };
        let schedule = ProbeSchedule::periodic_trains(2, Nanos::from_millis(1), train).unwrap();
        let at: Vec<_> =
            schedule.probes().iter().map(|p| (p.number, p.train, p.at.as_u64() / 1000)).collect();
        assert_eq!(at, [(0, 0, 0), (1, 0, 10), (2, 0, 20), (3, 1, 1000), (4, 1, 1010), (5, 1, 1020)]);
        assert_eq!(schedule.iter_trains().map(<[_]>::len).collect::<Vec<_>>(), [3, 3]);
        assert_eq!(schedule.last_departure(), Nanos::from_micros(1020));
    }

    #[test]
    fn a_fingerprint_is_of_instants_and_lengths() {
        let every = |ns, length| ProbeSchedule::periodic(100, Nanos::new(ns), length).unwrap().fingerprint();
        assert_eq!(every(1_000, 60), every(1_000, 60));
        assert!(every(1_000, 60) != every(1_001, 60) && every(1_000, 60) != every(1_000, 61));
    }

    #[test]
    fn a_schedule_does_not_go_backwards() {
        let planned = |at| PlannedProbe {
            number: 7,
            train: 0,
            kind: ProbeKind::Single,
            at: Nanos::new(at),
            length: 60,
        };
        assert_eq!(ProbeSchedule::new(vec![planned(5), planned(4)]), Err(ScheduleRefusal::Backwards(1)));
        assert_eq!(ProbeSchedule::new(vec![]), Err(ScheduleRefusal::Empty));
        assert!(ProbeSchedule::new(vec![planned(5), planned(5)]).is_ok());
    }

    #[test]
    fn poisson_schedule_has_requested_mean_and_is_seeded() {
        let schedule = ProbeSchedule::poisson(20_000, Nanos::from_millis(1), 60, 3).unwrap();
        let mean = schedule.last_departure().as_secs_f64() / 19_999.0;
        assert!((mean / 1e-3 - 1.0).abs() < 0.03, "{mean}");
        assert_eq!(schedule, ProbeSchedule::poisson(20_000, Nanos::from_millis(1), 60, 3).unwrap());
        assert_ne!(schedule, ProbeSchedule::poisson(20_000, Nanos::from_millis(1), 60, 4).unwrap());
    }
}
