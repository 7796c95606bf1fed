//! Worker threads: each runs one component of a port (sender, receiver or emulated interfaces) and does nothing else.
//!
//! Commands arrive through a channel that is read between steps; counts leave ten times a second through a mutex that
//! is never held longer than a copy takes. A worker that meets an error stops working, publishes its counts and waits
//! for the end of the run, so that no counts are lost. A panic is detected by the next check.
//!
//! Invariants: a worker is always joined; dropping its handle tells it to quit and waits. The component that it owned
//! is returned, whatever error it met.

mod halves;

pub(crate) use halves::{PublishedRxCounts, PublishedTxCounts, ReceivingHalf, SendingHalf};

use crate::Error;
use crate::port::WorkerClock;
use crate::stream::{NextStep, StreamControl};
use crossbeam_channel::{Receiver, SendError, Sender, TryRecvError};
use packetrig_sys::sched;
use packetrig_units::{MonoTime, Nanos};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Longest sleep between two checks for commands.
const COMMAND_CHECK_INTERVAL: Nanos = Nanos::from_millis(5);
/// Waiting for commands ends this long before the next frame is due: the kernel may wake the thread late.
const COMMAND_WAIT_MARGIN: Nanos = Nanos::from_millis(1);
/// Interval of publications: at every multiple of this on the clock, so that all workers publish at nearly one instant.
const PUBLICATION_INTERVAL: Nanos = Nanos::from_millis(100);
/// Maximum number of stored publications.
const MAX_STORED_PUBLICATIONS: usize = 4;

/// A request that the worker runs between two steps. It returns a closure that sends the answer; the worker calls the
/// closure after it has published the effect.
type WorkerRequest<W> = Box<dyn FnOnce(&mut W) -> Box<dyn FnOnce()> + Send>;

enum WorkerCommand<W> {
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

/// Counts and the time that they are valid for.
#[derive(Clone, Debug)]
pub(crate) struct PublishedCounts<S> {
    /// For a sender: all frames sent by then are counted. For a receiver: no frame that arrived later is counted.
    pub(crate) at: MonoTime,
    pub(crate) counts: S,
}

impl<S> WorkerState<S> {
    fn push_publication(&self, publication: PublishedCounts<S>) {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        if published.len() == MAX_STORED_PUBLICATIONS {
            // The oldest publication is removed: readers need the latest one, and one that is slightly older.
            published.pop_front();
        }
        published.push_back(publication);
    }
}

/// Handle of a thread that owns one component of a port (`W`) and publishes its counts (`S`).
pub(crate) struct PortWorker<W, S> {
    name: String,
    orders: Sender<WorkerCommand<W>>,
    shared: Arc<WorkerState<S>>,
    thread: Option<JoinHandle<FinishedWorker<W>>>,
}

/// An ended worker: the component that it owned, with all its counts.
pub(crate) struct FinishedWorker<W> {
    pub(crate) work: W,
    /// Error that ended the worker before it received the order to quit.
    pub(crate) fault: Option<WorkerFault>,
}

/// An error that ended the work of a worker.
#[derive(Debug)]
pub(crate) struct WorkerFault {
    pub(crate) error: Error,
    /// Start of its last step without an error: everything was in order until then.
    pub(crate) since: MonoTime,
}

/// The work of a worker thread, in steps: between two steps the worker checks for commands.
pub(crate) trait WorkerTask: Send + 'static {
    type Counts: Send + 'static;
    fn apply_control(&mut self, control: StreamControl);
    fn run_step(&mut self, now: MonoTime) -> Result<NextStep, Error>;
    /// Waits for work, at most until `until`.
    fn wait_for_work_until(&mut self, clock: &dyn WorkerClock, until: MonoTime) -> Result<(), Error>;
    /// Returns whether work comes only from commands and from the clock, so that the worker may wait for commands.
    fn needs_only_commands(&self) -> bool {
        false
    }
    /// Reads the kernel's counters for the next [`Self::current_counts`].
    fn read_counters(&mut self) -> Result<(), Error> {
        Ok(())
    }
    /// Returns the current counts, with the kernel's counters as they were read last.
    fn current_counts(&self) -> Self::Counts;
    /// Called once after an error: no further step follows.
    fn give_up_work(&mut self) {}
    /// Offset of publications from the common times. Senders publish after receivers, so that everything counted as
    /// received is also counted as sent.
    const PUBLISH_AFTER: Nanos = Nanos::ZERO;
    /// Whether the time of a publication is taken before its counts (senders), not after them (receivers).
    const COUNTS_FROM: bool = false;
}

