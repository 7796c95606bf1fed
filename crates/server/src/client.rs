//! A client of this server for programs without an async runtime: it makes single calls and follows the
//! events of a run.
//!
//! It speaks HTTP/1.1 with or without TLS, one connection for each call. It never repeats a failed call, because only
//! the caller knows whether a call may be repeated.
//!
//! Invariant: a token is sent only to a server with a verified certificate, unless the user has turned off the check
//! (`--insecure`) or TLS (`http://`).

mod address;
mod connection;
mod error;
mod events;
mod response;
mod trust;

pub use address::ApiAddress;
pub use error::ClientError;
pub use events::{EventStream, ServerEvent};
pub use trust::CertificateTrust;

use connection::ApiConnection;
use response::{ResponseHead, parse_answer};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Silence after which the connection counts as lost. The server sends a heartbeat every 5 s.
const MAX_SERVER_SILENCE: Duration = Duration::from_secs(15);
/// Maximum length of an answer. The longest answer is the state of a run with all its rows.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Calls one server. Has the address of the server, the rules for its certificate, and the token of the caller.
#[derive(Clone, Debug)]
pub struct ApiClient {
    address: ApiAddress,
    token: Option<String>,
    tls: Option<Arc<rustls::ClientConfig>>,
}

impl ApiClient {
    /// Creates a client without connecting. It sends `token` with each call. Fails if `trust` does not permit calls
    /// to this server, or if its file of certificates cannot be read.
    pub fn new(
        address: ApiAddress,
        token: Option<String>,
        trust: &CertificateTrust,
    ) -> Result<Self, ClientError> {
        let tls = if address.has_tls { Some(trust.build_config(&address, token.is_some())?) } else { None };
        Ok(Self { address, token, tls })
    }

    pub fn address(&self) -> &ApiAddress {
        &self.address
    }

    /// Sends `GET path` and returns the JSON of the answer. Any status but 200 is an error.
    pub fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.request_answer("GET", path, "")
    }

    /// Sends `POST path` with this body and returns the JSON of the answer. Any status but 200 is an error.
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.request_answer("POST", path, &body.to_string())
    }

    fn request_answer(&self, method: &str, path: &str, body: &str) -> Result<Value, ClientError> {
        let mut connection = self.send_request(method, path, body)?;
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer, MAX_ANSWER_BYTES)?;
        parse_answer(&self.address, &answer)
    }

    /// Opens the stream of server-sent events at `path`. Fails if the server refuses it.
    pub fn follow_events(&self, path: &str) -> Result<EventStream, ClientError> {
        let mut connection = self.send_request("GET", path, "")?;
        let mut received = Vec::new();
        let head = loop {
            if let Some(head) = ResponseHead::parse_response_head(&self.address, &received)? {
                break head;
            }
            if connection.read_next_bytes(&mut received)? == 0 {
                return Err(ClientError::incomplete_answer_error(&self.address));
            }
        };
        // A refusal is a JSON document, not a stream of events. It is read completely, and its text becomes the error.
        if head.status != 200 {
            connection.read_to_end(&mut received, MAX_ANSWER_BYTES)?;
            parse_answer(&self.address, &received)?;
        }
        Ok(EventStream::new(connection, head.is_chunked, received.split_off(head.length)))
    }

    fn send_request(&self, method: &str, path: &str, body: &str) -> Result<ApiConnection, ClientError> {
        let mut connection =
            ApiConnection::open_connection(&self.address, self.tls.as_ref(), MAX_SERVER_SILENCE)?;
        let host = self.address.authority();
        let token = self.token.as_ref().map(|token| format!("Authorization: Bearer {token}\r\n"));
        // `Connection: close`: the client reads an answer until the server closes the connection.
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n{}\r\n{body}",
            body.len(),
            token.unwrap_or_default()
        );
        connection.write_request(request.as_bytes())?;
        Ok(connection)
    }
}
