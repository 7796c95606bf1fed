//! How long searches take and how wrong their results are, on simulated devices whose limit is known, in virtual time.

use anyhow::Context;
use packetrig_eval::output::{Goal as EvalGoal, Output, Table};
use packetrig_eval::plot::{Titles, scatter};
use packetrig_eval::{Effort, Quartiles};
use packetrig_method::bisection::{BisectionMethod, BisectionPlan, SearchResolution};
use packetrig_method::mlrsearch::{MlrOptions, MlrSearch, SearchGoal};
use packetrig_method::sim::SimulatedDevice;
use packetrig_method::{Load, MethodSession, TestMethod};
use packetrig_units::Nanos;

/// Frames per second that the device forwards, and the range of the searches.
const LIMIT: f64 = 5.37e6;
const MIN: f64 = 9000.0;
const MAX: f64 = 14.88e6;
/// How close the bounds must be, as a share.
const WIDTH: f64 = 0.005;
/// Probabilities that a second loses [`STALL_LOSS`] frames at any load: rare pauses of a tester.
const STALLS: [f64; 4] = [0.0, 0.01, 0.05, 0.2];
const STALL_LOSS: u64 = 100;
/// A search without a result is as wrong as can be.
const NO_RESULT: f64 = 1.0;
/// Errors below this are drawn as this.
const LEAST_ERROR: f64 = 1e-4;

/// A way to search the highest load without loss.
#[derive(Clone, Copy)]
enum SearchedBy {
    Mlr(&'static [SearchGoal]),
    Bisection { tries: u32 },
}

const METHODS: [(&str, SearchedBy); 5] = [
    (NDR, SearchedBy::Mlr(&[SearchGoal::NDR, SearchGoal::PDR])),
    (RFC2544, SearchedBy::Mlr(&[SearchGoal::RFC2544])),
    ("MLR TST 009", SearchedBy::Mlr(&[SearchGoal::TST009])),
    (PLAIN, SearchedBy::Bisection { tries: 1 }),
    (VERIFIED, SearchedBy::Bisection { tries: 2 }),
];
const NDR: &str = "MLR NDR+PDR";
const RFC2544: &str = "MLR RFC 2544";
const PLAIN: &str = "bisection";
const VERIFIED: &str = "TST 009";

/// What one search came to.
struct SearchOutcome {
    seconds: f64,
    found: Option<f64>,
}

impl SearchOutcome {
    fn error(&self) -> f64 {
        self.found.map_or(NO_RESULT, |found| (found - LIMIT).abs() / LIMIT)
    }
}

/// All searches of one method at one probability of stalls.
struct SearchSeries {
    method: &'static str,
    stalls: f64,
    outcomes: Vec<SearchOutcome>,
}

impl SearchSeries {
    fn seconds(&self) -> anyhow::Result<Quartiles> {
        Quartiles::of(&self.outcomes.iter().map(|outcome| outcome.seconds).collect::<Vec<_>>())
            .context("no searches")
    }

