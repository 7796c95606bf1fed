//! Live state for any number of viewers as server-sent events. One task requests the state while there is a
//! viewer. Each viewer gets the latest state as fast as it reads, at most ten times a second.

use super::live_json::{StreamWindow, build_history_json, live_json};
use crate::viewing::{LiveSource, LiveState};
use bytes::Bytes;
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// Maximum number of viewers at a time. Each keeps a connection busy.
pub(super) const MAX_VIEWERS: usize = 32;
/// Time between two states.
const STATE_INTERVAL: Duration = Duration::from_millis(100);
/// How long viewers wait for the last state after the server was told to stop.
const LAST_STATE_TIMEOUT: Duration = Duration::from_millis(200);
/// Interval of heartbeats to a viewer without new states, so that it notices a lost connection.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Publishes the live state to viewers.
pub(super) struct LiveFeed {
    source: Arc<dyn LiveSource>,
    latest: watch::Sender<Option<Arc<PublishedState>>>,
    /// True while a task publishes states. The task decides to end, and viewers subscribe, while
    /// they hold this lock. So no viewer is left without a task.
    is_running: Mutex<bool>,
    viewers: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
}

impl LiveFeed {
    pub(super) fn new(source: Arc<dyn LiveSource>, stopping: watch::Receiver<bool>) -> Arc<Self> {
        Arc::new(Self {
            source,
            latest: watch::Sender::new(None),
            is_running: Mutex::new(false),
            viewers: Arc::new(Semaphore::new(MAX_VIEWERS)),
            stopping,
        })
    }

    pub(super) fn viewer_count(&self) -> usize {
        MAX_VIEWERS - self.viewers.available_permits()
    }

    /// Starts the events for one viewer; `None` if there are too many viewers. `period` is the minimum time between
    /// two states. `has_history`: the viewer first wants the history of the current configuration.
    pub(super) fn add_viewer(
        self: &Arc<Self>,
        window: StreamWindow,
        period: Duration,
        has_history: bool,
    ) -> Option<mpsc::Receiver<Result<Bytes, std::convert::Infallible>>> {
        let permit = Arc::clone(&self.viewers).try_acquire_owned().ok()?;
        // One event waits while the client reads the previous one; all other events are skipped.
        let (sender, receiver) = mpsc::channel(1);
        let viewer = LiveViewer {
            states: self.subscribe_states(),
            stopping: self.stopping.clone(),
            events: sender,
            window,
            period: period.max(STATE_INTERVAL),
            has_history,
            number: 0,
            // Counts the viewer until its task ends.
            _permit: permit,
        };
        tokio::spawn(viewer.send_events());
        Some(receiver)
    }

    fn subscribe_states(self: &Arc<Self>) -> watch::Receiver<Option<Arc<PublishedState>>> {
        let mut is_running = self.is_running.lock().unwrap_or_else(PoisonError::into_inner);
        // The subscription comes before the task begins: the task ends as soon as it finds no receiver.
        let states = self.latest.subscribe();
        if !*is_running {
            *is_running = true;
            // A state from an earlier viewer's time must not be shown as the current one.
            self.latest.send_replace(None);
            tokio::spawn(Arc::clone(self).publish_states());
        }
        states
    }

    /// Publishes states until there is no viewer any more or the server stops.
    async fn publish_states(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(STATE_INTERVAL);
        // Missed ticks are not made up for: only the latest state is worth publishing.
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // This flag is read before the state is made, so that viewers still get the state that is
            // made after the stop.
            let has_ended = self.mark_ended_if_unneeded();
            let shown = self.latest.borrow().as_ref().map(|shown| shown.state.revision);
            let source = Arc::clone(&self.source);
            let state = tokio::task::spawn_blocking(move || {
                // Reading the revision is cheap. The state is made only if the revision has changed.
                (shown != Some(source.revision())).then(|| Arc::new(PublishedState::new(source.live_state())))
            });
            // A panic of the source is a bug, but no reason to end the server: viewers get heartbeats only.
            if let Ok(Some(state)) = state.await {
                self.latest.send_replace(Some(state));
            }
            if has_ended {
                return;
            }
        }
    }

    /// Returns whether the task must end, because there is no viewer or the server stops;
    /// then also clears `is_running`.
    fn mark_ended_if_unneeded(&self) -> bool {
        let mut is_running = self.is_running.lock().unwrap_or_else(PoisonError::into_inner);
        // The flag changes under the lock: a viewer that comes now is either counted here or starts a new task.
        *is_running = self.latest.receiver_count() > 0 && !*self.stopping.borrow();
        !*is_running
    }
}

