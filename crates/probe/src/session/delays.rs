//! Delays of each direction from the stamps of both ends.
//!
//! A one-way time is a difference between two clocks. If the relation of the clocks is known, the time is a
//! delay, and the error of the relation is part of its bound. Otherwise only the variation is known. The
//! relation is UTC if both ends follow it, or it is computed from the session's own exchanges. Such a
//! relation is never more exact than half of the shortest round trip.
//!
//! Invariant: delays are computed only with a relation that both ends state or that the exchanges prove, and
//! their bound includes the error of the relation.

use super::sender::StampSessionFacts;
use crate::record::{ProbeFlag, ProbeRecord, ProbeStamp};
use crate::series::{MeasuredTime, SeriesTimes, summarize_times, time_between};
use packetrig_stats::clock::ClockFit;
use packetrig_stats::exchange::{ClockComparison, ClockExchange};
use packetrig_units::{MonoTime, Nanos};
use serde::Serialize;
use std::collections::BTreeMap;

/// Reason why no one-way delays can be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoDelayReason {
    /// The error bound of this machine's clock is not stated.
    ThisClock,
    /// The reflector does not report that its clock follows UTC.
    FarClock,
    /// No answer arrived whose timestamps can be used to compare the clocks.
    NothingCompared,
}

impl NoDelayReason {
    pub const fn as_text(self) -> &'static str {
        match self {
            Self::ThisClock => {
                "the error bound of this machine's clock is unknown; state it with --clock-bound"
            }
            Self::FarClock => "the reflector does not report that its clock follows UTC",
            Self::NothingCompared => {
                "no answer with usable timestamps came back, so the clocks cannot be compared"
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DirectionDelays {
    /// One-way delays with their bound, if the relation of the clocks is known.
    pub delay: Option<SeriesTimes>,
    /// One-way delays above the smallest one. They include a drift between the clocks.
    pub variation: Option<SeriesTimes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SessionDelays {
    pub there: DirectionDelays,
    pub back: DirectionDelays,
    /// Round trips without the reflector's own time.
    pub path: Option<SeriesTimes>,
    /// Reason why no one-way delays can be computed.
    pub no_delay: Option<NoDelayReason>,
}

/// This machine's real-time clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnClock {
    /// Offset against the monotonic clock.
    pub offset_ns: i64,
    /// Error bound of that offset.
    pub bound_ns: u64,
    /// Largest error of this clock against UTC, as its owner states.
    pub error_ns: Option<u64>,
}

/// How the reflector's clock is related to ours. Converts times of the reflector to our clock.
#[derive(Clone, Debug)]
pub enum ClockRelation {
    /// Both clocks follow UTC, as both ends state.
    Utc(OwnClock),
    /// Computed from the session's own exchanges, see [`compare_clocks`].
    Exchanges(Vec<ClockFitOfBlock>),
}

/// The relation of the clocks during a part of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockFitOfBlock {
    /// Number of the first probe in this part of the session.
    pub from: u32,
    /// Our monotonic clock against the reflector's.
    pub fit: ClockFit,
}

/// Number of exchanges that are compared together; a [`ClockComparison`] keeps at most this many.
const EXCHANGES_PER_BLOCK: usize = 512;

/// Computes the relation of the clocks from the session's own exchanges, in blocks of 512 answered probes. Blocks that
/// do not suffice for a relation are left out.
pub fn compare_clocks(records: &[ProbeRecord], follow_ups: &BTreeMap<u32, u64>) -> ClockRelation {
    let fours: Vec<_> =
        records.iter().filter_map(|record| RoundTripTimestamps::from_record(record, follow_ups)).collect();
    ClockRelation::Exchanges(fours.chunks(EXCHANGES_PER_BLOCK).filter_map(compare_clocks_in_block).collect())
}

fn compare_clocks_in_block(block: &[RoundTripTimestamps]) -> Option<ClockFitOfBlock> {
    let mut comparison = ClockComparison::default();
    for four in block {
        comparison.add_exchange(&four.to_exchange());
    }
    let doubts = block.iter().map(|four| four.arrived.bound().max(four.departed.bound()));
    let mut fit = comparison.fit_clock()?;
    // `RoundTripTimestamps::to_exchange` uses the middles of the far stamps, so the largest error of these stamps is
    // added.
    fit.bound += Nanos::new(doubts.max()?);
    Some(ClockFitOfBlock { from: block.first()?.number, fit })
}

impl ClockRelation {
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Utc(_) => "utc",
            Self::Exchanges(_) => "exchanges",
        }
    }

