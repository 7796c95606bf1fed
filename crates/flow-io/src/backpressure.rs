//! Backpressure policy: decides whether to wait for room in a full queue or to lose the batch, and how long to wait.
//!
//! A live meter never waits while packets may arrive: the ring would overflow meanwhile. It can wait once all its
//! sources have ended. A meter of files can wait from the start. How long packetrig waits depends on the output:
//!
//! * Local output (a file, or UDP): without limit. A stalled disk costs time, but no records.
//! * A connected collector is given up after it has accepted no data for one minute. Its own disk may stall that long.
//! * A collector that cannot be reached is given up after ten seconds.
//! * After the user has requested the end, any output is given up after it has accepted no data for five seconds.
//!
//! Each output is given up on its own: packetrig still waits for the other outputs.
//!
//! Invariant: packetrig does not wait again for an output that was given up, neither at its queue nor at the end, until
//! the output accepts data again.

use crossbeam_channel::{SendTimeoutError, Sender, TrySendError};
use packetrig_flow::LossCause;
use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Interval at which a waiting thread checks whether to continue.
const CONTINUE_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Time after which a connected collector that accepts no data is given up.
const CONNECTED_STALL_TIMEOUT: Nanos = Nanos::from_secs(60);
/// Time after which an unreachable collector is given up.
const UNREACHABLE_STALL_TIMEOUT: Nanos = Nanos::from_secs(10);
/// Time after which any output that accepts no data is given up, once the user has requested the end.
const HURRIED_STALL_TIMEOUT: Nanos = Nanos::from_secs(5);
/// Maximum number of checks whether the other sources have ended: 50 checks take one second. All sources are told to
/// end at the same time, and do so within a fraction of a second.
const MAX_SOURCE_CHECKS: u32 = 50;

/// How packetrig reaches an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputReachability {
    /// The output is on this machine, or has no connection (UDP).
    Local,
    Connected,
    /// The output has no connection now.
    Unreachable,
}

impl OutputReachability {
    const ALL: [Self; 3] = [Self::Local, Self::Connected, Self::Unreachable];
}

#[derive(Debug)]
struct BackpressureState {
    is_begun: AtomicBool,
    /// True if the packets come from files, which can wait.
    is_of_files: AtomicBool,
    /// Number of sources that may still deliver packets.
    open_sources: AtomicUsize,
    /// Time after which an output that accepts no data is given up, indexed by [`OutputReachability`].
    stall_ns: [AtomicU64; 3],
}

/// The policy that decides whether workers wait for room. Clones share one state.
#[derive(Clone, Debug)]
pub struct BackpressurePolicy(Arc<BackpressureState>);

/// Counts a source as open until this guard is dropped.
#[derive(Debug)]
pub(crate) struct OpenSourceGuard(Arc<BackpressureState>);

