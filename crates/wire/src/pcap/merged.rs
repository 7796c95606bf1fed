//! Comments that mark a packet in a pcapng file as merged from several packets on the wire. They have a fixed
//! form that people can read, too.

use std::io::Write;

/// Length of the longest comment in bytes.
pub const MAX_COMMENT_BYTES: usize = COMMENT_START.len() + "65535".len() + COMMENT_END.len();
const COMMENT_START: &str = "packetrig: merged from packets with ";
const COMMENT_END: &str = " B of payload each";

/// A comment that states how many bytes of payload each packet on the wire had.
#[derive(Clone, Copy, Debug)]
pub struct MergeComment {
    text: [u8; MAX_COMMENT_BYTES],
    length: usize,
}

impl MergeComment {
    /// Creates the comment without allocating memory.
    pub fn new(segment_bytes: u16) -> Self {
        let mut text = [0; MAX_COMMENT_BYTES];
        let mut rest = &mut text[..];
        // This cannot fail, because there is room for the longest number.
        let written = write!(rest, "{COMMENT_START}{segment_bytes}{COMMENT_END}").map(|()| rest.len());
        let length = MAX_COMMENT_BYTES - written.unwrap_or(MAX_COMMENT_BYTES);
        Self { text, length }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.text[..self.length]
    }
}

/// Returns the number of payload bytes from a comment; `None` for any other comment.
pub fn parse_merge_comment(comment: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(comment).ok()?;
    text.strip_prefix(COMMENT_START)?.strip_suffix(COMMENT_END)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_comment_gives_segment_payload_size() {
        for bytes in [0, 7, 1448, u16::MAX] {
            assert_eq!(parse_merge_comment(MergeComment::new(bytes).as_bytes()), Some(bytes));
        }
        for other in ["", "merged", "packetrig: merged from packets with 65536 B of payload each"] {
            assert_eq!(parse_merge_comment(other.as_bytes()), None);
        }
    }
}