    /// Returns the reason why the relation does not suffice for delays; `None` if it suffices.
    fn find_no_delay_reason(&self, told: &StampSessionFacts) -> Option<NoDelayReason> {
        match self {
            Self::Utc(OwnClock { error_ns: None, .. }) => Some(NoDelayReason::ThisClock),
            Self::Utc(_) if !told.is_far_synchronised => Some(NoDelayReason::FarClock),
            Self::Exchanges(compared) if compared.is_empty() => Some(NoDelayReason::NothingCompared),
            Self::Utc(_) | Self::Exchanges(_) => None,
        }
    }

    /// Converts a stamp of the reflector to our monotonic clock; `None` if the relation does not cover probe
    /// `number`, or if the result is too large.
    fn convert_to_own_clock(&self, number: u32, far: ProbeStamp) -> Option<ProbeStamp> {
        match self {
            Self::Utc(own) => {
                let at = far.middle().checked_add_signed(own.offset_ns.checked_neg()?)?;
                let doubt = own.bound_ns.saturating_add(own.error_ns.unwrap_or(0));
                Some(own_clock_stamp(far, MonoTime::from_nanos(at), doubt))
            }
            Self::Exchanges(compared) => {
                // The block of the probe: the last one that begins at or before it. A probe before the first
                // block with a relation gets no delay.
                let fit = compared.iter().rev().find(|compared| compared.from <= number)?.fit;
                let at = MonoTime::from_nanos(far.middle());
                Some(own_clock_stamp(far, fit.to_node_time(at), fit.bound_at(at).as_u64()))
            }
        }
    }
}

/// Creates a stamp of our clock from a far stamp; its bound includes the error of the conversion.
fn own_clock_stamp(far: ProbeStamp, at: MonoTime, doubt: u64) -> ProbeStamp {
    ProbeStamp::with_bound(far.source, at, far.bound().saturating_add(doubt))
}

/// Computes the delays of a session. `follow_ups` contains more exact departure times of reflections, by probe number.
pub fn compute_delays(
    records: &[ProbeRecord],
    follow_ups: &BTreeMap<u32, u64>,
    told: &StampSessionFacts,
    relation: &ClockRelation,
) -> SessionDelays {
    let no_delay = relation.find_no_delay_reason(told);
    // The first probe often has to wake up the path, so its times do not count.
    let usual = records.iter().filter(|record| !record.flags.contains(&ProbeFlag::First));
    let fours: Vec<_> =
        usual.filter_map(|record| RoundTripTimestamps::from_record(record, follow_ups)).collect();
    let there: Vec<_> = fours
        .iter()
        .filter_map(|four| time_between(four.left, relation.convert_to_own_clock(four.number, four.arrived)?))
        .collect();
    let back: Vec<_> = fours
        .iter()
        .filter_map(|four| {
            time_between(relation.convert_to_own_clock(four.number, four.departed)?, four.answered)
        })
        .collect();
    let path: Vec<_> = fours.iter().filter_map(RoundTripTimestamps::round_trip_without_reflector).collect();
    SessionDelays {
        there: direction_delays(&there, no_delay.is_none()),
        back: direction_delays(&back, no_delay.is_none()),
        path: summarize_times(&path, None),
        no_delay,
    }
}

/// The four stamps of a probe and its reflection.
struct RoundTripTimestamps {
    /// The number of the probe.
    number: u32,
    left: ProbeStamp,
    arrived: ProbeStamp,
    departed: ProbeStamp,
    answered: ProbeStamp,
}

