//! One trial from its beginning to the moment when the fleet has shown that it is usable again.

use crate::fault::{InjectedFault, RunPhase, Trial};
use crate::fleet::Fleet;
use crate::inflict::Infliction;
use crate::network::{NODES, Network, SENDERS};
use crate::run::{RunEnd, RunProcess, RunRequest};
use crate::witness::{CHECK_SIZE, FrameCounts, TRIAL_SIZE, TrafficWitness};
use anyhow::{Context, bail};
use packetrig_eval::process::pause;
use packetrig_sys::clock;
use serde_json::Value;

const SECOND_NS: u64 = 1_000_000_000;
/// Frames of each sender in a trial: five seconds.
pub(crate) const TRIAL_FRAMES: u64 = 5000;
/// Frames of each sender in a run that shows whether the fleet is usable.
const CHECK_FRAMES: u64 = 300;
/// A run that takes longer hangs.
const RUN_NS: u64 = 120 * SECOND_NS;
/// Runs that a new fleet may need on a busy machine.
const WARM_UPS: u32 = 5;
const MAX_TRIES: u32 = 3;
const CHECK_RUN_NS: u64 = 60 * SECOND_NS;
/// A fleet that is not usable by then is not waited for.
const CHECKING_NS: u64 = 45 * SECOND_NS;
/// Results are lost if they are in no report this long after the end of the fault.
const RESULTS_NS: u64 = 60 * SECOND_NS;
/// `fleet collect` waits 12 s for what nodes still have.
const COLLECT_S: u64 = 40;

/// What was seen of a trial.
#[derive(Debug, Default)]
pub(crate) struct Observation {
    /// The run reached the phase, and the fault happened there.
    pub(crate) was_hit: bool,
    pub(crate) fault_began_ns: u64,
    pub(crate) fault_ended_ns: u64,
    pub(crate) end: RunEnd,
    /// Of each node: what its port sent or received.
    pub(crate) truth: Vec<FrameCounts>,
    /// Of each sender: when its last frame left while the fault lasted. What was killed for good lasts until the end.
    pub(crate) last_frame_ns: Vec<Option<u64>>,
    /// Of each sender: frames that had left shortly after the fault began.
    pub(crate) sent_at_fault: Vec<u64>,
    /// The run's report when everything was collected, and how many there are of it.
    pub(crate) final_report: Option<Value>,
    pub(crate) reports: usize,
    /// Reports of its starts that were split: the frames of these are not in the run's report.
    pub(crate) split_starts: Vec<Value>,
    /// Segments that wait at each node in the end.
    pub(crate) waiting: Vec<usize>,
    /// What the last `fleet collect` said, if one was needed.
    pub(crate) collected: String,
    /// When the first frame of the first check that passed left, after the fault's and the run's end.
    pub(crate) usable_after_ns: Option<u64>,
    /// What the check that passed said, and when.
    pub(crate) check_timeline: Vec<String>,
    /// Why earlier checks did not pass.
    pub(crate) refusals: Vec<String>,
    /// What machines said last that joined in a burst and were not let in.
    pub(crate) not_joined: Vec<String>,
    /// What went wrong with `serve --on-fleet` beside the run.
    pub(crate) served: Option<String>,
    /// What a second controller's run came to.
    pub(crate) second: Option<RunEnd>,
    /// Counts could not be told apart.
    pub(crate) is_in_doubt: bool,
}

/// Where trials are performed.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) fleet: &'a mut Fleet,
    pub(crate) network: &'a Network,
    pub(crate) witness: &'a TrafficWitness,
}

