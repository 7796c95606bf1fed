//! The async runtime behind the synchronous functions of this crate: one thread, which ends when the last clone
//! of [`SharedRuntime`] is dropped.
//!
//! Invariant: no caller runs inside the runtime, so callers may block; nothing in the runtime blocks.

use packetrig_fleet::fabric::Error;
use packetrig_sys::clock::monotonic_ns;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// The runtime thread. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct SharedRuntime(Arc<RuntimeState>);

#[derive(Debug)]
struct RuntimeState(Option<tokio::runtime::Runtime>);

impl SharedRuntime {
    pub(crate) fn start_thread() -> Result<Self, Error> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        // One thread is enough, because nothing in the runtime blocks.
        builder.worker_threads(1).thread_name("fabric").enable_all();
        let runtime = builder.build().map_err(|error| Error::Down(error.to_string()))?;
        Ok(Self(Arc::new(RuntimeState(Some(runtime)))))
    }

    /// Runs `work` in the runtime and waits for it. Returns `None` if `work` panics, or is not finished in time;
    /// then it is cancelled.
    pub(crate) fn run_with_timeout<T: Send + 'static>(
        &self,
        within: Duration,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (done, result) = crossbeam_channel::bounded(1);
        self.spawn(async move {
            let result = tokio::time::timeout(within, work).await.ok();
            // The caller waits below, so the channel is open.
            drop(done.send(result));
        })?;
        // A task that panics drops its end of the channel, which counts as no result.
        result.recv().ok().flatten()
    }

    pub(crate) fn spawn(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Option<tokio::task::JoinHandle<()>> {
        self.0.0.as_ref().map(|runtime| runtime.spawn(work))
    }
}

/// Returns the time `within` from now on the monotonic clock, in nanoseconds; at most [`u64::MAX`].
pub(crate) fn deadline_ns(within: Duration) -> u64 {
    let within = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
    monotonic_ns().saturating_add(within)
}

impl Drop for RuntimeState {
    fn drop(&mut self) {
        // The last clone may be dropped in an async context, where a thread must not wait for the runtime to end.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
