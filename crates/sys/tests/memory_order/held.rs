//! The notes of frames that were held back: written by `bpf/gate.bpf.c` and `bpf/train.bpf.c`, read here.

use crate::area::SharedArea;
use crate::explore::check;
use crate::sync::Ordering;

#[path = "../../src/hold/held.rs"]
#[expect(
    dead_code,
    unreachable_pub,
    clippy::struct_field_names,
    reason = "the model uses what the protocol needs"
)]
mod notes;

const COUNTER: usize = 16;
const FIRST: usize = 4096;

/// Notes of the first two frames: at, entered, released, left, gaps.
fn table() -> SharedArea {
    let slots = (0..2).flat_map(|slot| (0..5).map(move |word| FIRST + 64 * slot + 8 * word));
    let longs: Vec<usize> = slots.chain([COUNTER]).collect();
    SharedArea::new(&[], &longs, &[])
}

#[test]
fn frame_notes_are_visible_after_passed_counter() {
    for source in [include_str!("../../bpf/gate.bpf.c"), include_str!("../../bpf/train.bpf.c")] {
        crate::assert_plays(source, &["slot->left = bpf_ktime_get_ns();\n\tPUBLISH("]);
    }
    check(|| {
        let area = table();
        let program = area.share();
        let thread = loom::thread::spawn(move || {
            for number in 0..2 {
                for word in 0..5 {
                    program.atomic_u64(FIRST + 64 * number + 8 * word).store(1, Ordering::Relaxed);
                }
                // PUBLISH
                program.atomic_u64(COUNTER).fetch_add(1, Ordering::Release);
            }
        });
        for number in 0..notes::load_release_counter(&area, COUNTER) {
            let held = notes::load_release_record(&area, number);
            assert_eq!(
                (held.at_ns, held.entered_ns, held.released_ns, held.left_ns, held.gap_ns),
                (1, 1, 1, 1, 1)
            );
        }
        thread.join().expect("the program ends");
    });
}
