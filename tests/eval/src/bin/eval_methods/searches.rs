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
const MOST_TRIALS: u64 = 50_000;
/// Searches that go into the file of vectors.
const VECTORS: usize = 12;
/// A vector with more trials is too long for a file in the repository.
const MOST_VECTOR_TRIALS: usize = 60;

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

pub fn compare(
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
    let text: String = totals.vectors.iter().map(|vector| format!("{vector}\n")).collect();
    output.save("mlrsearch_vectors.jsonl", &text)?;
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
    let mut device = NoisyDevice::draw(draw, &options);
    let mut search = MlrSearch::new(options.clone())?;
    library.send(&describe_search(&options))?;
    let mut trials: Vec<Value> = Vec::new();
    let end = loop {
        let answer = library.receive()?;
        let Some(wanted) = answer.get("trial") else {
            break compare_end(&answer, &search, totals);
        };
        totals.trials += 1;
        let ours = search.next_trial().map(|(load, seconds)| [seconds, load.frames_per_second()]);
        let theirs = [wanted[0].as_f64(), wanted[1].as_f64()];
        if ours.map(|ours| ours.map(|value| Some(value.to_bits())))
            != Some(theirs.map(|value| value.map(f64::to_bits)))
        {
            totals
                .differences
                .push(format!("search {index}, trial {}: {ours:?}, library {theirs:?}", trials.len() + 1));
            break SearchComparison::OtherTrial;
        }
        if trials.len() as u64 > MOST_TRIALS {
            break SearchComparison::TooLong;
        }
        let [seconds, load] = ours.unwrap_or_default();
        let result = device.perform(load, seconds);
        search.tell(&result);
        library.send(&json!({"intended": result.intended, "sent": result.sent, "lost": result.lost.most}))?;
        trials.push(json!([seconds, load, result.intended, result.sent, result.lost.most]));
    };
    if matches!(end, SearchComparison::OtherTrial | SearchComparison::TooLong) {
        // The other side is amid its search.
        *library = ReferenceLibrary::start()?;
    }
    if matches!(end, SearchComparison::OtherResult | SearchComparison::LibraryFailed) {
        totals.differences.push(format!("search {index} of {:?}", search.results()));
    }
    if end == SearchComparison::Identical
        && trials.len() <= MOST_VECTOR_TRIALS
        && totals.vectors.len() < VECTORS
    {
        totals.vectors.push(json!({"options": options, "trials": trials, "results": search.results()}));
    }
    *totals.by_end.entry(end).or_insert(0) += 1;
    Ok(())
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
    let results = search.results();
    if let Some(raised) = answer["raised"].as_str() {
        let is_fast = search.options().fail_fast && raised.starts_with("No lower bound");
        let is_same =
            search.next_trial().is_none() && results.iter().any(|result| result.lower_bound.is_none());
        totals.failed_fast += u64::from(is_fast);
        return match (is_fast, is_same) {
            (true, true) => SearchComparison::Identical,
            (true, false) => SearchComparison::OtherResult,
            (false, _) => {
                totals.differences.push(format!("the library raised: {raised}"));
                SearchComparison::LibraryFailed
            }
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
