//! Random searches, decided by packetrig and by the reference library: every trial and every result must be equal to the last bit.

use crate::device::{DrawSearch, NoisyDevice};
use crate::mlrsearch::Agreement;
use crate::oracle::{ReferenceLibrary, describe_goals};
use anyhow::Context;
use packetrig_eval::Effort;
use packetrig_eval::draw::Draw;
use packetrig_eval::output::{Output, Table};
use packetrig_method::mlrsearch::{GoalResult, MlrOptions, MlrSearch};
use packetrig_method::{Load, TestMethod};
use packetrig_units::Nanos;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A search that has more trials is compared no further.
const MAX_TRIALS: usize = 50_000;
/// Searches that go into the file of vectors, which `crates/method` tests without the library.
const VECTORS: usize = 8;
/// How many trials a vector has: a decision or two are no search, and the file is in the repository.
const VECTOR_TRIALS: std::ops::RangeInclusive<usize> = 8..=32;

/// How a search ended on both sides.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum SearchComparison {
    Identical,
    OtherTrial,
    OtherResult,
    /// The library gave up for a reason that is no result.
    LibraryFailed,
    TooLong,
}

#[derive(Default)]
struct Totals {
    trials: u64,
    goals: u64,
    refused: u64,
    failed_fast: u64,
    by_end: BTreeMap<SearchComparison, u64>,
    differences: Vec<String>,
    vectors: Vec<Value>,
}

pub(crate) fn compare(
    effort: Effort,
    seed: u64,
    library: &mut ReferenceLibrary,
    output: &mut Output,
) -> anyhow::Result<Agreement> {
    let count = if effort.quick { 500 } else { 6000 };
    let mut totals = Totals::default();
    for index in 0..count {
        compare_search(library, seed, index, &mut totals).with_context(|| format!("search {index}"))?;
    }
    let lines: Vec<String> = totals.vectors.iter().map(Value::to_string).collect();
    output.save("mlrsearch_vectors.jsonl", &(lines.join("\n") + "\n"))?;
    show(output, &totals)?;
    let equal = totals.by_end.get(&SearchComparison::Identical).copied().unwrap_or(0);
    Ok(Agreement { all: count, equal })
}

fn show(output: &mut Output, totals: &Totals) -> anyhow::Result<()> {
    output.say(
        "Random searches of one to four goals on noisy devices. Each trial's load and \
         duration, and each goal's bounds and conditional throughput, must be equal to the last bit.\n",
    )?;
    let mut table = Table::new(&["searches", "number"]);
    for (end, number) in &totals.by_end {
        table.rows.push(vec![format!("{end:?}"), number.to_string()]);
    }
    output.table("searches", &table)?;
    output.say(&format!(
        "{} trials, {} results of goals. The library refused to compute {} conditional throughputs that are 0; packetrig says 0. \
         {} searches ended at the lowest load, as `fail_fast` asks.\n",
        totals.trials, totals.goals, totals.refused, totals.failed_fast
    ))?;
    for difference in totals.differences.iter().take(10) {
        output.say(&format!("* {difference}\n"))?;
    }
    Ok(())
}

fn compare_search(
    library: &mut ReferenceLibrary,
    seed: u64,
    index: u64,
    totals: &mut Totals,
) -> anyhow::Result<()> {
    let mut draw = Draw::of(seed, index);
    let options = draw.search();
    let device = NoisyDevice::draw(draw, &options);
    let mut run = ComparedRun { search: MlrSearch::new(options.clone())?, device, trials: Vec::new() };
    library.send(&describe_search(&options))?;
    let (end, answer) = run.finish(library, totals)?;
    totals.trials += run.trials.len() as u64;
    match end {
        SearchComparison::Identical => totals.keep_vector(&options, &run.trials, &answer),
        SearchComparison::OtherTrial | SearchComparison::TooLong => {
            let ours = run.search.next_trial();
            totals
                .differences
                .push(format!("search {index}, trial {}: {ours:?}, library {answer}", run.trials.len() + 1));
            // The library is amid its search.
            *library = ReferenceLibrary::start()?;
        }
        SearchComparison::OtherResult | SearchComparison::LibraryFailed => {
            totals
                .differences
                .push(format!("search {index}: {:?}, library {answer}", run.search.current_results()));
        }
    }
    *totals.by_end.entry(end).or_insert(0) += 1;
    Ok(())
}

