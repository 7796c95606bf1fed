//! The bookkeeping of sending: which slots are free, which are in flight, and what happened to the frames.
//!
//! Without zero copy, the kernel processes the ring in order during a send call of this process, and stops at a frame
//! that the interface dropped (a full queue, no carrier). The kernel does not try this frame again. So this module
//! enters the frame once more, before the later frames: no frame is lost and the order stays. To know which frame it
//! was, this module tracks the kernel's position, because the counter in the ring is late when there were only drops.
//!
//! Invariant: a slot is written only while no completion is due for it.

use super::ring::XskRing;
use crate::area::SharedArea;
use packetrig_units::clamp_to_u32;
use std::collections::VecDeque;

const ETHERNET_HEADER: usize = 14;
const VLAN_TAG_BYTES: usize = 4;
/// More of the frame follows in the next entry.
const CONTINUED_FLAG: u32 = 1;
/// An address outside any memory: the kernel skips such an entry.
const INVALID_ADDRESS: u64 = 1 << 62;

/// Counts of the frames by their fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxCounts {
    /// Frames that the kernel has taken and completed.
    pub taken: u64,
    /// Refused for good: wrong length for the interface, or withdrawn.
    pub refused: u64,
}

/// Division of the frame memory into slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotShape {
    /// Bytes of a chunk.
    pub(super) chunk: usize,
    /// Chunks of a slot.
    pub(super) pieces: usize,
    pub(super) slots: usize,
}

impl SlotShape {
    pub(super) const SMALL_SLOT_BYTES: usize = 2048;
    pub(super) const PAGE_SLOT_BYTES: usize = 4096;

    pub(super) fn new(slots: usize, longest: usize) -> Self {
        // The kernel takes chunks of 2048 or 4096 bytes here. A longer frame needs several.
        let chunk =
            if longest <= Self::SMALL_SLOT_BYTES { Self::SMALL_SLOT_BYTES } else { Self::PAGE_SLOT_BYTES };
        Self { chunk, pieces: longest.div_ceil(chunk).max(1), slots }
    }

    pub(super) fn slot_bytes(self) -> usize {
        self.chunk * self.pieces
    }

    pub(super) fn bytes(self) -> usize {
        self.slot_bytes() * self.slots
    }

    /// Number of entries of each ring.
    pub(super) fn ring_entries(self) -> usize {
        // The kernel wants a power of two.
        (self.slots * self.pieces).next_power_of_two()
    }
}

/// A frame in the ring that the kernel has not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PendingSlot {
    /// `None` if the frame was withdrawn.
    slot: Option<u32>,
    /// Entries of the frame that the kernel has not reached.
    entries: u32,
}

#[derive(Debug)]
pub(super) struct FrameSlots {
    memory: SharedArea,
    tx: XskRing,
    done: XskRing,
    pub(super) shape: SlotShape,
    mtu: usize,
    free: Vec<u32>,
    /// Length of the frame in each slot, and the completions that are due for it.
    lengths: Vec<usize>,
    due: Vec<u32>,
    waiting: VecDeque<PendingSlot>,
    /// Position of the kernel in the transmit ring, as far as it can be known.
    reached: u32,
    produced: u32,
    consumed: u32,
    pub(super) pending: usize,
    pub(super) counts: TxCounts,
    /// Entries that were made invalid, so that the kernel skips them.
    pub(super) voided: u64,
}

impl FrameSlots {
    pub(super) fn new(memory: SharedArea, tx: XskRing, done: XskRing, shape: SlotShape, mtu: usize) -> Self {
        let slots = clamp_to_u32(shape.slots);
        Self {
            memory,
            tx,
            done,
            shape,
            mtu,
            // The list is used from its end, so slots are first used in ascending order.
            free: (0..slots).rev().collect(),
            lengths: vec![0; shape.slots],
            due: vec![0; shape.slots],
            waiting: VecDeque::with_capacity(shape.ring_entries() + 1),
            reached: 0,
            produced: 0,
            consumed: 0,
            pending: 0,
            counts: TxCounts::default(),
            voided: 0,
        }
    }

    /// The next free slot; `None` while all slots are in flight or the ring is full.
    pub(super) fn next_slot(&mut self) -> Option<&mut [u8]> {
        if self.free.is_empty() || !self.has_room() {
            self.reap_slots();
        }
        // The slot is not taken from the list yet: the frame may be refused when it is committed.
        let slot = *self.free.last().filter(|_| self.has_room())?;
        let at = slot as usize * self.shape.slot_bytes();
        Some(self.memory.bytes_mut(at, self.shape.slot_bytes()))
    }

