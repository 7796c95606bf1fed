//! Slots of the transmit ring: the owner of each slot, and the fate of its frame.
//!
//! Invariant: a slot is written only while its status word says that it belongs to user space.

use crate::area::SharedArea;
use std::sync::atomic::Ordering;

/// Offset of the `virtio_net_hdr` in a slot: after the slot's header, which has no address when sending.
const VNET_HEADER_OFFSET: usize = libc::TPACKET2_HDRLEN - size_of::<libc::sockaddr_ll>();
pub(super) const VNET_HEADER_BYTES: usize = 10;
pub(super) const FRAME_OFFSET: usize = VNET_HEADER_OFFSET + VNET_HEADER_BYTES;
/// Offset in the slot of the length of `virtio_net_hdr` and frame together.
pub(super) const LENGTH_OFFSET: usize = 4;
/// Offset in the slot of the field of `virtio_net_hdr` with the number of bytes to copy.
pub(super) const COPIED_LENGTH_OFFSET: usize = VNET_HEADER_OFFSET + 2;
/// Maximum number of bytes of a frame that are copied: the kernel may not find more memory in one piece.
const MAX_COPIED: usize = 16_384;
pub(super) const ETHERNET_HEADER: usize = 14;
const VLAN_TAG_BYTES: usize = 4;
/// Status bits that name the owner of a slot; above them are bits about time stamps.
const SLOT_OWNER_BITS: u32 = 7;
/// Slots start on cache lines.
const SLOT_ALIGNMENT: usize = 64;
/// Bytes of the blocks in which the kernel allocates slots. If a slot is longer, a block has the next power of two.
const RING_BLOCK_BYTES: usize = 1 << 16;

/// Counts of the frames by their fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxCounts {
    /// Taken by the kernel.
    pub taken: u64,
    /// Refused for good: wrong length for the interface, or withdrawn.
    pub refused: u64,
}

/// Layout of the slots in memory: bytes of a slot and of a block, and numbers of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TxRingShape {
    pub(super) slot: usize,
    pub(super) block: usize,
    pub(super) per_block: usize,
    pub(super) slots: usize,
}

impl TxRingShape {
    pub(super) fn new(slots: usize, longest: usize) -> Self {
        let slot = (FRAME_OFFSET + longest).next_multiple_of(SLOT_ALIGNMENT);
        // Slots do not cross blocks, so a block has to hold at least one.
        let block = slot.next_power_of_two().max(RING_BLOCK_BYTES);
        let per_block = block / slot;
        Self { slot, block, per_block, slots: slots.max(2).next_multiple_of(per_block) }
    }

    pub(super) fn bytes(self) -> usize {
        self.slots / self.per_block * self.block
    }

    pub(super) fn slot_offset(self, slot: usize) -> usize {
        slot / self.per_block * self.block + slot % self.per_block * self.slot
    }

    pub(super) fn kernel_request(self) -> Option<libc::tpacket_req> {
        Some(libc::tpacket_req {
            tp_block_size: u32::try_from(self.block).ok()?,
            tp_block_nr: u32::try_from(self.slots / self.per_block).ok()?,
            tp_frame_size: u32::try_from(self.slot).ok()?,
            tp_frame_nr: u32::try_from(self.slots).ok()?,
        })
    }
}

/// Positions in the ring, and access to its slots.
#[derive(Debug)]
pub(super) struct TxSlots {
    pub(super) area: SharedArea,
    pub(super) shape: TxRingShape,
    /// Next slot to fill.
    pub(super) head: usize,
    /// Oldest slot that the kernel has not given back.
    tail: usize,
    /// Number of slots from tail to head.
    pub(super) filled: usize,
    pub(super) mtu: usize,
    pub(super) counts: TxCounts,
}

impl TxSlots {
    pub(super) fn new(area: SharedArea, shape: TxRingShape, mtu: usize) -> Self {
        Self { area, shape, head: 0, tail: 0, filled: 0, mtu, counts: TxCounts::default() }
    }

    pub(super) fn next_slot(&mut self) -> Option<&mut [u8]> {
        if self.filled == self.shape.slots {
            self.reap_slots();
        }
        if self.filled == self.shape.slots {
            return None;
        }
        let offset = self.shape.slot_offset(self.head) + FRAME_OFFSET;
        Some(self.area.bytes_mut(offset, self.shape.slot - FRAME_OFFSET))
    }

    pub(super) fn commit_frame(&mut self, len: usize) {
        // The caller's mistake would write over the next slot, which may be the kernel's.
        assert!(
            self.filled < self.shape.slots && len <= self.shape.slot - FRAME_OFFSET,
            "commit of {len} bytes"
        );
        let offset = self.shape.slot_offset(self.head);
        if !self.is_sendable(offset + FRAME_OFFSET, len) {
            self.counts.refused += 1;
            return;
        }
        let length = u32::try_from(VNET_HEADER_BYTES + len).expect("a slot is far smaller than 4 GiB");
        let copied = u16::try_from(len.min(MAX_COPIED)).expect("the most that is copied fits");
        self.area.bytes_mut(offset + LENGTH_OFFSET, 4).copy_from_slice(&length.to_ne_bytes());
        self.area.bytes_mut(offset + COPIED_LENGTH_OFFSET, 2).copy_from_slice(&copied.to_ne_bytes());
        // Release: the kernel sees frame and length before it sees the request.
        self.area.atomic_u32(offset).store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        self.head = self.slot_after(self.head);
        self.filled += 1;
    }

