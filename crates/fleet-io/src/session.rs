//! A steered run on a separate thread: it is opened, changed as the user requests, and closed with its report.
//!
//! Changes are not queued here. [`SteeredRun::make_change`] needs the session exclusively, so an owner that shares a
//! session between threads decides the order of changes. The console does this with a lock that also covers its
//! configuration. The queue of the controller is for changes that come before the run has begun.
//!
//! Invariants: when the session is closed or dropped, its thread is joined and the ports are closed. The
//! session has the only plan of the run on the controller's side. The plan grows by the changes that were made,
//! and the report uses it.

use crate::control::RunUser;
use crate::error::{Error, ignore_failure};
use crate::local::{EndedRun, RunExecutor, RunOptions};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use packetrig_fleet::controller::ControllerEvent;
use packetrig_fleet::served::SteeredRun;
use packetrig_plan::{GrowingPlan, Plan, PlanChange, PlanDocument, PlanParseOptions};
use packetrig_report::RunReport;
use packetrig_report::event::{RunEvent, RunEventKind};
use packetrig_report::outcome::{NodeFault, RunState};
use packetrig_stats::terms::SharedRunOptions;
use packetrig_units::Blame;
use packetrig_units::Nanos;
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Maximum time until the control loop handles a request.
const MAX_REQUEST_WAIT: Nanos = Nanos::from_millis(2);

/// Channel for the answer to a change.
type ChangeReply = Sender<Result<(), NodeFault>>;

enum SessionRequest {
    Steer(PlanChange, ChangeReply),
    Close,
}

pub struct RunSession {
    requests: Sender<SessionRequest>,
    thread: Option<JoinHandle<Result<EndedRun, Error>>>,
    plan: GrowingPlan,
    keeper: Option<Box<dyn RunKeeper>>,
}

/// Receives the result of a run that is over.
pub(crate) trait RunKeeper: Send {
    /// Called with the result when the run is over. `keep`: the run has sent frames, so its result is stored.
    fn on_run_ended(self: Box<Self>, ended: Result<RunReport, Error>, keep: bool);
}

impl std::fmt::Debug for RunSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunSession").finish_non_exhaustive()
    }
}

/// Executes the runs of several sessions, one after the other.
#[derive(Debug)]
pub struct SharedExecutor<G>(pub Arc<Mutex<G>>);

impl<G: RunExecutor> RunExecutor for SharedExecutor<G> {
    fn plan_parse_options(&self, seed: u64) -> PlanParseOptions {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).plan_parse_options(seed)
    }

    fn execute_run(
        &mut self,
        document: &PlanDocument,
        options: RunOptions,
        user: RunUser<'_>,
    ) -> Result<EndedRun, Error> {
        // A panic in another session poisons the lock, but that run is over, so the executor can be used.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).execute_run(document, options, user)
    }
}

impl RunSession {
    /// Opens the ports of `document` and begins to receive. Returns when streams can be started, or with the reason why
    /// they cannot. `on_event` is called with every event, on the session's thread.
    pub fn open_session(
        mut executor: impl RunExecutor + 'static,
        document: PlanDocument,
        options: RunOptions,
        mut on_event: impl FnMut(&RunEvent) + Send + 'static,
    ) -> Result<Self, Error> {
        let options = RunOptions { terms: SharedRunOptions { steered: true, ..options.terms }, ..options };
        let (requests, inbox) = unbounded();
        let (ready, is_ready) = bounded(1);
        let plan = GrowingPlan::new(Arc::clone(document.plan()));
        let started = Builder::new().name("session".to_owned()).spawn(move || {
            let requests = SessionRequests { inbox, pending: Cell::default() };
            requests.serve_run(&mut executor, &document, options, &mut |event| {
                on_event(event);
                // The caller waits only for the first message; the channel has room for it.
                if event.kind == RunEventKind::StateChanged(RunState::Running) {
                    ignore_failure(ready.try_send(()));
                }
            })
        });
        let mut session =
            Self { requests, thread: Some(started.map_err(Error::Thread)?), plan, keeper: None };
        // The thread drops its end of the channel when the run is over, so this wait ends in any case.
        match is_ready.recv() {
            Ok(()) => Ok(session),
            // The run ended before it started; its own error gives the reason.
            Err(_) => Err(session.close_and_join_thread().err().unwrap_or(Error::NeverRan)),
        }
    }

