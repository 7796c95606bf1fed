//! Whether to wait for room in a full queue, or to lose the batch.
//!
//! A live meter never waits while packets may arrive: the ring would overflow meanwhile. Once all its sources have ended it can wait; a
//! meter of files can from the start. It waits for each output that still takes data. An output that has taken nothing for ten
//! seconds is given up, or for five seconds after the user has asked for the end. The other outputs are still waited for.
//!
//! Invariant: an output that was given up is never waited for again.

use crossbeam_channel::{SendTimeoutError, Sender, TrySendError};
use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How often a waiting thread checks whether to continue.
const LOOK: Duration = Duration::from_millis(20);
/// An output that takes nothing for this long is given up.
const STALL: Nanos = Nanos::from_secs(10);
/// The same after the user has asked for the end.
const HURRIED_STALL: Nanos = Nanos::from_secs(5);
/// How often to check the other sources: all are told to end at the same time, and do so within a fraction of a second.
const SOURCE_LOOKS: u32 = 50;

#[derive(Debug)]
struct PatienceState {
    is_begun: AtomicBool,
    /// Sources that may still give packets.
    open_sources: AtomicUsize,
    stall_ns: AtomicU64,
}

/// Whether workers wait for room, shared by all of them. Clones share one state.
#[derive(Clone, Debug)]
pub struct SharedPatience(Arc<PatienceState>);

/// Marks a source as open until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenSource(Arc<PatienceState>);

impl Drop for OpenSource {
    fn drop(&mut self) {
        self.0.open_sources.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Default for SharedPatience {
    fn default() -> Self {
        Self::with_stall(STALL)
    }
}

impl SharedPatience {
    fn with_stall(stall: Nanos) -> Self {
        Self(Arc::new(PatienceState {
            is_begun: AtomicBool::new(false),
            open_sources: AtomicUsize::new(0),
            stall_ns: AtomicU64::new(stall.as_u64()),
        }))
    }

    /// From now on, a worker that finds a queue full waits.
    pub fn begin(&self) {
        self.0.is_begun.store(true, Ordering::Release);
    }

    /// The user has asked for the end: stalled outputs are given up sooner.
    pub fn hurry(&self) {
        self.0.stall_ns.fetch_min(HURRIED_STALL.as_u64(), Ordering::AcqRel);
    }

    fn is_begun(&self) -> bool {
        self.0.is_begun.load(Ordering::Acquire)
    }

    /// Whether an output without progress since `moved_ns` counts as dead.
    fn is_stalled(&self, moved_ns: u64) -> bool {
        clock::monotonic_ns().saturating_sub(moved_ns) >= self.0.stall_ns.load(Ordering::Acquire)
    }

    pub(crate) fn add_source(&self) -> OpenSource {
        self.0.open_sources.fetch_add(1, Ordering::AcqRel);
        OpenSource(Arc::clone(&self.0))
    }

    /// A source has ended. Patience begins when all have, or after a second: one that does not end is not waited for.
    pub(crate) fn end_source(&self, source: OpenSource) {
        // Beginning earlier would be wrong: a worker that waits for room does not empty its ring.
        drop(source);
        for _ in 0..SOURCE_LOOKS {
            let is_last = self.0.open_sources.load(Ordering::Acquire) == 0;
            if is_last || self.is_begun() {
                break;
            }
            std::thread::sleep(LOOK);
        }
        self.begin();
    }

    /// Puts a value into a queue whose receiver never stalls for long. Waits for room if patience has begun; returns the
    /// value if there was none.
    pub(crate) fn give<T>(&self, queue: &Sender<T>, mut value: T) -> Result<(), T> {
        while self.is_begun() {
            // No time limit: the dispatcher at the other end gives up stalled targets itself, and then takes again.
            match queue.send_timeout(value, LOOK) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Timeout(back)) => value = back,
                Err(SendTimeoutError::Disconnected(back)) => return Err(back),
            }
        }
        queue.try_send(value).map_err(TrySendError::into_inner)
    }
}

/// The queue of one output, which can be given up without the others. Clones share the queue.
#[derive(Debug)]
pub struct OutputQueue<T> {
    queue: Sender<T>,
    patience: SharedPatience,
    state: Arc<OutputState>,
}

#[derive(Debug, Default)]
struct OutputState {
    is_given_up: AtomicBool,
    /// When it last took something from any worker.
    moved_ns: AtomicU64,
}

impl<T> Clone for OutputQueue<T> {
    fn clone(&self) -> Self {
        let Self { queue, patience, state } = self;
        Self { queue: queue.clone(), patience: patience.clone(), state: Arc::clone(state) }
    }
}

impl<T> OutputQueue<T> {
    /// For an output that receives from `queue`.
    pub fn new(queue: Sender<T>, patience: &SharedPatience) -> Self {
        Self { queue, patience: patience.clone(), state: Arc::default() }
    }

    fn is_waited_for(&self) -> bool {
        self.patience.is_begun() && !self.state.is_given_up.load(Ordering::Acquire)
    }

    /// Gives the output up if it has taken nothing for too long while a worker waited.
    fn give_up_if_stalled(&self, waiting_since_ns: u64) {
        // Time counts only from when this thread began to wait: an idle queue had nothing to take before.
        let moved_ns = self.state.moved_ns.load(Ordering::Acquire).max(waiting_since_ns);
        if self.patience.is_stalled(moved_ns) {
            self.state.is_given_up.store(true, Ordering::Release);
        }
    }

