//! Runs the trials that a method requests. Each trial is a separate run, like those of `packetrig run`.

use super::hook::{EventCommandThread, ShellCommands};
use super::watch::TestWatcher;
use crate::commands::execution::TrialFleet;
use crate::commands::run_viewer::RunViewer;
use crate::error::Error;
use crate::identity;
use crate::output::print_remark;
use packetrig_fleet_io::trial::trial_result;
use packetrig_fleet_io::{LocalExecutor, RunEventCallback, RunOptions, run_document};
use packetrig_method::{LoadedSender, TrialLength, TrialRequest, TrialResult, TrialWaits};
use packetrig_plan::trial::{TrialAmount, TrialShape, TrialTraffic};
use packetrig_plan::{Plan, PlanParseOptions};
use packetrig_report::event::{RunEvent, RunEventKind};
use packetrig_report::outcome::RunState;
use packetrig_report::{AcceptanceCriteria, CarrierLossCause, RunId, RunReport};
use packetrig_stats::limit::RigLimit;
use packetrig_stats::port::{BackEnd, PortInfo};
use packetrig_stats::terms::SharedRunOptions;
use packetrig_sys::clock;
use packetrig_units::{Blame, Nanos};
use std::thread;

/// Largest number of attempts to start a trial on a fleet.
const MAX_START_ATTEMPTS: u32 = 3;
/// Interval between two checks for a stop while a trial waits.
const STOP_CHECK_INTERVAL: Nanos = Nanos::from_millis(20);

/// Executor of the trials: this machine or a fleet.
pub(super) enum TrialExecutor {
    Here(Box<LocalExecutor>),
    Fleet(Box<TrialFleet>),
}

/// Runs all trials of a method, and has the options that the trials share.
pub(super) struct TrialRunner {
    pub(super) executor: TrialExecutor,
    /// The traffic of each compared device. Other methods than the comparison have one entry.
    pub(super) traffic: Vec<TrialTraffic>,
    pub(super) confirmed: Vec<String>,
    pub(super) back_end: Option<BackEnd>,
    pub(super) limits: Vec<RigLimit>,
    pub(super) commands: ShellCommands,
    /// The ports of the last trial.
    pub(super) ports: Vec<PortInfo>,
}

impl TrialRunner {
    /// Returns the sending ports of the first device, each with its share of every load.
    pub(super) fn loaded_senders(&self) -> Vec<LoadedSender> {
        let senders = self.traffic.first().map(TrialTraffic::senders).unwrap_or_default();
        senders.iter().map(|own| LoadedSender { name: own.name.clone(), share: own.share }).collect()
    }

    /// Runs a trial. Returns `None` if the trial was stopped: a stopped trial has no result.
    pub(super) fn run_requested_trial(
        &mut self,
        order: &TrialRequest,
        waits: &TrialWaits,
        watcher: &dyn TestWatcher,
    ) -> Result<Option<TrialResult>, Error> {
        let stop: &dyn Fn() -> bool = &|| watcher.is_stopped();
        self.commands.prepare_device(order.device)?;
        // The clock starts after the user's command, so that the command's time does not count as overhead of the rig.
        let begun = clock::monotonic_ns();
        if !wait_unless_stopped(waits.before_ns, stop) {
            return Ok(None);
        }
        let shape = trial_shape(order);
        // A client of the API may give one plan for both devices.
        let traffic = self.traffic.get(usize::from(order.device)).or_else(|| self.traffic.first());
        let document = traffic.map(|traffic| traffic.trial_document(&shape)).unwrap_or_default();
        let hook = order.event.and_then(|event| self.commands.start_event_command_thread(event.at));
        let options = self.run_options(waits.late_frames_ns, order);
        let ran = self.run_trial(&document, options, hook.as_ref(), watcher);
        // The event is undone before `ran?` and the returns below: the device must not stay changed.
        let event = hook.map(|hook| self.commands.end_event(hook)).transpose()?.flatten();
        let report = ran?;
        if stop() || !wait_unless_stopped(waits.settle_ns, stop) {
            return Ok(None);
        }
        let took = Nanos::new(clock::monotonic_ns() - begun);
        // Each trial chooses the back ends of its ports anew; the result of the test shows those of the last trial.
        self.ports = report.ports.iter().map(|port| port.info.clone()).collect();
        let own = waits.before_ns + waits.settle_ns + sending_and_drain_time(&report);
        Ok(Some(TrialResult {
            overhead: took.saturating_sub(own),
            event_at: event.map(|event| event.begun),
            event_ended_at: event.map(|event| event.ended),
            ..trial_result(order, &report)
        }))
    }