impl<W: WorkerTask> PortWorker<W, W::Counts> {
    /// Starts a worker; returns when it has completed its first step.
    pub(crate) fn start(name: String, work: W, clock: Box<dyn WorkerClock>) -> Result<Self, Error> {
        let (orders, inbox) = crossbeam_channel::bounded(16);
        let (ready, is_ready) = crossbeam_channel::bounded(1);
        let shared = Arc::new(WorkerState {
            done: AtomicBool::new(false),
            published: Mutex::new(VecDeque::with_capacity(MAX_STORED_PUBLICATIONS)),
        });
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(name.clone())
                .spawn(move || run_worker(work, clock.as_ref(), &inbox, &shared, ready))
                .map_err(|source| Error::Thread { name: name.clone(), source })?
        };
        let mut worker = Self { name, orders, shared, thread: Some(thread) };
        // An error means that the worker failed before it was ready.
        if is_ready.recv().is_err() {
            let fault = worker.quit_and_join()?.fault;
            return Err(fault.map_or(Error::Bug("a worker ended before its first step"), |fault| fault.error));
        }
        Ok(worker)
    }

    pub(crate) fn send_control(&self, control: StreamControl) {
        self.send_command(WorkerCommand::Control(control));
    }

    /// Runs a request on the worker between two steps, and waits for its answer. The effect is published by then.
    pub(crate) fn run_on_worker<R: Send + 'static>(
        &mut self,
        request: impl FnOnce(&mut W) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.send_command(WorkerCommand::Ask(Box::new(move |work| {
            let done = request(work);
            Box::new(move || ignore_closed_channel(reply.send(done)))
        })));
        if let Ok(answer) = answer.recv() {
            return Ok(answer);
        }
        // If the worker has panicked, this returns that error. Otherwise the missing answer is a bug.
        self.quit_and_join()?;
        Err(Error::Bug("a worker ended before it answered"))
    }

    fn send_command(&self, order: WorkerCommand<W>) {
        // A worker that has panicked needs no commands; the next `check_alive` detects it.
        ignore_closed_channel(self.orders.send(order));
    }

    /// Returns whether the worker's last step left nothing to do, or an error ended its work.
    pub(crate) fn is_done(&self) -> bool {
        self.shared.done.load(Ordering::Acquire)
    }

    /// Returns the counts published last.
    pub(crate) fn latest_counts(&self) -> Option<W::Counts>
    where
        W::Counts: Clone,
    {
        self.publications().pop_back().map(|publication| publication.counts)
    }

    /// Returns the last publications, the oldest first.
    pub(crate) fn publications(&self) -> VecDeque<PublishedCounts<W::Counts>>
    where
        W::Counts: Clone,
    {
        self.shared.published.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fails if the worker's thread has ended, for example by a panic.
    pub(crate) fn check_alive(&mut self) -> Result<(), Error> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            self.quit_and_join()?;
            return Err(Error::Bug("a worker ended before it received the order to end"));
        }
        Ok(())
    }

    /// Tells the worker to end, without waiting. [`Self::quit_and_join`] then waits less: several workers end
    /// at the same time.
    pub(crate) fn request_quit(&self) {
        self.send_command(WorkerCommand::Quit);
    }

    /// Ends the worker and returns the component that it owned, whatever error the worker met. Fails
    /// only if it panicked.
    pub(crate) fn quit_and_join(&mut self) -> Result<FinishedWorker<W>, Error> {
        self.send_command(WorkerCommand::Quit);
        let thread = self.thread.take().ok_or(Error::Bug("a worker was ended twice"))?;
        thread.join().map_err(|_| Error::Panicked(self.name.clone()))
    }
}

impl<W, S> Drop for PortWorker<W, S> {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            ignore_closed_channel(self.orders.send(WorkerCommand::Quit));
            // A caller that drops a worker without `quit_and_join` is handling another error already.
            drop(thread.join());
        }
    }
}

fn run_worker<W: WorkerTask>(
    mut work: W,
    clock: &dyn WorkerClock,
    inbox: &Receiver<WorkerCommand<W>>,
    shared: &WorkerState<W::Counts>,
    ready: Sender<()>,
) -> FinishedWorker<W> {
    // An error is ignored: without the right to a higher priority the thread works all the same, and a busy machine
    // shows as late or lost frames.
    drop(sched::raise_thread_priority());
    let mut since = clock.now();
    let Err(error) = work_until_quit(&mut work, clock, inbox, shared, (ready, &mut since)) else {
        return FinishedWorker { work, fault: None };
    };
    work.give_up_work();
    publish_counts(&work, clock.now(), shared);
    // `done` is set after the last counts are published, as in `work_until_quit`.
    shared.done.store(true, Ordering::Release);
    answer_until_quit(&mut work, clock, inbox, shared);
    FinishedWorker { work, fault: Some(WorkerFault { error, since }) }
}