impl RoundTripTimestamps {
    fn from_record(record: &ProbeRecord, follow_ups: &BTreeMap<u32, u64>) -> Option<Self> {
        let said = record.far_departure?;
        let truer = follow_ups.get(&record.number).map(|at| {
            // The follow-up replaces the time only; the reflector's error estimate stays the bound.
            let bound = said.bound();
            ProbeStamp { lo: at.saturating_sub(bound), hi: at.saturating_add(bound), ..said }
        });
        Some(Self {
            number: record.number,
            left: record.local_departure()?,
            arrived: record.far_arrival?,
            departed: truer.unwrap_or(said),
            answered: record.answered?,
        })
    }

    /// Converts the stamps to an exchange of messages.
    fn to_exchange(&self) -> ClockExchange {
        // The outer ends of our own stamps are used: an exchange that looks longer than it was makes the
        // relation less exact but never wrong.
        ClockExchange {
            sent: MonoTime::from_nanos(self.left.lo),
            heard: MonoTime::from_nanos(self.arrived.middle()),
            answered: MonoTime::from_nanos(self.departed.middle()),
            back: MonoTime::from_nanos(self.answered.hi),
        }
    }

    /// The round trip without the time in the reflector. Both stamps of the reflector are of one clock, so
    /// that clock need not be right.
    fn round_trip_without_reflector(&self) -> Option<MeasuredTime> {
        let whole = time_between(self.left, self.answered)?;
        // If the reflector claims to have answered before the request arrived, its times are not used.
        let inside = i64::try_from(self.departed.middle().checked_sub(self.arrived.middle())?).ok()?;
        let bound_ns =
            whole.bound_ns.saturating_add(self.arrived.bound()).saturating_add(self.departed.bound());
        Some(MeasuredTime { ns: whole.ns - inside, bound_ns })
    }
}