    /// Sets the keeper, which gets the result of the run when the run is closed as a [`SteeredRun`].
    pub(crate) fn with_keeper(mut self, keeper: Box<dyn RunKeeper>) -> Self {
        self.keeper = Some(keeper);
        self
    }

    fn request_change(&self, change: PlanChange) -> Result<(), NodeFault> {
        let (reply, answer) = bounded(1);
        self.requests.send(SessionRequest::Steer(change, reply)).map_err(|_| run_ended_fault())?;
        answer.recv().map_err(|_| run_ended_fault())?
    }

    /// Returns whether the run has ended by itself, because of a failure.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the streams, waits for the frames in flight, closes the ports, and returns the report.
    pub fn end_run(mut self) -> Result<RunReport, Error> {
        self.close_and_join_thread()
    }

    fn close_and_join_thread(&mut self) -> Result<RunReport, Error> {
        // If the thread has already ended, it needs no message.
        ignore_failure(self.requests.send(SessionRequest::Close));
        let thread = self.thread.take().ok_or(Error::NeverRan)?;
        let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        ended.into_report(self.plan.current())
    }
}

impl SteeredRun for RunSession {
    fn make_change(&mut self, change: PlanChange<PlanDocument>) -> Result<(), NodeFault> {
        if let PlanChange::Replan(document) = &change {
            self.plan.propose_plan(document.plan());
        }
        let outcome = self.request_change(change.into());
        if outcome.is_ok() {
            self.plan.accept_proposal();
        }
        // The proposal is dropped after a failure, too: the next change is compared with the plan that the run
        // really has.
        self.plan.drop_proposal();
        outcome
    }

    fn plan(&self) -> Arc<Plan> {
        Arc::clone(self.plan.current())
    }

    fn close_run(mut self: Box<Self>, keep: bool) {
        let ended = self.close_and_join_thread();
        if let Some(keeper) = self.keeper.take() {
            keeper.on_run_ended(ended, keep);
        }
    }
}

impl Drop for RunSession {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            ignore_failure(self.requests.send(SessionRequest::Close));
            // The report of a session that is dropped without `close_run` is not needed.
            drop(thread.join());
        }
    }
}

fn run_ended_fault() -> NodeFault {
    NodeFault { blame: Blame::World, text: "the run has ended".to_owned() }
}

/// Passes requests from the session's user to the run's loop, and answers back.
struct SessionRequests {
    inbox: Receiver<SessionRequest>,
    /// Channel for the answer to the change that is being made.
    pending: Cell<Option<ChangeReply>>,
}

impl SessionRequests {
    fn serve_run(
        &self,
        executor: &mut dyn RunExecutor,
        document: &PlanDocument,
        options: RunOptions,
        note: &mut dyn FnMut(&RunEvent),
    ) -> Result<EndedRun, Error> {
        let user = RunUser {
            requests: &mut || self.next_request(),
            turn: MAX_REQUEST_WAIT,
            on_event: &mut |event| {
                note(event);
                if let RunEventKind::Steered { outcome, .. } = &event.kind {
                    self.answer_change(outcome);
                }
            },
        };
        executor.execute_run(document, options, user)
    }

    fn next_request(&self) -> Option<ControllerEvent> {
        match self.inbox.try_recv().ok()? {
            SessionRequest::Close => Some(ControllerEvent::Stop),
            SessionRequest::Steer(change, reply) => {
                // One slot is enough: a change needs the session exclusively until its answer has arrived.
                self.pending.set(Some(reply));
                Some(ControllerEvent::Steer(change))
            }
        }
    }

    fn answer_change(&self, outcome: &Result<(), NodeFault>) {
        if let Some(reply) = self.pending.take() {
            // The caller may have gone away.
            ignore_failure(reply.send(outcome.clone()));
        }
    }
}
