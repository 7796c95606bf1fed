//! The part of HTTP that an insertion needs: one request, one answer, then the connection ends.

use super::ClickHouseOptions;
use crate::Error;
use packetrig_units::text::{encode_url_part, one_line};
use std::io::{self, Read, Write};

const CLICKHOUSE_HTTP_PORT: u16 = 8123;
/// Maximum number of bytes of an answer that are read: the beginning contains the error.
const MAX_ANSWER_BYTES: u64 = 64 << 10;
/// Maximum number of characters of an answer that are shown.
const MAX_SHOWN_ANSWER_CHARACTERS: usize = 300;

/// Posts a body. Uses HTTP 1.0, so that the answer is not chunked and ends with the connection.
pub(super) fn post_body(
    options: &ClickHouseOptions,
    parameters: &[(&str, &str)],
    body: &[u8],
) -> Result<(), Error> {
    let peer = format!("ClickHouse {}", options.address);
    let answer = send_request(options, parameters, body).map_err(Error::network(&peer))?;
    // An error message may quote any bytes of the rows.
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    // A server answers with its own minor version, so 1.1 may come back (RFC 9110, section 6.2).
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5));
    match status {
        // ClickHouse may fail after it has sent status 200: then the answer has this header.
        Some("200") if !head.contains("X-ClickHouse-Exception-Code") => Ok(()),
        Some(status) => {
            let shown = one_line(body.trim(), MAX_SHOWN_ANSWER_CHARACTERS);
            Err(Error::Refused {
                peer,
                said: format!("the server answered with HTTP status {status}: {shown}"),
            })
        }
        None => Err(Error::Refused {
            peer,
            said: "the answer is not HTTP; check that the port is that of ClickHouse's HTTP interface".into(),
        }),
    }
}

fn send_request(
    options: &ClickHouseOptions,
    parameters: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Vec<u8>> {
    let mut stream =
        crate::network::connect_tcp(&options.address, CLICKHOUSE_HTTP_PORT, options.timeout.to_std())?;
    let mut head = String::from("POST /");
    for (index, (name, value)) in parameters.iter().enumerate() {
        head.push(if index == 0 { '?' } else { '&' });
        head.push_str(name);
        head.push('=');
        head.push_str(&encode_url_part(value));
    }
    head.push_str(" HTTP/1.0\r\nHost: ");
    head.push_str(&options.address);
    for (name, value) in [("X-ClickHouse-User", &options.user), ("X-ClickHouse-Key", &options.password)] {
        // Without these headers the server uses its default user.
        if !options.user.is_empty() {
            head.extend(["\r\n", name, ": ", value]);
        }
    }
    head.extend(["\r\nContent-Length: ", &body.len().to_string(), "\r\n\r\n"]);
    stream.write_all(head.as_bytes())?;
    // A server that refuses the request may answer and close the connection before it has read everything. Its answer
    // explains more than the error of the broken connection does.
    let sent = stream.write_all(body);
    let mut answer = Vec::new();
    // The peer decides how long its answer is, so it needs a bound.
    let read = stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer);
    if answer.is_empty() {
        sent?;
        read?;
    }
    Ok(answer)
}
