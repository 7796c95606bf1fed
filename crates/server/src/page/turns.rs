//! Limits expensive calls, so that they do not disturb a measurement: few run at a time, and few wait.

use super::routes::{PageFailure, panic_refusal};
use crate::transport::http::error_response;
use crate::viewing::ViewRefusal;
use http::StatusCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Maximum number of calls of one kind that wait.
const MAX_WAITING: usize = 8;

/// The limit for calls of one kind. A waiting call occupies no thread.
pub(super) struct CallLimit {
    turns: Semaphore,
    waiting: AtomicUsize,
}

impl CallLimit {
    pub(super) const fn new(at_once: usize) -> Self {
        Self { turns: Semaphore::const_new(at_once), waiting: AtomicUsize::new(0) }
    }

    /// Computes an answer on a thread that may block, once the limit permits it. If too many calls wait already,
    /// this call is refused.
    pub(super) async fn run_when_permitted<T: Send + 'static>(
        &'static self,
        make: impl FnOnce() -> Result<T, ViewRefusal> + Send + 'static,
    ) -> Result<T, PageFailure> {
        let turn = self.wait_for_permit().await?;
        let made = tokio::task::spawn_blocking(move || {
            // The permit is held until the answer is made, even if the viewer has disconnected.
            let _turn = turn;
            make()
        });
        Ok(made.await.unwrap_or_else(|_| Err(panic_refusal()))?)
    }

    /// Waits for a permit, which is valid until it is dropped.
    async fn wait_for_permit(&'static self) -> Result<SemaphorePermit<'static>, PageFailure> {
        if let Ok(turn) = self.turns.try_acquire() {
            return Ok(turn);
        }
        // The place in the queue becomes free as soon as this call has its permit, so that another call may wait.
        let _place = QueueTicket::enter_queue(&self.waiting).ok_or_else(queue_full_failure)?;
        // `acquire` fails only if the semaphore is closed, and no code closes this one.
        self.turns.acquire().await.map_err(|_| queue_full_failure())
    }
}

fn queue_full_failure() -> PageFailure {
    let message = "too many expensive requests are waiting; try again later";
    PageFailure::Ready(Box::new(error_response(StatusCode::SERVICE_UNAVAILABLE, message)))
}

/// A place in the queue. Dropping it frees the place, also when the viewer disconnects.
struct QueueTicket<'a>(&'a AtomicUsize);

impl<'a> QueueTicket<'a> {
    fn enter_queue(waiting: &'a AtomicUsize) -> Option<Self> {
        // The value exists before the count is checked: if too many calls wait, its drop undoes the increment.
        let place = Self(waiting);
        (waiting.fetch_add(1, Ordering::Relaxed) < MAX_WAITING).then_some(place)
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_waiting_calls_are_refused_and_slots_freed() {
        static CALLS: CallLimit = CallLimit::new(1);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let first = CALLS.wait_for_permit().await;
            let waiting: Vec<_> = (0..MAX_WAITING).map(|_| tokio::spawn(CALLS.wait_for_permit())).collect();
            tokio::task::yield_now().await;
            let refused = CALLS.wait_for_permit().await;
            assert!(matches!(refused, Err(PageFailure::Ready(_))));
            waiting.iter().for_each(tokio::task::JoinHandle::abort);
            for one in waiting {
                assert!(one.await.is_err(), "it was given up while it waited");
            }
            drop(first);
            assert!(CALLS.wait_for_permit().await.is_ok());
            assert_eq!(CALLS.waiting.load(Ordering::Relaxed), 0);
        });
    }
}
