//! A steered run in a thread of its own: opened, changed as the user says, and closed with its report.
//!
//! Invariant: the thread is joined when the session is closed or dropped, and the ports are closed then.

use crate::control::RunUser;
use crate::error::{Error, best_effort};
use crate::local::{EndedRun, RunGround, RunOptions};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use packetrig_fleet::controller::ControllerEvent;
use packetrig_fleet::event::{RunEvent, RunEventKind};
use packetrig_fleet::outcome::{NodeFault, RunState};
use packetrig_fleet::report::RunReport;
use packetrig_plan::{Plan, PlanChange, ReadOptions};
use packetrig_units::Blame;
use packetrig_units::Nanos;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Longest time until a wish is taken up.
const TURN: Nanos = Nanos::from_millis(2);

enum SessionWish {
    /// A change; the sender gets the answer when it is done.
    Steer(PlanChange, Sender<Result<(), NodeFault>>),
    Close,
}

pub struct RunSession {
    wishes: Sender<SessionWish>,
    thread: Option<JoinHandle<Result<RunReport, Error>>>,
}

impl std::fmt::Debug for RunSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunSession").finish_non_exhaustive()
    }
}

/// A ground that several sessions take place on, one after the other.
#[derive(Debug)]
pub struct SharedGround<G>(pub Arc<Mutex<G>>);

impl<G: RunGround> RunGround for SharedGround<G> {
    fn reading(&self, seed: u64) -> ReadOptions {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).reading(seed)
    }

    fn execute(
        &mut self,
        document: &str,
        plan: &Plan,
        options: RunOptions,
        user: RunUser<'_>,
    ) -> Result<EndedRun, Error> {
        // A panic in another session poisons the lock; that run is over all the same.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).execute(document, plan, options, user)
    }
}

impl RunSession {
    /// Opens the ports of `document`, which means `plan`, and begins to receive. Returns when streams can be started, or with the reason why
    /// they cannot. `on_event` sees everything that happens, on the session's thread.
    pub fn open(
        mut ground: impl RunGround + 'static,
        document: String,
        plan: Plan,
        options: RunOptions,
        mut on_event: impl FnMut(&RunEvent) + Send + 'static,
    ) -> Result<Self, Error> {
        let options = RunOptions { steered: true, ..options };
        let (wishes, inbox) = unbounded();
        let (ready, is_ready) = bounded(1);
        let started = Builder::new().name("session".to_owned()).spawn(move || {
            let reading = ground.reading(options.seed);
            let requests = SessionRequests::new(plan, reading, inbox);
            requests.serve(&mut ground, &document, options, &mut |event| {
                on_event(event);
                // Only the first one is waited for; the channel has room for it.
                if event.kind == RunEventKind::StateChanged(RunState::Running) {
                    best_effort(ready.try_send(()));
                }
            })
        });
        let mut session = Self { wishes, thread: Some(started.map_err(Error::Thread)?) };
        match is_ready.recv() {
            Ok(()) => Ok(session),
            // The run ended before it started; its own error says why.
            Err(_) => Err(session.join().err().unwrap_or(Error::NeverRan)),
        }
    }

    /// Changes something; returns when it is done, or could not be and nothing was changed.
    pub fn steer(&self, steer: PlanChange) -> Result<(), NodeFault> {
        let (reply, answer) = bounded(1);
        self.wishes.send(SessionWish::Steer(steer, reply)).map_err(|_| run_has_ended())?;
        answer.recv().map_err(|_| run_has_ended())?
    }

    /// Whether it has ended by itself, because something failed.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops what is sending, lets the path drain, closes the ports.
    pub fn close(mut self) -> Result<RunReport, Error> {
        self.join()
    }

    fn join(&mut self) -> Result<RunReport, Error> {
        // A thread that has ended needs no message.
        best_effort(self.wishes.send(SessionWish::Close));
        let thread = self.thread.take().ok_or(Error::NeverRan)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for RunSession {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            best_effort(self.wishes.send(SessionWish::Close));
            // A session that is dropped without `close` has no use for its report.
            drop(thread.join());
        }
    }
}

fn run_has_ended() -> NodeFault {
    NodeFault { blame: Blame::World, text: "the run has ended".to_owned() }
}

/// A change that is being made: the document that the plan grows by, and the channel for the answer.
type PendingChange = (Option<String>, Sender<Result<(), NodeFault>>);

/// Passes wishes from the session's user to the run's loop, and answers back.
struct SessionRequests {
    plan: RefCell<Plan>,
    reading: ReadOptions,
    inbox: Receiver<SessionWish>,
    /// In the order of the requests, which is the order of the answers: the controller makes one change at a time.
    pending: RefCell<VecDeque<PendingChange>>,
}

impl SessionRequests {
    fn new(plan: Plan, reading: ReadOptions, inbox: Receiver<SessionWish>) -> Self {
        Self { plan: RefCell::new(plan), reading, inbox, pending: RefCell::default() }
    }

    fn serve(
        &self,
        ground: &mut dyn RunGround,
        document: &str,
        options: RunOptions,
        note: &mut dyn FnMut(&RunEvent),
    ) -> Result<RunReport, Error> {
        let user = RunUser {
            wishes: &mut || self.wish(),
            turn: TURN,
            on_event: &mut |event| {
                note(event);
                if let RunEventKind::Steered { outcome, .. } = &event.kind {
                    self.answer(outcome);
                }
            },
        };
        let plan = self.plan.borrow().clone();
        let ended = ground.execute(document, &plan, options, user)?;
        ended.report(&self.plan.borrow())
    }

    fn wish(&self) -> Option<ControllerEvent> {
        match self.inbox.try_recv().ok()? {
            SessionWish::Close => Some(ControllerEvent::Stop),
            SessionWish::Steer(steer, reply) => {
                let document =
                    if let PlanChange::Replan(document) = &steer { Some(document.clone()) } else { None };
                self.pending.borrow_mut().push_back((document, reply));
                Some(ControllerEvent::Steer(steer))
            }
        }
    }

    fn answer(&self, outcome: &Result<(), NodeFault>) {
        let Some((document, reply)) = self.pending.borrow_mut().pop_front() else { return };
        // The plan grows only by changes that were made: the report is about what ran.
        let newer = document.filter(|_| outcome.is_ok());
        let newer = newer.and_then(|text| Plan::read_with(&text, self.reading).ok());
        if let Some(newer) = newer {
            self.plan.borrow_mut().grow(&newer);
        }
        // Whoever asked may have gone away.
        best_effort(reply.send(outcome.clone()));
    }
}
