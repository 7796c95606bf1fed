//! Executes runs on one machine, and defines the interface of executors.

use crate::agent::serve_agent;
use crate::control::{ControlledRun, LocalRunEvent, RunEventCallback, RunServices, RunUser, control_run};
use crate::error::Error;
use crate::event_queue::with_event_thread;
use crate::open_run::OpenRun;
use crate::plane::{EnginePlaneSource, PlaneSource};
use packetrig_fleet::agent::AgentMachine;
use packetrig_fleet::controller::{ControllerEvent, ControllerMachine, RunLimits};
use packetrig_fleet::fabric::Fabric;
use packetrig_fleet::local::LocalFabric;
use packetrig_fleet::message::{MessageHead, RunPreparation};
use packetrig_plan::{Plan, PlanDocument, PlanParseOptions};
use packetrig_report::event::RunEvent;
use packetrig_report::outcome::RunOutcome;
use packetrig_report::{
    AcceptanceCriteria, NodeName, PlanHash, RunFacts, RunId, RunReport, RunTimes, assemble_report,
};
use packetrig_stats::terms::SharedRunOptions;
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, ScopedJoinHandle, scope};

/// Longest wait for a message. A stop request of the user is noticed within this time.
const MAX_MESSAGE_WAIT: Nanos = Nanos::from_millis(20);
/// Time for which the agent continues while its controller is silent. In one process, silence means that the
/// controller's thread gets no processor; a controller that ends stops the agent at once.
const SILENCE_TIMEOUT: Nanos = Nanos::from_secs(600);

/// Options of a run that are not part of its plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunOptions {
    pub run: RunId,
    /// Name that the user has given.
    pub name: String,
    /// Wall-clock time at which the run begins, in nanoseconds since 1970 (UTC).
    pub started_wall_ns: u64,
    #[serde(flatten)]
    pub terms: SharedRunOptions,
    /// Locations of ports that the user confirmed for test traffic, for the lab guard (RFC 6815).
    pub confirmed: Vec<String>,
    pub capture_dir: Option<PathBuf>,
    /// Time from the last sender's end until receivers stop.
    pub drain: Nanos,
    /// Criteria for the verdict.
    pub criteria: AcceptanceCriteria,
}

/// Runs `document` on this machine's interfaces; see [`run_document`].
pub fn run_local(
    document: &str,
    options: RunOptions,
    stop: &dyn Fn() -> bool,
    on_event: RunEventCallback<'_>,
) -> Result<RunReport, Error> {
    run_document(&mut LocalExecutor(EnginePlaneSource::default()), document, options, (stop, on_event))
}

