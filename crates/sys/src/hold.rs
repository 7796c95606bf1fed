//! Frames that BPF programs of our own hold back in the kernel until their release times: frames that the stack sends, at an interface's
//! egress ([`KernelGate`]), or frames that the kernel makes itself ([`LiveTrain`]).
//!
//! The programs are `bpf/{gate,train}.bpf.c`. Both record in shared memory when each frame was released. No
//! frame is held for longer than [`MAX_HELD_NS`], because the processor can do no other work in that time.

mod gate;
mod held;
mod train;

pub use gate::KernelGate;
pub use held::{GatedFrame, MAX_HELD_FRAMES};
pub use train::{LiveTrain, MAX_TRAIN_FRAME_BYTES, MAX_TRAIN_FRAMES};

use crate::bpf::BpfObject;
use held::{SHARED_TABLE_BYTES, read_gated_frame, read_passed_count};

static GATE_PROGRAM: BpfObject<'static> = BpfObject::new(include_bytes!(concat!(env!("OUT_DIR"), "/gate.o")));
static TRAIN_PROGRAM: BpfObject<'static> =
    BpfObject::new(include_bytes!(concat!(env!("OUT_DIR"), "/train.o")));

/// The longest time that a frame is held back.
pub const MAX_HELD_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests;
