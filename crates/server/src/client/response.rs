//! Reads answers of HTTP/1.1: the head, and a body with or without chunks.

use super::{ApiAddress, ClientError};
use packetrig_units::clamp_to_usize;
use packetrig_units::text::one_line;
use serde_json::Value;

/// Maximum length of the head (status line and header fields) of an answer.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Maximum length of the line with the size of a chunk.
const MAX_SIZE_BYTES: usize = 64;

/// Longest text of a refusal, in characters. It comes from another machine and is shown in a terminal.
const MAX_REFUSAL_CHARACTERS: usize = 4096;

/// Head of an answer: status, and how the body is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResponseHead {
    pub(super) status: u16,
    pub(super) is_chunked: bool,
    /// Length of the head, in bytes.
    pub(super) length: usize,
}

impl ResponseHead {
    /// Parses the head at the beginning of `bytes`; `None` if the end of the head has not arrived yet.
    pub(super) fn parse_response_head(
        address: &ApiAddress,
        bytes: &[u8],
    ) -> Result<Option<Self>, ClientError> {
        // The first bytes may arrive one by one, so only those that have arrived are compared.
        let seen = &bytes[..bytes.len().min(5)];
        if seen != &b"HTTP/"[..seen.len()] {
            return Err(ClientError::not_http_error(address));
        }
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            return if bytes.len() > MAX_HEAD_BYTES {
                Err(ClientError::not_http_error(address))
            } else {
                Ok(None)
            };
        };
        // Field names are case-insensitive (RFC 9110, 5.1).
        let text = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| ClientError::not_http_error(address))?;
        let is_chunked = text.lines().any(|line| {
            line.strip_prefix("transfer-encoding:").is_some_and(|value| value.trim() == "chunked")
        });
        Ok(Some(Self { status, is_chunked, length: end + 4 }))
    }
}

/// Parses a complete answer: returns its JSON document, or an error for any status but 200.
pub(super) fn parse_answer(address: &ApiAddress, bytes: &[u8]) -> Result<Value, ClientError> {
    let head = ResponseHead::parse_response_head(address, bytes)?
        .ok_or_else(|| ClientError::incomplete_answer_error(address))?;
    let mut body = Vec::new();
    let mut decoder = BodyDecoder::new(head.is_chunked);
    decoder
        .decode_body_bytes(&bytes[head.length..], &mut body)
        .map_err(|InvalidChunk| ClientError::not_http_error(address))?;
    let document = serde_json::from_slice::<Value>(&body);
    if head.status == 200 {
        return document.map_err(|error| {
            // If the JSON ends early, the connection was lost. The server is still a packetrig server.
            if error.is_eof() {
                ClientError::incomplete_answer_error(address)
            } else {
                ClientError::not_http_error(address)
            }
        });
    }
    let errors = document.ok().and_then(|document| {
        let errors = document["errors"].as_array()?.iter().filter_map(Value::as_str);
        Some(one_line(&errors.collect::<Vec<_>>().join("; "), MAX_REFUSAL_CHARACTERS))
    });
    let message = errors
        .unwrap_or_else(|| format!("the server at {address} answered with HTTP status {}", head.status));
    Err(match head.status {
        401 | 403 => ClientError::Forbidden { address: address.to_string(), message },
        status => ClientError::Refused { status, message },
    })
}

/// Decodes the body of an answer, with or without chunked encoding, from pieces of any size.
#[derive(Debug)]
pub(super) struct BodyDecoder {
    is_chunked: bool,
    state: ChunkState,
    size_line: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    Size,
    /// Number of bytes of the chunk that have not arrived yet.
    Data(u64),
    /// The line end after a chunk.
    DataEnd,
    /// The last chunk has arrived.
    Finished,
}

/// A chunk whose size cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidChunk;

impl BodyDecoder {
    pub(super) const fn new(is_chunked: bool) -> Self {
        Self { is_chunked, state: ChunkState::Size, size_line: Vec::new() }
    }

