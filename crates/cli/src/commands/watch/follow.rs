//! The connection to the server. One thread receives the server's events, and connects again after a loss if the
//! server outlives the run. Another thread sends the user's commands. Neither waits for the screen unless the queue
//! of events is full.

use super::orders::StreamCommand;
use super::state::StreamWindow;
use packetrig_server::client::{ApiClient, ClientError, EventStream, ServerEvent};
use packetrig_units::text::encode_url_part;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

/// Largest number of events that wait for the screen. If the queue is full, the follower waits, and the server skips
/// states of the run.
const MAX_WAITING: usize = 8;
/// How often the follower checks whether it must end and whether the user wants to see other rows.
const FOLLOWER_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Wait between two attempts to connect, in [`FOLLOWER_CHECK_INTERVAL`]s.
const CHECKS_BETWEEN_ATTEMPTS: u32 = 10;
/// How long the program waits at its end for the threads, in [`FOLLOWER_CHECK_INTERVAL`]s.
const CHECKS_AT_END: u32 = 5;
/// How many states of the run per second the screen requests from the server.
const SCREEN_STATES_PER_SECOND: u32 = 5;
/// Largest number of rows of streams that the API returns.
const MAX_API_ROWS: usize = 10_000;

/// An event for the screen.
#[derive(Debug)]
pub(super) enum WatchEvent {
    Connected,
    /// The connection was lost for this reason; the follower will connect again.
    Lost(String),
    /// The run has ended, and its server with it.
    Ended,
    Server(ServerEvent),
    Ordered {
        order: StreamCommand,
        refusal: Option<String>,
    },
}

/// Whether the server outlives the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerLifetime {
    /// The server is `packetrig serve`, which outlives runs: after a lost connection the follower connects again.
    BeyondRun,
    /// The server belongs to the run of one command and ends with it.
    OfRun,
}

/// Which events are requested from the server: the rows of streams, the states per second, and the past rates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventRequest {
    window: StreamWindow,
    rate: u32,
    has_history: bool,
}

impl EventRequest {
    pub(super) fn for_screen(window: StreamWindow) -> Self {
        Self { window, rate: SCREEN_STATES_PER_SECOND, has_history: true }
    }

    /// Requests the totals without rows of streams, once a second.
    pub(super) fn totals_only() -> Self {
        Self { window: StreamWindow::default(), rate: 1, has_history: false }
    }

    /// Requests the first [`MAX_API_ROWS`] rows of streams, once a second, and the past rates.
    pub(super) fn all_rows() -> Self {
        let window = StreamWindow { rows: MAX_API_ROWS, ..StreamWindow::default() };
        Self { window, rate: 1, has_history: true }
    }

    fn request_path(&self, has_history: bool) -> String {
        let StreamWindow { sort, filter, from, rows } = &self.window;
        let filter = encode_url_part(filter);
        let Self { rate, .. } = self;
        format!(
            "/api/v1/events?rate={rate}&history={has_history}&sort={sort}&filter={filter}&from={from}&rows={rows}"
        )
    }
}

