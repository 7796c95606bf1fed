//! Accounts for a series of probes to one target: lost, duplicated, reordered and damaged answers, and round-trip times.
//!
//! The series receives the sent probes in the order of their numbers, and the answers in any order, each after its
//! probe. A round trip lasts from the best known departure time of a probe to the kernel's stamp of its answer, with
//! the bounds of both stamps.
//!
//! Invariant: every probe that was sent is either answered, refused or lost; duplicates and damaged
//! answers are counted separately.

use crate::method::{ProbeReply, ReplyMeaning};
use crate::record::{ProbeFlag, ProbeRecord, ProbeStamp, StampClock};
use crate::summary::{nearest_rank, percentile_of_sorted};
use packetrig_stats::jitter::JitterMeter;
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct ProbeSeries {
    records: Vec<ProbeRecord>,
    states: Vec<ProbeState>,
    counts: SeriesCounts,
    says: BTreeMap<ReplyMeaning, u64>,
    latest: Option<u32>,
    jitter: JitterMeter,
    jittered: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ProbeState {
    #[default]
    Open,
    Answered,
    Refused,
}

/// Probes of a series, counted by their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SeriesCounts {
    pub sent: u64,
    /// Planned probes that were not given to the kernel. Probes that the kernel dropped count as sent.
    pub unsent: u64,
    /// Probes with a sound answer of the target.
    pub answered: u64,
    /// Probes that a host or router reported as undeliverable.
    pub refused: u64,
    /// Sent probes that were neither answered nor refused.
    pub lost: u64,
    /// Further sound answers to probes that had one, and errors about such probes.
    pub duplicates: u64,
    /// First answers that arrived after the first answer to a later probe.
    pub reordered: u64,
    /// Answers with a wrong checksum or changed content.
    pub corrupted: u64,
}

/// Counts of the probes whose time for an answer is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimedOutCounts {
    pub sent: u64,
    /// Number of these probes without a sound answer; refused probes are included.
    pub lost: u64,
}

/// Effect of an answer on the series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerMeaning {
    /// The first sound answer, and the round-trip time; `None` if the times of departure and
    /// arrival cannot be compared.
    First(Option<MeasuredTime>),
    Duplicate,
    /// The answer is damaged, so the probe stays without an answer.
    Corrupted,
    /// A host or router reported that the probe could not be delivered.
    Refused,
    /// The answer names a probe that was not sent.
    Stray,
}

/// A duration with its error bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MeasuredTime {
    /// Nanoseconds; below zero only within the bound.
    pub ns: i64,
    /// Bound of the error, in both directions.
    pub bound_ns: u64,
}

/// The time between two stamps of the same clock; `None` if their clocks differ, or are clocks of a far end.
pub fn time_between(from: ProbeStamp, to: ProbeStamp) -> Option<MeasuredTime> {
    // `Far` is the clock of any host that answered: two such stamps need not be of the same host.
    if from.clock != to.clock || from.clock == StampClock::Far {
        return None;
    }
    let ns = i128::from(to.middle()) - i128::from(from.middle());
    Some(MeasuredTime { ns: i64::try_from(ns).ok()?, bound_ns: from.bound().saturating_add(to.bound()) })
}

/// Round-trip times or one-way delays of a series.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SeriesTimes {
    pub samples: u64,
    pub min_ns: i64,
    pub p50_ns: i64,
    /// Absent if there are fewer than 20 samples.
    pub p95_ns: Option<i64>,
    /// Absent if there are fewer than 100 samples.
    pub p99_ns: Option<i64>,
    pub max_ns: i64,
    pub mean_ns: f64,
    pub mdev_ns: f64,
    /// Interarrival jitter with the smoothing of RFC 3550, over answers in the order of their arrival.
    pub jitter_ns: Option<u64>,
    /// The largest error bound of all times.
    pub bound_ns: u64,
}

/// Counts and times of a series.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeriesSummary {
    #[serde(flatten)]
    pub counts: SeriesCounts,
    /// Number of sound answers and errors of each meaning, duplicates included.
    pub said: Vec<(ReplyMeaning, u64)>,
    /// Round-trip times; absent without answers. That of the first probe, which may have had to wake up the path,
    /// counts only if there is no other.
    pub rtt: Option<SeriesTimes>,
    /// Probes that were released late or early, whose sender lost its processor, or whose stamps are missing or
    /// contradict each other.
    pub doubtful: u64,
}

impl ProbeSeries {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a probe that was sent, or that was not sent and is flagged so. Probes must be added in the order of their
    /// numbers.
    pub fn add_sent_probe(&mut self, record: ProbeRecord) {
        let is_unsent = record.flags.contains(&ProbeFlag::Unsent);
        if is_unsent {
            self.counts.unsent += 1;
        } else {
            self.counts.sent += 1;
        }
        // The index of a record is the number of its probe: `add_answer` finds it by that.
        self.records.push(record);
        self.states.push(ProbeState::Open);
    }

