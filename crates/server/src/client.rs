//! A client of this server for programs without an async runtime: single calls, and the events of a run as they come.
//!
//! It speaks HTTP/1.1 with or without TLS, one connection for each call. This module repeats no call: only
//! the caller knows whether a call may be repeated.
//!
//! Invariant: a token is sent only to a server with a verified certificate, unless the user has turned off the check or the encryption.

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
/// Maximum number of bytes of an answer: the state of a run with all rows.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Calls one server: knows its address, the certificates that it may have, and the caller's token.
#[derive(Clone, Debug)]
pub struct ApiClient {
    address: ApiAddress,
    token: Option<String>,
    tls: Option<Arc<rustls::ClientConfig>>,
}

impl ApiClient {
    /// Creates a client that sends this token with each call, if one is given. Nothing is sent yet.
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

    /// The answer to `GET PATH`.
    pub fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.request_answer("GET", path, "")
    }

    /// The answer to `POST PATH` with this body.
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.request_answer("POST", path, &body.to_string())
    }

    fn request_answer(&self, method: &str, path: &str, body: &str) -> Result<Value, ClientError> {
        let mut connection = self.send_request(method, path, body)?;
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer, MAX_ANSWER_BYTES)?;
        parse_answer(&self.address, &answer)
    }

    /// Subscribes to the events at this path, from now on.
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
        // A refusal is not a stream of events. It is read to its end, and its text becomes the error.
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
        // `Connection: close`: an answer is read up to the end of its connection.
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
