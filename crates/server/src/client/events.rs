//! Reads server-sent events in the form in which the server of this crate writes them.

use super::connection::ApiConnection;
use super::response::BodyDecoder;
use super::{ClientError, MAX_SERVER_SILENCE};
use serde_json::Value;
use std::io::{self, ErrorKind};
use std::time::Duration;

/// Maximum length of one event. The longest event has all rows of the largest run.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// An event that the server sent, with its JSON data.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerEvent {
    /// Name of the event: `history`, `live`, `heartbeat` or `stopping`.
    pub name: String,
    pub data: Value,
}

/// The events of a server, until it closes the connection or is silent for too long.
pub struct EventStream {
    connection: ApiConnection,
    body: BodyDecoder,
    parser: EventParser,
    quiet: Duration,
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream").field("address", self.connection.address()).finish_non_exhaustive()
    }
}

impl EventStream {
    /// Creates the stream. `received`: the bytes that have arrived after the head of the answer.
    pub(super) fn new(connection: ApiConnection, is_chunked: bool, received: Vec<u8>) -> Self {
        let mut body = BodyDecoder::new(is_chunked);
        let mut parser = EventParser::default();
        // An error is ignored here, because this function cannot report it.
        drop(body.decode_body_bytes(&received, &mut parser.unread));
        Self { connection, body, parser, quiet: Duration::ZERO }
    }

    /// Waits for the next event; `None` if the server sends nothing for `timeout`. Fails if the server closes the
    /// connection, is silent for too long, or sends data that is not an event.
    pub fn wait_for_event(&mut self, timeout: Duration) -> Result<Option<ServerEvent>, ClientError> {
        self.connection
            .set_silence_limit(timeout)
            .map_err(|source| ClientError::Lost { address: self.connection.address().to_string(), source })?;
        loop {
            if let Some(event) = self.parser.next() {
                return Ok(Some(event));
            }
            let mut bytes = Vec::new();
            match self.connection.read_next_bytes(&mut bytes) {
                Ok(0) => {
                    return Err(self.connection_lost_error(
                        ErrorKind::UnexpectedEof,
                        "the server closed the connection",
                    ));
                }
                Ok(_) => self.quiet = Duration::ZERO,
                Err(ClientError::Lost { source, .. }) if source.kind() == ErrorKind::TimedOut => {
                    // Every received byte sets the sum back to zero, so it is the time since the last byte.
                    self.quiet += timeout;
                    if self.quiet > MAX_SERVER_SILENCE {
                        return Err(self.connection_lost_error(
                            ErrorKind::TimedOut,
                            "the server sent nothing for too long",
                        ));
                    }
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
            let decoded = self.body.decode_body_bytes(&bytes, &mut self.parser.unread);
            // The length is limited, because an event that never ends would fill the memory.
            if decoded.is_err() || self.parser.unread.len() > MAX_EVENT_BYTES {
                return Err(self.connection_lost_error(
                    ErrorKind::InvalidData,
                    "the server sent data that is not an event",
                ));
            }
        }
    }

    fn connection_lost_error(&self, kind: ErrorKind, reason: &str) -> ClientError {
        let source = io::Error::new(kind, reason);
        ClientError::Lost { address: self.connection.address().to_string(), source }
    }
}

/// Reads events from bytes that come in pieces of any size.
#[derive(Debug, Default)]
struct EventParser {
    unread: Vec<u8>,
    /// Number of bytes at the start of `unread` that were searched and contain no end of an event.
    searched: usize,
}

impl EventParser {
    /// Removes and returns the next complete event. Events without JSON data do not come from this
    /// server and are skipped.
    fn next(&mut self) -> Option<ServerEvent> {
        loop {
            // The search begins one byte earlier, because the blank line that ends an event may be
            // split between two reads.
            let from = self.searched.saturating_sub(1).min(self.unread.len());
            let Some(end) = self.unread[from..].windows(2).position(|pair| pair == b"\n\n") else {
                self.searched = self.unread.len();
                return None;
            };
            let rest = self.unread.split_off(from + end + 2);
            let text = std::mem::replace(&mut self.unread, rest);
            self.searched = 0;
            if let Some(event) = parse_event(&String::from_utf8_lossy(&text)) {
                return Some(event);
            }
        }
    }
}

fn parse_event(text: &str) -> Option<ServerEvent> {
    let member = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    // One `data:` line for each event: this server writes JSON on one line.
    let data = serde_json::from_str(member("data: ")?).ok()?;
    Some(ServerEvent { name: member("event: ").unwrap_or("message").to_owned(), data })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_joined_from_any_pieces() {
        let text = b"id: 1\nevent: live\ndata: {\"a\":1}\n\nid: 2\ndata: oops\n\nid: 3\nevent: heartbeat\ndata: {}\n\n";
        for size in 1..text.len() {
            let (mut parser, mut events) = (EventParser::default(), Vec::new());
            for piece in text.chunks(size) {
                parser.unread.extend_from_slice(piece);
                events.extend(std::iter::from_fn(|| parser.next()));
            }
            let wanted = [("live", json!({"a": 1})), ("heartbeat", json!({}))];
            let wanted = wanted.map(|(name, data)| ServerEvent { name: name.to_owned(), data });
            assert_eq!(events, wanted, "{size}");
        }
    }
}
