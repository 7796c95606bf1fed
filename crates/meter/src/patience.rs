//! Whether to wait for room in a queue, or to lose.
//!
//! A live meter never waits while packets may come: they do not wait for it either. Once all of its sources have ended it has the time, as
//! a meter of files has from the start, until its user wants it to end or a queue has had no room for ten seconds: then whoever
//! is behind it is as good as dead.
//!
//! Invariant: patience that has ended does not come back.

use crossbeam_channel::{SendTimeoutError, Sender, TrySendError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

/// How often one who waits looks whether to go on.
const LOOK: Duration = Duration::from_millis(20);
/// So many looks without room are the end of it.
const LOOKS: u32 = 500;
/// Looks at other sources: all are told to end at the same time, and do within a fraction of a second.
const SOURCE_LOOKS: u32 = 50;

/// Values of [`State::phase`].
mod phase {
    pub(super) const NOT_BEGUN: u8 = 0;
    pub(super) const BEGUN: u8 = 1;
    pub(super) const ENDED: u8 = 2;
}

#[derive(Debug, Default)]
struct State {
    phase: AtomicU8,
    /// Sources that may still give something.
    open_sources: AtomicUsize,
}

/// See the module. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Patience(Arc<State>);

/// A source that may still give something, until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenSource(Arc<State>);

impl Drop for OpenSource {
    fn drop(&mut self) {
        self.0.open_sources.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Patience {
    /// With patience, until it is [ended](Self::end).
    pub fn begin(&self) {
        let _was = self.0.phase.compare_exchange(
            phase::NOT_BEGUN,
            phase::BEGUN,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
    }

    /// From now on nobody waits.
    pub fn end(&self) {
        self.0.phase.store(phase::ENDED, Ordering::Release);
    }

    fn is_begun(&self) -> bool {
        self.0.phase.load(Ordering::Acquire) == phase::BEGUN
    }

    /// One more source.
    pub(crate) fn add_source(&self) -> OpenSource {
        self.0.open_sources.fetch_add(1, Ordering::AcqRel);
        OpenSource(Arc::clone(&self.0))
    }

    /// A source has ended. Patience begins when all have; one that does not end is not waited for.
    pub(crate) fn end_source(&self, source: OpenSource) {
        drop(source);
        for _ in 0..SOURCE_LOOKS {
            let is_last = self.0.open_sources.load(Ordering::Acquire) == 0;
            if is_last || self.0.phase.load(Ordering::Acquire) != phase::NOT_BEGUN {
                break;
            }
            std::thread::sleep(LOOK);
        }
        self.begin();
    }

    /// Puts something into a queue, waiting for room if there is patience; gives it back if nothing came of it.
    pub(crate) fn give<T>(&self, queue: &Sender<T>, mut value: T) -> Result<(), T> {
        for _ in 0..LOOKS {
            if !self.is_begun() {
                return queue.try_send(value).map_err(TrySendError::into_inner);
            }
            match queue.send_timeout(value, LOOK) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Timeout(back)) => value = back,
                Err(SendTimeoutError::Disconnected(back)) => return Err(back),
            }
        }
        self.end();
        queue.try_send(value).map_err(TrySendError::into_inner)
    }

    /// Waits until all of these have room, if there is patience.
    pub(crate) fn await_room<T>(&self, queues: &[Sender<T>]) {
        let mut looks = 0;
        while queues.iter().any(Sender::is_full) && self.is_begun() {
            std::thread::sleep(LOOK / 20);
            looks += 1;
            if looks >= LOOKS * 20 {
                self.end();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;

    #[test]
    fn it_begins_when_the_last_source_has_ended() {
        let patience = Patience::default();
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
        let patience = Patience::default();
        let (queue, taken) = bounded(1);
        assert_eq!((patience.give(&queue, 1), patience.give(&queue, 2)), (Ok(()), Err(2)));
        patience.begin();
        std::thread::scope(|scope| {
            let giving = scope.spawn(|| patience.give(&queue, 3));
            assert_eq!((taken.recv(), taken.recv()), (Ok(1), Ok(3)));
            assert_eq!(giving.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn it_does_not_come_back() {
        let patience = Patience::default();
        let source = patience.add_source();
        patience.end();
        patience.end_source(source);
        assert!(!patience.is_begun());
    }
}