impl Stage<'_> {
    /// Performs a trial; again if its run ended before the fault, as when a busy machine is too late for its start.
    pub(crate) fn perform_until_hit(&mut self, trial: &Trial, name: &str) -> anyhow::Result<Observation> {
        let mut seen = self.perform(trial, name)?;
        for again in 1..MAX_TRIES {
            if seen.was_hit || seen.usable_after_ns.is_none() {
                break;
            }
            seen = self.perform(trial, &format!("{name}-again-{again}"))?;
        }
        Ok(seen)
    }

    /// Performs a trial. `name` is that of its run in the catalogue.
    fn perform(&mut self, trial: &Trial, name: &str) -> anyhow::Result<Observation> {
        self.witness.mark();
        let request = RunRequest { name, size: TRIAL_SIZE, frames: TRIAL_FRAMES };
        let mut seen = Observation::default();
        let (mut run, mut infliction) = self.start(trial, request)?;
        seen.was_hit = infliction.is_some();
        let deadline_ns = clock::monotonic_ns() + RUN_NS;
        let mut ended_ns = None;
        while clock::monotonic_ns() < deadline_ns {
            if ended_ns.is_none() && run.has_ended() {
                ended_ns = Some(clock::monotonic_ns());
            }
            if let Some(infliction) = &mut infliction {
                infliction.attend(self.fleet, self.network, Some(&mut run), ended_ns.is_some())?;
            }
            let is_over = infliction.as_ref().is_none_or(|infliction| infliction.ended_ns.is_some());
            if is_over && ended_ns.is_some() {
                break;
            }
            pause(2);
        }
        self.network.mend();
        seen.end = run.finish(deadline_ns);
        seen.end.ended_ns = ended_ns.unwrap_or(seen.end.ended_ns);
        // Its counts are of two runs.
        let was_begun_again = seen.end.said.contains("beginning again");
        seen.was_hit &= !was_begun_again;
        if let Some(infliction) = infliction {
            self.note_fault(infliction, deadline_ns, &mut seen)?;
        }
        self.check(name, &mut seen)?;
        self.collect(name, &mut seen)?;
        let is_for_good = matches!(
            trial.fault,
            InjectedFault::Kill(_) | InjectedFault::Reboot(_) | InjectedFault::NumberReused
        );
        let until_ns = if is_for_good { u64::MAX } else { seen.fault_ended_ns };
        self.note_truth(until_ns, &mut seen);
        seen.is_in_doubt |= was_begun_again;
        Ok(seen)
    }

    /// Waits until a new fleet passes a run with all nodes: what does not work before a fault is no finding of it.
    pub(crate) fn warm_up(&self, name: &str) -> anyhow::Result<()> {
        let mut end = RunEnd::default();
        for attempt in 0..WARM_UPS {
            let name = format!("{name}-warm-up-{attempt}");
            let request = RunRequest { name: &name, size: CHECK_SIZE, frames: CHECK_FRAMES };
            end = RunProcess::start(self.fleet, request)?.finish(clock::monotonic_ns() + CHECK_RUN_NS);
            if passed_with_all(&end) {
                return Ok(());
            }
        }
        bail!("a new fleet is not usable: {}", why_not(&end))
    }

    /// Starts the run and the fault, each when its time has come. A run that never comes to the phase meets no fault.
    fn start(
        &mut self,
        trial: &Trial,
        request: RunRequest<'_>,
    ) -> anyhow::Result<(RunProcess, Option<Infliction>)> {
        if trial.phase == RunPhase::Idle {
            let infliction = self.inflict(trial, request.name, None)?;
            return Ok((RunProcess::start(self.fleet, request)?, Some(infliction)));
        }
        let mut run = RunProcess::start(self.fleet, request)?;
        let deadline_ns = clock::monotonic_ns() + RUN_NS;
        let mut is_there = run.await_state(trial.phase.name(), deadline_ns);
        if is_there && trial.phase == RunPhase::Running {
            is_there = self.await_frames(&mut run, trial.after_frames);
        }
        if !is_there {
            return Ok((run, None));
        }
        let infliction = self.inflict(trial, request.name, Some(&mut run))?;
        Ok((run, Some(infliction)))
    }

    fn inflict(
        &mut self,
        trial: &Trial,
        name: &str,
        run: Option<&mut RunProcess>,
    ) -> anyhow::Result<Infliction> {
        Infliction::begin(trial, name, self.fleet, self.network, run)
            .with_context(|| format!("{} {}", trial.phase.name(), trial.fault))
    }

    fn await_frames(&self, run: &mut RunProcess, frames: u64) -> bool {
        while self.witness.counts()[0].of_trial < frames {
            if run.has_ended() {
                return false;
            }
            pause(2);
        }
        true
    }

    fn note_fault(
        &mut self,
        mut infliction: Infliction,
        deadline_ns: u64,
        seen: &mut Observation,
    ) -> anyhow::Result<()> {
        seen.fault_began_ns = infliction.began_ns;
        seen.fault_ended_ns = infliction.ended_ns.unwrap_or(deadline_ns);
        seen.not_joined = std::mem::take(&mut infliction.not_joined);
        if let Some(served) = infliction.served.take() {
            seen.served = served.finish().err().map(|error| format!("{error:#}"));
            // It had nodes until now.
            seen.fault_ended_ns = clock::monotonic_ns();
        }
        let second_deadline_ns = clock::monotonic_ns() + CHECK_RUN_NS;
        seen.second = infliction.second_run.take().map(|run| run.finish(second_deadline_ns));
        // What neither a supervisor nor a service manager would have left dead.
        for node in 0..NODES {
            self.fleet.revive(node)?;
        }
        Ok(())
    }

    /// Runs over all nodes until one passes.
    fn check(&mut self, name: &str, seen: &mut Observation) -> anyhow::Result<()> {
        let second_ended_ns = seen.second.as_ref().map_or(0, |second| second.ended_ns);
        let since_ns = seen.fault_ended_ns.max(seen.end.ended_ns).max(second_ended_ns);
        let began_ns = clock::monotonic_ns();
        for attempt in 0.. {
            let check = format!("{name}-check-{attempt}");
            let request = RunRequest { name: &check, size: CHECK_SIZE, frames: CHECK_FRAMES };
            let run = RunProcess::start(self.fleet, request)?;
            let started_ns = run.started_ns;
            let end = run.finish(clock::monotonic_ns() + CHECK_RUN_NS);
            if passed_with_all(&end) {
                let first_ns = self.witness.first_of_check_ns(started_ns);
                seen.check_timeline = end.timeline;
                seen.usable_after_ns = first_ns.map(|first_ns| first_ns.saturating_sub(since_ns));
                return Ok(());
            }
            seen.refusals.push(why_not(&end));
            if clock::monotonic_ns() - began_ns > CHECKING_NS {
                return Ok(());
            }
            pause(100);
        }
        Ok(())
    }

    /// Has everything collected that nodes still have, until the report is whole or time is up.
    fn collect(&self, name: &str, seen: &mut Observation) -> anyhow::Result<()> {
        let deadline_ns = seen.fault_ended_ns.max(seen.end.ended_ns) + RESULTS_NS;
        let mut is_collected = false;
        loop {
            let (reports, split_starts) = self.reports_called(name)?;
            seen.split_starts = split_starts;
            seen.reports = reports.len();
            seen.final_report = reports.into_iter().next();
            seen.waiting = (0..NODES).map(|node| self.fleet.waiting_at(node)).collect();
            let is_whole = seen.final_report.as_ref().is_some_and(is_whole);
            // Nothing waits anywhere, and somebody has looked for it: it will not become more.
            let is_final = is_collected && seen.waiting.iter().all(|segments| *segments == 0);
            if is_whole || is_final || clock::monotonic_ns() > deadline_ns {
                return Ok(());
            }
            // It may be refused as long as the fleet is not usable, which is judged elsewhere.
            match self.fleet.ask(&["fleet", "collect", "--quiet"], COLLECT_S) {
                Ok(output) => {
                    is_collected |= output.status.success();
                    String::from_utf8_lossy(&[output.stdout, output.stderr].concat())
                        .trim()
                        .clone_into(&mut seen.collected);
                }
                Err(error) => seen.collected = error.to_string(),
            }
            pause(200);
        }
    }

    /// Reports of runs of this name in the catalogue, and those of their starts that were split and begun again as runs of their own.
    fn reports_called(&self, name: &str) -> anyhow::Result<(Vec<Value>, Vec<Value>)> {
        let listed = self.fleet.ask(&["report", "list", "--json"], 20)?;
        let rows: Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        let of_name = rows.as_array().into_iter().flatten().filter(|row| row["name"] == name);
        let ids: Vec<String> = of_name.filter_map(|row| Some(row["run"].as_str()?.to_owned())).collect();
        let mut reports = Vec::new();
        for id in ids {
            let shown = self.fleet.ask(&["report", "show", &id, "--json"], 20)?;
            reports.extend(serde_json::from_slice::<Value>(&shown.stdout));
        }
        if reports.len() < 2 {
            return Ok((reports, Vec::new()));
        }
        let is_split = |report: &Value| report["outcome"].to_string().contains("(split_start)");
        Ok(reports.into_iter().partition(|report| !is_split(report)))
    }

    fn note_truth(&self, until_ns: u64, seen: &mut Observation) {
        seen.truth = self.witness.counts();
        let (senders, receivers) = seen.truth.split_at(SENDERS);
        // A cable loses nothing: other sums mean that something else was on the test network.
        seen.is_in_doubt = self.witness.is_in_doubt() || of_trial(senders) != of_trial(receivers);
        let from_ns = seen.fault_began_ns;
        seen.last_frame_ns =
            (0..SENDERS).map(|node| self.witness.last_of_trial_ns(node, from_ns, until_ns)).collect();
        let shortly_after_ns = seen.fault_began_ns + SECOND_NS / 20;
        seen.sent_at_fault =
            (0..SENDERS).map(|node| self.witness.of_trial_by(node, shortly_after_ns)).collect();
    }
}