/// Runs `document` on this machine or on a fleet. `stop` is called about every 20 ms and returns whether the user wants
/// the run to end. `on_event` gets the events on its own thread; if it is slow, samples of counts may be left out. A
/// stopped or partial run also returns a report; an error means that the run never started.
pub fn run_document(
    executor: &mut dyn RunExecutor,
    document: &str,
    options: RunOptions,
    (stop, on_event): (&dyn Fn() -> bool, RunEventCallback<'_>),
) -> Result<RunReport, Error> {
    run_document_to_end(executor, document, options, (stop, on_event)).map(|(report, _)| report)
}

/// Runs `document`, as [`run_document`] does. Also returns the state for completing the report later, if results are
/// missing that may still arrive.
pub fn run_document_to_end(
    executor: &mut dyn RunExecutor,
    document: &str,
    options: RunOptions,
    (stop, on_event): (&dyn Fn() -> bool, RunEventCallback<'_>),
) -> Result<(RunReport, Option<OpenRun>), Error> {
    let document = PlanDocument::read_text(document, executor.plan_parse_options(options.terms.seed))?;
    let mut stopped = false;
    let ended = with_event_thread(on_event, |events| {
        let mut requests = || {
            events.panic_if_reader_panicked();
            // The controller accepts only one stop, but the user's signal stays set.
            let request = !stopped && stop();
            stopped |= request;
            request.then_some(ControllerEvent::Stop)
        };
        let on_event = &mut |event: &RunEvent| events.push_event(event);
        executor.execute_run(
            &document,
            options,
            RunUser { requests: &mut requests, turn: MAX_MESSAGE_WAIT, on_event },
        )
    })??;
    let open = OpenRun::from_ended(&ended);
    Ok((ended.into_report(document.plan())?, open))
}

/// Executes runs: on this machine, or on a fleet.
pub trait RunExecutor: Send {
    /// Returns the options for reading the plan of a run with this seed.
    fn plan_parse_options(&self, seed: u64) -> PlanParseOptions;
    /// Runs `document` to its end.
    fn execute_run(
        &mut self,
        document: &PlanDocument,
        options: RunOptions,
        user: RunUser<'_>,
    ) -> Result<EndedRun, Error>;
}

/// Executes runs on this machine. `P` provides the data plane.
#[derive(Clone, Debug, Default)]
pub struct LocalExecutor<P = EnginePlaneSource>(pub P);

/// A run that is over.
#[derive(Debug)]
pub struct EndedRun {
    pub(crate) controller: ControllerMachine,
    pub(crate) times: RunTimes,
    pub(crate) failure: Option<packetrig_engine::Error>,
    pub(crate) facts: RunFacts,
}

/// Builds the facts about a run of `document` on `nodes` that are known before it begins.
pub(crate) fn build_run_facts(document: &str, options: &RunOptions, nodes: Vec<NodeName>) -> RunFacts {
    RunFacts {
        run: options.run.clone(),
        name: options.name.clone(),
        plan: PlanHash::from_document(document),
        started_wall_ns: options.started_wall_ns,
        seed: options.terms.seed,
        nodes,
        places: Vec::new(),
        criteria: options.criteria.clone(),
        limits: options.terms.limits.clone(),
        steered: options.terms.steered,
    }
}

impl<P: PlaneSource + Send> RunExecutor for LocalExecutor<P> {
    fn plan_parse_options(&self, seed: u64) -> PlanParseOptions {
        PlanParseOptions { seed, ..PlanParseOptions::default() }
    }

    fn execute_run(
        &mut self,
        document: &PlanDocument,
        options: RunOptions,
        user: RunUser<'_>,
    ) -> Result<EndedRun, Error> {
        let planes = &mut self.0;
        let node = NodeName::local();
        let facts = build_run_facts(document.text(), &options, vec![node.clone()]);
        let head = MessageHead { run: options.run.clone(), attempt: 1, epoch: 1, plan: facts.plan.clone() };
        let limits = RunLimits::for_local(options.drain);
        let machine = ControllerMachine::new(
            head,
            build_run_preparation(document, options),
            std::slice::from_ref(&node),
            limits,
        );
        let fabric = LocalFabric::default();
        let mut endpoint = fabric.open_endpoint(NodeName::controller())?;
        let agents = fabric.open_endpoint(node.clone())?;
        // Agent and controller are two threads with a fabric between them, as on two machines, so the lifecycle of a
        // run is the same.
        let over = AtomicBool::new(false);
        scope(|scope| {
            // Also stops the agent on an early return: otherwise the scope would wait for the agent for ever.
            let _leave = SetFlagOnDrop(&over);
            let agent = Builder::new()
                .name("agent".to_owned())
                .spawn_scoped(scope, || {
                    serve_agent(agents, planes, AgentMachine::new_local(SILENCE_TIMEOUT), &over)
                })
                .map_err(Error::Thread)?;
            // An agent that has ended does not answer any more; its handle shows that at once.
            let mut services = AgentThread(agent);
            let ended = control_run(machine, &mut endpoint, &mut services, user);
            // The agent's thread is ended and joined in any case, also after a failure of the control loop.
            over.store(true, Ordering::Release);
            let failure = services.0.join().map_err(|_| Error::AgentDied(node.clone()))?;
            let ControlledRun { controller, times } = ended?;
            Ok(EndedRun { controller, times, failure, facts })
        })
    }
}

/// Makes the agent end before it is joined, however the scope is left.
struct SetFlagOnDrop<'a>(&'a AtomicBool);

impl Drop for SetFlagOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

pub(crate) fn build_run_preparation(document: &PlanDocument, options: RunOptions) -> RunPreparation {
    RunPreparation {
        document: document.clone().into(),
        part_of: None,
        terms: options.terms,
        run: options.run.0.clone(),
        confirmed: options.confirmed,
        capture_dir: options.capture_dir.map(|dir| dir.to_string_lossy().into_owned()),
        places: Vec::new(),
        say_every: Nanos::ZERO,
        renew_every: None,
        keep_ports_ns: Nanos::ZERO,
        clock: None,
    }
}

/// The thread of the only agent of a run on one machine. Reports an error if the thread has ended.
struct AgentThread<'scope, T>(ScopedJoinHandle<'scope, T>);

impl<T> RunServices for AgentThread<'_, T> {
    fn next_local_event(&mut self) -> Result<Option<LocalRunEvent>, Error> {
        if self.0.is_finished() { Err(Error::AgentDied(NodeName::local())) } else { Ok(None) }
    }
}

impl EndedRun {
    /// Returns the state for completing the report later, if results are missing.
    pub fn open_run(&self) -> Option<OpenRun> {
        OpenRun::from_ended(self)
    }

    /// Builds the report from the plan of the run. Fails if the run never started.
    pub fn into_report(self, plan: &Plan) -> Result<RunReport, Error> {
        let outcome = self.controller.outcome().cloned().unwrap_or(RunOutcome::Aborted);
        // The engine's own error says more than the text of it that the controller received.
        if let RunOutcome::Failed { fault } = outcome {
            return Err(self.failure.map_or(Error::Failed { fault }, Error::Engine));
        }
        let report = assemble_report(&self.facts, plan, self.controller.into_results(), outcome);
        Ok(RunReport { times: Some(self.times), ..report })
    }
}
