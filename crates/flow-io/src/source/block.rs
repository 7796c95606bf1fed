//! A piece of a capture file in memory, with the positions of its packets for each worker.

use packetrig_flow::parse::LinkKind;

/// Number of bytes that are read at once: few enough to stay in the processor's cache until they are parsed.
pub(super) const BLOCK_READ_BYTES: usize = 256 << 10;

/// Position of a packet in a block, with its metadata.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketPosition {
    pub(super) at_ns: u64,
    pub(super) start: u32,
    /// Captured bytes, without FCS.
    pub(super) len: u32,
    pub(super) full_len: u32,
    /// Payload bytes of each packet on the wire, if the file marks the packet as merged from several; 0 otherwise.
    pub(super) merged: u16,
    /// Kind of the packet's link header.
    pub(super) link: LinkKind,
}

impl PacketPosition {
    /// Returns the bytes of the frame; `bytes` are those of its block.
    #[inline]
    pub(super) fn frame_in_block(self, bytes: &[u8]) -> &[u8] {
        let start = self.start as usize;
        &bytes[start..start + self.len as usize]
    }
}

#[derive(Debug)]
pub(super) struct PacketBlock {
    pub(super) bytes: Vec<u8>,
    /// Index of the file that the packets are from.
    pub(super) input: u16,
    pub(super) places: Vec<Vec<PacketPosition>>,
    pub(super) foreign: UnreadLinkTypePackets,
    /// Time of the capture at the end of this block.
    pub(super) until_ns: u64,
}

/// Packets with a link header that the parser does not read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnreadLinkTypePackets {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

impl UnreadLinkTypePackets {
    pub(super) fn add_counts(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

impl PacketBlock {
    pub(super) fn new(workers: usize) -> Self {
        // Room for packets of 80 bytes on average. Vectors that must grow keep their size, because blocks are reused.
        let places = (0..workers).map(|_| Vec::with_capacity(BLOCK_READ_BYTES / 80 / workers)).collect();
        Self {
            bytes: vec![0; BLOCK_READ_BYTES],
            input: 0,
            places,
            foreign: UnreadLinkTypePackets::default(),
            until_ns: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.places.iter_mut().for_each(Vec::clear);
        self.foreign = UnreadLinkTypePackets::default();
    }
}
