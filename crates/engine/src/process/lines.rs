//! Reads lines from a non-blocking pipe within limits: length of a line, lines per second.
//!
//! Invariant: the buffer holds at most [`MAX_LINE`] bytes plus one read, however much the other end writes.

use super::fault::{EngineFault, to_terminal_safe_line};
use super::messages::EngineReply;
use packetrig_units::{MonoTime, Nanos};
use std::io::{ErrorKind, Read};

/// Longest line accepted from an engine.
pub(super) const MAX_LINE: usize = 256 << 10;
/// Messages per second accepted from an engine.
pub(super) const MAX_MESSAGES: usize = 1000;
const READ_BUFFER_BYTES: usize = 16 << 10;
const SECOND: Nanos = Nanos::from_secs(1);

/// Result of a search for the next message in the pipe.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextEngineMessage {
    Message(EngineReply),
    /// The pipe has no more bytes at present.
    Empty,
    /// The other end has closed the pipe.
    Ended,
}

#[derive(Debug)]
pub(super) struct MessageReader<R> {
    pipe: R,
    buffer: Vec<u8>,
    /// Offset of the first unread line.
    at: usize,
    has_ended: bool,
    /// Start of the second in which messages are counted, and the number of messages since then.
    second: Option<(MonoTime, usize)>,
}

impl<R: Read> MessageReader<R> {
    pub(super) fn new(pipe: R) -> Self {
        Self { pipe, buffer: Vec::new(), at: 0, has_ended: false, second: None }
    }

    /// Returns the next complete message, if the pipe has one. Does not wait for the engine.
    pub(super) fn next_message(&mut self, now: MonoTime) -> Result<NextEngineMessage, EngineFault> {
        loop {
            let unread = &self.buffer[self.at..];
            if let Some(length) = unread.iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8_lossy(&unread[..length]).into_owned();
                self.at += length + 1;
                self.check_message_rate(now)?;
                return parse_message(&line).map(NextEngineMessage::Message);
            }
            // This is checked only without a line end, so a long line is refused before it is complete.
            if unread.len() > MAX_LINE {
                return Err(EngineFault::LongLine(MAX_LINE));
            }
            if self.has_ended {
                return Ok(NextEngineMessage::Ended);
            }
            if !self.fill_buffer()? {
                return Ok(NextEngineMessage::Empty);
            }
        }
    }

    /// Reads once. Returns `false` if the pipe is empty, and `true` if the caller should look again.
    fn fill_buffer(&mut self) -> Result<bool, EngineFault> {
        // Moves the unread rest to the front, so the buffer does not grow with the traffic.
        self.buffer.drain(..self.at);
        self.at = 0;
        let had = self.buffer.len();
        self.buffer.resize(had + READ_BUFFER_BYTES, 0);
        let read = self.pipe.read(&mut self.buffer[had..]);
        self.buffer.truncate(had + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(0) => self.has_ended = true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            // A signal does not end the stream; the caller reads again.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(EngineFault::Ended(error.to_string())),
        }
        Ok(true)
    }

    fn check_message_rate(&mut self, now: MonoTime) -> Result<(), EngineFault> {
        let (since, messages) = self.second.filter(|(since, _)| now < *since + SECOND).unwrap_or((now, 0));
        self.second = Some((since, messages + 1));
        if messages < MAX_MESSAGES { Ok(()) } else { Err(EngineFault::Flood(MAX_MESSAGES)) }
    }
}

fn parse_message(line: &str) -> Result<EngineReply, EngineFault> {
    serde_json::from_str(line).map_err(|error| EngineFault::NoMessage {
        line: to_terminal_safe_line(line),
        reason: error.to_string(),
    })
}

/// The end of a program's standard error.
#[derive(Debug)]
pub(super) struct StderrTail<R> {
    pipe: R,
    tail: Vec<u8>,
}

/// Number of bytes of standard error that are kept.
const MAX_STDERR_BYTES: usize = 2048;