/// Works until told to quit. Sets `since` to the start of the last step without an error, and signals `ready`
/// after the first step.
fn work_until_quit<W: WorkerTask>(
    work: &mut W,
    clock: &dyn WorkerClock,
    inbox: &Receiver<WorkerCommand<W>>,
    shared: &WorkerState<W::Counts>,
    (ready, since): (Sender<()>, &mut MonoTime),
) -> Result<(), Error> {
    let mut publish_at = clock.now();
    let mut ready = Some(ready);
    let mut woken_by = None;
    loop {
        match woken_by.take().map_or_else(|| inbox.try_recv(), Ok) {
            Ok(WorkerCommand::Control(control)) => {
                // A control may be new work for a worker that was done.
                shared.done.store(false, Ordering::Release);
                work.apply_control(control);
            }
            Ok(WorkerCommand::Ask(request)) => {
                let reply = request(work);
                // This comes before the reply, so that the caller finds the effect in the published counts.
                let published = read_and_publish_counts(work, clock, shared);
                reply();
                // An error of reading the counters is returned after the reply, so that the caller gets
                // its answer even then.
                published?;
            }
            Ok(WorkerCommand::Quit) | Err(TryRecvError::Disconnected) => return Ok(()),
            Err(TryRecvError::Empty) => {}
        }
        let now = clock.now();
        let step = work.run_step(now)?;
        // This is set only after a step: `start` promises that a receiver has read its ring once.
        if let Some(ready) = ready.take() {
            ignore_closed_channel(ready.send(()));
        }
        let is_done = step == NextStep::Done;
        if is_done && !shared.done.load(Ordering::Relaxed) {
            // The counts are published before `done` is set: a reader that sees `done` then finds the last counts.
            read_and_publish_counts(work, clock, shared)?;
        }
        shared.done.store(is_done, Ordering::Release);
        if now >= publish_at {
            // The next time counts from now: a delayed worker skips periods and does not make up for them.
            publish_at = next_publication_time(now, W::PUBLISH_AFTER);
            read_and_publish_counts(work, clock, shared)?;
        }
        *since = now;
        let until = match step {
            NextStep::Busy => continue,
            NextStep::IdleUntil(until) => until.min(now + COMMAND_CHECK_INTERVAL),
            NextStep::Done => now + COMMAND_CHECK_INTERVAL,
        };
        woken_by = wait_for_work(work, clock, inbox, until)?;
    }
}

/// After an error: answers requests and does nothing else until told to quit.
fn answer_until_quit<W: WorkerTask>(
    work: &mut W,
    clock: &dyn WorkerClock,
    inbox: &Receiver<WorkerCommand<W>>,
    shared: &WorkerState<W::Counts>,
) {
    loop {
        match inbox.recv() {
            Ok(WorkerCommand::Control(_)) => {}
            Ok(WorkerCommand::Ask(request)) => {
                let reply = request(work);
                publish_counts(work, clock.now(), shared);
                reply();
            }
            Ok(WorkerCommand::Quit) | Err(_) => return,
        }
    }
}

/// Waits for work, at most until `until`; returns the command that ended the wait, if one did.
fn wait_for_work<W: WorkerTask>(
    work: &mut W,
    clock: &dyn WorkerClock,
    inbox: &Receiver<WorkerCommand<W>>,
    until: MonoTime,
) -> Result<Option<WorkerCommand<W>>, Error> {
    // A command can interrupt a wait on the channel, but the kernel may wake the thread late. So that wait ends
    // shortly before the next frame is due, and `wait_for_work_until` waits for the exact time.
    let free = until.since(clock.now()).as_u64().saturating_sub(COMMAND_WAIT_MARGIN.as_u64());
    if work.needs_only_commands() && free > 0 {
        return Ok(inbox.recv_timeout(std::time::Duration::from_nanos(free)).ok());
    }
    work.wait_for_work_until(clock, until)?;
    Ok(None)
}

fn read_and_publish_counts<W: WorkerTask>(
    work: &mut W,
    clock: &dyn WorkerClock,
    shared: &WorkerState<W::Counts>,
) -> Result<(), Error> {
    // A sample compares senders with receivers, and no frame may seem to arrive before it is sent. So a
    // sender's time is taken before its counts, which then include all frames sent by that time. A receiver's
    // time is taken after its counts, which then include no later frame.
    let before = clock.now();
    work.read_counters()?;
    let counts = work.current_counts();
    let at = if W::COUNTS_FROM { before } else { clock.now() };
    shared.push_publication(PublishedCounts { at, counts });
    Ok(())
}

/// Publishes the counts of a worker that has stopped working, without reading the kernel's counters again.
fn publish_counts<W: WorkerTask>(work: &W, at: MonoTime, shared: &WorkerState<W::Counts>) {
    shared.push_publication(PublishedCounts { at, counts: work.current_counts() });
}

/// Ignores a closed channel: the receiving thread has ended and does not need the message.
fn ignore_closed_channel<T>(_: Result<(), SendError<T>>) {}

/// Returns the next multiple of [`PUBLICATION_INTERVAL`], plus `after`.
fn next_publication_time(now: MonoTime, after: Nanos) -> MonoTime {
    let periods = now.as_nanos().saturating_sub(after.as_u64()) / PUBLICATION_INTERVAL.as_u64() + 1;
    MonoTime::from_nanos(periods * PUBLICATION_INTERVAL.as_u64()) + after
}
