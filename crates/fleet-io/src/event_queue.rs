//! Passes the events of a run to its user on a separate thread. The control loop renews the leases of nodes,
//! and a slow terminal or a full pipe must not delay that.
//!
//! Invariant: events are delivered in their order. Only samples of counts may be left out while too many
//! wait. Samples are cumulative, so a later one has all counts of an earlier one.

use crate::control::RunEventCallback;
use crate::error::Error;
use crate::event_log;
use packetrig_report::event::{RunEvent, RunEventKind};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, scope};

/// Maximum number of samples of counts that wait for the user. A fleet of 1000 nodes sends that many in
/// less than a second.
const MAX_SAMPLES: usize = 1024;

/// Runs `work`, which puts events into a queue. Another thread passes them to `on_event`. Returns when
/// all events are delivered.
pub(crate) fn with_event_thread<T>(
    on_event: RunEventCallback<'_>,
    work: impl FnOnce(&EventQueue) -> T,
) -> Result<T, Error> {
    let queue = EventQueue::default();
    scope(|scope| {
        let reader = Builder::new()
            .name("events".to_owned())
            .spawn_scoped(scope, || queue.deliver_queued_events(on_event))
            .map_err(Error::Thread)?;
        let done = {
            // The queue is closed even if `work` panics: otherwise the reader would wait for ever.
            let _closed = CloseOnDrop(&queue);
            work(&queue)
        };
        // A panic of the user's code continues here, as if this thread had called that code.
        reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(done)
    })
}

/// Events that wait for the user.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    events: VecDeque<RunEvent>,
    /// Number of samples of counts in `events`.
    samples: usize,
    is_closed: bool,
}

struct CloseOnDrop<'a>(&'a EventQueue);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.lock_state().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl QueueState {
    /// Counts a new sample, and drops the oldest waiting one if too many wait. So the last sample of a
    /// run is always delivered.
    fn make_room_for_sample(&mut self) {
        self.samples += 1;
        if self.samples > MAX_SAMPLES
            && let Some(oldest) = self.events.iter().position(is_sample_event)
        {
            self.events.remove(oldest);
            self.samples -= 1;
        }
    }
}

const fn is_sample_event(event: &RunEvent) -> bool {
    matches!(event.kind, RunEventKind::Counters { .. })
}

impl EventQueue {
    fn lock_state(&self) -> MutexGuard<'_, QueueState> {
        // The value is consistent between any two statements, so a panic cannot damage it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Panics if the user's code has panicked on the other thread, as if the work had called that code itself.
    pub(crate) fn panic_if_reader_panicked(&self) {
        assert!(!self.lock_state().is_closed, "the reader of the run's events has panicked");
    }

    /// Adds an event. Never waits for the user.
    pub(crate) fn push_event(&self, event: &RunEvent) {
        event_log::log_run_event(event);
        let mut state = self.lock_state();
        if is_sample_event(event) {
            state.make_room_for_sample();
        }
        state.events.push_back(event.clone());
        // There is only one reading thread.
        self.changed.notify_one();
    }

    fn deliver_queued_events(&self, on_event: RunEventCallback<'_>) {
        let _closed = CloseOnDrop(self);
        while let Some(event) = self.next_event() {
            on_event(&event);
        }
    }

    /// Waits for the next event. Returns `None` after the last one.
    fn next_event(&self) -> Option<RunEvent> {
        let state = self.lock_state();
        let waited = self.changed.wait_while(state, |state| state.events.is_empty() && !state.is_closed);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let event = state.events.pop_front()?;
        state.samples -= usize::from(is_sample_event(&event));
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_report::outcome::RunOutcome;
    use packetrig_report::{NodeName, RunId};
    use packetrig_stats::result::CountSample;
    use packetrig_units::MonoTime;
    use std::sync::mpsc::channel;

    fn event(kind: RunEventKind) -> RunEvent {
        RunEvent { run: RunId("r".into()), at: MonoTime::default(), kind }
    }

    fn sample(at: u64) -> RunEvent {
        let sample = CountSample { at: MonoTime::from_nanos(at), ..CountSample::default() };
        event(RunEventKind::Counters { node: NodeName("a".into()), sample: Box::new(sample) })
    }

    #[test]
    fn blocked_reader_loses_only_samples() {
        let (pushed, is_pushed) = channel();
        let is_pushed = Mutex::new(Some(is_pushed));
        let mut seen = Vec::new();
        let mut read = |event: &RunEvent| {
            // The first event blocks until all are pushed.
            if let Some(is_pushed) = is_pushed.lock().unwrap().take() {
                is_pushed.recv().unwrap();
            }
            seen.push(event.kind.clone());
        };
        let found = |number: usize| event(RunEventKind::Finding(number.to_string()));
        let ended = event(RunEventKind::Ended(RunOutcome::Complete { stopped: false }));
        let count = 3 * MAX_SAMPLES;
        with_event_thread(&mut read, |queue| {
            for number in 0..count {
                queue.push_event(&found(number));
                queue.push_event(&sample(number as u64));
            }
            queue.push_event(&ended);
            pushed.send(()).unwrap();
        })
        .unwrap();
        let samples: Vec<_> =
            seen.iter().filter(|kind| matches!(kind, RunEventKind::Counters { .. })).cloned().collect();
        assert!((MAX_SAMPLES..=MAX_SAMPLES + 1).contains(&samples.len()), "{}", samples.len());
        assert_eq!(samples.last(), Some(&sample(count as u64 - 1).kind), "the newest is not left out");
        let found: Vec<_> = (0..count).map(|number| found(number).kind).collect();
        let others: Vec<_> =
            seen.iter().filter(|kind| !matches!(kind, RunEventKind::Counters { .. })).cloned().collect();
        assert_eq!(others[..count], found, "in their order");
        assert_eq!(others[count..], [ended.kind]);
    }

    #[test]
    #[should_panic(expected = "the reader of the run's events has panicked")]
    fn panicking_reader_ends_work() {
        let mut read = |_: &RunEvent| panic!("the user's fault");
        with_event_thread(&mut read, |queue| {
            queue.push_event(&sample(0));
            // It comes to that, sooner or later.
            loop {
                queue.panic_if_reader_panicked();
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }
}