impl<R: Read> StderrTail<R> {
    pub(super) fn new(pipe: R) -> Self {
        Self { pipe, tail: Vec::new() }
    }

    /// Reads the available bytes, at most 64 KiB: a program that writes without end must not occupy this thread.
    pub(super) fn read_available_stderr(&mut self) {
        let mut chunk = [0; READ_BUFFER_BYTES];
        for _ in 0..4 {
            let Ok(read @ 1..) = self.pipe.read(&mut chunk) else { return };
            self.tail.extend_from_slice(&chunk[..read]);
            // Only the end of the output is kept: the last line usually names the error.
            let surplus = self.tail.len().saturating_sub(MAX_STDERR_BYTES);
            self.tail.drain(..surplus);
        }
    }

    /// Returns the last line of standard error that is not empty.
    pub(super) fn last_line(&self) -> String {
        let text = String::from_utf8_lossy(&self.tail);
        text.lines().rev().map(to_terminal_safe_line).find(|line| !line.is_empty()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: MonoTime = MonoTime::from_nanos(5_000_000_000);

    /// A pipe that gives its pieces one by one, then nothing.
    struct Pieces(Vec<&'static [u8]>);

    impl Read for Pieces {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            if self.0.is_empty() {
                return Err(ErrorKind::WouldBlock.into());
            }
            let piece = self.0.remove(0);
            out[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    #[test]
    fn a_message_may_come_in_pieces() {
        let mut reader =
            MessageReader::new(Pieces(vec![b"{\"type\":", b"\"ready\"}\n{\"type\":\"ready\"}\n{", b""]));
        assert_eq!(reader.next_message(NOW), Ok(NextEngineMessage::Message(EngineReply::Ready)));
        assert_eq!(reader.next_message(NOW), Ok(NextEngineMessage::Message(EngineReply::Ready)));
        assert_eq!(reader.next_message(NOW), Ok(NextEngineMessage::Ended), "half a line is none");
        assert_eq!(MessageReader::new(Pieces(Vec::new())).next_message(NOW), Ok(NextEngineMessage::Empty));
    }

    #[test]
    fn a_line_without_end_is_not_kept() {
        let mut reader = MessageReader::new(std::io::repeat(b'x'));
        assert_eq!(reader.next_message(NOW), Err(EngineFault::LongLine(MAX_LINE)));
        assert!(reader.buffer.len() <= MAX_LINE + READ_BUFFER_BYTES);
    }

    #[test]
    fn message_flood_in_one_second_is_fault() {
        let line = br#"{"type":"ready"}"#;
        let flood = [line.as_slice(), b"\n"].concat().repeat(3 * MAX_MESSAGES);
        let mut reader = MessageReader::new(&flood[..]);
        for _ in 0..MAX_MESSAGES {
            assert!(matches!(reader.next_message(NOW), Ok(NextEngineMessage::Message(_))));
        }
        assert!(
            matches!(reader.next_message(NOW + SECOND), Ok(NextEngineMessage::Message(_))),
            "the next second is another one"
        );
        let later = NOW + SECOND + SECOND;
        let flooded = (0..=MAX_MESSAGES).find_map(|_| reader.next_message(later).err());
        assert_eq!(flooded, Some(EngineFault::Flood(MAX_MESSAGES)));
    }

    #[test]
    fn invalid_message_error_shows_escaped_text() {
        let error = MessageReader::new(&b"hello, I am \x1b an engine\n"[..])
            .next_message(NOW)
            .unwrap_err()
            .to_string();
        assert!(error.contains("`hello, I am   an engine`, which is not a message"), "{error}");
    }

    #[test]
    fn only_the_last_words_are_kept() {
        let text = [vec![b'a'; 10_000], b"\nno such device\n\n".to_vec()].concat();
        let mut words = StderrTail::new(&text[..]);
        words.read_available_stderr();
        assert_eq!(words.last_line(), "no such device");
        assert!(words.tail.len() <= MAX_STDERR_BYTES);
        StderrTail::new(std::io::repeat(b'x')).read_available_stderr();
    }
}