    /// Decodes the next `bytes` of the body and appends the result to `content`.
    pub(super) fn decode_body_bytes(
        &mut self,
        mut bytes: &[u8],
        content: &mut Vec<u8>,
    ) -> Result<(), InvalidChunk> {
        if !self.is_chunked {
            content.extend_from_slice(bytes);
            return Ok(());
        }
        while let Some((&first, rest)) = bytes.split_first() {
            match self.state {
                ChunkState::Size => {
                    bytes = rest;
                    if first == b'\n' {
                        self.state = self.parse_size_line()?;
                    } else {
                        self.size_line.push(first);
                    }
                    // The length is limited, so that a line without an end does not grow without limit.
                    if self.size_line.len() > MAX_SIZE_BYTES {
                        return Err(InvalidChunk);
                    }
                }
                // No byte is consumed here: `first` is the byte after the chunk, and the next state reads it.
                ChunkState::Data(0) => self.state = ChunkState::DataEnd,
                ChunkState::Data(length) => {
                    let taken = clamp_to_usize(length).min(bytes.len());
                    content.extend_from_slice(&bytes[..taken]);
                    bytes = &bytes[taken..];
                    self.state = ChunkState::Data(length - taken as u64);
                }
                ChunkState::DataEnd => {
                    bytes = rest;
                    if first == b'\n' {
                        self.state = ChunkState::Size;
                    }
                }
                // Trailer fields may follow the last chunk (RFC 9112, 7.1.2). Nothing here needs them.
                ChunkState::Finished => return Ok(()),
            }
        }
        Ok(())
    }

    fn parse_size_line(&mut self) -> Result<ChunkState, InvalidChunk> {
        let line = std::mem::take(&mut self.size_line);
        let text = std::str::from_utf8(&line).map_err(|_| InvalidChunk)?;
        // A chunk extension may follow the size (RFC 9112, 7.1.1). It is ignored.
        let size = text.split(';').next().unwrap_or_default().trim();
        match u64::from_str_radix(size, 16) {
            Ok(0) => Ok(ChunkState::Finished),
            Ok(size) => Ok(ChunkState::Data(size)),
            Err(_) => Err(InvalidChunk),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> ApiAddress {
        "http://127.0.0.1:1".parse().expect("an address")
    }

    #[test]
    fn body_is_joined_from_any_pieces() {
        let text = b"5\r\nhello\r\n7;x=1\r\n, world\r\n0\r\n\r\n";
        for size in 1..text.len() {
            let (mut decoder, mut content) = (BodyDecoder::new(true), Vec::new());
            for piece in text.chunks(size) {
                decoder.decode_body_bytes(piece, &mut content).expect("chunks");
            }
            assert_eq!(content, b"hello, world", "{size}");
        }
        assert_eq!(BodyDecoder::new(true).decode_body_bytes(b"zz\r\n", &mut Vec::new()), Err(InvalidChunk));
        assert_eq!(BodyDecoder::new(true).decode_body_bytes(&[b'1'; 99], &mut Vec::new()), Err(InvalidChunk));
    }

    #[test]
    fn client_errors_quote_server_and_advise() {
        let refused = |answer: &str| parse_answer(&address(), answer.as_bytes()).expect_err("refused");
        let body = "{\"code\":401,\"kind\":\"validation\",\"errors\":[\"send the token\"]}";
        let error = refused(&format!("HTTP/1.1 401 Unauthorized\r\nA: b\r\n\r\n{body}"));
        assert!(
            matches!(error, ClientError::Forbidden { .. }) && error.to_string().contains("send the token")
        );
        let error = refused("HTTP/1.1 503 Busy\r\n\r\n{\"errors\":[\"32 viewers\"]}");
        assert!(error.can_succeed_later() && error.to_string() == "32 viewers", "{error}");
        let error = refused("HTTP/1.1 400 Bad\r\n\r\n{\"errors\":[\"a\\nerror: b\\u001b[2J\"]}");
        assert_eq!(error.to_string(), "a\\u{a}error: b\\u{1b}[2J", "text of others is one line");
        assert!(refused("\u{15}\u{3}").to_string().contains("https://127.0.0.1:1"));
        assert!(matches!(refused("HTTP/1.1 200 OK\r\n\r\nnot JSON"), ClientError::NotHttp { .. }));
        // A server that ends meanwhile is no other kind of server.
        for cut in ["", "HTTP/1.1 20", "HTTP/1.1 200 OK\r\n\r\n{\"has\":"] {
            let error = refused(cut);
            assert!(
                error.can_succeed_later() && error.to_string().contains("write https://127.0.0.1:1"),
                "{error}"
            );
        }
        let good = parse_answer(
            &address(),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        );
        assert_eq!(good.expect("a document"), serde_json::json!({}));
    }
}