    /// Returns true if the ring has space for one more frame of any length. Withdrawn frames use space until the
    /// kernel has skipped them.
    fn has_room(&self) -> bool {
        // The counters wrap, and so does their difference.
        let used = self.produced.wrapping_sub(self.reached) as usize;
        used + self.shape.pieces <= self.shape.ring_entries()
    }

    /// Enters the first `len` bytes of the slot that [`Self::next_slot`] gave into the ring, as a frame.
    pub(super) fn commit_frame(&mut self, len: usize) {
        assert!(len <= self.shape.slot_bytes(), "commit of {len} bytes");
        let Some(slot) = self.free.last().copied() else { return };
        if !self.is_sendable(slot as usize * self.shape.slot_bytes(), len) {
            self.counts.refused += 1;
            return;
        }
        self.free.pop();
        self.lengths[slot as usize] = len;
        let entries = self.ring_entries_of_slot(slot);
        self.write_entries(self.produced, slot);
        self.produced = self.produced.wrapping_add(entries);
        // The kernel completes each entry by itself, so a frame in pieces needs as many completions.
        self.due[slot as usize] += entries;
        self.waiting.push_back(PendingSlot { slot: Some(slot), entries });
        self.pending += 1;
    }

    /// Shows the kernel the committed frames. Returns true if the kernel has not reached all of them yet.
    pub(super) fn publish_committed(&mut self) -> bool {
        self.tx.publish_produced(self.produced);
        self.follow_kernel_position();
        self.reached != self.produced
    }

    /// Position of the kernel in the ring.
    pub(super) fn kernel_position(&self) -> u32 {
        self.reached
    }

    /// Returns true if the kernel sleeps until a system call wakes it.
    pub(super) fn kernel_sleeps(&self) -> bool {
        self.tx.needs_wakeup()
    }

    /// Checks the length of a frame by the kernel's rule for packet sockets: a VLAN tag does not count as
    /// part of the MTU.
    fn is_sendable(&self, frame: usize, len: usize) -> bool {
        let most = ETHERNET_HEADER + self.mtu;
        len >= ETHERNET_HEADER && (len <= most || (len <= most + VLAN_TAG_BYTES && self.is_tagged(frame)))
    }

    fn is_tagged(&self, frame: usize) -> bool {
        self.memory.bytes(frame + 12, 2) == [0x81, 0x00]
    }

    fn ring_entries_of_slot(&self, slot: u32) -> u32 {
        clamp_to_u32(self.lengths[slot as usize].div_ceil(self.shape.chunk))
    }

    /// Writes a slot's entries from number `at` on.
    fn write_entries(&mut self, at: u32, slot: u32) {
        let start = slot as usize * self.shape.slot_bytes();
        let chunk = self.shape.chunk;
        let len = self.lengths[slot as usize];
        for piece in 0..self.ring_entries_of_slot(slot) {
            let behind = piece as usize * chunk;
            let rest = len - behind;
            let bytes = rest.min(chunk);
            let options = if rest > chunk { CONTINUED_FLAG } else { 0 };
            let entry = self.tx.entry_mut(at.wrapping_add(piece));
            entry[..8].copy_from_slice(&((start + behind) as u64).to_ne_bytes());
            entry[8..12].copy_from_slice(&clamp_to_u32(bytes).to_ne_bytes());
            entry[12..].copy_from_slice(&options.to_ne_bytes());
        }
    }

    /// Updates the kernel's position from its counter. Returns the last frame that the kernel has passed completely
    /// since the update before.
    fn follow_kernel_position(&mut self) -> Option<PendingSlot> {
        let ahead = self.tx.consumed_count().wrapping_sub(self.reached);
        // An older consumer index than the last one read; the kernel publishes it with a delay.
        if ahead > u32::MAX / 2 {
            return None;
        }
        self.advance_reached_entries(ahead)
    }

    fn advance_reached_entries(&mut self, mut entries: u32) -> Option<PendingSlot> {
        self.reached = self.reached.wrapping_add(entries);
        let mut last = None;
        while entries > 0 {
            let Some(front) = self.waiting.front_mut() else { break };
            let now = front.entries.min(entries);
            front.entries -= now;
            entries -= now;
            if front.entries == 0 {
                last = self.waiting.pop_front();
            }
        }
        last
    }

