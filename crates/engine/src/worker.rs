//! Worker threads: one owns each half of a port and does nothing else.
//!
//! Orders come in through a channel that is read between steps; counts go out ten times a second through a mutex that is
//! never held for longer than a copy takes. An error or a panic ends the worker and is found at the next check.
//!
//! Invariant: a worker is always joined; dropping its handle tells it to quit and waits.

use crate::Error;
use crate::port::WorkerClock;
use crate::stream::{
    ClockShift, NextStep, SteeredReceiver, SteeredSender, StreamControl, StreamRx, StreamTx,
};
use crossbeam_channel::{Receiver, SendError, Sender, TryRecvError};
use packetrig_stats::counts::DelaySummary;
use packetrig_stats::counts::{StreamRxCounts, StreamTxCounts};
use packetrig_stats::port::{RxCounters, TxCounters};
use packetrig_sys::sched;
use packetrig_units::{MonoTime, Nanos};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Longest sleep between two looks at the orders.
const ATTENTION: Nanos = Nanos::from_millis(5);
/// Waiting for orders ends this long before the next frame is due: the kernel may wake us late.
const NEAR: Nanos = Nanos::from_millis(1);
/// How often counts are published: at every multiple of this on the clock, so that all workers do at nearly one instant.
const PUBLISH: Nanos = Nanos::from_millis(100);
/// Publications that are kept.
const KEPT: usize = 4;

/// Something to be done by a worker between two steps; gives the answer, to be sent when its effect is published.
type WorkerRequest<W> = Box<dyn FnOnce(&mut W) -> Box<dyn FnOnce()> + Send>;

enum WorkerOrder<W> {
    Control(StreamControl),
    Ask(WorkerRequest<W>),
    Quit,
}

#[derive(Debug)]
struct WorkerState<S> {
    done: AtomicBool,
    /// The last publications, the oldest first.
    published: Mutex<VecDeque<PublishedCounts<S>>>,
}

/// Counts with the time that they hold for.
#[derive(Clone, Debug)]
pub(crate) struct PublishedCounts<S> {
    /// Of a sender: everything that was sent by then is counted. Of a receiver: nothing that came after it is counted.
    pub(crate) at: MonoTime,
    pub(crate) counts: S,
}

impl<S> WorkerState<S> {
    fn publish(&self, publication: PublishedCounts<S>) {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        if published.len() == KEPT {
            published.pop_front();
        }
        published.push_back(publication);
    }
}

/// A running half of a port: `W` is what it owns, `S` what it publishes.
pub(crate) struct PortWorker<W, S> {
    name: String,
    orders: Sender<WorkerOrder<W>>,
    shared: Arc<WorkerState<S>>,
    thread: Option<JoinHandle<Result<W, Error>>>,
}

/// What a worker does between two looks at its orders.
pub(crate) trait WorkerTask: Send + 'static {
    type Counts: Send + 'static;
    fn control(&mut self, control: StreamControl);
    fn step(&mut self, now: MonoTime) -> Result<NextStep, Error>;
    /// Waits for work, at most until `until`.
    fn idle(&mut self, clock: &dyn WorkerClock, until: MonoTime) -> Result<(), Error>;
    /// Whether only orders and the time bring work, so that a wait may be one for orders.
    fn has_only_orders(&self) -> bool {
        false
    }
    fn counts(&mut self) -> Result<Self::Counts, Error>;
    /// How long after the common time it publishes. Senders publish after receivers, so that everything counted as
    /// received is also counted as sent.
    const PUBLISH_AFTER: Nanos = Nanos::ZERO;
    /// Whether its counts hold at the earliest at the time they are given, not at the latest.
    const COUNTS_FROM: bool = false;
}