impl Drop for OpenSourceGuard {
    fn drop(&mut self) {
        self.0.open_sources.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Default for BackpressurePolicy {
    fn default() -> Self {
        Self::with_stall_timeouts([
            u64::MAX,
            CONNECTED_STALL_TIMEOUT.as_u64(),
            UNREACHABLE_STALL_TIMEOUT.as_u64(),
        ])
    }
}

impl BackpressurePolicy {
    pub(crate) fn with_stall_timeouts(stall_ns: [u64; 3]) -> Self {
        Self(Arc::new(BackpressureState {
            is_begun: AtomicBool::new(false),
            is_of_files: AtomicBool::new(false),
            open_sources: AtomicUsize::new(0),
            stall_ns: stall_ns.map(AtomicU64::new),
        }))
    }

    /// Makes workers wait from now on when a queue is full.
    pub fn enable_backpressure(&self) {
        self.0.is_begun.store(true, Ordering::Release);
    }

    /// Makes workers of a meter of files wait from now on when a queue is full. At the end,
    /// connected outputs also get more time.
    pub fn enable_backpressure_for_files(&self) {
        self.0.is_of_files.store(true, Ordering::Release);
        self.enable_backpressure();
    }

    /// Shortens all waits, because the user has asked for the end.
    pub fn shorten_waits(&self) {
        for stall_ns in &self.0.stall_ns {
            // The minimum is stored, because a limit that is already shorter must not become longer.
            stall_ns.fetch_min(HURRIED_STALL_TIMEOUT.as_u64(), Ordering::AcqRel);
        }
    }

    fn is_waiting_enabled(&self) -> bool {
        self.0.is_begun.load(Ordering::Acquire)
    }

    fn stall_timeout_ns(&self, reach: OutputReachability) -> u64 {
        self.0.stall_ns[reach as usize].load(Ordering::Acquire)
    }

    /// Reports whether an output without progress since `last_progress_ns` counts as stalled.
    fn is_stalled(&self, reach: OutputReachability, last_progress_ns: u64) -> bool {
        clock::monotonic_ns().saturating_sub(last_progress_ns) >= self.stall_timeout_ns(reach)
    }

    /// Returns how long to wait for a stalled output after the last batch. Normally this is `usual`. If the meter reads
    /// files and the output is connected, it is the stall timeout, if that is longer.
    pub(crate) fn wait_after_last_batch_ns(&self, reach: OutputReachability, usual: Nanos) -> u64 {
        // A file loses no packets during the wait, but a live meter must end within a fixed time.
        let can_wait = self.0.is_of_files.load(Ordering::Acquire) && reach == OutputReachability::Connected;
        if can_wait { self.stall_timeout_ns(reach).max(usual.as_u64()) } else { usual.as_u64() }
    }

    pub(crate) fn register_source(&self) -> OpenSourceGuard {
        self.0.open_sources.fetch_add(1, Ordering::AcqRel);
        OpenSourceGuard(Arc::clone(&self.0))
    }

    /// Counts a source as ended, and blocks until all sources have ended, but for at most one second. Then it makes
    /// workers wait for room in full queues.
    pub(crate) fn unregister_source_and_enable_waiting(&self, source: OpenSourceGuard) {
        // Waiting must not begin earlier: a worker that waits for room does not empty its ring.
        drop(source);
        for _ in 0..MAX_SOURCE_CHECKS {
            let is_last = self.0.open_sources.load(Ordering::Acquire) == 0;
            if is_last || self.is_waiting_enabled() {
                break;
            }
            std::thread::sleep(CONTINUE_CHECK_INTERVAL);
        }
        self.enable_backpressure();
    }

    /// Puts a value into a queue whose receiver never stalls for long. Waits for room once waiting is enabled. If the
    /// queue is full or closed, the error contains the value.
    pub(crate) fn send_or_wait<T>(&self, queue: &Sender<T>, mut value: T) -> Result<(), T> {
        while self.is_waiting_enabled() {
            // There is no time limit: the dispatcher gives up stalled targets itself, and then receives again.
            match queue.send_timeout(value, CONTINUE_CHECK_INTERVAL) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Timeout(back)) => value = back,
                Err(SendTimeoutError::Disconnected(back)) => return Err(back),
            }
        }
        queue.try_send(value).map_err(TrySendError::into_inner)
    }
}

#[derive(Debug)]
struct ProgressState {
    reach: AtomicUsize,
    is_given_up: AtomicBool,
    /// Time at which the output last accepted data.
    last_progress_ns: AtomicU64,
}

/// Progress of an output: when it last accepted data, and whether it was given up. The output's queue and its
/// sender share this state.
#[derive(Clone, Debug)]
pub(crate) struct OutputProgress(Arc<ProgressState>);

impl OutputProgress {
    pub(crate) fn new(reach: OutputReachability) -> Self {
        Self(Arc::new(ProgressState {
            reach: AtomicUsize::new(reach as usize),
            is_given_up: AtomicBool::new(false),
            last_progress_ns: AtomicU64::new(0),
        }))
    }

    pub(crate) fn reach(&self) -> OutputReachability {
        let number = self.0.reach.load(Ordering::Acquire);
        OutputReachability::ALL.get(number).copied().unwrap_or(OutputReachability::Local)
    }

