//! A stretch of a capture file in memory, and where the packets in it are, for each worker.

use packetrig_flow::parse::LinkKind;

/// Bytes read at once: they stay in the processor's cache until they are parsed.
pub(super) const USUAL: usize = 256 << 10;

/// A packet's place in a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketPlace {
    pub(super) at_ns: u64,
    pub(super) start: u32,
    /// Bytes there are of it, without FCS.
    pub(super) len: u32,
    pub(super) full_len: u32,
    pub(super) input: u16,
    /// What it begins with.
    pub(super) link: LinkKind,
}

impl PacketPlace {
    /// The frame, among the bytes of its block.
    #[inline]
    pub(super) fn of(self, bytes: &[u8]) -> &[u8] {
        let start = self.start as usize;
        &bytes[start..start + self.len as usize]
    }
}

#[derive(Debug)]
pub(super) struct PacketBlock {
    pub(super) bytes: Vec<u8>,
    pub(super) places: Vec<Vec<PacketPlace>>,
    /// Packets that begin with what nobody reads, and their bytes.
    pub(super) foreign: (u64, u64),
    /// Time of the capture so far.
    pub(super) until_ns: u64,
}

impl PacketBlock {
    pub(super) fn new(workers: usize) -> Self {
        let places = (0..workers).map(|_| Vec::with_capacity(USUAL / 80 / workers)).collect();
        Self { bytes: vec![0; USUAL], places, foreign: (0, 0), until_ns: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.places.iter_mut().for_each(Vec::clear);
        self.foreign = (0, 0);
    }
}