    fn run_trial(
        &mut self,
        document: &str,
        options: RunOptions,
        hook: Option<&EventCommandThread>,
        watcher: &dyn TestWatcher,
    ) -> Result<RunReport, Error> {
        let viewer = watcher.run_viewer();
        self.show_plan(document, viewer);
        let stop: &dyn Fn() -> bool = &|| watcher.is_stopped();
        let mut on_event = |event: &RunEvent| {
            if let Some(viewer) = viewer {
                viewer.add_event(event);
            }
            if let (Some(hook), RunEventKind::StartSet { at }) = (hook, &event.kind) {
                hook.set_start_time(*at);
            }
        };
        let user: (&dyn Fn() -> bool, RunEventCallback<'_>) = (stop, &mut on_event);
        let ran = match &mut self.executor {
            TrialExecutor::Here(ground) => {
                run_document(ground.as_mut(), document, options, user).map_err(Error::from)
            }
            // The trial is not repeated: the event may have happened, and a repetition would change the device twice.
            TrialExecutor::Fleet(fleet) if hook.is_some() => fleet.run_trial(document, options, user),
            TrialExecutor::Fleet(fleet) => run_until_started(fleet, document, options, user),
        };
        ran.map_err(without_line_numbers)
    }

    /// Shows the plan of a trial to viewers.
    fn show_plan(&self, document: &str, viewer: Option<&RunViewer>) {
        let fleet = matches!(self.executor, TrialExecutor::Fleet(_));
        // A plan that cannot be read is not reported here: it makes the trial fail, and the trial reports it.
        if let Some(viewer) = viewer.filter(|viewer| viewer.address().is_some())
            && let Ok(plan) =
                Plan::from_text_with(document, PlanParseOptions { fleet, ..PlanParseOptions::default() })
        {
            viewer.switch_to_plan(&plan);
        }
    }

    fn run_options(&self, drain: Nanos, order: &TrialRequest) -> RunOptions {
        // The event of a trial may take the link of a port of the rig down: the trial measures that.
        let is_expected = order.event.is_some();
        let carrier_loss = if is_expected { CarrierLossCause::Device } else { CarrierLossCause::Unknown };
        let started = clock::wall_clock_ns();
        RunOptions {
            run: RunId(identity::run_id(started, identity::random_number())),
            name: "trial".into(),
            started_wall_ns: started,
            terms: SharedRunOptions {
                tag_key: identity::random_number(),
                seed: 1,
                back_end: self.back_end,
                limits: self.limits.clone(),
                ..SharedRunOptions::default()
            },
            confirmed: self.confirmed.clone(),
            capture_dir: None,
            drain,
            // The run has no criteria, because the method judges the trials.
            criteria: AcceptanceCriteria { carrier_loss, ..AcceptanceCriteria::default() },
        }
    }
}

/// Removes line and column numbers from the problems of a plan: packetrig has written a trial's document, not the user.
fn without_line_numbers(error: Error) -> Error {
    use packetrig_fleet_io::Error as RunError;
    match error {
        Error::Run(RunError::Plan(problems)) => Error::Run(RunError::Plan(problems.without_line_numbers())),
        Error::Run(RunError::NotPlaced(problems)) => {
            Error::Run(RunError::NotPlaced(problems.without_line_numbers()))
        }
        other => other,
    }
}

/// Runs a trial on a fleet. On a busy machine a start may come too late for a node. This says nothing about the
/// device, so the trial begins again, at most [`MAX_START_ATTEMPTS`] times in all.
fn run_until_started(
    fleet: &mut TrialFleet,
    document: &str,
    mut options: RunOptions,
    (stop, on_event): (&dyn Fn() -> bool, RunEventCallback<'_>),
) -> Result<RunReport, Error> {
    for _ in 1..MAX_START_ATTEMPTS {
        match fleet.run_trial(document, options.clone(), (stop, &mut *on_event)) {
            Err(Error::Run(packetrig_fleet_io::Error::Failed { fault })) if fault.blame == Blame::Peer => {
                print_remark(format_args!("  the trial did not start and is repeated: {}", fault.text));
                // The next attempt gets a new id: the run that did not start may be in the catalogue already.
                options.run = RunId(identity::run_id(clock::wall_clock_ns(), identity::random_number()));
            }
            ran => return ran,
        }
    }
    fleet.run_trial(document, options, (stop, on_event))
}

pub(super) fn trial_shape(order: &TrialRequest) -> TrialShape {
    TrialShape {
        size: order.size,
        frames_per_second: order.load.frames_per_second(),
        length: match order.length {
            TrialLength::Time(time) => TrialAmount::Time(time),
            TrialLength::Frames(frames) => TrialAmount::Frames(frames),
        },
        then: order.then.map(|step| (step.load.frames_per_second(), step.time)),
    }
}

/// Returns the time of a run that is no overhead: sending, and waiting for late frames.
fn sending_and_drain_time(report: &RunReport) -> Nanos {
    let sending = report.sending.unwrap_or(Nanos::ZERO);
    let Some(times) = &report.times else { return sending };
    let at = |state: RunState| times.states.iter().find(|entry| entry.state == state).map(|entry| entry.at);
    match (at(RunState::Draining), at(RunState::Collecting)) {
        (Some(from), Some(until)) => sending + until.saturating_sub(from),
        _ => sending,
    }
}

/// Waits; returns false at once if the test has to stop.
fn wait_unless_stopped(time: Nanos, stop: &dyn Fn() -> bool) -> bool {
    let end = clock::monotonic_ns() + time.as_u64();
    loop {
        if stop() {
            return false;
        }
        let left = end.saturating_sub(clock::monotonic_ns());
        if left == 0 {
            return true;
        }
        thread::sleep(Nanos::new(left.min(STOP_CHECK_INTERVAL.as_u64())).to_std());
    }
}
