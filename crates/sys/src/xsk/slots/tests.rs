use super::*;
use crate::xsk::ring::RingLayout;
use std::collections::VecDeque;

/// Plays the kernel without zero copy, as `__xsk_generic_xmit` does: it works through the ring from its own position, stops
/// at a frame that is dropped, and shows its counter only when it comes to the end of what it knew or has sent something.
struct KernelDouble {
    at: u32,
    /// The producer's counter as last read.
    known: u32,
    sent: Vec<Vec<u8>>,
    /// Addresses that are done with, not yet reported.
    done: VecDeque<u64>,
    told: u32,
    skipped: usize,
}

enum KernelWord {
    Sent,
    Dropped,
}

impl KernelDouble {
    fn new() -> Self {
        Self { at: 0, known: 0, sent: Vec::new(), done: VecDeque::new(), told: 0, skipped: 0 }
    }

    /// Takes frames until `room` is used up; then drops the next.
    fn kick(&mut self, slots: &mut FrameSlots, mut room: usize) -> KernelWord {
        let mut has_sent = false;
        let mut frame = Vec::new();
        let mut addresses = Vec::new();
        loop {
            if self.at == self.known {
                slots.tx.publish_consumed(self.at);
                self.known = slots.tx.produced_count();
                if self.at == self.known {
                    return KernelWord::Sent;
                }
            }
            // The completion ring has room for every frame that is taken, or none is.
            let untold = self.told.wrapping_sub(slots.done.consumed_count()) as usize + self.done.len();
            if addresses.is_empty() && untold + slots.shape.pieces > slots.shape.ring_entries() {
                if has_sent {
                    slots.tx.publish_consumed(self.at);
                }
                return KernelWord::Sent;
            }
            let entry = slots.tx.entry(self.at).to_vec();
            let address = slots.tx.entry_address(self.at);
            let number = |at: usize| u32::from_ne_bytes(entry[at..at + 4].try_into().unwrap());
            self.at = self.at.wrapping_add(1);
            if address == INVALID_ADDRESS {
                self.skipped += 1;
                continue;
            }
            frame
                .extend_from_slice(slots.memory.bytes(usize::try_from(address).unwrap(), number(8) as usize));
            addresses.push(address);
            if number(12) == CONTINUED_FLAG {
                continue;
            }
            self.done.extend(addresses.drain(..));
            if room == 0 {
                if has_sent {
                    slots.tx.publish_consumed(self.at);
                }
                return KernelWord::Dropped;
            }
            room -= 1;
            has_sent = true;
            self.sent.push(std::mem::take(&mut frame));
        }
    }

    fn tell(&mut self, slots: &mut FrameSlots, most: usize) {
        for _ in 0..most {
            let Some(address) = self.done.pop_front() else { return };
            slots.done.entry_mut(self.told).copy_from_slice(&address.to_ne_bytes());
            self.told = self.told.wrapping_add(1);
            slots.done.publish_produced(self.told);
        }
    }
}

/// Rings whose counters are about to overflow.
const START: u32 = u32::MAX - 5;

fn slots(count: usize, longest: usize, mtu: usize) -> (FrameSlots, KernelDouble) {
    let shape = SlotShape::new(count, longest);
    let size = u32::try_from(shape.ring_entries()).unwrap();
    let layout = RingLayout { producer: 0, consumer: 64, flags: 128, entries: 192 };
    let ring = |entry: usize| {
        XskRing::new(SharedArea::plain(192 + entry * shape.ring_entries()), layout, entry, size)
    };
    let mut slots = FrameSlots::new(SharedArea::plain(shape.bytes()), ring(16), ring(8), shape, mtu);
    for ring in [&slots.tx, &slots.done] {
        ring.publish_produced(START);
        ring.publish_consumed(START);
    }
    (slots.reached, slots.produced, slots.consumed) = (START, START, START);
    let mut kernel = KernelDouble::new();
    (kernel.at, kernel.known, kernel.told) = (START, START, START);
    (slots, kernel)
}

fn frame(number: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![number.to_le_bytes()[0]; len];
    frame[..4].copy_from_slice(&number.to_be_bytes());
    frame
}

fn fill(slots: &mut FrameSlots, bytes: &[u8]) -> bool {
    let Some(slot) = slots.next_slot() else { return false };
    slot[..bytes.len()].copy_from_slice(bytes);
    slots.commit_frame(bytes.len());
    true
}

/// A sequence of small numbers by chance, the same each time.
fn chance(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    }
}

