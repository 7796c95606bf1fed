//! The rings of a packet socket. The kernel's side is that of `net/packet/af_packet.c`.

use crate::area::SharedArea;
use crate::explore::check;
use crate::sync::Ordering;

#[path = "../../src/packet/tx/slots.rs"]
#[expect(dead_code, unreachable_pub, reason = "the model uses what the protocol needs")]
mod slots;

#[path = "../../src/packet/rx/blocks.rs"]
#[expect(unreachable_pub, reason = "the model uses what the protocol needs")]
mod blocks;

/// Two slots; the model uses the first. The last word is the owner's.
const SHAPE: slots::TxRingShape = slots::TxRingShape { slot: 128, block: 256, per_block: 2, slots: 2 };
const FRAME: usize = 60;

#[test]
fn tx_slot_is_complete_and_reused_after_sending() {
    check(|| {
        let area = SharedArea::new(&[0, 128], &[], &[(4, 124), (132, 124)]);
        let kernel = area.share();
        let thread = loom::thread::spawn(move || {
            // packet_current_frame; smp_rmb.
            if kernel.atomic_u32(0).load(Ordering::Acquire) == libc::TP_STATUS_SEND_REQUEST {
                assert_eq!(kernel.bytes(slots::FRAME_OFFSET, FRAME), [7; FRAME]);
                // tpacket_destruct_skb: smp_wmb, __packet_set_status.
                kernel.atomic_u32(0).store(libc::TP_STATUS_AVAILABLE, Ordering::Release);
            }
        });
        let mut slots = slots::TxSlots::new(area, SHAPE, 1500);
        for _ in 0..2 {
            slots.next_slot().expect("both are free")[..FRAME].fill(7);
            slots.commit_frame(FRAME);
        }
        // Full: there is a slot only if the kernel has sent the first frame.
        if let Some(slot) = slots.next_slot() {
            slot.fill(8);
        }
        thread.join().expect("the kernel ends");
    });
}

const BLOCK: usize = 256;
/// Offset of the block's first frame, and of its bytes from there.
const FIRST: usize = 48;
const TO_MAC: usize = 96;

/// `prb_open_block`, a frame of four bytes, `prb_close_block`.
fn fill_block(kernel: &mut SharedArea, byte: u8) {
    use blocks::{BLOCK_FIRST_OFFSET, BLOCK_FRAMES_OFFSET, BLOCK_STATUS_OFFSET, CAPTURED_LENGTH_OFFSET};
    // prb_curr_blk_in_use; smp_rmb.
    if kernel.atomic_u32(BLOCK_STATUS_OFFSET).load(Ordering::Acquire) != libc::TP_STATUS_KERNEL {
        return;
    }
    kernel.bytes_mut(BLOCK_FRAMES_OFFSET, 4).copy_from_slice(&1u32.to_ne_bytes());
    kernel.bytes_mut(BLOCK_FIRST_OFFSET, 4).copy_from_slice(&48u32.to_ne_bytes());
    kernel.bytes_mut(FIRST + CAPTURED_LENGTH_OFFSET, 4).copy_from_slice(&4u32.to_ne_bytes());
    kernel.bytes_mut(FIRST + blocks::MAC_OFFSET, 2).copy_from_slice(&96u16.to_ne_bytes());
    kernel.bytes_mut(FIRST + TO_MAC, 4).fill(byte);
    // prb_flush_block: smp_wmb, BLOCK_STATUS.
    kernel.atomic_u32(BLOCK_STATUS_OFFSET).store(libc::TP_STATUS_USER, Ordering::Release);
}

#[test]
fn rx_block_is_read_completely_before_reuse() {
    check(|| {
        let area = SharedArea::new(&[blocks::BLOCK_STATUS_OFFSET], &[], &[(12, BLOCK - 12)]);
        let mut kernel = area.share();
        let thread = loom::thread::spawn(move || {
            fill_block(&mut kernel, 1);
            fill_block(&mut kernel, 2);
        });
        let mut blocks = blocks::RxBlocks::new(area, blocks::RxRingShape { block: BLOCK, blocks: 1 });
        let mut last = 0;
        for _ in 0..2 {
            blocks.receive_frames(1, &mut |frame| {
                assert_eq!(frame.bytes, [last + 1; 4]);
                last += 1;
            });
        }
        thread.join().expect("the kernel ends");
    });
}
