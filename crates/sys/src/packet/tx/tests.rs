use super::slots::*;
use crate::area::SharedArea;
use std::sync::atomic::Ordering;

/// Plays the kernel: takes requests in order from its own position, as `tpacket_snd` does.
struct RingKernel {
    at: usize,
    sent: Vec<Vec<u8>>,
    /// Slots taken and not given back.
    in_flight: std::collections::VecDeque<usize>,
}

impl RingKernel {
    fn new() -> Self {
        Self { at: 0, sent: Vec::new(), in_flight: std::collections::VecDeque::new() }
    }

    /// Takes up to `most` frames; refuses those that start with 0xff and stops there, as the kernel does.
    fn take(&mut self, slots: &mut TxSlots, most: usize) {
        for _ in 0..most {
            let offset = slots.shape.slot_offset(self.at);
            if slots.slot_owner(self.at) != libc::TP_STATUS_SEND_REQUEST {
                return;
            }
            let length = slots.area.u32_at(offset + LENGTH_OFFSET) as usize - VNET_HEADER_BYTES;
            assert_eq!(
                usize::from(slots.area.u16_at(offset + COPIED_LENGTH_OFFSET)),
                length,
                "the whole frame is copied"
            );
            let frame = slots.area.bytes(offset + FRAME_OFFSET, length).to_vec();
            if frame[0] == 0xff {
                slots.area.atomic_u32(offset).store(libc::TP_STATUS_WRONG_FORMAT, Ordering::Release);
                return;
            }
            self.sent.push(frame);
            slots.area.atomic_u32(offset).store(libc::TP_STATUS_SENDING, Ordering::Release);
            self.in_flight.push_back(self.at);
            self.at = slots.slot_after(self.at);
        }
    }

    fn return_units(&mut self, slots: &TxSlots, most: usize) {
        for _ in 0..most {
            let Some(slot) = self.in_flight.pop_front() else { return };
            let stamped = libc::TP_STATUS_AVAILABLE | libc::TP_STATUS_TS_SOFTWARE;
            slots.area.atomic_u32(slots.shape.slot_offset(slot)).store(stamped, Ordering::Release);
        }
    }
}

fn ring() -> TxSlots {
    // Few slots of a block each, so that wrapping around is common.
    let shape = TxRingShape { slot: 128, block: 256, per_block: 2, slots: 6 };
    TxSlots::new(SharedArea::plain(shape.bytes()), shape, 40)
}

/// Sends `bytes`, made long enough for an Ethernet header.
fn fill(slots: &mut TxSlots, bytes: &[u8]) -> bool {
    commit(slots, &padded(bytes))
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut frame = bytes.to_vec();
    frame.resize(frame.len().max(ETHERNET_HEADER), 0);
    frame
}

fn commit(slots: &mut TxSlots, frame: &[u8]) -> bool {
    let Some(slot) = slots.next_slot() else { return false };
    slot[..frame.len()].copy_from_slice(frame);
    slots.commit_frame(frame.len());
    true
}

#[test]
fn slots_never_cross_blocks_or_each_other() {
    for longest in [60, 1514, 1518, 9018, 65_000, 100_000] {
        let shape = TxRingShape::new(1000, longest);
        assert!(shape.slots >= 1000 && shape.block.is_multiple_of(4096) && shape.slot.is_multiple_of(16));
        let mut end = 0;
        for slot in 0..shape.slots {
            let start = shape.slot_offset(slot);
            assert!(start >= end, "slot {slot} overlaps");
            end = start + shape.slot;
            assert_eq!(start / shape.block, (end - 1) / shape.block, "slot {slot} crosses a block");
        }
        assert!(end <= shape.bytes());
        assert!(shape.slot - FRAME_OFFSET >= longest);
    }
}

#[test]
fn full_tx_ring_offers_no_slot_until_reclaimed() {
    let (mut slots, mut kernel) = (ring(), RingKernel::new());
    for n in 0..6 {
        assert!(fill(&mut slots, &[n]));
    }
    assert!(!fill(&mut slots, &[6]));
    kernel.take(&mut slots, 2);
    assert!(!fill(&mut slots, &[6]), "frames on their way keep their slots");
    kernel.return_units(&slots, 1);
    assert!(fill(&mut slots, &[6]));
    assert!(!fill(&mut slots, &[7]));
    assert_eq!((slots.filled, slots.counts.taken), (6, 1));
}

#[test]
fn refused_frame_is_counted_and_others_continue() {
    let (mut slots, mut kernel) = (ring(), RingKernel::new());
    for frame in [&[1u8; 30][..], &[0xff; 54], &[2; 14], &[0xff], &[3]] {
        assert!(fill(&mut slots, frame));
    }
    for _ in 0..4 {
        kernel.take(&mut slots, 10);
        kernel.return_units(&slots, 10);
        slots.reap_slots();
    }
    assert_eq!(kernel.sent, [vec![1; 30], vec![2; 14], padded(&[3])]);
    assert_eq!(slots.counts, TxCounts { taken: 3, refused: 2 });
    assert_eq!(slots.filled, 0);
    assert_eq!(slots.head, kernel.at, "both sides go on at the same slot");
}

