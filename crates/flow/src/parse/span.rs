//! Bytes still to be read, and how many more the headers above them announced.

/// A stretch of a frame. What was cut off its end is known by number only.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameSpan<'a> {
    pub(super) bytes: &'a [u8],
    /// Bytes that should follow and are not here.
    pub(super) missing: usize,
}

impl<'a> FrameSpan<'a> {
    /// Bytes it would have if nothing had been cut.
    pub(super) const fn wire(self) -> usize {
        self.bytes.len().saturating_add(self.missing)
    }

    /// Its first `N` bytes, and what is behind them; nothing if they are not all here.
    pub(super) fn split<const N: usize>(self) -> Option<(&'a [u8; N], Self)> {
        let (head, bytes) = self.bytes.split_first_chunk()?;
        Some((head, Self { bytes, ..self }))
    }

    /// What is behind `len` bytes; nothing if they are not all here.
    pub(super) fn skip(self, len: usize) -> Option<Self> {
        Some(Self { bytes: self.bytes.get(len..)?, ..self })
    }

    /// Its first `len` bytes, as a header states: what is behind is padding, what is not here was cut.
    pub(super) fn limit(self, len: usize) -> Self {
        match self.bytes.get(..len) {
            Some(bytes) => Self { bytes, missing: 0 },
            None => Self { missing: len - self.bytes.len(), ..self },
        }
    }

    /// Nothing, where something was announced.
    pub(super) const fn cut(self) -> Self {
        Self { bytes: &[], missing: self.wire() }
    }
}

/// A number of 16 bits in network order.
pub(super) const fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
