//! Passes calls from the asynchronous transports to the blocking tester. Changes run one after the other.

use crate::api::{ApiCall, ApiReply, RequestSource, perform_call};
use crate::tester::{CaptureFile, Tester, TesterRefusal};
use bytes::Bytes;
use std::io::Read;
use std::sync::Arc;
use tokio::sync::{Mutex, mpsc};

/// Maximum number of pieces of a capture that wait for a slow client.
const MAX_WAITING_PIECES: usize = 4;

/// Performs the calls of all connections on the tester. Reads may run at the same time as other calls.
#[derive(Clone)]
pub(crate) struct CallDispatcher {
    tester: Arc<dyn Tester>,
    turn: Arc<Mutex<()>>,
}

impl CallDispatcher {
    pub(crate) fn new(tester: Arc<dyn Tester>) -> Self {
        Self { tester, turn: Arc::default() }
    }

    /// Reads a call, performs it and writes its answer on a thread that may block. A change runs to its end even if
    /// the client disconnects, because the thread holds the lock, not the future of the caller.
    pub(crate) async fn dispatch_call<T: Send + 'static>(
        &self,
        call: ApiCall,
        request: impl RequestSource + Send + 'static,
        write: impl FnOnce(ApiReply) -> Result<T, TesterRefusal> + Send + 'static,
    ) -> Result<T, TesterRefusal> {
        // A change waits before it takes a thread, because waiting changes must not use up the threads that reads need.
        let turn = if call.changes_state() { Some(self.turn.clone().lock_owned().await) } else { None };
        let tester = Arc::clone(&self.tester);
        let performed = tokio::task::spawn_blocking(move || {
            let reply = perform_call(&*tester, call, request);
            // Writing a large answer takes time, and the next change need not wait for it.
            drop(turn);
            reply.and_then(write)
        });
        performed.await.unwrap_or_else(|_| Err(panic_refusal(call.name())))
    }

    /// Performs a change that is not a call of the OTG API; it also waits for other changes. `name` is used in errors.
    pub(crate) async fn dispatch_change<T: Send + 'static>(
        &self,
        name: &str,
        change: impl FnOnce(&dyn Tester) -> Result<T, TesterRefusal> + Send + 'static,
    ) -> Result<T, TesterRefusal> {
        // tokio's lock is fair, so changes are made in the order of their arrival.
        let turn = self.turn.clone().lock_owned().await;
        let tester = Arc::clone(&self.tester);
        let performed = tokio::task::spawn_blocking(move || {
            let changed = change(&*tester);
            drop(turn);
            changed
        });
        performed.await.unwrap_or_else(|_| Err(panic_refusal(name)))
    }
}

fn panic_refusal(name: &str) -> TesterRefusal {
    TesterRefusal::internal(format!("{name} ended in a panic: this is a bug in packetrig"))
}

/// Reads a capture in pieces of at most `size` bytes, on a separate thread, as fast as the client accepts them. There
/// is at least one piece, which may be empty.
pub(crate) fn stream_file_pieces(file: CaptureFile, size: usize) -> mpsc::Receiver<std::io::Result<Bytes>> {
    let (sender, receiver) = mpsc::channel(MAX_WAITING_PIECES);
    tokio::task::spawn_blocking(move || {
        let mut bytes = file.bytes;
        let mut is_first = true;
        loop {
            let mut piece = Vec::new();
            let read = bytes.by_ref().take(size as u64).read_to_end(&mut piece);
            // `read_to_end` returns fewer bytes than the limit only at the end of the file.
            let ended = read.is_err() || piece.len() < size;
            if (is_first || read.is_err() || !piece.is_empty())
                && sender.blocking_send(read.map(|_| Bytes::from(piece))).is_err()
            {
                return;
            }
            is_first = false;
            if ended {
                return;
            }
        }
    });
    receiver
}
