//! What an impaired tap did, by its own log, next to what probes through it told.
//!
//! Invariant: only frames count to which something was done; which probe a frame belongs to is told by time alone. Where time does not tell
//! it, because the machine was away for a moment, a probe is not compared.

use serde_json::Value;
use std::ops::Range;
use std::path::Path;

/// Frames of oneprobe's probes and of whole answers, without FCS: Ethernet, IPv4, TCP and their data.
const PROBE: u64 = 14 + 20 + 20 + 300;
const ANSWER: u64 = 14 + 20 + 20 + 536;
/// Answers and their probes are that near to each other where nothing else delays them; a server repeats an answer after 200 ms only.
const NEAR_NS: u64 = 95_000_000;
/// A probe is at the tap at about the time at which it left.
const ABOUT_NS: u64 = 2_000_000;

/// The log of a tap; empty if nothing was done.
#[derive(Debug)]
pub struct Truth(Vec<Value>);

impl Truth {
    /// Without its first line, which says what the plan was.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let all = if file.exists() { lines(file)? } else { Vec::new() };
        Ok(Self(all.into_iter().skip(1).collect()))
    }

    /// Frames of a direction and length, without FCS, to which this was done, within a time of the monotonic clock.
    pub fn count(&self, direction: &str, bytes: u64, deed: &str, within: Range<u64>) -> u64 {
        let of = |line: &&Value| {
            line["direction"] == direction
                && line["bytes"] == bytes
                && !line[deed].is_null()
                && line["at_ns"].as_u64().is_some_and(|at| within.contains(&at))
        };
        self.0.iter().filter(of).count() as u64
    }
}

/// JSON lines of a file.
fn lines(file: &Path) -> anyhow::Result<Vec<Value>> {
    Ok(std::fs::read_to_string(file)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// The probes of `probe oneprobe`, one by one, and the truth.
#[derive(Debug)]
pub struct Told {
    outcomes: Vec<Value>,
    truth: Truth,
    /// What the clock of the log is ahead of that of the probes.
    ahead_ns: u64,
}

/// What became of frames of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    /// To the server.
    pub there: u64,
    /// From it.
    pub back: u64,
}

/// A probe that tells something else than the truth.
#[derive(Debug)]
pub struct Mismatch {
    /// Its outcome.
    pub outcome: Value,
    /// Frames that were lost by its word.
    pub said: Ways,
    /// Frames that were lost.
    pub truth: Ways,
}

impl Told {
    /// From the files both wrote.
    pub fn read(outcomes: &Path, truth: &Path, ahead_ns: u64) -> anyhow::Result<Self> {
        Ok(Self { outcomes: lines(outcomes)?, truth: Truth::read(truth)?, ahead_ns })
    }

    /// The time of a probe's frames by the clock of the log: that near it, and the rest until the next probe.
    fn times_of(&self, left: u64) -> [Range<u64>; 2] {
        let begin = left + self.ahead_ns - ABOUT_NS;
        let near = left + self.ahead_ns + NEAR_NS;
        // The next probe's frames are the next probe's.
        let next = self.outcomes.iter().filter_map(|one| one["left"].as_u64()).find(|next| *next > left);
        let end = next.map_or(u64::MAX, |next| next + self.ahead_ns - ABOUT_NS);
        [begin..near.min(end), near.min(end)..end]
    }

    fn dropped(&self, within: Range<u64>) -> Ways {
        Ways {
            there: self.truth.count("a->b", PROBE, "dropped", within.clone()),
            back: self.truth.count("b->a", ANSWER, "dropped", within),
        }
    }

    /// Whether frames of a probe, or of the one behind it, may be taken for those of the other: it tells nothing, or frames that were dropped
    /// after its time are repeated ones, or its own on a machine that was away.
    fn is_disturbed(&self, outcome: &Value) -> bool {
        let Some(left) = departure_of_told(outcome) else { return true };
        let [_, rest] = self.times_of(left);
        self.dropped(rest) != Ways::default()
    }

    /// How many probes tell something, what they lost by their own word, and those that say something else than the truth, as far as that
    /// is known.
    pub fn losses(&self) -> (u64, Ways, Vec<Mismatch>) {
        let (mut probes, mut sum, mut wrong) = (0, Ways::default(), Vec::new());
        let mut is_disturbed = false;
        for outcome in &self.outcomes {
            let was_disturbed = std::mem::replace(&mut is_disturbed, self.is_disturbed(outcome));
            let Some(left) = departure_of_told(outcome) else { continue };
            let [near, _] = self.times_of(left);
            let (said, truth) = (lost(outcome), self.dropped(near));
            if said != truth && !is_disturbed && !was_disturbed {
                wrong.push(Mismatch { outcome: outcome.clone(), said, truth });
            }
            probes += 1;
            (sum.there, sum.back) = (sum.there + said.there, sum.back + said.back);
        }
        (probes, sum, wrong)
    }

    /// Probes of which a segment was held back behind the other.
    pub fn held_there(&self) -> u64 {
        let is_held = |left: &u64| {
            let [near, _] = self.times_of(*left);
            self.truth.count("a->b", PROBE, "held_for", near) > 0
        };
        self.outcomes.iter().filter_map(departure_of_told).filter(is_held).count() as u64
    }
}

/// When the first segment of a probe left that tells something.
fn departure_of_told(outcome: &Value) -> Option<u64> {
    outcome["verdict"].get("told")?;
    outcome["left"].as_u64()
}

/// What a probe says it lost.
fn lost(outcome: &Value) -> Ways {
    let told = &outcome["verdict"]["told"];
    let there = match &told["forward"] {
        Value::String(one) if one == "both_lost" => 2,
        Value::String(_) => 1,
        _ => 0,
    };
    let heard = told["reverse"]["heard"]
        .as_array()
        .map_or(0, |heard| heard.iter().filter(|one| **one == Value::Bool(true)).count() as u64);
    Ways { there, back: told["reverse"]["sent"].as_u64().unwrap_or(0).saturating_sub(heard) }
}
