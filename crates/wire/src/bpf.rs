//! Capture filters as programs: classic BPF, which the filter language of tcpdump compiles to.
//!
//! A [`FilterProgram`] is classic BPF that was checked to be sound. It can be run on a frame ([`FilterProgram::matches_frame`]),
//! and translated into the body of an eBPF program that gives the same result for a frame at an XDP hook
//! ([`FilterProgram::translate_to_ebpf`]). `sys::pcap` compiles text; this module makes no system calls.
//!
//! The semantics follow libpcap: 32-bit arithmetic, a load outside the frame and a division by zero end the program with
//! "no match". The kernel's own extensions (negative offsets) are not supported; such a load is outside the frame.
//!
//! Invariant: a [`FilterProgram`] ends on every frame: its jumps go forward, to instructions that exist, and none
//! runs off its end.

mod decode;
mod ebpf;
mod run;
mod translate;

pub use ebpf::{EbpfInsn, FilterEndings};

use decode::BpfOperation;

/// Instructions of a program at most, as in the kernel.
pub const MAX_PROGRAM_INSTRUCTIONS: usize = 4096;
/// Words of scratch memory.
const SCRATCH_WORDS: usize = 16;

/// An instruction of classic BPF as it is compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassicInsn {
    pub code: u16,
    /// Instructions to skip if a condition holds.
    pub jt: u8,
    /// Instructions to skip if it does not.
    pub jf: u8,
    pub k: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterProgram {
    insns: Vec<ClassicInsn>,
    ops: Vec<BpfOperation>,
}

/// Reasons why a program is refused or cannot be translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramRefusal {
    /// The program is empty, or too long.
    #[error("the filter has {0} instructions; from 1 to {MAX_PROGRAM_INSTRUCTIONS} are allowed")]
    Length(usize),
    /// The program contains an unknown or impossible instruction.
    #[error("instruction {at} of the filter (code {code:#x}) is unknown")]
    Instruction {
        /// Index of the instruction, from 0.
        at: usize,
        code: u16,
    },
    /// The instruction jumps out of the program, or the program ends without a return.
    #[error("instruction {0} of the filter jumps out of the filter")]
    Target(usize),
    /// A jump is too long for eBPF: its jumps reach 32767 instructions.
    #[error("the filter is too long to be translated: a jump spans {0} instructions, and eBPF allows 32767")]
    Distance(usize),
}

impl FilterProgram {
    /// Checks a compiled program: its instructions, and the targets of its jumps.
    pub fn new(insns: Vec<ClassicInsn>) -> Result<Self, ProgramRefusal> {
        let ops = decode::decode_program(&insns)?;
        Ok(Self { insns, ops })
    }

    /// Returns the program as it was compiled.
    pub fn insns(&self) -> &[ClassicInsn] {
        &self.insns
    }

    /// Reports whether a whole frame (without FCS) passes.
    pub fn matches_frame(&self, frame: &[u8]) -> bool {
        // No real frame has a length of 2^32 bytes; a longer input counts as the longest.
        self.matches_cut(frame, u32::try_from(frame.len()).unwrap_or(u32::MAX))
    }

    /// Reports whether a frame passes if only its first bytes are known. Loads from the missing part count as
    /// outside the frame, but its length is `full_len`.
    pub fn matches_cut(&self, bytes: &[u8], full_len: u32) -> bool {
        run::run_program(&self.ops, bytes, full_len) != 0
    }

    /// Translates the filter into the body of an XDP program with two endings: one for frames that pass, the
    /// other for all other frames.
    ///
    /// On entry R1 is the `struct xdp_md *`; at the endings it is in R6. The body uses all other registers, and the 64
    /// bytes of the stack below R10. An expression about `len` needs CAP_PERFMON to load: it subtracts pointers.
    pub fn translate_to_ebpf(&self, endings: FilterEndings<'_>) -> Result<Vec<EbpfInsn>, ProgramRefusal> {
        translate::translate_program(&self.ops, endings)
    }
}

#[cfg(test)]
mod tests;