/// A state, and the texts written from it: viewers of the same rows get the same text.
struct PublishedState {
    state: LiveState,
    written: Mutex<Vec<SerializedRows>>,
}

/// The serialised rows of one window; empty until a viewer has serialised them.
struct SerializedRows {
    window: StreamWindow,
    text: Arc<OnceCell<Arc<str>>>,
}

impl PublishedState {
    fn new(state: LiveState) -> Self {
        Self { state, written: Mutex::default() }
    }

    /// Returns the state with the rows of `window` as JSON text. The first viewer that needs it serialises it; all
    /// other viewers of these rows use the same text.
    async fn serialize_rows(self: &Arc<Self>, window: &StreamWindow) -> Result<Arc<str>, ViewerGoneError> {
        let text = self.find_or_add_window_text(window);
        let (shown, window) = (Arc::clone(self), window.clone());
        let write = || serialize_on_blocking_thread(move || live_json(&shown.state, &window));
        // Other viewers of these rows wait here for the same text.
        Ok(Arc::clone(text.get_or_try_init(write).await?))
    }

    fn find_or_add_window_text(&self, window: &StreamWindow) -> Arc<OnceCell<Arc<str>>> {
        let mut all = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter().find(|rows| rows.window == *window) {
            return Arc::clone(&known.text);
        }
        // While the state does not change, viewers may come and leave, each with another window. The oldest text is
        // dropped, so that the list does not grow without limit.
        if all.len() == MAX_VIEWERS {
            all.remove(0);
        }
        let text = Arc::<OnceCell<_>>::default();
        all.push(SerializedRows { window: window.clone(), text: Arc::clone(&text) });
        text
    }
}

/// Builds and serialises a document on a thread that may block: sorting and writing thousands of rows must not
/// hold up other calls.
async fn serialize_on_blocking_thread(
    make: impl FnOnce() -> Value + Send + 'static,
) -> Result<Arc<str>, ViewerGoneError> {
    let written = tokio::task::spawn_blocking(move || make().to_string()).await;
    // A panic is a bug. It ends the events of its viewers, not the server.
    written.map(Arc::from).map_err(|_| ViewerGoneError)
}

/// One viewer, until it leaves or the server stops.
struct LiveViewer {
    states: watch::Receiver<Option<Arc<PublishedState>>>,
    stopping: watch::Receiver<bool>,
    events: mpsc::Sender<Result<Bytes, std::convert::Infallible>>,
    window: StreamWindow,
    period: Duration,
    /// True if the viewer wants the history of the current configuration.
    has_history: bool,
    number: u64,
    _permit: OwnedSemaphorePermit,
}

impl LiveViewer {
    async fn send_events(mut self) {
        let mut configuration = None;
        // The state that exists now is sent first, so it is marked as changed.
        self.states.mark_changed();
        loop {
            let next = tokio::select! {
                _ = self.stopping.wait_for(|stopping| *stopping) => None,
                // Without this branch, a viewer that has disconnected would keep its permit until the next event.
                () = self.events.closed() => return,
                changed = tokio::time::timeout(HEARTBEAT_INTERVAL, self.states.changed()) => Some(changed),
            };
            let Some(changed) = next else {
                // If the viewer has already disconnected, sending fails. Its task ends here in any case.
                self.send_last_state(&mut configuration).await.ok();
                return;
            };
            let sent = match changed {
                Ok(Ok(())) => self.send_state(&mut configuration).await,
                Ok(Err(_)) => return,
                Err(_) => self.send_event("heartbeat", "{}").await,
            };
            if sent.is_err() {
                return;
            }
        }
    }

