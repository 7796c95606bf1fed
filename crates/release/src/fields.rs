//! Reads and writes the fields of a message, in the byte order of this machine.
//!
//! Invariant: reading beyond the end returns `None`.

/// Alignment of messages and of the packets in them, in bytes.
pub(crate) const MESSAGE_ALIGNMENT: usize = 8;

/// Writes a message from front to back.
#[derive(Debug, Default)]
pub(crate) struct FieldWriter {
    bytes: Vec<u8>,
}

impl FieldWriter {
    pub(crate) fn put_u8(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    pub(crate) fn put_u16(&mut self, value: u16) -> &mut Self {
        self.put_bytes(&value.to_ne_bytes())
    }

    pub(crate) fn put_u32(&mut self, value: u32) -> &mut Self {
        self.put_bytes(&value.to_ne_bytes())
    }

    pub(crate) fn put_u64(&mut self, value: u64) -> &mut Self {
        self.put_bytes(&value.to_ne_bytes())
    }

    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Adds a text in a field of `room` bytes. A text that is too long is cut between two characters; a shorter one
    /// is padded with zeros.
    pub(crate) fn put_text(&mut self, text: &str, room: usize) -> &mut Self {
        let end = self.bytes.len() + room;
        // Half a character would reach the reader as a replacement character.
        let fitting = text.floor_char_boundary(room);
        self.put_bytes(&text.as_bytes()[..fitting]);
        self.bytes.resize(end, 0);
        self
    }

    pub(crate) fn pad_to_alignment(&mut self) -> &mut Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(MESSAGE_ALIGNMENT), 0);
        self
    }

    pub(crate) fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// Position of a field in a message, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FieldPlace {
    pub(crate) field: &'static str,
    /// The byte of the message at which the field begins.
    pub(crate) byte: usize,
    /// The packet of SUBMIT to which the field belongs, from 0.
    pub(crate) packet: Option<u32>,
}

/// Reads a message from front to back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldReader<'a> {
    rest: &'a [u8],
    length: usize,
    place: FieldPlace,
}

impl<'a> FieldReader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        let place = FieldPlace { field: "", byte: 0, packet: None };
        Self { rest: bytes, length: bytes.len(), place }
    }

    /// Names the field that is read next, so that [`Self::place`] shows where reading failed.
    pub(crate) const fn name_field(&mut self, field: &'static str) -> &mut Self {
        self.place = FieldPlace { field, byte: self.length - self.rest.len(), ..self.place };
        self
    }

    /// Sets the error position to a field that was read before.
    pub(crate) const fn set_error_field(&mut self, field: &'static str, byte: usize) {
        self.place = FieldPlace { field, byte, ..self.place };
    }

    /// Sets the packet to which all following fields belong.
    pub(crate) const fn set_current_packet(&mut self, packet: Option<u32>) {
        self.place.packet = packet;
    }

    /// Position of the field that was named last.
    pub(crate) const fn place(&self) -> FieldPlace {
        self.place
    }

    pub(crate) fn read_u8(&mut self) -> Option<u8> {
        self.read_array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn read_u16(&mut self) -> Option<u16> {
        self.read_array().map(u16::from_ne_bytes)
    }

    pub(crate) fn read_u32(&mut self) -> Option<u32> {
        self.read_array().map(u32::from_ne_bytes)
    }

    pub(crate) fn read_u64(&mut self) -> Option<u64> {
        self.read_array().map(u64::from_ne_bytes)
    }

    pub(crate) fn read_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*first)
    }

    pub(crate) fn read_bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(first)
    }

    /// Reads bytes and the padding after them, which must be zeros.
    pub(crate) fn read_padded_bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let all = self.read_bytes(count.checked_next_multiple_of(MESSAGE_ALIGNMENT)?)?;
        let (bytes, padding) = all.split_at(count);
        // Later versions can give a meaning to reserved bytes only if readers never accepted any value
        // but zero in them.
        padding.iter().all(|byte| *byte == 0).then_some(bytes)
    }

    /// Reads a text in a field of `N` bytes. Bytes that are not valid UTF-8 are replaced.
    pub(crate) fn read_text<const N: usize>(&mut self) -> Option<String> {
        let field = self.read_array::<N>()?;
        // A text that fills its field has no zero after it.
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(N);
        Some(String::from_utf8_lossy(&field[..end]).into_owned())
    }

    /// Reads reserved bytes, which must be zeros.
    pub(crate) fn skip_reserved(&mut self, count: usize) -> Option<()> {
        self.read_bytes(count)?.iter().all(|byte| *byte == 0).then_some(())
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}