    /// The kernel has stopped at a frame that the interface dropped: this enters the frame again,
    /// before all other frames.
    pub(super) fn reenter_stopped_frame(&mut self) {
        let shown = self.follow_kernel_position().and_then(|last| last.slot);
        // If there were only drops, the counter in the ring is late (see the module). Then the kernel stopped
        // at the next frame in order.
        let Some(slot) = shown.or_else(|| self.pass_next_frame()) else { return };
        let entries = self.ring_entries_of_slot(slot);
        self.shift_pending_entries(entries);
        self.write_entries(self.reached, slot);
        // The kernel completes the dropped attempt, too.
        self.due[slot as usize] += entries;
        self.waiting.push_front(PendingSlot { slot: Some(slot), entries });
    }

    /// Counts the next frame as passed, and the entries that the kernel skips before it.
    fn pass_next_frame(&mut self) -> Option<u32> {
        while let Some(front) = self.waiting.front().copied() {
            self.advance_reached_entries(front.entries);
            if front.slot.is_some() {
                return front.slot;
            }
        }
        None
    }

    /// Moves all entries that the kernel has not reached `by` positions further. The kernel reads them only during send
    /// calls of this process.
    fn shift_pending_entries(&mut self, by: u32) {
        let waiting = self.produced.wrapping_sub(self.reached);
        // The loop runs from the last entry down, because the two ranges overlap.
        for entry in (0..waiting).rev() {
            let from = self.reached.wrapping_add(entry);
            let mut moved = [0; 16];
            moved.copy_from_slice(self.tx.entry(from));
            self.tx.entry_mut(from.wrapping_add(by)).copy_from_slice(&moved);
        }
        // The new position is shown at once, because the counter and the moved entries belong together.
        self.produced = self.produced.wrapping_add(by);
        self.tx.publish_produced(self.produced);
    }

    /// Takes back slots that the kernel has finished.
    pub(super) fn reap_slots(&mut self) {
        self.follow_kernel_position();
        let produced = self.done.produced_count();
        while self.consumed != produced {
            let address = self.done.entry_address(self.consumed);
            self.consumed = self.consumed.wrapping_add(1);
            // Pieces of a frame lie in one slot, so the division finds the slot from any piece.
            let Ok(slot) = u32::try_from(address / self.shape.slot_bytes() as u64) else { continue };
            // A completion that is not expected must not free a slot: its frame may still be on its way.
            let Some(due) = self.due.get_mut(slot as usize).filter(|due| **due > 0) else { continue };
            *due -= 1;
            if *due == 0 {
                // A withdrawn frame has no length and is counted already.
                let is_frame = self.lengths[slot as usize] > 0;
                self.counts.taken += u64::from(is_frame);
                self.pending -= usize::from(is_frame);
                self.free.push(slot);
            }
        }
        self.done.publish_consumed(self.consumed);
    }

    /// Withdraws the frames that the kernel has not reached, counts them as refused and returns their number.
    /// Frames in flight stay pending.
    pub(super) fn withdraw_unreached(&mut self) -> usize {
        self.reap_slots();
        let mut at = self.reached;
        let mut withdrawn = 0;
        for index in 0..self.waiting.len() {
            // If the kernel has taken the first pieces of a frame, the frame stays: the kernel waits
            // for the other pieces.
            let PendingSlot { slot, entries } = self.waiting[index];
            if let Some(slot) = slot.filter(|slot| self.ring_entries_of_slot(*slot) == entries) {
                self.invalidate_entries(at, entries);
                self.waiting[index].slot = None;
                withdrawn += 1;
                self.free_withdrawn_slot(slot, entries);
            }
            at = at.wrapping_add(entries);
        }
        self.pending -= withdrawn;
        self.counts.refused += withdrawn as u64;
        withdrawn
    }

    /// Writes entries that the kernel skips.
    fn invalidate_entries(&mut self, at: u32, entries: u32) {
        for piece in 0..entries {
            let entry = self.tx.entry_mut(at.wrapping_add(piece));
            entry[..8].copy_from_slice(&INVALID_ADDRESS.to_ne_bytes());
            entry[12..].copy_from_slice(&0u32.to_ne_bytes());
        }
        self.voided += u64::from(entries);
    }

    /// Frees a withdrawn slot: now, or when the completion of an earlier attempt has come. That completion
    /// then counts no frame.
    fn free_withdrawn_slot(&mut self, slot: u32, entries: u32) {
        let due = &mut self.due[slot as usize];
        // Skipped entries get no completion.
        *due -= entries;
        if *due == 0 {
            self.free.push(slot);
        } else {
            self.lengths[slot as usize] = 0;
        }
    }
}

#[cfg(test)]
mod tests;
