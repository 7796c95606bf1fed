//! Stores the failures of a connection until the caller reads them. A lost connection, or a refusal by the server, ends
//! waiting requests at once.

use async_nats::{Event, ServerError};
use packetrig_fleet::fabric::Error;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// Maximum number of failures that are stored until the caller reads them.
const MAX_STORED_FAILURES: usize = 256;

/// Failures of a connection that nobody has read yet. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionFailures {
    kept: Arc<Mutex<Vec<Error>>>,
    /// Number of times the connection was lost.
    losses: watch::Sender<u64>,
    /// Number of times the server refused something.
    refusals: watch::Sender<u64>,
}

impl ConnectionFailures {
    /// Runs a request. Fails when its connection is lost, because no answer can arrive on the next connection.
    pub(crate) async fn run_until_connection_lost<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        // The receiver is created before the request begins, so that a loss right after the beginning is not missed.
        let mut losses = self.losses.subscribe();
        tokio::select! {
            answer = request => answer,
            Ok(()) = losses.changed() => Err(Error::Unanswered("the connection was lost".to_owned())),
        }
    }

    /// Runs a request. Fails when the server refuses something on its connection, because a refused
    /// request gets no answer.
    pub(crate) async fn run_until_refusal<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut refusals = self.refusals.subscribe();
        let refused = async {
            loop {
                if refusals.changed().await.is_err() {
                    // Without a sender no refusal can come, so only `request` may end the wait.
                    std::future::pending::<()>().await;
                }
                if let Some(error) = self.take_first_refusal() {
                    return error;
                }
            }
        };
        tokio::select! {
            answer = request => answer,
            error = refused => Err(error),
        }
    }

    pub(crate) fn add_failure(&self, error: Error) {
        let is_refusal = matches!(error, Error::NotPermitted(_));
        // The error is added before the counter rises: the counter wakes requests, which then look for the error.
        self.push_bounded(error);
        if is_refusal {
            self.refusals.send_modify(|count| *count += 1);
        }
    }

    fn push_bounded(&self, error: Error) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // Failed reconnections repeat the same error, so equal errors in a row are stored once.
        if kept.len() < MAX_STORED_FAILURES && kept.last() != Some(&error) {
            kept.push(error);
        }
    }

    pub(crate) fn take_problems(&self) -> Vec<Error> {
        std::mem::take(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes and returns the refusal of a subject, if there was one.
    pub(crate) fn take_refusal_of(&self, subject: &str) -> Option<Error> {
        self.take_refusal_where(|which| which == subject)
    }

    /// Removes and returns the first refusal, if there was one.
    pub(crate) fn take_first_refusal(&self) -> Option<Error> {
        self.take_refusal_where(|_| true)
    }

    fn take_refusal_where(&self, wanted: impl Fn(&str) -> bool) -> Option<Error> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at =
            kept.iter().position(|error| matches!(error, Error::NotPermitted(which) if wanted(which)))?;
        Some(kept.remove(at))
    }

    /// Records an event of the connection.
    pub(super) fn on_event(&self, event: &Event) {
        match event {
            Event::Connected => {}
            // This event is the only sign of a refused subject: `publish` returns Ok, and a request gets no answer.
            Event::ServerError(ServerError::Other(text)) => self.add_failure(parse_permission_error(text)),
            Event::ServerError(ServerError::AuthorizationViolation) => {
                let why = "this user may not connect to the message server";
                self.add_failure(Error::NotPermitted(why.to_owned()));
            }
            other => {
                if matches!(other, Event::Disconnected) {
                    self.losses.send_modify(|losses| *losses += 1);
                }
                self.add_failure(Error::Down(other.to_string()));
            }
        }
    }
}

/// Parses a server error like `Permissions Violation for Publish to "subject"`.
fn parse_permission_error(text: &str) -> Error {
    match text.split('"').nth(1) {
        Some(subject) if text.to_ascii_lowercase().contains("permissions violation") => {
            Error::NotPermitted(subject.to_owned())
        }
        _ => Error::Down(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_becomes_the_subject() {
        let publish = parse_permission_error("Permissions Violation for Publish to \"res.r.b\"");
        assert_eq!(publish, Error::NotPermitted("res.r.b".into()));
        let listen = parse_permission_error(
            "Permissions Violation for Subscription to \"cmd.node.b\" using queue \"q\"",
        );
        assert_eq!(listen, Error::NotPermitted("cmd.node.b".into()));
        assert_eq!(parse_permission_error("stale connection"), Error::Down("stale connection".into()));
    }

    #[test]
    fn request_fails_when_its_connection_is_lost() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let troubles = ConnectionFailures::default();
        troubles.on_event(&Event::Disconnected);
        assert_eq!(
            runtime.block_on(troubles.run_until_connection_lost(async { Ok(7) })),
            Ok(7),
            "an earlier loss"
        );
        let answered = runtime.block_on(troubles.run_until_connection_lost(async {
            troubles.on_event(&Event::Disconnected);
            std::future::pending::<Result<(), Error>>().await
        }));
        assert!(matches!(answered, Err(Error::Unanswered(_))), "{answered:?}");
    }

    #[test]
    fn connection_troubles_are_deduplicated_and_bounded() {
        let troubles = ConnectionFailures::default();
        for number in 0..1000 {
            troubles.add_failure(Error::TooLarge(number));
            troubles.add_failure(Error::TooLarge(number));
        }
        assert_eq!(troubles.take_problems().len(), MAX_STORED_FAILURES);
        assert_eq!(troubles.take_problems(), []);
    }
}
