//! Memory that is shared with the programs of XDP: rings that they fill (`bpf/rings.h`), runs that they take (`bpf/send.bpf.c`).

use crate::area::SharedArea;
use crate::explore::check;
use crate::sync::Ordering;

/// One record with eight bytes: the second needs the place of the first.
const RING_BYTES: usize = 24;
/// The second run needs the slot of the first.
const MAX_WAITING_RUNS: u64 = 1;

#[path = "../../src/xdp/ring.rs"]
#[expect(dead_code, unreachable_pub, reason = "the model uses what the protocol needs")]
mod ring;

#[path = "../../src/xdp/tx/runs.rs"]
#[expect(dead_code, unreachable_pub, reason = "the model uses what the protocol needs")]
mod runs;

// struct ring
const WRITTEN: usize = 0;
const READ: usize = 64;
const DATA: usize = 4096;

/// `put_frame`: a record with eight bytes, if there is room.
fn put_frame(area: &mut SharedArea, time: u64) {
    const RECORD: u64 = RING_BYTES as u64;
    let written = area.atomic_u64(WRITTEN).load(Ordering::Relaxed);
    // READ_ONCE: the writes below depend on it, which orders them behind it on every processor. Acquire stands for that here.
    let read = area.atomic_u64(READ).load(Ordering::Acquire);
    if written + RECORD - read > RECORD {
        return;
    }
    let byte = u8::try_from(time).expect("the model counts to two");
    area.atomic_u64(DATA).store(time, Ordering::Relaxed);
    area.bytes_mut(DATA + 8, 4).copy_from_slice(&8u32.to_ne_bytes());
    area.bytes_mut(DATA + 12, 4).copy_from_slice(&8u32.to_ne_bytes());
    area.bytes_mut(DATA + 16, 8).fill(byte);
    // PUBLISH
    area.atomic_u64(WRITTEN).fetch_add(RECORD, Ordering::Release);
}

#[test]
fn ring_record_is_read_completely_before_reuse() {
    let source = include_str!("../../bpf/rings.h");
    let lines = ["READ_ONCE(ring->read) > RING_BYTES", "PUBLISH(ring->written, sizeof(struct record)"];
    crate::assert_plays(source, &lines);
    check(|| {
        let area = SharedArea::new(&[], &[WRITTEN, 8, READ, DATA], &[(DATA + 8, 16)]);
        let mut program = area.share();
        let thread = loom::thread::spawn(move || {
            put_frame(&mut program, 1);
            put_frame(&mut program, 2);
        });
        let mut rings = ring::InterfaceRings::new(area, 1);
        let mut last = 0;
        for _ in 0..2 {
            rings.receive_frames(2, 0, &mut |frame| {
                let byte = u8::try_from(frame.monotonic_ns).expect("the model counts to two");
                assert_eq!(frame.bytes, [byte; 8]);
                assert!(frame.monotonic_ns > last, "a frame came twice");
                last = frame.monotonic_ns;
            });
        }
        thread.join().expect("the program ends");
    });
}

// struct control
const PUSHED: usize = 0;
const POPPED: usize = 64;
const LEFT: usize = 80;
const OTHERS: [usize; 7] = [8, 88, 96, 120, 216, 224, 240];
const SLOT: usize = 4096;

/// `next_run` and a frame of the run: its number, if there is one.
fn next_run(area: &SharedArea) -> Option<u64> {
    let popped = area.atomic_u64(POPPED).load(Ordering::Relaxed);
    // OBSERVE
    if popped == area.atomic_u64(PUSHED).load(Ordering::Acquire) {
        return None;
    }
    let number = area.bytes(SLOT + 16, 8).try_into().map_or(0, u64::from_ne_bytes);
    area.atomic_u64(LEFT).store(1, Ordering::Relaxed);
    // PUBLISH
    area.atomic_u64(POPPED).fetch_add(1, Ordering::Release);
    Some(number)
}

fn run(number: u64) -> runs::FrameRun {
    runs::FrameRun { due_ns: 0, step: 0, number, cutoff_ns: 0, count: 1, shape: 0 }
}

#[test]
fn run_queue_never_reuses_or_drains_too_soon() {
    let source = include_str!("../../bpf/send.bpf.c");
    let lines = [
        "popped == OBSERVE(c->pushed))\n\t\treturn 0;\n\tc->now = c->runs",
        "c->left = c->now.count;\n\tPUBLISH(c->popped, 1);",
    ];
    crate::assert_plays(source, &lines);
    check(|| {
        let longs = [&[PUSHED, POPPED, LEFT], OTHERS.as_slice()].concat();
        let area = SharedArea::new(&[], &longs, &[(SLOT, 64)]);
        let program = area.share();
        let thread = loom::thread::spawn(move || {
            let taken: Vec<u64> = (0..2).filter_map(|_| next_run(&program)).collect();
            assert!(taken.is_empty() || taken == [7] || taken == [7, 8], "{taken:?}");
        });
        let mut queue = runs::RunQueue::new(area);
        assert!(queue.push_run(&run(7)), "the first has room");
        // The program never makes the frame here, so nothing is ever drained.
        assert!(!queue.is_drained());
        queue.push_run(&run(8));
        thread.join().expect("the program ends");
    });
}
