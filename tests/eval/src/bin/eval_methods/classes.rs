//! Classes of random sets of trials, decided by packetrig and by the reference library.

use crate::device::DrawSearch;
use crate::mlrsearch::Agreement;
use crate::oracle::{ReferenceLibrary, describe_goals};
use packetrig_eval::Effort;
use packetrig_eval::draw::Draw;
use packetrig_eval::output::{Output, Table};
use packetrig_method::mlrsearch::{BoundClass, LoadTrials, SearchGoal};
use packetrig_units::Nanos;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Trials that one point adds: seconds, lost and sent frames.
type PointTrials = Vec<(f64, u64, u64)>;

#[derive(Default)]
struct Totals {
    classes: u64,
    equal: u64,
    by_class: BTreeMap<char, u64>,
    differences: Vec<String>,
}

pub(crate) fn compare(
    effort: Effort,
    seed: u64,
    library: &mut ReferenceLibrary,
    output: &mut Output,
) -> anyhow::Result<Agreement> {
    let count = if effort.quick { 1000 } else { 10_000 };
    let mut totals = Totals::default();
    compare_points(library, &appendix_goals(), &appendix_points(), &mut totals)?;
    let appendix = (totals.equal, totals.classes);
    for index in 0..count {
        let mut draw = Draw::of(seed ^ 0xc1a5, index);
        let goals = draw.goals();
        let points = draw_points(&mut draw, &goals);
        compare_points(library, &goals, &points, &mut totals)?;
    }
    show(output, appendix, &totals)?;
    Ok(Agreement { all: totals.classes, equal: totals.equal })
}

fn show(output: &mut Output, appendix: (u64, u64), totals: &Totals) -> anyhow::Result<()> {
    output.say(&format!(
        "Random sets of trials, classified after each change. {} of {} classes of the draft's appendix are \
         equal.\n",
        appendix.0, appendix.1
    ))?;
    let mut table = Table::new(&["class", "number"]);
    for (class, number) in &totals.by_class {
        table.rows.push(vec![class.to_string(), number.to_string()]);
    }
    output.table("classes", &table)?;
    for difference in totals.differences.iter().take(10) {
        output.say(&format!("* {difference}\n"))?;
    }
    Ok(())
}

fn compare_points(
    library: &mut ReferenceLibrary,
    goals: &[SearchGoal],
    points: &[PointTrials],
    totals: &mut Totals,
) -> anyhow::Result<()> {
    library.send(&json!({"classify": {"goals": describe_goals(goals), "points": points}}))?;
    let theirs = library.receive()?;
    let mut trials = LoadTrials::default();
    for (point, added) in points.iter().enumerate() {
        for (seconds, lost, sent) in added {
            trials.add_trial(*seconds, loss_ratio(*lost, *sent), false);
        }
        let classes: Vec<char> = theirs["classes"][point].as_str().unwrap_or("").chars().collect();
        for (index, goal) in goals.iter().enumerate() {
            let class = letter(trials.classify_for_goal(goal));
            let loss = &theirs["losses"][point][index];
            totals.classes += 1;
            *totals.by_class.entry(class).or_insert(0) += 1;
            if classes.get(index) == Some(&class) && is_same_loss(&trials, goal, loss) {
                totals.equal += 1;
            } else {
                totals
                    .differences
                    .push(format!("{goal:?} after {added:?}: {class}, library {classes:?}, loss {loss}"));
            }
        }
    }
    Ok(())
}

/// The library has no loss ratio as long as there is no long trial and no time is wanted.
fn is_same_loss(trials: &LoadTrials, goal: &SearchGoal, theirs: &Value) -> bool {
    theirs.as_f64().is_some_and(|loss| (1.0 - loss).to_bits() == trials.conditional_share(goal).to_bits())
}

fn loss_ratio(lost: u64, sent: u64) -> f64 {
    if sent == 0 { 0.0 } else { lost as f64 / sent as f64 }
}

fn letter(class: BoundClass) -> char {
    match class {
        BoundClass::Lower => 'L',
        BoundClass::Upper => 'U',
        BoundClass::Undecided => '?',
    }
}

/// The goals of the appendix of draft-ietf-bmwg-mlrsearch.
fn appendix_goals() -> Vec<SearchGoal> {
    let one_second = SearchGoal { loss_ratio: 0.005, duration_sum: Nanos::from_secs(120), ..SearchGoal::NDR };
    let exceeding = SearchGoal { loss_ratio: 0.005, exceed_ratio: 0.2, ..SearchGoal::RFC2544 };
    vec![SearchGoal::RFC2544, SearchGoal::TST009, one_second, exceeding]
}

fn appendix_points() -> Vec<PointTrials> {
    let added = [(59, 1.0, 0), (1, 1.0, 10), (59, 1.0, 10), (1, 1.0, 0), (1, 60.0, 1), (1, 60.0, 0)];
    added.map(|(count, seconds, lost)| vec![(seconds, lost, 1000); count]).to_vec()
}

/// Trials about as long as the goals want, good and bad.
fn draw_points(draw: &mut Draw, goals: &[SearchGoal]) -> Vec<PointTrials> {
    let seconds: Vec<f64> = goals
        .iter()
        .flat_map(|goal| [goal.final_trial, goal.initial_trial, goal.duration_sum])
        .map(Nanos::as_secs_f64)
        .chain([0.3, 1.0, 7.7])
        .collect();
    let points = draw.within(1, 8);
    (0..points)
        .map(|_| {
            let trials = draw.within(1, 12);
            (0..trials)
                .map(|_| {
                    let lost = draw.one_of(&[0, 0, 0, 1, 5, 6, 50, 1000]);
                    (draw.one_of(&seconds), lost, 1000)
                })
                .collect()
        })
        .collect()
}