    /// Adds an answer to the counts and to the record of its probe.
    pub fn add_answer(&mut self, reply: &ProbeReply, at: ProbeStamp) -> AnswerMeaning {
        let index = reply.number as usize;
        let Some((record, state)) = self.records.get_mut(index).zip(self.states.get_mut(index)) else {
            // A number beyond the series comes from another sender, or from an earlier series.
            return AnswerMeaning::Stray;
        };
        if record.flags.contains(&ProbeFlag::Unsent) {
            return AnswerMeaning::Stray;
        }
        // A damaged answer may have a damaged number, so it must not answer any probe.
        if !reply.is_sound {
            self.counts.corrupted += 1;
            return AnswerMeaning::Corrupted;
        }
        *self.says.entry(reply.says).or_default() += 1;
        // A router may report an error for a probe that the target still answers, for example for one copy of
        // it. So an answer replaces a refusal, but an error never replaces an answer.
        match (*state, reply.says.is_answer()) {
            (ProbeState::Answered, _) => {
                self.counts.duplicates += 1;
                return AnswerMeaning::Duplicate;
            }
            (ProbeState::Refused, false) => return AnswerMeaning::Refused,
            (ProbeState::Open, false) => {
                *state = ProbeState::Refused;
                self.counts.refused += 1;
                return AnswerMeaning::Refused;
            }
            (ProbeState::Refused, true) => self.counts.refused -= 1,
            (ProbeState::Open, true) => {}
        }
        *state = ProbeState::Answered;
        self.counts.answered += 1;
        record.answered = Some(at);
        record.far_arrival = reply.far_arrival;
        record.far_departure = reply.far_departure;
        let took = record.local_departure().and_then(|left| time_between(left, at));
        self.count_reordering(reply.number);
        if let Some(took) = took {
            self.jitter.record_delay(took.ns);
            // Jitter is a difference of two round trips.
            self.jittered |= self.counts.answered > 1;
        }
        AnswerMeaning::First(took)
    }

    /// Reordering as in RFC 4737: an answer is reordered if a larger number was answered before it.
    fn count_reordering(&mut self, number: u32) {
        match self.latest {
            // The largest number so far stays (RFC 4737), so a late answer does not make the next ones late.
            Some(latest) if latest > number => self.counts.reordered += 1,
            _ => self.latest = Some(number),
        }
    }

    /// The counts so far; a probe that is neither answered nor refused yet counts as lost.
    pub fn counts(&self) -> SeriesCounts {
        // Each probe is in exactly one state, so the sum of these counts never exceeds the number sent.
        let lost = self.counts.sent - self.counts.answered - self.counts.refused;
        SeriesCounts { lost, ..self.counts }
    }

    /// Counts the losses among the first `settled` probes, whose time for an answer is over.
    pub fn count_losses_after_timeout(&self, settled: usize) -> TimedOutCounts {
        let mut counts = TimedOutCounts::default();
        for (record, state) in self.records.iter().zip(&self.states).take(settled) {
            if !record.flags.contains(&ProbeFlag::Unsent) {
                counts.sent += 1;
                counts.lost += u64::from(*state != ProbeState::Answered);
            }
        }
        counts
    }

    pub fn records(&self) -> &[ProbeRecord] {
        &self.records
    }

    pub fn summary(&self) -> SeriesSummary {
        SeriesSummary {
            counts: self.counts(),
            said: self.says.iter().map(|(says, count)| (*says, *count)).collect(),
            rtt: self.round_trip_times(),
            doubtful: self.records.iter().filter(|record| is_doubtful(record)).count() as u64,
        }
    }

    fn round_trip_times(&self) -> Option<SeriesTimes> {
        let mut taken = round_trips(self.records.iter().filter(|record| !is_first_probe(record)));
        // The time of a single probe is better than none.
        if taken.is_empty() {
            taken = round_trips(self.records.iter());
        }
        let jitter = self.jittered.then(|| self.jitter.smoothed_jitter().as_u64());
        summarize_times(&taken, jitter)
    }
}

fn is_first_probe(record: &ProbeRecord) -> bool {
    record.flags.contains(&ProbeFlag::First)
}

fn is_doubtful(record: &ProbeRecord) -> bool {
    let doubts = [
        ProbeFlag::Late,
        ProbeFlag::Early,
        ProbeFlag::Stolen,
        ProbeFlag::StampMissing,
        ProbeFlag::StampsDisagree,
    ];
    record.flags.iter().any(|flag| doubts.contains(flag))
}

fn round_trips<'a>(records: impl Iterator<Item = &'a ProbeRecord>) -> Vec<MeasuredTime> {
    records.filter_map(|record| time_between(record.local_departure()?, record.answered?)).collect()
}

/// Summarises times; `None` if there are none. `jitter_ns` is copied into the result.
pub fn summarize_times(taken: &[MeasuredTime], jitter_ns: Option<u64>) -> Option<SeriesTimes> {
    let mut sorted: Vec<i64> = taken.iter().map(|took| took.ns).collect();
    sorted.sort_unstable();
    let min_ns = *sorted.first()?;
    let max_ns = *sorted.last()?;
    let count = sorted.len() as f64;
    let mean_ns = sorted.iter().map(|ns| *ns as f64).sum::<f64>() / count;
    let squares: f64 = sorted.iter().map(|ns| (*ns as f64 - mean_ns).powi(2)).sum();
    Some(SeriesTimes {
        samples: sorted.len() as u64,
        min_ns,
        p50_ns: nearest_rank(&sorted, 50),
        p95_ns: percentile_of_sorted(&sorted, 95),
        p99_ns: percentile_of_sorted(&sorted, 99),
        max_ns,
        mean_ns,
        mdev_ns: (squares / count).sqrt(),
        jitter_ns,
        bound_ns: taken.iter().map(|took| took.bound_ns).max()?,
    })
}

#[cfg(test)]
mod tests;