impl<W: WorkerTask> PortWorker<W, W::Counts> {
    /// Starts a worker; returns when it has done its first step.
    pub(crate) fn start(name: String, work: W, clock: Box<dyn WorkerClock>) -> Result<Self, Error> {
        let (orders, inbox) = crossbeam_channel::bounded(16);
        let (ready, is_ready) = crossbeam_channel::bounded(1);
        let shared = Arc::new(WorkerState {
            done: AtomicBool::new(false),
            published: Mutex::new(VecDeque::with_capacity(KEPT)),
        });
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(name.clone())
                .spawn(move || run(work, clock.as_ref(), &inbox, &shared, ready))
                .map_err(|source| Error::Thread { name: name.clone(), source })?
        };
        let mut worker = Self { name, orders, shared, thread: Some(thread) };
        // An error means that the worker ended before it was ready: its own error says why.
        if is_ready.recv().is_err() {
            worker.quit()?;
            return Err(Error::Bug("a worker ended before its first step"));
        }
        Ok(worker)
    }

    pub(crate) fn control(&self, control: StreamControl) {
        self.order(WorkerOrder::Control(control));
    }

    /// Has the worker do something between two steps, and waits for its answer. What is published then shows it.
    pub(crate) fn ask<R: Send + 'static>(
        &mut self,
        request: impl FnOnce(&mut W) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.order(WorkerOrder::Ask(Box::new(move |work| {
            let done = request(work);
            Box::new(move || ignore_closed(reply.send(done)))
        })));
        if let Ok(answer) = answer.recv() {
            return Ok(answer);
        }
        self.quit()?;
        Err(Error::Bug("a worker ended before it answered"))
    }

    fn order(&self, order: WorkerOrder<W>) {
        // A worker that has ended needs no orders; its error is found at the next `check`.
        ignore_closed(self.orders.send(order));
    }

    /// Whether its last step had nothing left to do.
    pub(crate) fn is_done(&self) -> bool {
        self.shared.done.load(Ordering::Acquire)
    }

    /// The counts last published.
    pub(crate) fn latest(&self) -> Option<W::Counts>
    where
        W::Counts: Clone,
    {
        self.published().pop_back().map(|publication| publication.counts)
    }

    /// The last publications, the oldest first.
    pub(crate) fn published(&self) -> VecDeque<PublishedCounts<W::Counts>>
    where
        W::Counts: Clone,
    {
        self.shared.published.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Finds a worker that has ended by itself, which is an error.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            self.quit()?;
            return Err(Error::Bug("a worker ended without an order"));
        }
        Ok(())
    }

    /// Tells the worker to end, without waiting. [`Self::quit`] then waits less: several workers end at the same time.
    pub(crate) fn begin_quit(&self) {
        self.order(WorkerOrder::Quit);
    }

    /// Ends the worker and takes back what it owned.
    pub(crate) fn quit(&mut self) -> Result<W, Error> {
        self.order(WorkerOrder::Quit);
        let thread = self.thread.take().ok_or(Error::Bug("a worker was ended twice"))?;
        thread.join().map_err(|_| Error::Panicked(self.name.clone()))?
    }
}

impl<W, S> Drop for PortWorker<W, S> {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            ignore_closed(self.orders.send(WorkerOrder::Quit));
            // A caller that drops a worker without `quit` is already handling another error.
            drop(thread.join());
        }
    }
}

fn run<W: WorkerTask>(
    mut work: W,
    clock: &dyn WorkerClock,
    inbox: &Receiver<WorkerOrder<W>>,
    shared: &WorkerState<W::Counts>,
    ready: Sender<()>,
) -> Result<W, Error> {
    // Best effort: without the right to it this is a thread like any other, and what that costs shows as late or lost
    // frames.
    drop(sched::request_precedence());
    let mut publish_at = clock.now();
    let mut ready = Some(ready);
    let mut woken_by = None;
    loop {
        match woken_by.take().map_or_else(|| inbox.try_recv(), Ok) {
            Ok(WorkerOrder::Control(control)) => {
                // An order may be new work for a worker that was done.
                shared.done.store(false, Ordering::Release);
                work.control(control);
            }
            Ok(WorkerOrder::Ask(request)) => {
                let reply = request(&mut work);
                publish(&mut work, clock, shared)?;
                reply();
            }
            Ok(WorkerOrder::Quit) | Err(TryRecvError::Disconnected) => return Ok(work),
            Err(TryRecvError::Empty) => {}
        }
        let now = clock.now();
        let step = work.step(now)?;
        // Only after a step: `start` promises that a receiver has looked at its ring once.
        if let Some(ready) = ready.take() {
            ignore_closed(ready.send(()));
        }
        let is_done = step == NextStep::Done;
        if is_done && !shared.done.load(Ordering::Relaxed) {
            // Before `done` is set: a reader that sees it finds the last counts published.
            publish(&mut work, clock, shared)?;
        }
        shared.done.store(is_done, Ordering::Release);
        if now >= publish_at {
            publish_at = next_publication(now, W::PUBLISH_AFTER);
            publish(&mut work, clock, shared)?;
        }
        let until = match step {
            NextStep::Busy => continue,
            NextStep::IdleUntil(until) => until.min(now + ATTENTION),
            NextStep::Done => now + ATTENTION,
        };
        woken_by = rest(&mut work, clock, inbox, until)?;
    }
}

/// Waits for work, at most until `until`; gives the order that ended the wait, if one did.
fn rest<W: WorkerTask>(
    work: &mut W,
    clock: &dyn WorkerClock,
    inbox: &Receiver<WorkerOrder<W>>,
    until: MonoTime,
) -> Result<Option<WorkerOrder<W>>, Error> {
    // Waiting on the channel lets an order interrupt the wait, but the kernel may wake us late. So that wait ends a while
    // before the next frame, and the exact one of `idle` does the rest.
    let free = until.since(clock.now()).as_u64().saturating_sub(NEAR.as_u64());
    if work.has_only_orders() && free > 0 {
        return Ok(inbox.recv_timeout(std::time::Duration::from_nanos(free)).ok());
    }
    work.idle(clock, until)?;
    Ok(None)
}

