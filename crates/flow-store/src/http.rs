//! The part of HTTP that insertions and webhooks need: one POST, one answer, then the connection ends.

use crate::network::connect_tcp;
use std::io::{self, Read, Write};
use std::time::Duration;

/// Maximum number of bytes of an answer that are read: the beginning contains the error.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

pub(crate) struct HttpRequest<'a> {
    /// `host` or `host:port`.
    pub(crate) address: &'a str,
    /// Path and query, without characters that HTTP does not permit there.
    pub(crate) path: &'a str,
    /// Headers in addition to `Host` and `Content-Length`; without line breaks.
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a [u8],
}

pub(crate) struct HttpAnswer {
    /// `None` if the answer is not HTTP.
    pub(crate) status: Option<u16>,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl HttpAnswer {
    /// Returns whether the answer has a header of this name, in upper or lower case: proxies may change it (RFC 9110, section 5.1).
    pub(crate) fn has_header(&self, name: &str) -> bool {
        let names = self.head.lines().filter_map(|line| line.split_once(':'));
        names.map(|(found, _)| found).any(|found| found.eq_ignore_ascii_case(name))
    }
}

/// Posts a body. Uses HTTP 1.0, so that the answer is not chunked and ends with the connection.
pub(crate) fn post_request(
    request: &HttpRequest<'_>,
    port: u16,
    timeout: Duration,
) -> io::Result<HttpAnswer> {
    let answer = exchange_bytes(request, port, timeout)?;
    // The answer may contain any bytes, for example if an error message quotes the body.
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    // A server answers with its own minor version, so 1.1 may come back (RFC 9110, section 6.2).
    let status =
        head.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)).and_then(|text| text.parse().ok());
    Ok(HttpAnswer { status, head: head.to_owned(), body: body.to_owned() })
}

fn exchange_bytes(request: &HttpRequest<'_>, port: u16, timeout: Duration) -> io::Result<Vec<u8>> {
    let HttpRequest { address, path, headers, body } = request;
    let mut stream = connect_tcp(address, port, timeout)?;
    let mut head = format!("POST {path} HTTP/1.0\r\nHost: {address}");
    for (name, value) in *headers {
        head.extend(["\r\n", name, ": ", value]);
    }
    head.extend(["\r\nContent-Length: ", &body.len().to_string(), "\r\n\r\n"]);
    stream.write_all(head.as_bytes())?;
    // A server that refuses the request may answer and close the connection before it has read everything. Its answer
    // explains more than the error of the broken connection does.
    let sent = stream.write_all(body);
    let mut answer = Vec::new();
    // The peer decides how long the answer is, so the number of bytes is limited.
    let read = stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer);
    if answer.is_empty() {
        sent?;
        read?;
    }
    Ok(answer)
}