#[test]
fn withdrawal_spares_taken_frames_and_keeps_ring_synchronised() {
    let (mut slots, mut kernel) = (ring(), RingKernel::new());
    for n in 0..5 {
        fill(&mut slots, &[n]);
    }
    kernel.take(&mut slots, 2);
    assert_eq!(slots.withdraw_untaken(), 3);
    assert_eq!(slots.filled, 2);
    assert!(fill(&mut slots, &[9]));
    kernel.take(&mut slots, 10);
    kernel.return_units(&slots, 10);
    slots.reap_slots();
    assert_eq!(kernel.sent, [padded(&[0]), padded(&[1]), padded(&[9])]);
    assert_eq!(slots.counts, TxCounts { taken: 3, refused: 3 });
}

/// A small generator: the test must not depend on a crate for a few random steps.
fn step(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

#[test]
fn any_interleaving_keeps_order_and_balance() {
    for mut seed in 0..50u64 {
        let (mut slots, mut kernel) = (ring(), RingKernel::new());
        let (mut expected, mut committed) = (Vec::new(), 0u64);
        for n in 0..400u64 {
            let most = usize::try_from(step(&mut seed) % 4).unwrap();
            match step(&mut seed) % 5 {
                0..3 => {
                    let refused = step(&mut seed).is_multiple_of(7);
                    let mut frame = n.to_be_bytes();
                    frame[0] = if refused { 0xff } else { 0 };
                    if fill(&mut slots, &frame) {
                        committed += 1;
                        expected.extend((!refused).then(|| padded(&frame)));
                    }
                }
                3 => kernel.take(&mut slots, most),
                _ => kernel.return_units(&slots, most),
            }
            if n % 3 == 0 {
                slots.reap_slots();
            }
            assert_eq!(slots.counts.taken + slots.counts.refused + slots.filled as u64, committed);
        }
        while slots.filled > 0 {
            kernel.take(&mut slots, 6);
            kernel.return_units(&slots, 6);
            slots.reap_slots();
        }
        assert_eq!(kernel.sent, expected);
    }
}

#[test]
fn unsendable_lengths_are_refused_without_slot() {
    let (mut slots, mut kernel) = (ring(), RingKernel::new());
    let mut tagged = vec![1; 14 + 40 + 4];
    tagged[12..14].copy_from_slice(&[0x81, 0]);
    let too_long = [tagged.clone(), vec![0; 1]].concat();
    for frame in [&[1; 13][..], &[2; 14], &[3; 54], &[4; 55], &tagged, &too_long, &[5; 20]] {
        assert!(commit(&mut slots, frame));
    }
    assert_eq!((slots.counts.refused, slots.filled), (3, 4));
    kernel.take(&mut slots, 10);
    assert_eq!(kernel.sent, [vec![2; 14], vec![3; 54], tagged, vec![5; 20]]);
}

/// Frames on a virtual cable keep their slots until somebody behind a queue of the device under test has consumed them. A sender that
/// waited for these slots would never send faster than that queue is emptied.
#[test]
fn frames_held_by_device_queue_count_as_taken() {
    let mut slots = ring();
    let mut kernel = RingKernel::new();
    for number in 1..=4 {
        assert!(fill(&mut slots, &[number]));
    }
    assert_eq!(slots.untaken_frames(), 4);
    kernel.take(&mut slots, 3);
    assert_eq!((slots.untaken_frames(), slots.filled, slots.handed_over_frames()), (1, 4, 3));
    kernel.take(&mut slots, 1);
    assert_eq!((slots.untaken_frames(), slots.filled, slots.handed_over_frames()), (0, 4, 4));
    assert!(fill(&mut slots, &[5]) && fill(&mut slots, &[6]));
    assert!(!fill(&mut slots, &[7]), "the ring is full");
    assert_eq!(slots.untaken_frames(), 2);
    kernel.return_units(&slots, 1);
    slots.reap_slots();
    assert_eq!((slots.untaken_frames(), slots.filled, slots.handed_over_frames()), (2, 5, 4));
    assert!(fill(&mut slots, &[0xff]), "one that the kernel refuses");
    kernel.take(&mut slots, 9);
    assert_eq!(slots.untaken_frames(), 1, "it is not taken");
    kernel.return_units(&slots, 9);
    slots.reap_slots();
    assert_eq!(
        (slots.untaken_frames(), slots.filled, slots.counts.refused, slots.handed_over_frames()),
        (0, 0, 1, 6)
    );
}