fn direction_delays(taken: &[MeasuredTime], has_relation: bool) -> DirectionDelays {
    let smallest = taken.iter().map(|took| took.ns).min().unwrap_or(0);
    let above: Vec<MeasuredTime> =
        // The unknown offset of the clocks is in every value. It cancels in the difference to the smallest,
        // and only the variation stays.
        taken.iter().map(|took| MeasuredTime { ns: took.ns - smallest, ..*took }).collect();
    DirectionDelays {
        delay: summarize_times(taken, None).filter(|_| has_relation),
        variation: summarize_times(&above, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PlannedProbe, ProbeKind, StampClock, StampSource};

    const OFFSET: i64 = 1_000_000_000;

    /// 100 ns there, 30 inside, 50 back; the far clock is 7 ns ahead.
    fn records() -> Vec<ProbeRecord> {
        let own = |at: u64| ProbeStamp::with_bound(StampSource::Kernel, MonoTime::from_nanos(at), 2);
        let far = |at: u64| {
            let at = at + 1_000_000_007;
            Some(ProbeStamp { clock: StampClock::Far, source: StampSource::Far, lo: at - 3, hi: at + 3 })
        };
        let record = |number: u32, slower: u64| {
            let planned =
                PlannedProbe { number, train: number, kind: ProbeKind::Single, at: Nanos::ZERO, length: 60 };
            let mut record = ProbeRecord::from_planned(planned, MonoTime::from_nanos(1_000));
            record.released = Some(own(1_000));
            record.far_arrival = far(1_100 + slower);
            record.far_departure = far(1_120 + slower);
            record.answered = Some(own(1_180 + slower));
            record
        };
        vec![record(0, 0), record(1, 5)]
    }

    fn told(is_far_synchronised: bool) -> StampSessionFacts {
        StampSessionFacts { is_far_synchronised, ..StampSessionFacts::default() }
    }

    fn follow_ups() -> BTreeMap<u32, u64> {
        BTreeMap::from([(0, 1_000_001_137), (1, 1_000_001_142)])
    }

    #[test]
    fn one_way_delays_bound_includes_all_clock_errors() {
        let clock = OwnClock { offset_ns: OFFSET, bound_ns: 1, error_ns: Some(20) };
        let found = compute_delays(&records(), &follow_ups(), &told(true), &ClockRelation::Utc(clock));
        let there = found.there.delay.unwrap();
        assert_eq!((there.min_ns, there.max_ns, there.bound_ns), (107, 112, 2 + 3 + 1 + 20));
        // The truth, 100, is within it.
        assert!(there.min_ns.abs_diff(100) <= there.bound_ns);
        let back = found.back.delay.unwrap();
        assert_eq!((back.min_ns, back.max_ns), (43, 43));
        assert_eq!(found.no_delay, None);
    }

    #[test]
    fn unknown_clock_relation_gives_variation_and_reason() {
        let clock = OwnClock { offset_ns: OFFSET, bound_ns: 1, error_ns: None };
        let found = compute_delays(&records(), &follow_ups(), &told(true), &ClockRelation::Utc(clock));
        assert_eq!((found.there.delay, found.back.delay), (None, None));
        assert_eq!(found.no_delay, Some(NoDelayReason::ThisClock));
        let there = found.there.variation.unwrap();
        assert_eq!((there.min_ns, there.max_ns), (0, 5));
        let clock = OwnClock { error_ns: Some(1), ..clock };
        let found = compute_delays(&records(), &follow_ups(), &told(false), &ClockRelation::Utc(clock));
        assert_eq!((found.there.delay, found.no_delay), (None, Some(NoDelayReason::FarClock)));
    }

    #[test]
    fn round_trip_without_reflector_time_needs_no_relation() {
        let clock = OwnClock { offset_ns: OFFSET, bound_ns: 1, error_ns: None };
        let found = compute_delays(&records(), &follow_ups(), &told(false), &ClockRelation::Utc(clock));
        let path = found.path.unwrap();
        assert_eq!((path.min_ns, path.max_ns), (150, 155));
    }

    #[test]
    fn session_exchanges_bound_clock_relation_by_quickest() {
        let relation = compare_clocks(&records(), &follow_ups());
        let found = compute_delays(&records(), &follow_ups(), &told(false), &relation);
        let (there, back) = (found.there.delay.unwrap(), found.back.delay.unwrap());
        assert_eq!(found.no_delay, None);
        // The delays are 100 there and 43 back; the exchanges alone cannot tell the two directions apart.
        assert_eq!((there.min_ns + back.min_ns, there.max_ns - there.min_ns), (150, 5));
        for (delay, truth) in [(there, 100), (back, 43)] {
            assert!(delay.min_ns.abs_diff(truth) <= delay.bound_ns, "{delay:?}");
            assert!((75..90).contains(&delay.bound_ns), "{delay:?}");
        }
        let nothing = compare_clocks(&[], &follow_ups());
        let found = compute_delays(&[], &follow_ups(), &told(false), &nothing);
        assert_eq!((found.no_delay, found.there.delay), (Some(NoDelayReason::NothingCompared), None));
    }

    #[test]
    fn a_drift_between_blocks_is_followed() {
        // The far clock runs 100 ppm fast; a probe each millisecond for three seconds, 40 us there and 10 us back.
        let far = |at: u64| {
            let at = 5_000_000_000 + at + at / 10_000;
            Some(ProbeStamp { clock: StampClock::Far, source: StampSource::Far, lo: at, hi: at })
        };
        let own = |at: u64| Some(ProbeStamp::with_bound(StampSource::Kernel, MonoTime::from_nanos(at), 0));
        let record = |number: u32| {
            let at = 1_000_000 * u64::from(number + 1);
            let planned =
                PlannedProbe { number, train: number, kind: ProbeKind::Single, at: Nanos::ZERO, length: 60 };
            let mut record = ProbeRecord::from_planned(planned, MonoTime::from_nanos(at));
            (record.released, record.answered) = (own(at), own(at + 55_000));
            (record.far_arrival, record.far_departure) = (far(at + 40_000), far(at + 45_000));
            record
        };
        let records: Vec<ProbeRecord> = (0..3_000).map(record).collect();
        let relation = compare_clocks(&records, &BTreeMap::new());
        let ClockRelation::Exchanges(compared) = &relation else { panic!("another relation") };
        assert_eq!(compared.len(), 6);
        let there = compute_delays(&records, &BTreeMap::new(), &told(false), &relation).there;
        let delay = there.delay.unwrap();
        for known in [delay.min_ns, delay.max_ns] {
            assert!(known.abs_diff(40_000) <= delay.bound_ns, "{delay:?}");
        }
        assert!(delay.bound_ns < 200_000, "{delay:?}");
    }
}