    pub(crate) fn set_connected(&self, is_connected: bool) {
        let before = self.reach();
        // A local output has no connection, so it never becomes unreachable.
        if before == OutputReachability::Local {
            return;
        }
        let reach =
            if is_connected { OutputReachability::Connected } else { OutputReachability::Unreachable };
        self.0.reach.store(reach as usize, Ordering::Release);
        // The output may have stalled for a while, so the time limit for reconnecting begins when the connection breaks.
        if (before, reach) == (OutputReachability::Connected, OutputReachability::Unreachable) {
            self.0.last_progress_ns.store(clock::monotonic_ns(), Ordering::Release);
        }
    }

    /// Records that the output accepted data now, so it no longer counts as given up.
    pub(crate) fn record_output_progress(&self) {
        self.0.last_progress_ns.store(clock::monotonic_ns(), Ordering::Release);
        self.0.is_given_up.store(false, Ordering::Release);
    }

    pub(crate) fn last_progress_ns(&self) -> u64 {
        self.0.last_progress_ns.load(Ordering::Acquire)
    }

    pub(crate) fn mark_given_up(&self) {
        self.0.is_given_up.store(true, Ordering::Release);
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.0.is_given_up.load(Ordering::Acquire)
    }

    /// Returns the loss cause of a record that found the output's queue full.
    pub(crate) fn loss_cause(&self) -> LossCause {
        match (self.reach(), self.is_given_up()) {
            (OutputReachability::Unreachable, _) => LossCause::Unreachable,
            (_, true) => LossCause::GivenUp,
            (_, false) => LossCause::QueueFull,
        }
    }

    /// Returns the reason why records that still wait at the end are lost.
    pub(crate) fn loss_cause_at_end(&self) -> LossCause {
        match self.reach() {
            OutputReachability::Local => LossCause::Refused,
            OutputReachability::Connected => LossCause::GivenUp,
            OutputReachability::Unreachable => LossCause::Unreachable,
        }
    }
}

/// The queue of one output. One output can be given up while the others continue. Clones share the queue.
#[derive(Debug)]
pub struct OutputQueue<T> {
    queue: Sender<T>,
    backpressure: BackpressurePolicy,
    progress: OutputProgress,
}

impl<T> Clone for OutputQueue<T> {
    fn clone(&self) -> Self {
        let Self { queue, backpressure: policy, progress } = self;
        Self { queue: queue.clone(), backpressure: policy.clone(), progress: progress.clone() }
    }
}

impl<T> OutputQueue<T> {
    /// Wraps the sending half of the queue of an output on this machine.
    pub fn new(queue: Sender<T>, policy: &BackpressurePolicy) -> Self {
        Self::with_progress(queue, policy, OutputProgress::new(OutputReachability::Local))
    }

    /// Wraps the sending half of the queue of any output. The output's thread records in `progress` each time that
    /// the output accepts data.
    pub(crate) fn with_progress(
        queue: Sender<T>,
        backpressure: &BackpressurePolicy,
        progress: OutputProgress,
    ) -> Self {
        Self { queue, backpressure: backpressure.clone(), progress }
    }

    fn should_wait_for_room(&self) -> bool {
        self.backpressure.is_waiting_enabled() && !self.progress.is_given_up()
    }

    /// Gives the output up if it has accepted no data for too long since the worker began to wait.
    fn give_up_if_stalled(&self, waiting_since_ns: u64) {
        // Time before the wait does not count: the output may have been idle because there were no data.
        let last_progress_ns = self.progress.last_progress_ns().max(waiting_since_ns);
        if self.backpressure.is_stalled(self.progress.reach(), last_progress_ns) {
            self.progress.mark_given_up();
        }
    }

    /// Returns the loss cause of a record that found the queue full.
    pub(crate) fn loss_cause(&self) -> LossCause {
        self.progress.loss_cause()
    }