/// A search that both sides decide, each trial made once.
struct ComparedRun {
    search: MlrSearch,
    device: NoisyDevice,
    trials: Vec<Value>,
}

impl ComparedRun {
    /// Compares trial by trial until the search ends or both sides differ. Returns the library's last answer, too.
    fn finish(
        &mut self,
        library: &mut ReferenceLibrary,
        totals: &mut Totals,
    ) -> anyhow::Result<(SearchComparison, Value)> {
        loop {
            let answer = library.receive()?;
            let Some(theirs) = answer.get("trial") else {
                return Ok((compare_end(&answer, &self.search, totals), answer));
            };
            let Some([seconds, load]) = self.agreed_trial(theirs) else {
                return Ok((SearchComparison::OtherTrial, answer));
            };
            if self.trials.len() > MAX_TRIALS {
                return Ok((SearchComparison::TooLong, answer));
            }
            let result = self.device.perform(load, seconds);
            self.search.on_result(&result);
            library
                .send(&json!({"intended": result.intended, "sent": result.sent, "lost": result.lost.most}))?;
            self.trials.push(json!([seconds, load, result.intended, result.sent, result.lost.most]));
        }
    }

    /// Seconds and load of the next trial, if both sides want the same to the last bit.
    fn agreed_trial(&self, theirs: &Value) -> Option<[f64; 2]> {
        let (load, seconds) = self.search.next_trial()?;
        let ours = [seconds, load.frames_per_second()];
        let theirs = [theirs[0].as_f64()?, theirs[1].as_f64()?];
        (ours.map(f64::to_bits) == theirs.map(f64::to_bits)).then_some(ours)
    }
}

impl Totals {
    /// Keeps a search for the file of vectors, if it suits.
    fn keep_vector(&mut self, options: &MlrOptions, trials: &[Value], answer: &Value) {
        let has_results = answer["results"].is_array();
        if has_results && VECTOR_TRIALS.contains(&trials.len()) && self.vectors.len() < VECTORS {
            self.vectors.push(json!({"options": options, "trials": trials, "results": answer["results"]}));
        }
    }
}

fn describe_search(options: &MlrOptions) -> Value {
    json!({"search": {
        "goals": describe_goals(&options.goals),
        "min": options.min.frames_per_second(),
        "max": options.max.frames_per_second(),
        "warmup": options.warmup.map(Nanos::as_secs_f64),
        "fail_fast": options.fail_fast,
    }})
}

/// Compares the end of a search: its results, or that it failed fast.
fn compare_end(answer: &Value, search: &MlrSearch, totals: &mut Totals) -> SearchComparison {
    let results = search.current_results();
    if let Some(raised) = answer["raised"].as_str() {
        let is_fast = search.options().fail_fast && raised.starts_with("No lower bound");
        let is_same =
            search.next_trial().is_none() && results.iter().any(|result| result.lower_bound.is_none());
        totals.failed_fast += u64::from(is_fast);
        return match (is_fast, is_same) {
            (true, true) => SearchComparison::Identical,
            (true, false) => SearchComparison::OtherResult,
            (false, _) => SearchComparison::LibraryFailed,
        };
    }
    let theirs = answer["results"].as_array().map_or(&[][..], Vec::as_slice);
    totals.goals += theirs.len() as u64;
    let is_same = search.next_trial().is_none()
        && theirs.len() == results.len()
        && results.iter().zip(theirs).all(|(ours, theirs)| is_same_result(ours, theirs, totals));
    if is_same { SearchComparison::Identical } else { SearchComparison::OtherResult }
}

fn is_same_result(ours: &GoalResult, theirs: &Value, totals: &mut Totals) -> bool {
    let is_refused = theirs["throughput"] == "refused";
    totals.refused += u64::from(is_refused);
    let is_same_throughput = match ours.conditional_throughput {
        Some(load) if is_refused => load.frames_per_second() <= 0.0,
        load => is_same_load(load, &theirs["throughput"]),
    };
    is_same_throughput
        && is_same_load(ours.lower_bound, &theirs["lower"])
        && is_same_load(ours.upper_bound, &theirs["upper"])
}

fn is_same_load(ours: Option<Load>, theirs: &Value) -> bool {
    ours.map(|load| load.frames_per_second().to_bits()) == theirs.as_f64().map(f64::to_bits)
}
