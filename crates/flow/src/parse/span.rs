//! The part of a frame that is still to be read, and the number of bytes that are missing at its end.

/// Part of a frame. Of the bytes that were cut off its end, only the number is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameSpan<'a> {
    pub(super) bytes: &'a [u8],
    /// Number of bytes that followed in the frame and were not captured.
    pub(super) missing: usize,
}

impl<'a> FrameSpan<'a> {
    /// Returns the number of bytes that the part had on the wire.
    pub(super) const fn wire_len(self) -> usize {
        self.bytes.len().saturating_add(self.missing)
    }

    /// Reads the first `N` bytes and removes them; returns `None` and removes nothing if there are fewer.
    #[inline]
    pub(super) fn read_array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let head = self.bytes.first_chunk()?;
        self.bytes = &self.bytes[N..];
        Some(head)
    }

    /// Returns the bytes after the first `len` bytes; `None` if there are fewer than `len`.
    pub(super) fn skip(self, len: usize) -> Option<Self> {
        Some(Self { bytes: self.bytes.get(len..)?, ..self })
    }

    /// Keeps the first `len` bytes, as a header states. Bytes after them are padding; if there are fewer, the
    /// others count as missing.
    pub(super) fn limit_length(self, len: usize) -> Self {
        match self.bytes.get(..len) {
            Some(bytes) => Self { bytes, missing: 0 },
            None => Self { missing: len - self.bytes.len(), ..self },
        }
    }

    /// Drops all bytes and counts them as missing.
    pub(super) const fn without_bytes(self) -> Self {
        Self { bytes: &[], missing: self.wire_len() }
    }
}

/// Reads a number of 16 bits in network byte order.
pub(super) const fn be_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
