//! The rings of an AF_XDP socket. The kernel's side is that of `net/xdp/xsk_queue.h`.

use crate::area::SharedArea;
use crate::explore::check;
use crate::sync::Ordering;

#[path = "../../src/xsk/ring.rs"]
#[expect(dead_code, reason = "the model uses what the protocol needs")]
mod ring;

const PRODUCER: usize = 0;
const CONSUMER: usize = 64;
const ENTRIES: usize = 128;

/// A ring of one entry of eight bytes, and the memory for the kernel's side.
fn one_entry() -> (ring::XskRing, SharedArea) {
    let area = SharedArea::new(&[PRODUCER, CONSUMER, 96], &[], &[(ENTRIES, 8)]);
    let layout = ring::RingLayout { producer: PRODUCER, consumer: CONSUMER, flags: 96, entries: ENTRIES };
    let kernel = area.share();
    (ring::XskRing::new(area, layout, 8, 1), kernel)
}

#[test]
fn xsk_entry_is_read_completely_before_reuse() {
    check(|| {
        let (mut ring, kernel) = one_entry();
        let thread = loom::thread::spawn(move || {
            for taken in 0..2u32 {
                // __xskq_cons_peek: smp_load_acquire of the producer.
                if kernel.atomic_u32(PRODUCER).load(Ordering::Acquire) == taken {
                    return;
                }
                assert_eq!(kernel.bytes(ENTRIES, 8), u64::from(taken + 1).to_ne_bytes());
                // __xskq_cons_release: smp_store_release.
                kernel.atomic_u32(CONSUMER).store(taken + 1, Ordering::Release);
            }
        });
        for number in 0..2u32 {
            if ring.consumed_count() == number {
                ring.entry_mut(number).copy_from_slice(&u64::from(number + 1).to_ne_bytes());
                ring.publish_produced(number + 1);
            }
        }
        thread.join().expect("the kernel ends");
    });
}

#[test]
fn xsk_completion_is_read_completely_before_reuse() {
    check(|| {
        let (ring, mut kernel) = one_entry();
        let thread = loom::thread::spawn(move || {
            for number in 0..2u32 {
                // xskq_prod_is_full: READ_ONCE, and the write depends on it. Acquire stands for that here.
                if kernel.atomic_u32(CONSUMER).load(Ordering::Acquire) != number {
                    return;
                }
                kernel.bytes_mut(ENTRIES, 8).copy_from_slice(&u64::from(number + 1).to_ne_bytes());
                // __xskq_prod_submit: smp_store_release.
                kernel.atomic_u32(PRODUCER).store(number + 1, Ordering::Release);
            }
        });
        for number in 0..2u32 {
            if ring.produced_count() == number + 1 {
                assert_eq!(ring.entry_address(number), u64::from(number + 1));
                ring.publish_consumed(number + 1);
            }
        }
        thread.join().expect("the kernel ends");
    });
}