    /// Checks the length of a frame by the kernel's own rule for packet sockets: a VLAN tag does not count as
    /// part of the MTU.
    fn is_sendable(&self, frame: usize, len: usize) -> bool {
        let most = ETHERNET_HEADER + self.mtu;
        len >= ETHERNET_HEADER && (len <= most || (len <= most + VLAN_TAG_BYTES && self.is_tagged(frame)))
    }

    fn is_tagged(&self, frame: usize) -> bool {
        self.area.bytes(frame + 12, 2) == [0x81, 0x00]
    }

    pub(super) fn reap_slots(&mut self) {
        while self.filled > 0 {
            // Slots are taken back only in order: a slot that comes back early waits for the earlier ones.
            match self.slot_owner(self.tail) {
                libc::TP_STATUS_AVAILABLE => {
                    self.counts.taken += 1;
                    self.tail = self.slot_after(self.tail);
                    self.filled -= 1;
                }
                libc::TP_STATUS_WRONG_FORMAT => self.remove_refused_frame(),
                _ => break,
            }
        }
    }

    /// Removes the refused frame at the tail. The kernel waits at this slot, so each later frame is moved into
    /// the slot before it.
    fn remove_refused_frame(&mut self) {
        let mut slot = self.tail;
        for _ in 1..self.filled {
            let next = self.slot_after(slot);
            self.copy_frame(next, slot);
            // Release: the kernel sees the moved frame before the request for it.
            self.area
                .atomic_u32(self.shape.slot_offset(slot))
                .store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
            slot = next;
        }
        self.area
            .atomic_u32(self.shape.slot_offset(slot))
            .store(libc::TP_STATUS_AVAILABLE, Ordering::Release);
        self.head = slot;
        self.filled -= 1;
        self.counts.refused += 1;
    }

    /// Number of committed frames that the kernel has not taken. The kernel takes frames in order, so these
    /// are the latest ones.
    pub(super) fn untaken_frames(&self) -> usize {
        let mut slot = self.head;
        for untaken in 0..self.filled {
            slot = self.slot_before(slot);
            // The kernel has taken this one, and so all before it.
            if matches!(self.slot_owner(slot), libc::TP_STATUS_SENDING | libc::TP_STATUS_AVAILABLE) {
                return untaken;
            }
        }
        self.filled
    }

    /// Number of frames that the kernel has taken, including frames whose slots it has not given back yet.
    pub(super) fn handed_over_frames(&self) -> u64 {
        self.counts.taken + (self.filled - self.untaken_frames()) as u64
    }

    fn copy_frame(&mut self, from: usize, to: usize) {
        // The status word at offset 0 is left out: it alone names the owner of the slot.
        let from = self.shape.slot_offset(from) + LENGTH_OFFSET;
        let to = self.shape.slot_offset(to) + LENGTH_OFFSET;
        for at in (0..self.shape.slot - LENGTH_OFFSET).step_by(4) {
            let part = self.area.u32_at(from + at).to_ne_bytes();
            self.area.bytes_mut(to + at, 4).copy_from_slice(&part);
        }
    }

    pub(super) fn withdraw_untaken(&mut self) -> usize {
        self.reap_slots();
        let mut withdrawn = 0;
        while self.filled > 0 {
            // Withdrawal starts at the head: a withdrawn frame must not leave a gap at which the kernel would wait.
            let last = self.slot_before(self.head);
            if self.slot_owner(last) != libc::TP_STATUS_SEND_REQUEST {
                break;
            }
            self.area
                .atomic_u32(self.shape.slot_offset(last))
                .store(libc::TP_STATUS_AVAILABLE, Ordering::Release);
            self.head = last;
            self.filled -= 1;
            withdrawn += 1;
        }
        self.counts.refused += withdrawn as u64;
        withdrawn
    }

    pub(super) fn slot_owner(&self, slot: usize) -> u32 {
        // Acquire: this code sees the kernel's changes of the slot before it uses the slot again.
        self.area.atomic_u32(self.shape.slot_offset(slot)).load(Ordering::Acquire) & SLOT_OWNER_BITS
    }

    pub(super) fn slot_after(&self, slot: usize) -> usize {
        if slot + 1 == self.shape.slots { 0 } else { slot + 1 }
    }

    fn slot_before(&self, slot: usize) -> usize {
        if slot == 0 { self.shape.slots - 1 } else { slot - 1 }
    }
}
