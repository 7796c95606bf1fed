//! A steered run on this machine, in a thread of its own: opened, changed as the user says, and closed with its report.
//!
//! Invariant: the thread is joined when the session is closed or dropped, and the ports are closed then.

use crate::control::RunUser;
use crate::error::Error;
use crate::local::{EndedRun, RunGround, RunOptions};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use packetrig_fleet::controller::ControllerEvent;
use packetrig_fleet::event::{RunEvent, RunEventKind};
use packetrig_fleet::outcome::{FaultOwner, NodeFault, RunState};
use packetrig_fleet::report::RunReport;
use packetrig_plan::{Plan, PlanChange, ReadOptions};
use packetrig_units::Nanos;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Longest time until a wish is heard.
const TURN: Nanos = Nanos::from_millis(2);

enum SessionWish {
    /// Answered when it is done.
    Steer(PlanChange, Sender<Result<(), NodeFault>>),
    Close,
}

pub struct RunSession {
    wishes: Sender<SessionWish>,
    thread: Option<JoinHandle<Result<RunReport, Error>>>,
}

impl std::fmt::Debug for RunSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
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
        // A session that panicked has left the ground as it is between two runs, or lost it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).execute(document, plan, options, user)
    }
}

impl RunSession {
    /// Opens the ports of `document`, which means `plan`, and begins to receive. Returns when streams can be started, or with the reason why they never
    /// will. `on_event` sees everything that happens, on the session's thread.
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
        let body = move || {
            let mut note = |event: &RunEvent| {
                on_event(event);
                if event.kind == RunEventKind::StateChanged(RunState::Running) {
                    ready.try_send(()).unwrap_or(());
                }
            };
            let reading = ground.reading(options.seed);
            SessionDesk::new(plan, reading, inbox).serve(&mut ground, &document, options, &mut note)
        };
        let thread = Builder::new().name("session".to_owned()).spawn(body).map_err(Error::Thread)?;
        let mut session = Self { wishes, thread: Some(thread) };
        match is_ready.recv() {
            Ok(()) => Ok(session),
            // It ended before it ran: its own error says why.
            Err(_) => Err(session.join().err().unwrap_or(Error::NeverRan)),
        }
    }

    /// Changes something; returns when it is done, or could not be and nothing was changed.
    pub fn steer(&self, steer: PlanChange) -> Result<(), NodeFault> {
        let over = || NodeFault { blame: FaultOwner::World, text: "the run has ended".to_owned() };
        let (reply, answer) = bounded(1);
        self.wishes.send(SessionWish::Steer(steer, reply)).map_err(|_| over())?;
        answer.recv().map_err(|_| over())?
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
        // One that has ended needs not be told.
        self.wishes.send(SessionWish::Close).unwrap_or(());
        let thread = self.thread.take().ok_or(Error::NeverRan)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for RunSession {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.wishes.send(SessionWish::Close).unwrap_or(());
            // Whoever drops a session without closing it does not want its report.
            drop(thread.join());
        }
    }
}

/// A change under way: what it will have done to the plan, and who waits for it.
type PendingChange = (Option<String>, Sender<Result<(), NodeFault>>);

/// Between the session's user and the run's loop.
struct SessionDesk {
    plan: RefCell<Plan>,
    reading: ReadOptions,
    inbox: Receiver<SessionWish>,
    /// In the order in which they were asked for, which is the order of the answers.
    pending: RefCell<VecDeque<PendingChange>>,
}

impl SessionDesk {
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
        let mut on_event = |event: &RunEvent| {
            note(event);
            if let RunEventKind::Steered { outcome, .. } = &event.kind {
                self.answer(outcome);
            }
        };
        let mut wishes = || self.wish();
        let user = RunUser { wishes: &mut wishes, turn: TURN, on_event: &mut on_event };
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
        let newer = document.filter(|_| outcome.is_ok());
        let newer = newer.and_then(|text| Plan::read_with(&text, self.reading).ok());
        if let Some(newer) = newer {
            self.plan.borrow_mut().grow(&newer);
        }
        // Whoever asked may have gone away.
        reply.send(outcome.clone()).unwrap_or(());
    }
}