fn publish<W: WorkerTask>(
    work: &mut W,
    clock: &dyn WorkerClock,
    shared: &WorkerState<W::Counts>,
) -> Result<(), Error> {
    // A sample compares senders with receivers, and nothing may seem to arrive before it is sent. So a sender's time is
    // taken before its counts (all that was sent by then is in them), a receiver's after (nothing later is).
    let before = clock.now();
    let counts = work.counts()?;
    let at = if W::COUNTS_FROM { before } else { clock.now() };
    shared.publish(PublishedCounts { at, counts });
    Ok(())
}

/// A channel whose other end has gone: its thread has ended, and what was sent concerns nothing any more.
fn ignore_closed<T>(_: Result<(), SendError<T>>) {}

/// The next time at which all workers publish, and `after` later.
fn next_publication(now: MonoTime, after: Nanos) -> MonoTime {
    let periods = now.as_nanos().saturating_sub(after.as_u64()) / PUBLISH.as_u64() + 1;
    MonoTime::from_nanos(periods * PUBLISH.as_u64()) + after
}

/// A steered run asks both halves while it is armed, so this cannot happen later.
const NOT_STEERED: Error = Error::Bug("half of a port was steered that does not support it");

pub(crate) struct SendingHalf {
    half: Box<dyn StreamTx>,
}

/// What a sending half publishes.
#[derive(Clone, Debug, Default)]
pub(crate) struct TxLatest {
    pub(crate) streams: Vec<StreamTxCounts>,
    pub(crate) port: TxCounters,
}

impl SendingHalf {
    pub(crate) fn new(half: Box<dyn StreamTx>) -> Self {
        Self { half }
    }

    pub(crate) fn stream_counts(&self) -> Vec<StreamTxCounts> {
        self.half.counts()
    }

    pub(crate) fn into_inner(self) -> Box<dyn StreamTx> {
        self.half
    }

    pub(crate) fn steering(&mut self) -> Result<&mut dyn SteeredSender, Error> {
        self.half.steering().ok_or(NOT_STEERED)
    }
}

impl WorkerTask for SendingHalf {
    type Counts = TxLatest;
    const PUBLISH_AFTER: Nanos = Nanos::from_millis(2);
    const COUNTS_FROM: bool = true;

    fn control(&mut self, control: StreamControl) {
        self.half.control(control);
    }

    fn step(&mut self, now: MonoTime) -> Result<NextStep, Error> {
        self.half.step(now)
    }

    fn idle(&mut self, clock: &dyn WorkerClock, until: MonoTime) -> Result<(), Error> {
        clock.wait(until);
        Ok(())
    }

    fn has_only_orders(&self) -> bool {
        true
    }

    fn counts(&mut self) -> Result<TxLatest, Error> {
        Ok(TxLatest { streams: self.half.counts(), port: self.half.port_counters()? })
    }
}

pub(crate) struct ReceivingHalf {
    half: Box<dyn StreamRx>,
}

/// What a receiving half publishes.
#[derive(Clone, Debug, Default)]
pub(crate) struct RxLatest {
    pub(crate) streams: Vec<StreamRxCounts>,
    pub(crate) port: RxCounters,
    pub(crate) latency: DelaySummary,
}

impl ReceivingHalf {
    pub(crate) fn new(half: Box<dyn StreamRx>) -> Self {
        Self { half }
    }

    pub(crate) fn into_inner(self) -> Box<dyn StreamRx> {
        self.half
    }

    pub(crate) fn shift(&mut self, shifts: &[(u16, ClockShift)]) {
        self.half.shift(shifts);
    }

    pub(crate) fn steering(&mut self) -> Result<&mut dyn SteeredReceiver, Error> {
        self.half.steering().ok_or(NOT_STEERED)
    }
}

impl WorkerTask for ReceivingHalf {
    type Counts = RxLatest;

    fn control(&mut self, control: StreamControl) {
        self.half.control(control);
    }

    fn step(&mut self, now: MonoTime) -> Result<NextStep, Error> {
        self.half.step(now)
    }

    fn idle(&mut self, clock: &dyn WorkerClock, until: MonoTime) -> Result<(), Error> {
        self.half.wait(until.since(clock.now()))
    }

    fn counts(&mut self) -> Result<RxLatest, Error> {
        let port = self.half.port_counters()?;
        Ok(RxLatest { streams: self.half.counts(), port, latency: self.half.latency_so_far() })
    }
}
