//! Limits calls that cost the rig much: few run at a time, and few wait.

use super::routes::{PageFailure, panic_refusal};
use crate::transport::http::error_response;
use crate::viewing::ViewRefusal;
use http::StatusCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Calls of one kind that wait for their turn.
const MAX_WAITING: usize = 8;

/// Calls of one kind. They wait here for each other without a thread.
pub(super) struct HeavyCalls {
    turns: Semaphore,
    waiting: AtomicUsize,
}

impl HeavyCalls {
    pub(super) const fn new(at_once: usize) -> Self {
        Self { turns: Semaphore::const_new(at_once), waiting: AtomicUsize::new(0) }
    }

    /// Makes an answer on a thread that may block, when its turn comes. If too many wait already, it is refused.
    pub(super) async fn run_in_turn<T: Send + 'static>(
        &'static self,
        make: impl FnOnce() -> Result<T, ViewRefusal> + Send + 'static,
    ) -> Result<T, PageFailure> {
        let turn = self.take_turn().await?;
        let made = tokio::task::spawn_blocking(move || {
            // Held until the answer is made, also if its viewer has gone.
            let _turn = turn;
            make()
        });
        Ok(made.await.unwrap_or_else(|_| Err(panic_refusal()))?)
    }

    /// Waits for a turn. It lasts until it is dropped.
    async fn take_turn(&'static self) -> Result<SemaphorePermit<'static>, PageFailure> {
        if let Ok(turn) = self.turns.try_acquire() {
            return Ok(turn);
        }
        // Given back as soon as the turn has come, so that another call may wait.
        let _place = WaitingPlace::take_place(&self.waiting).ok_or_else(too_many)?;
        // This fails only for a closed semaphore, and nothing closes this one.
        self.turns.acquire().await.map_err(|_| too_many())
    }
}

fn too_many() -> PageFailure {
    let message = "too many viewers ask for much at once; try again later";
    PageFailure::Ready(Box::new(error_response(StatusCode::SERVICE_UNAVAILABLE, message)))
}

/// A place among those that wait, given back when it is dropped: also if the viewer goes.
struct WaitingPlace<'a>(&'a AtomicUsize);

impl<'a> WaitingPlace<'a> {
    fn take_place(waiting: &'a AtomicUsize) -> Option<Self> {
        // Made before the count is checked: its drop takes the increment back if too many wait.
        let place = Self(waiting);
        (waiting.fetch_add(1, Ordering::Relaxed) < MAX_WAITING).then_some(place)
    }
}

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_waiting_calls_are_refused_and_slots_freed() {
        static CALLS: HeavyCalls = HeavyCalls::new(1);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let first = CALLS.take_turn().await;
            let waiting: Vec<_> = (0..MAX_WAITING).map(|_| tokio::spawn(CALLS.take_turn())).collect();
            tokio::task::yield_now().await;
            let refused = CALLS.take_turn().await;
            assert!(matches!(refused, Err(PageFailure::Ready(_))));
            waiting.iter().for_each(tokio::task::JoinHandle::abort);
            for one in waiting {
                assert!(one.await.is_err(), "it was given up while it waited");
            }
            drop(first);
            assert!(CALLS.take_turn().await.is_ok());
            assert_eq!(CALLS.waiting.load(Ordering::Relaxed), 0);
        });
    }
}