    fn errors(&self) -> anyhow::Result<Quartiles> {
        Quartiles::of(&self.outcomes.iter().map(SearchOutcome::error).collect::<Vec<_>>())
            .context("no searches")
    }
}

pub(crate) fn evaluate(effort: Effort, seed: u64, output: &mut Output) -> anyhow::Result<()> {
    let seeds = if effort.quick { 5 } else { 101 };
    let mut all = Vec::new();
    for stalls in STALLS {
        for (method, searched_by) in METHODS {
            let of_seed = |index: u64| {
                let device = SimulatedDevice::new(LIMIT, 0).with_stalls(
                    stalls,
                    STALL_LOSS,
                    seed.wrapping_add(index << 20),
                );
                search(searched_by, device)
            };
            let outcomes = (0..seeds).map(of_seed).collect::<anyhow::Result<_>>()?;
            all.push(SearchSeries { method, stalls, outcomes });
        }
    }
    show(output, seeds, &all)?;
    judge(output, &all)
}

/// Runs one search to its end.
fn search(searched_by: SearchedBy, device: SimulatedDevice) -> anyhow::Result<SearchOutcome> {
    match searched_by {
        SearchedBy::Mlr(goals) => {
            let options = MlrOptions {
                goals: goals.to_vec(),
                min: Load::new(MIN),
                max: Load::new(MAX),
                size: None,
                warmup: None,
                fail_fast: false,
            };
            let (search, seconds) = run(MlrSearch::new(options)?, device)?;
            let found = search.current_results().first().and_then(|result| result.conditional_throughput);
            Ok(SearchOutcome { seconds, found: found.map(Load::frames_per_second) })
        }
        SearchedBy::Bisection { tries } => {
            let plan = BisectionPlan {
                min: Load::new(MIN),
                max: Load::new(MAX),
                resolution: SearchResolution::FramesPerSecond(LIMIT * WIDTH),
                tries,
                accepted_loss: 0.0,
                hopeless_loss: 1.0,
                trial: Nanos::from_secs(60),
                size: None,
            };
            let (search, seconds) = run(BisectionMethod::new(plan)?, device)?;
            Ok(SearchOutcome {
                seconds,
                found: search.current_result().lower_bound.map(Load::frames_per_second),
            })
        }
    }
}

fn run<M: TestMethod + Clone>(method: M, mut device: SimulatedDevice) -> anyhow::Result<(M, f64)> {
    const MAX_TRIALS: u32 = 100_000;
    let mut session = MethodSession::new(method);
    while let Some(order) = session.next_trial_request() {
        session.on_result(&device.perform_trial(&order));
        anyhow::ensure!(session.trial_count() < MAX_TRIALS, "a search does not end");
    }
    Ok((session.method().clone(), device.elapsed.as_secs_f64()))
}

fn show(output: &mut Output, seeds: u64, all: &[SearchSeries]) -> anyhow::Result<()> {
    output.say(&format!(
        "## Time and error of searches\n\nA simulated device forwards {} Mpps. Each second of a trial loses {STALL_LOSS} frames with \
         probability p, at any load: that stands for rare stalls of a tester. {seeds} seeds; times are those of sending. The error \
         is that of the highest load without loss; a search without a result counts as 100 %. MLR is MLRsearch, TST 009 is \
         bisection with 2 tries. Of the goals of MLRsearch, only RFC 2544 passes a load as bisection does.\n",
        LIMIT / 1e6
    ))?;
    let mut table = Table::new(&[
        "p",
        "method",
        "time, s: least",
        "median",
        "most",
        "error, %: least",
        "median",
        "most",
        "without result",
    ]);
    for series in all {
        let (seconds, errors) = (series.seconds()?, series.errors()?);
        let without = series.outcomes.iter().filter(|outcome| outcome.found.is_none()).count();
        let mut row = vec![series.stalls.to_string(), series.method.to_owned()];
        row.extend([seconds.least, seconds.median, seconds.most].map(|value| format!("{value:.0}")));
        row.extend([errors.least, errors.median, errors.most].map(|value| format!("{:.2}", value * 100.0)));
        row.push(without.to_string());
        table.rows.push(row);
    }
    output.table("times", &table)?;
    let title = "Error against time to result; a point is a search";
    let titles = Titles { plot: title, x: "time to result, s", y: "error, % of the limit" };
    let series: Vec<(&str, Vec<(f64, f64)>)> =
        METHODS.iter().map(|(name, _)| (*name, plotted(all, name))).collect();
    output.plot("times", title, &scatter(titles, &series))
}

/// Points of a method: seconds and percent.
fn plotted(all: &[SearchSeries], method: &str) -> Vec<(f64, f64)> {
    let of_method = all.iter().filter(|series| series.method == method);
    let outcomes = of_method.flat_map(|series| &series.outcomes);
    outcomes.map(|outcome| (outcome.seconds, outcome.error().max(LEAST_ERROR) * 100.0)).collect()
}

fn judge(output: &mut Output, all: &[SearchSeries]) -> anyhow::Result<()> {
    let series = |method: &str, stalls: f64| {
        let found =
            all.iter().find(|series| series.method == method && series.stalls.to_bits() == stalls.to_bits());
        found.context("no such series")
    };
    for (name, method, wanted) in [("search time", NDR, 0.1), ("search time of RFC 2544", RFC2544, 0.33)] {
        let (ours, plain) = (series(method, 0.0)?.seconds()?.median, series(PLAIN, 0.0)?.seconds()?.median);
        let share = ours / plain;
        output.goal(
            name,
            &format!("{share:.2} of bisection's time ({ours:.0} s of {plain:.0} s)"),
            &format!("at most {wanted}"),
            &EvalGoal::from(share <= wanted),
        );
    }
    let worst = [NDR, PLAIN, VERIFIED].map(|method| series(method, 0.05).and_then(SearchSeries::errors));
    let [ndr, plain, verified] = worst;
    let (ndr, plain, verified) = (ndr?, plain?, verified?);
    output.goal(
        "search error with stalls",
        &format!(
            "at most {:.2} % with p = 0.05 (medians: bisection {:.1} %, TST 009 {:.1} %)",
            ndr.most * 100.0,
            plain.median * 100.0,
            verified.median * 100.0
        ),
        "at most 0.5 %",
        &EvalGoal::from(ndr.most <= WIDTH),
    );
    Ok(())
}
