//! Blocks of the receive ring: the owner of each block, and its frames.
//!
//! Invariant: a block is read only while its status word says that it belongs to user space.

use crate::area::SharedArea;
use std::sync::atomic::Ordering;

const VLAN_TAG_BYTES: usize = 4;
/// Bytes of the destination and source address. A VLAN tag comes after them.
const MAC_ADDRESSES_BYTES: usize = 12;
const TPID_8021Q: u16 = 0x8100;

// Offsets in a block's header (struct tpacket_block_desc).
pub(super) const BLOCK_STATUS_OFFSET: usize = 8;
pub(super) const BLOCK_FRAMES_OFFSET: usize = 12;
pub(super) const BLOCK_FIRST_OFFSET: usize = 16;
// Offsets in a frame's header (struct tpacket3_hdr, then struct sockaddr_ll).
pub(super) const NEXT_OFFSET: usize = 0;
pub(super) const SECONDS_OFFSET: usize = 4;
pub(super) const NANOSECONDS_OFFSET: usize = 8;
pub(super) const CAPTURED_LENGTH_OFFSET: usize = 12;
pub(super) const LENGTH_OFFSET: usize = 16;
pub(super) const STATUS_OFFSET: usize = 20;
pub(super) const MAC_OFFSET: usize = 24;
pub(super) const VLAN_TCI_OFFSET: usize = 32;
pub(super) const VLAN_TPID_OFFSET: usize = 36;
pub(super) const DIRECTION_OFFSET: usize = size_of::<libc::tpacket3_hdr>() + 10;
// Offsets in `struct virtio_net_hdr`, which stands before the frame if the ring was opened with it.
pub(super) const VNET_HEADER_BYTES: usize = 10;
const VNET_FLAGS_OFFSET: usize = 0;
const VNET_GSO_TYPE_OFFSET: usize = 1;
const VNET_GSO_SIZE_OFFSET: usize = 4;
const VNET_CHECKSUM_START_OFFSET: usize = 6;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum offset is set.
pub(super) const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_ECN`, a flag in the same byte as the type.
pub(super) const GSO_ECN: u8 = 0x80;

/// Where the time of arrival was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalStamp {
    /// The card's own clock.
    Hardware,
    /// The network stack, when the driver gave it the frame.
    Software,
    /// The ring, which is later than the stack. Only the first frames after opening have such a stamp, until the kernel
    /// has switched stamping on.
    Ring,
}

/// Division of a frame that represents several packets on the wire. The sender left the division to the card,
/// or the kernel or the card merged arrived packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergedFrame {
    /// Payload bytes of each packet; the last one may have fewer.
    pub segment_bytes: u16,
    /// Offset of the transport header (TCP or UDP) in the frame, if the kernel reports it.
    pub transport_at: Option<usize>,
}

/// An arrived frame, without FCS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawFrame<'a> {
    /// The bytes of the frame, with its VLAN tag in place.
    pub bytes: &'a [u8],
    /// Length of the frame on arrival. If the frame was truncated, `bytes` is shorter.
    pub full_len: usize,
    /// Time of arrival, in nanoseconds of `CLOCK_REALTIME` (of the card's clock for [`ArrivalStamp::Hardware`]).
    pub realtime_ns: u64,
    pub stamp: ArrivalStamp,
    /// The TCP or UDP checksum is not computed yet: a sender on this machine left it to a card, but no
    /// card sent the frame.
    pub lacks_checksum: bool,
    /// This machine sent the frame.
    pub is_outgoing: bool,
    /// Set if the frame is several packets on the wire, and the ring
    /// was opened with [`RxOptions::merges`](super::RxOptions::merges).
    pub merged: Option<MergedFrame>,
}

/// Division of the ring into blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct RxRingShape {
    pub(super) block: usize,
    pub(super) blocks: usize,
}

/// Position of the reader in the ring, and access to the blocks.
#[derive(Debug)]
pub(super) struct RxBlocks {
    pub(super) area: SharedArea,
    shape: RxRingShape,
    /// Number of the block that is read now, or that the kernel finishes next.
    block: usize,
    /// True if user space owns that block.
    held: bool,
    /// Number of frames in that block that were not read yet.
    remaining: u32,
    /// Frames read so far, including skipped frames of this machine.
    pub(super) read: u64,
    /// Offset of the next frame in the area.
    frame: usize,
    /// Frames that this machine sends are delivered.
    pub(super) outgoing: bool,
    /// A `virtio_net_hdr` stands before each frame.
    pub(super) has_vnet: bool,
}

impl RxBlocks {
    pub(super) fn new(area: SharedArea, shape: RxRingShape) -> Self {
        Self {
            area,
            shape,
            block: 0,
            held: false,
            remaining: 0,
            read: 0,
            frame: 0,
            outgoing: false,
            has_vnet: false,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        // Acquire: a reader that sees the status of a finished block also sees the frames in the block.
        self.held
            || self.area.atomic_u32(self.status_offset()).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    pub(super) fn receive_frames(&mut self, most: usize, sink: &mut dyn FnMut(RawFrame<'_>)) -> usize {
        let mut given = 0;
        while given < most && self.acquire_next_block() {
            while given < most && self.remaining > 0 {
                if let Some(frame) = self.next_frame() {
                    sink(frame);
                    given += 1;
                }
            }
            // Frames borrow from the block, so it goes back only after its last frame.
            if self.remaining == 0 {
                self.return_block_to_kernel();
            }
        }
        given
    }

    /// Begins to read the next block if the kernel has finished it. Returns true if there is a block to read.
    fn acquire_next_block(&mut self) -> bool {
        if self.held {
            return true;
        }
        if !self.is_ready() {
            return false;
        }
        let start = self.block * self.shape.block;
        self.remaining = self.area.u32_at(start + BLOCK_FRAMES_OFFSET);
        self.frame = start + self.area.u32_at(start + BLOCK_FIRST_OFFSET) as usize;
        self.held = true;
        true
    }

    fn return_block_to_kernel(&mut self) {
        // Release: all reading is done before the kernel writes again.
        self.area.atomic_u32(self.status_offset()).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.held = false;
        self.block = if self.block + 1 == self.shape.blocks { 0 } else { self.block + 1 };
    }

    fn status_offset(&self) -> usize {
        self.block * self.shape.block + BLOCK_STATUS_OFFSET
    }

    /// Reads the next frame of the block; `None` if this machine sent the frame and such frames are not wanted.
    fn next_frame(&mut self) -> Option<RawFrame<'_>> {
        let at = self.frame;
        self.remaining -= 1;
        // The frame is counted even if it is not delivered, so that the count can be compared with the
        // kernel's count of arrivals.
        self.read += 1;
        self.frame += self.area.u32_at(at + NEXT_OFFSET) as usize;
        let is_outgoing = self.area.bytes(at + DIRECTION_OFFSET, 1)[0] == libc::PACKET_OUTGOING;
        if is_outgoing && !self.outgoing {
            return None;
        }
        let status = self.area.u32_at(at + STATUS_OFFSET);
        let seconds = u64::from(self.area.u32_at(at + SECONDS_OFFSET));
        let realtime_ns = seconds * 1_000_000_000 + u64::from(self.area.u32_at(at + NANOSECONDS_OFFSET));
        let kept = self.area.u32_at(at + CAPTURED_LENGTH_OFFSET) as usize;
        let length = self.area.u32_at(at + LENGTH_OFFSET) as usize;
        let start = at + usize::from(self.area.u16_at(at + MAC_OFFSET));
        let stamp = match status {
            s if s & libc::TP_STATUS_TS_RAW_HARDWARE != 0 => ArrivalStamp::Hardware,
            s if s & libc::TP_STATUS_TS_SOFTWARE != 0 => ArrivalStamp::Software,
            _ => ArrivalStamp::Ring,
        };
        let lacks_checksum = status & libc::TP_STATUS_CSUMNOTREADY != 0;
        // If a frame was truncated within its MAC addresses, the tag cannot be put back.
        let has_tag = status & libc::TP_STATUS_VLAN_VALID != 0 && kept >= MAC_ADDRESSES_BYTES;
        let tag = if has_tag { VLAN_TAG_BYTES } else { 0 };
        // The header is read before the tag is put back, because the tag overwrites the end of this header.
        let merged = if self.has_vnet { self.read_merged(start, tag) } else { None };
        let bytes =
            if has_tag { self.restore_tag(at, start, kept, status) } else { self.area.bytes(start, kept) };
        // The length on the wire has the tag, which the kernel does not count.
        let full_len = length + tag;
        Some(RawFrame { bytes, full_len, realtime_ns, stamp, lacks_checksum, is_outgoing, merged })
    }

    /// Reads the `virtio_net_hdr` of the frame at `start`. A tag of `tag` bytes will be put back into this frame.
    fn read_merged(&self, start: usize, tag: usize) -> Option<MergedFrame> {
        // `tpacket_rcv` omits the header, and records no bytes, for a frame that did not fit at all.
        let header = self.area.bytes(start.checked_sub(VNET_HEADER_BYTES)?, VNET_HEADER_BYTES);
        if header[VNET_GSO_TYPE_OFFSET] & !GSO_ECN == 0 {
            return None;
        }
        let number = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        // `hdr_len` is not the length of the headers: it is how much the kernel holds in one piece
        // (`virtio_net_hdr_from_skb`).
        let has_start = header[VNET_FLAGS_OFFSET] & NEEDS_CHECKSUM != 0;
        let transport_at = has_start.then(|| usize::from(number(VNET_CHECKSUM_START_OFFSET)) + tag);
        Some(MergedFrame { segment_bytes: number(VNET_GSO_SIZE_OFFSET), transport_at })
    }

    fn restore_tag(&mut self, at: usize, start: usize, kept: usize, status: u32) -> &[u8] {
        let has_tpid = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
        let tpid = if has_tpid { self.area.u16_at(at + VLAN_TPID_OFFSET) } else { TPID_8021Q };
        let tci = self.area.u32_at(at + VLAN_TCI_OFFSET) & 0xffff;
        // PACKET_RESERVE (rx.rs) keeps space before the frame: the MAC addresses move down by four bytes, and the tag
        // is written after them.
        let bytes = self.area.bytes_mut(start - VLAN_TAG_BYTES, kept + VLAN_TAG_BYTES);
        bytes.copy_within(VLAN_TAG_BYTES..VLAN_TAG_BYTES + MAC_ADDRESSES_BYTES, 0);
        bytes[MAC_ADDRESSES_BYTES..MAC_ADDRESSES_BYTES + 2].copy_from_slice(&tpid.to_be_bytes());
        bytes[MAC_ADDRESSES_BYTES + 2..MAC_ADDRESSES_BYTES + VLAN_TAG_BYTES]
            .copy_from_slice(&tci.to_be_bytes()[2..]);
        bytes
    }
}