    /// Puts a value into the queue. Waits for room if patience has begun; returns the value if there was none.
    pub(crate) fn give(&self, mut value: T) -> Result<(), T> {
        let since_ns = clock::monotonic_ns();
        while self.is_waited_for() {
            match self.queue.send_timeout(value, LOOK) {
                Ok(()) => {
                    // For all workers: another one may have waited longer without luck, but the output is alive.
                    self.state.moved_ns.store(clock::monotonic_ns(), Ordering::Release);
                    return Ok(());
                }
                Err(SendTimeoutError::Timeout(back)) => value = back,
                Err(SendTimeoutError::Disconnected(back)) => return Err(back),
            }
            self.give_up_if_stalled(since_ns);
        }
        self.try_give(value)
    }

    /// Puts a value into the queue without waiting.
    pub(crate) fn try_give(&self, value: T) -> Result<(), T> {
        self.queue.try_send(value).map_err(TrySendError::into_inner)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.queue.is_full()
    }

    /// If patience has begun, waits until each of these has room or is given up. No other thread may fill them.
    pub(crate) fn await_room(queues: &[Self]) {
        for output in queues {
            // For each anew: while another one was waited for, nobody tried whether this one takes.
            let since_ns = clock::monotonic_ns();
            while output.queue.is_full() && output.is_waited_for() {
                std::thread::sleep(LOOK / 20);
                output.give_up_if_stalled(since_ns);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Receiver, bounded};

    const SHORT: Nanos = Nanos::from_secs(1);

    fn begun() -> SharedPatience {
        let patience = SharedPatience::with_stall(SHORT);
        patience.begin();
        patience
    }

    /// Two outputs whose queues are full, and the ends at which they are taken from.
    fn full_outputs() -> ([OutputQueue<u64>; 2], [Receiver<u64>; 2]) {
        let patience = begun();
        let (first, second) = (bounded(1), bounded(1));
        let outputs = [first.0, second.0].map(|queue| OutputQueue::new(queue, &patience));
        for output in &outputs {
            output.give(0).unwrap();
        }
        (outputs, [first.1, second.1])
    }

    #[test]
    fn it_begins_when_the_last_source_has_ended() {
        let patience = SharedPatience::default();
        let [first, last] = [patience.add_source(), patience.add_source()];
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| patience.end_source(first));
            assert!(!patience.is_begun(), "another source may still give something");
            patience.end_source(last);
            assert!(patience.is_begun());
            waiting.join().unwrap();
        });
    }

    #[test]
    fn without_patience_a_full_queue_gives_back_at_once_and_patience_can_still_begin() {
        let patience = SharedPatience::default();
        let (queue, taken) = bounded(1);
        let output = OutputQueue::new(queue, &patience);
        assert_eq!((output.give(1), output.give(2)), (Ok(()), Err(2)));
        patience.begin();
        std::thread::scope(|scope| {
            let giving = scope.spawn(|| output.give(3));
            assert_eq!((taken.recv(), taken.recv()), (Ok(1), Ok(3)));
            assert_eq!(giving.join().unwrap(), Ok(()));
        });
    }

    /// Of eight that wait for it most wait longer than it may take nothing.
    #[test]
    fn an_output_that_is_slow_gets_everything_from_everybody() {
        let patience = begun();
        let (queue, taken) = bounded(1);
        let output = OutputQueue::new(queue, &patience);
        std::thread::scope(|scope| {
            let givers: Vec<_> = (0..8)
                .map(|_| {
                    let output = output.clone();
                    scope.spawn(move || (0..4).filter(|n| output.give(*n).is_ok()).count())
                })
                .collect();
            drop(output);
            for _ in &taken {
                std::thread::sleep(Duration::from_millis(60));
            }
            assert_eq!(givers.into_iter().map(|giver| giver.join().unwrap()).sum::<usize>(), 32);
        });
    }

    #[test]
    fn an_output_that_takes_nothing_is_given_up_without_the_others() {
        let (queues, [_not_taken, taken]) = full_outputs();
        std::thread::scope(|scope| {
            let taking = scope.spawn(|| taken.iter().take(5).count());
            for number in 1..5 {
                OutputQueue::await_room(&queues);
                assert_eq!(queues[0].try_give(number), Err(number));
                queues[1].try_give(number).unwrap();
            }
            assert_eq!(taking.join().unwrap(), 5);
        });
        queues[1].give(5).unwrap();
        assert_eq!(queues.each_ref().map(OutputQueue::is_waited_for), [false, true]);
        assert_eq!(queues[0].give(5), Err(5));
    }

    /// While the dead one is waited for, nobody tries whether the slow one takes.
    #[test]
    fn an_output_that_is_slow_is_not_given_up_with_one_that_is_dead() {
        let (queues, [_not_taken, taken]) = full_outputs();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while queues[0].is_waited_for() {
                    std::thread::sleep(LOOK / 20);
                }
                std::thread::sleep(LOOK);
                taken.recv().unwrap();
            });
            OutputQueue::await_room(&queues);
            assert!(!queues[0].is_waited_for() && queues[1].is_waited_for());
        });
    }

    #[test]
    fn haste_shortens_the_wait_and_never_makes_it_longer() {
        let patience = SharedPatience::default();
        let ago = |limit: Nanos| clock::monotonic_ns().saturating_sub(limit.as_u64() + 1);
        let [usual, hurried] = [STALL, HURRIED_STALL].map(ago);
        assert!(patience.is_stalled(usual));
        assert!(!patience.is_stalled(hurried));
        patience.hurry();
        assert!(patience.is_stalled(hurried));
        let short = begun();
        short.hurry();
        assert!(short.is_stalled(ago(SHORT)));
    }
}