    async fn send_state(&mut self, configuration: &mut Option<u64>) -> Result<(), ViewerGoneError> {
        // `None` is the value before the first state of a new task.
        let Some(shown) = self.states.borrow_and_update().clone() else { return Ok(()) };
        // With each new configuration, a viewer first gets the history that it has missed.
        let before = configuration.replace(shown.state.configuration);
        if before != Some(shown.state.configuration) && (before.is_some() || self.has_history) {
            let missed = Arc::clone(&shown);
            self.send_event(
                "history",
                &serialize_on_blocking_thread(move || build_history_json(&missed.state)).await?,
            )
            .await?;
        }
        let rows = shown.serialize_rows(&self.window).await?;
        self.send_event("live", &rows).await?;
        // The publisher waits for `STATE_INTERVAL` between two states, so only the rest of the period
        // is waited for here.
        let pause = self.period.saturating_sub(STATE_INTERVAL);
        // A server that stops does not wait for viewers that have requested a low rate.
        tokio::time::timeout(pause, self.stopping.wait_for(|stopping| *stopping)).await.ok();
        Ok(())
    }

    /// Sends the last state, unless it was sent already, and then the event that announces the end.
    async fn send_last_state(&mut self, configuration: &mut Option<u64>) -> Result<(), ViewerGoneError> {
        tokio::time::sleep(LAST_STATE_TIMEOUT).await;
        if self.states.has_changed().unwrap_or_default() {
            self.send_state(configuration).await?;
        }
        self.send_event("stopping", "{}").await
    }

    /// Sends an event. Waits while the previous event is still in the channel, because the client reads slowly.
    async fn send_event(&mut self, event: &str, data: &str) -> Result<(), ViewerGoneError> {
        self.number += 1;
        let text = format!("id: {}\nevent: {event}\ndata: {data}\n\n", self.number);
        self.events.send(Ok(Bytes::from(text))).await.map_err(|_| ViewerGoneError)
    }
}

/// The client has closed its connection, or its events cannot be made any more.
struct ViewerGoneError;

#[cfg(test)]
mod tests {
    use super::super::query::QueryParameters;
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[derive(Default)]
    struct CountingSource(AtomicU64);

    impl LiveSource for CountingSource {
        fn revision(&self) -> u64 {
            self.0.load(Ordering::Relaxed) + 1
        }

        fn live_state(&self) -> LiveState {
            let asked = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            LiveState { revision: asked, configuration: asked, run: None }
        }
    }

    fn window() -> StreamWindow {
        StreamWindow::from_query(&mut QueryParameters::default()).expect("a window")
    }

    #[test]
    fn idle_feed_stops_polling_and_resumes_with_latest() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let source = Arc::<CountingSource>::default();
            let (_keep, stopping) = watch::channel(false);
            let feed = LiveFeed::new(Arc::clone(&source) as _, stopping);
            let mut viewer = feed.add_viewer(window(), STATE_INTERVAL, true).expect("there is room");
            assert!(viewer.recv().await.is_some());
            drop(viewer);
            while *feed.is_running.lock().expect("no panic") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let asked = source.0.load(Ordering::Relaxed);
            assert_eq!(feed.viewer_count(), 0);
            source.0.store(asked + 100, Ordering::Relaxed);
            let mut viewer = feed.add_viewer(window(), STATE_INTERVAL, true).expect("there is room");
            let Ok(event) = viewer.recv().await.expect("an event");
            let text = String::from_utf8_lossy(&event).into_owned();
            assert!(text.contains(&format!("\"configuration\":{}", asked + 101)), "{text}");
        });
    }

    #[test]
    fn viewers_of_same_rows_share_one_serialization() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let shown = Arc::new(PublishedState::new(LiveState { revision: 1, configuration: 1, run: None }));
            let same = window();
            let (first, second) = tokio::join!(shown.serialize_rows(&same), shown.serialize_rows(&same));
            let [first, second] = [first, second].map(|text| text.ok().expect("it is written"));
            assert!(Arc::ptr_eq(&first, &second));
            let mut parameters = QueryParameters::parse_query(Some("rows=1")).expect("a query");
            let other = StreamWindow::from_query(&mut parameters).expect("another window");
            let other = shown.serialize_rows(&other).await.ok().expect("it is written");
            assert!(!Arc::ptr_eq(&first, &other));
            for rows in 2..100 {
                let mut parameters =
                    QueryParameters::parse_query(Some(&format!("rows={rows}"))).expect("a query");
                shown.find_or_add_window_text(
                    &StreamWindow::from_query(&mut parameters).expect("another window"),
                );
            }
            assert_eq!(shown.written.lock().expect("no panic").len(), MAX_VIEWERS);
        });
    }
}
