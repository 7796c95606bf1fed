//! BPF programs of packetrig that hold frames in the kernel until their release times. [`KernelGate`] holds frames that
//! the stack sends, at an interface's egress. [`LiveTrain`] holds frames that the kernel generates itself.
//!
//! The programs are `bpf/{gate,train}.bpf.c`. Both record in shared memory when each frame was released. No frame is
//! held for longer than [`MAX_HELD_NS`], because the processor does no other work while it holds a frame.

mod gate;
mod held;
mod train;

pub use gate::KernelGate;
pub use held::{FrameReleaseRecord, MAX_HELD_FRAMES};
pub use train::{LiveTrain, MAX_TRAIN_FRAME_BYTES, MAX_TRAIN_FRAMES};

use crate::bpf::BpfObject;
use held::{SHARED_TABLE_BYTES, load_release_counter, load_release_record};

static GATE_PROGRAM: BpfObject<'static> = BpfObject::new(include_bytes!(concat!(env!("OUT_DIR"), "/gate.o")));
static TRAIN_PROGRAM: BpfObject<'static> =
    BpfObject::new(include_bytes!(concat!(env!("OUT_DIR"), "/train.o")));

/// Maximum time for which a program holds a frame.
pub const MAX_HELD_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests;