    /// Puts a value into the queue. Waits for room if waiting is enabled and the output is not given up. If the queue
    /// is full or closed, the error contains the value.
    pub(crate) fn send_or_wait(&self, mut value: T) -> Result<(), T> {
        let since_ns = clock::monotonic_ns();
        while self.should_wait_for_room() {
            // The send has a short time limit, so that this thread can check whether the output has stalled.
            match self.queue.send_timeout(value, CONTINUE_CHECK_INTERVAL) {
                Ok(()) => {
                    // Another worker that has waited longer must not give up the output: the output accepts data.
                    self.progress.record_output_progress();
                    return Ok(());
                }
                Err(SendTimeoutError::Timeout(back)) => value = back,
                Err(SendTimeoutError::Disconnected(back)) => {
                    self.progress.mark_given_up();
                    return Err(back);
                }
            }
            self.give_up_if_stalled(since_ns);
        }
        self.try_send(value)
    }

    /// Puts a value into the queue without waiting.
    pub(crate) fn try_send(&self, value: T) -> Result<(), T> {
        self.queue.try_send(value).map_err(TrySendError::into_inner)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.queue.is_full()
    }

    /// Waits until each of these queues has room or its output is given up. Returns at once if waiting is not enabled.
    /// Meanwhile, no other thread may send to these queues.
    pub(crate) fn await_queue_room(queues: &[Self]) {
        // All queues share one start time, so that several dead outputs cost the time limit only once.
        let since_ns = clock::monotonic_ns();
        loop {
            let mut waiting =
                queues.iter().filter(|output| output.queue.is_full() && output.should_wait_for_room());
            let Some(first) = waiting.next() else { return };
            first.give_up_if_stalled(since_ns);
            waiting.for_each(|output| output.give_up_if_stalled(since_ns));
            std::thread::sleep(CONTINUE_CHECK_INTERVAL / 20);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Receiver, bounded};

    const SHORT: Nanos = Nanos::from_secs(1);

    fn begun() -> BackpressurePolicy {
        let policy = BackpressurePolicy::with_stall_timeouts([SHORT.as_u64(); 3]);
        policy.enable_backpressure();
        policy
    }

    /// Two outputs whose queues are full, and their receiving ends.
    fn full_outputs() -> ([OutputQueue<u64>; 2], [Receiver<u64>; 2]) {
        let policy = begun();
        let (first, second) = (bounded(1), bounded(1));
        let outputs = [first.0, second.0].map(|queue| OutputQueue::new(queue, &policy));
        for output in &outputs {
            output.send_or_wait(0).unwrap();
        }
        (outputs, [first.1, second.1])
    }

    #[test]
    fn it_begins_when_the_last_source_has_ended() {
        let policy = BackpressurePolicy::default();
        let [first, last] = [policy.register_source(), policy.register_source()];
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| policy.unregister_source_and_enable_waiting(first));
            assert!(!policy.is_waiting_enabled(), "another source may still give something");
            policy.unregister_source_and_enable_waiting(last);
            assert!(policy.is_waiting_enabled());
            waiting.join().unwrap();
        });
    }

    #[test]
    fn backpressure_waits_only_after_waiting_begins() {
        let policy = BackpressurePolicy::default();
        let (queue, taken) = bounded(1);
        let output = OutputQueue::new(queue, &policy);
        assert_eq!((output.send_or_wait(1), output.send_or_wait(2)), (Ok(()), Err(2)));
        policy.enable_backpressure();
        std::thread::scope(|scope| {
            let giving = scope.spawn(|| output.send_or_wait(3));
            assert_eq!((taken.recv(), taken.recv()), (Ok(1), Ok(3)));
            assert_eq!(giving.join().unwrap(), Ok(()));
        });
    }

    /// Most of eight waiting workers wait longer than the stall limit.
    #[test]
    fn slow_output_receives_items_of_all_workers() {
        let policy = begun();
        let (queue, taken) = bounded(1);
        let output = OutputQueue::new(queue, &policy);
        std::thread::scope(|scope| {
            let givers: Vec<_> = (0..8)
                .map(|_| {
                    let output = output.clone();
                    scope.spawn(move || (0..4).filter(|n| output.send_or_wait(*n).is_ok()).count())
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
    fn stalled_output_is_given_up_alone() {
        let (queues, [_not_taken, taken]) = full_outputs();
        std::thread::scope(|scope| {
            let taking = scope.spawn(|| taken.iter().take(5).count());
            for number in 1..5 {
                OutputQueue::await_queue_room(&queues);
                assert_eq!(queues[0].try_send(number), Err(number));
                queues[1].try_send(number).unwrap();
            }
            assert_eq!(taking.join().unwrap(), 5);
        });
        queues[1].send_or_wait(5).unwrap();
        assert_eq!(queues.each_ref().map(OutputQueue::should_wait_for_room), [false, true]);
        assert_eq!(queues[0].send_or_wait(5), Err(5));
    }

    #[test]
    fn slow_output_is_kept_when_another_stalls() {
        let (queues, [_not_taken, taken]) = full_outputs();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(CONTINUE_CHECK_INTERVAL);
                taken.recv().unwrap();
            });
            OutputQueue::await_queue_room(&queues);
            assert!(!queues[0].should_wait_for_room() && queues[1].should_wait_for_room());
        });
    }

    #[test]
    fn stall_limit_and_loss_cause_depend_on_reach() {
        let [forever, _, short] = [u64::MAX, u64::MAX, 1];
        let policy = BackpressurePolicy::with_stall_timeouts([forever, forever, short]);
        policy.enable_backpressure();
        let full = |reach| {
            let (queue, taken) = bounded(1);
            let output = OutputQueue::with_progress(queue, &policy, OutputProgress::new(reach));
            output.send_or_wait(0).unwrap();
            output.give_up_if_stalled(0);
            (output, taken)
        };
        let (disk, _disk) = full(OutputReachability::Local);
        let (collector, _collector) = full(OutputReachability::Unreachable);
        assert!(disk.should_wait_for_room() && !collector.should_wait_for_room());
        assert_eq!(
            (disk.loss_cause(), collector.loss_cause()),
            (LossCause::QueueFull, LossCause::Unreachable)
        );
        // It is alive after all.
        collector.progress.set_connected(true);
        assert_eq!(collector.loss_cause(), LossCause::GivenUp);
        collector.progress.record_output_progress();
        assert!(collector.should_wait_for_room());
    }

    #[test]
    fn connected_collector_keeps_stall_limit_at_file_end() {
        let usual = Nanos::from_secs(3);
        let policy = BackpressurePolicy::default();
        let wait_ns = |reach| policy.wait_after_last_batch_ns(reach, usual);
        assert_eq!(wait_ns(OutputReachability::Connected), usual.as_u64());
        policy.enable_backpressure_for_files();
        assert_eq!(wait_ns(OutputReachability::Connected), CONNECTED_STALL_TIMEOUT.as_u64());
        assert_eq!(wait_ns(OutputReachability::Unreachable), usual.as_u64());
        policy.shorten_waits();
        assert_eq!(wait_ns(OutputReachability::Connected), HURRIED_STALL_TIMEOUT.as_u64());
    }

    #[test]
    fn shortened_wait_never_exceeds_previous_limit() {
        let policy = BackpressurePolicy::default();
        let ago = |limit: Nanos| clock::monotonic_ns().saturating_sub(limit.as_u64() + 1);
        let is_stalled = |last_progress_ns| {
            OutputReachability::ALL.map(|reach| policy.is_stalled(reach, last_progress_ns))
        };
        assert_eq!(is_stalled(0), [false, true, true]);
        assert_eq!(is_stalled(ago(UNREACHABLE_STALL_TIMEOUT)), [false, false, true]);
        assert_eq!(is_stalled(ago(HURRIED_STALL_TIMEOUT)), [false; 3]);
        policy.shorten_waits();
        assert_eq!(is_stalled(ago(HURRIED_STALL_TIMEOUT)), [true; 3]);
        let short = begun();
        short.shorten_waits();
        assert!(short.is_stalled(OutputReachability::Local, ago(SHORT)));
    }
}