/// Frames of the trial, of several nodes together.
fn of_trial(counts: &[FrameCounts]) -> u64 {
    counts.iter().map(|counts| counts.of_trial).sum()
}

fn is_whole(report: &Value) -> bool {
    let coverage = &report["coverage"];
    coverage["expected"] == NODES && coverage["reported"] == coverage["expected"]
}

fn passed_with_all(end: &RunEnd) -> bool {
    let report = end.report.as_ref();
    end.code == Some(0)
        && report.is_some_and(|report| is_whole(report) && report["verdict"]["verdict"] == "PASS")
}

/// In a line: the reasons of a report, or the last remarks.
pub(crate) fn why_not(end: &RunEnd) -> String {
    let reasons = end.report.as_ref().map(reasons_of).filter(|words| !words.is_empty());
    reasons.unwrap_or_else(|| last_remarks(&end.said))
}

/// The lines since the last word about the state of the run or its ports: an error may have several.
fn last_remarks(said: &str) -> String {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let begin = lines
        .iter()
        .rposition(|line| line.starts_with("run: ") || line.starts_with("port "))
        .map_or(0, |last| last + 1);
    lines[begin..].join(" / ")
}

fn reasons_of(report: &Value) -> String {
    let reasons = [&report["outcome"]["reasons"], &report["verdict"]["reasons"]];
    let words = reasons.into_iter().filter_map(Value::as_array).flatten().filter_map(Value::as_str);
    words.collect::<Vec<_>>().join("; ")
}