#[test]
fn xsk_frames_leave_once_in_order_under_load() {
    for (seed, longest) in [(1, 60), (2, 1500), (3, 9000), (4, 60), (5, 9000)] {
        let (mut slots, mut kernel) = slots(6, longest, 9000);
        let mut chance = chance(seed);
        let mut wanted = Vec::new();
        let mut turns = 0;
        while wanted.len() < 500 || slots.pending > 0 {
            turns += 1;
            assert!(turns < 100_000, "seed {seed}: it stands still");
            for _ in 0..chance(8) {
                let bytes = frame(u32::try_from(wanted.len()).unwrap(), 14 + chance(longest - 14));
                if wanted.len() < 500 && fill(&mut slots, &bytes) {
                    wanted.push(bytes);
                }
            }
            if slots.publish_committed() && matches!(kernel.kick(&mut slots, chance(4)), KernelWord::Dropped)
            {
                slots.reenter_stopped_frame();
            }
            kernel.tell(&mut slots, chance(20));
            slots.reap_slots();
        }
        assert_eq!(kernel.sent, wanted, "seed {seed}");
        assert_eq!(slots.counts, TxCounts { taken: 500, refused: 0 });
        assert_eq!(slots.free.len(), 6);
    }
}

#[test]
fn withdrawn_xsk_frames_never_leave_and_others_do() {
    for seed in 0..50 {
        let (mut slots, mut kernel) = slots(5, if seed % 2 == 0 { 60 } else { 9000 }, 9000);
        let mut chance = chance(seed);
        let (mut entered, mut withdrawn) = (0u32, 0);
        let mut turns = 0;
        while entered < 200 || slots.pending > 0 {
            turns += 1;
            assert!(turns < 100_000, "seed {seed}: it stands still");
            while entered < 200 && chance(3) > 0 && fill(&mut slots, &frame(entered, 60)) {
                entered += 1;
            }
            if slots.publish_committed() && matches!(kernel.kick(&mut slots, chance(3)), KernelWord::Dropped)
            {
                slots.reenter_stopped_frame();
            }
            kernel.tell(&mut slots, chance(4));
            if chance(5) == 0 {
                withdrawn += slots.withdraw_unreached();
            }
        }
        slots.publish_committed();
        kernel.kick(&mut slots, 100);
        kernel.tell(&mut slots, 100);
        slots.reap_slots();
        assert!(withdrawn > 0 && kernel.skipped > 0);
        let numbers: Vec<_> = kernel.sent.iter().map(|frame| frame[..4].to_vec()).collect();
        assert!(numbers.is_sorted() && numbers.windows(2).all(|pair| pair[0] != pair[1]), "seed {seed}");
        assert_eq!(kernel.sent.len() + withdrawn, 200, "seed {seed}");
        let counts = TxCounts { taken: kernel.sent.len() as u64, refused: withdrawn as u64 };
        assert_eq!(slots.counts, counts, "seed {seed}");
        assert_eq!(slots.free.len(), 5, "seed {seed}");
    }
}

#[test]
fn frames_that_the_interface_cannot_send_are_refused() {
    let (mut slots, mut kernel) = slots(4, 1600, 1500);
    let tagged = |len| {
        let mut bytes = frame(1, len);
        bytes[12..14].copy_from_slice(&[0x81, 0x00]);
        bytes
    };
    for (bytes, refused) in [
        (frame(1, 13), 1),
        (frame(1, 14), 1),
        (frame(1, 1514), 1),
        (frame(1, 1515), 2),
        (tagged(1518), 2),
        (tagged(1519), 3),
    ] {
        assert!(fill(&mut slots, &bytes));
        assert_eq!(slots.counts.refused, refused, "{} B", bytes.len());
        slots.publish_committed();
        kernel.kick(&mut slots, 10);
        kernel.tell(&mut slots, 10);
        slots.reap_slots();
    }
    assert_eq!(slots.counts, TxCounts { taken: 3, refused: 3 });
}

#[test]
fn a_long_frame_is_written_in_pieces() {
    let (mut slots, _) = slots(2, 9000, 9000);
    assert_eq!(slots.shape, SlotShape { chunk: 4096, pieces: 3, slots: 2 });
    assert!(fill(&mut slots, &frame(7, 9000)));
    let entry = |at: u32| {
        let bytes = slots.tx.entry(START.wrapping_add(at));
        let number = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        (slots.tx.entry_address(START.wrapping_add(at)), number(8), number(12))
    };
    assert_eq!([entry(0), entry(1), entry(2)], [(0, 4096, 1), (4096, 4096, 1), (8192, 808, 0)]);
}