/// The connection to a server, for the screen: its events, the commands to send, and the threads that do both.
#[derive(Debug)]
pub(super) struct ServerLink {
    events: Option<Receiver<Result<WatchEvent, ClientError>>>,
    orders: Option<Sender<StreamCommand>>,
    request: Arc<Mutex<EventRequest>>,
    is_ending: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl ServerLink {
    pub(super) fn start_threads(client: ApiClient, request: EventRequest, lasts: ServerLifetime) -> Self {
        // The channel is bounded, so that a slow terminal slows the server's events instead of filling memory.
        let (event_sender, events) = sync_channel(MAX_WAITING);
        let (orders, order_receiver) = channel();
        let request = Arc::new(Mutex::new(request));
        let is_ending = Arc::<AtomicBool>::default();
        let follower = RunEventFollower {
            client: client.clone(),
            events: event_sender.clone(),
            request: Arc::clone(&request),
            is_ending: Arc::clone(&is_ending),
            lasts,
        };
        let threads = vec![
            spawn(move || follower.follow_run_until_end()),
            spawn(move || send_stream_commands(&client, &order_receiver, &event_sender)),
        ];
        Self { events: Some(events), orders: Some(orders), request, is_ending, threads }
    }

    /// Waits at most `timeout` for the next event; `None` if none came. Fails after an error that a new connection
    /// cannot fix, and if it is called again after [`WatchEvent::Ended`].
    pub(super) fn next_event(&self, timeout: Duration) -> Result<Option<WatchEvent>, ClientError> {
        let Some(events) = &self.events else { return Ok(None) };
        match events.recv_timeout(timeout) {
            Ok(event) => event.map(Some),
            // Both threads hold a sender, so the channel stays open when only one of them has ended.
            Err(_) if self.threads.iter().any(JoinHandle::is_finished) => {
                // A thread may have sent its last event after the wait.
                let last = events.try_recv().unwrap_or_else(|_| {
                    // The thread has panicked; `drop` passes the panic on.
                    let why = "a thread of the viewer has ended; this is a bug in packetrig";
                    Err(ClientError::Options(why.to_owned()))
                });
                last.map(Some)
            }
            Err(_) => Ok(None),
        }
    }

    pub(super) fn queue_stream_command(&self, order: StreamCommand) {
        if let Some(orders) = &self.orders {
            // Sending fails only if the thread has panicked; `drop` passes the panic on.
            drop(orders.send(order));
        }
    }

    /// Makes the follower request the rows of `window` from now on.
    pub(super) fn request_rows(&self, window: StreamWindow) {
        self.request.lock().unwrap_or_else(PoisonError::into_inner).window = window;
    }
}

impl Drop for ServerLink {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Release);
        // Closing the queues wakes the threads that wait at them.
        drop((self.events.take(), self.orders.take()));
        // A thread that still waits for a silent server is abandoned: it holds only a connection, and the user must
        // not wait for it.
        for _ in 0..CHECKS_AT_END {
            if self.threads.iter().all(JoinHandle::is_finished) {
                break;
            }
            sleep(FOLLOWER_CHECK_INTERVAL);
        }
        for thread in self.threads.drain(..).filter(JoinHandle::is_finished) {
            if let Err(panic) = thread.join()
                && !std::thread::panicking()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

fn send_stream_commands(
    client: &ApiClient,
    orders: &Receiver<StreamCommand>,
    events: &SyncSender<Result<WatchEvent, ClientError>>,
) {
    for order in orders {
        let refusal = client.post(order.path(), &order.body()).err().map(|error| error.to_string());
        if events.send(Ok(WatchEvent::Ordered { order, refusal })).is_err() {
            return;
        }
    }
}

struct RunEventFollower {
    client: ApiClient,
    events: SyncSender<Result<WatchEvent, ClientError>>,
    request: Arc<Mutex<EventRequest>>,
    is_ending: Arc<AtomicBool>,
    lasts: ServerLifetime,
}

/// Error: the screen has ended, and its receiver is closed.
struct ScreenClosed;

impl RunEventFollower {
    fn follow_run_until_end(self) {
        let mut needs_history = self.current_request().has_history;
        while !self.is_ending() {
            let request = self.current_request();
            match self.follow_events(&request, &mut needs_history) {
                // The user has scrolled to other rows: the next pass requests them.
                Ok(()) => {}
                Err(FollowFailure::ScreenEnded) => return,
                Err(FollowFailure::Client(error))
                    if error.can_succeed_later() && self.lasts == ServerLifetime::OfRun =>
                {
                    // If this fails, the channel is closed: the screen has ended, too.
                    drop(self.events.send(Ok(WatchEvent::Ended)));
                    return;
                }
                Err(FollowFailure::Client(error)) if error.can_succeed_later() => {
                    if self.events.send(Ok(WatchEvent::Lost(error.to_string()))).is_err() {
                        return;
                    }
                    // A lost connection leaves a gap in the curve; the server's history fills the gap.
                    needs_history = request.has_history;
                    self.wait_before_retry();
                }
                Err(FollowFailure::Client(error)) => {
                    drop(self.events.send(Err(error)));
                    return;
                }
            }
        }
    }

    /// Passes events to the screen until the screen requests other rows or closes. Sets `needs_history` to false when
    /// the history has come.
    fn follow_events(&self, request: &EventRequest, needs_history: &mut bool) -> Result<(), FollowFailure> {
        let mut stream = self.client.follow_events(&request.request_path(*needs_history))?;
        self.send_to_screen(WatchEvent::Connected)?;
        while !self.is_ending() && self.current_request() == *request {
            if let Some(event) = EventStream::wait_for_event(&mut stream, FOLLOWER_CHECK_INTERVAL)? {
                // The flag is cleared only after the history has arrived, so that a new connection requests it again.
                *needs_history &= event.name != "history";
                self.send_to_screen(WatchEvent::Server(event))?;
            }
        }
        Ok(())
    }

    fn send_to_screen(&self, event: WatchEvent) -> Result<(), ScreenClosed> {
        self.events.send(Ok(event)).map_err(|_| ScreenClosed)
    }

    fn current_request(&self) -> EventRequest {
        self.request.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    fn wait_before_retry(&self) {
        for _ in 0..CHECKS_BETWEEN_ATTEMPTS {
            if self.is_ending() {
                return;
            }
            sleep(FOLLOWER_CHECK_INTERVAL);
        }
    }
}

enum FollowFailure {
    Client(ClientError),
    ScreenEnded,
}

impl From<ClientError> for FollowFailure {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl From<ScreenClosed> for FollowFailure {
    fn from(ScreenClosed: ScreenClosed) -> Self {
        Self::ScreenEnded
    }
}
