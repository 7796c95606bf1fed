//! Capture filters as classic BPF programs, to which the filter language of tcpdump is compiled.
//!
//! A [`FilterProgram`] is a checked classic BPF program. It can be run on a frame
//! ([`FilterProgram::matches_frame`]), and translated into the body of an eBPF program that gives the same
//! result for a frame at an XDP hook ([`FilterProgram::translate_to_ebpf`]). `sys::pcap` compiles the text of
//! filters; this module makes no system calls.
//!
//! The semantics are those of libpcap: arithmetic has 32 bits, and a load outside the frame or a division by
//! zero ends the program with "no match". The kernel's own extensions (negative offsets) are not supported;
//! such a load is outside the frame.
//!
//! Invariant: a [`FilterProgram`] ends for every frame: its jumps lead forward to existing instructions, and
//! every path ends with a return.

mod decode;
mod ebpf;
mod run;
mod translate;

pub use ebpf::{EbpfInsn, FilterEndings};

use decode::BpfOperation;

/// Maximum number of instructions of a program, as in the kernel.
pub const MAX_PROGRAM_INSTRUCTIONS: usize = 4096;
/// Number of words of scratch memory.
const SCRATCH_WORDS: usize = 16;

/// A compiled instruction of classic BPF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassicInsn {
    pub code: u16,
    /// Number of instructions to skip if a condition is true.
    pub jt: u8,
    /// Number of instructions to skip if the condition is false.
    pub jf: u8,
    pub k: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterProgram {
    insns: Vec<ClassicInsn>,
    ops: Vec<BpfOperation>,
}

/// Reason why a program is refused or cannot be translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramRefusal {
    /// The program is empty, or too long.
    #[error("the filter has {0} instructions; from 1 to {MAX_PROGRAM_INSTRUCTIONS} are allowed")]
    Length(usize),
    /// The program contains an unknown or impossible instruction.
    #[error("instruction {at} of the filter is unknown or not valid: its code is {code:#x}")]
    Instruction {
        /// Index of the instruction, from 0.
        at: usize,
        code: u16,
    },
    /// The instruction jumps out of the program, or the program ends without a return.
    #[error("instruction {0} of the filter jumps or continues beyond the end of the program")]
    Target(usize),
    /// A jump is too long for eBPF, whose jumps skip at most 32767 instructions.
    #[error("the filter is too long to be translated: a jump spans {0} instructions, and eBPF allows 32767")]
    Distance(usize),
}

impl FilterProgram {
    /// Checks the instructions of a compiled program and the targets of its jumps.
    pub fn new(insns: Vec<ClassicInsn>) -> Result<Self, ProgramRefusal> {
        let ops = decode::decode_program(&insns)?;
        Ok(Self { insns, ops })
    }

    /// Returns the instructions as they were compiled.
    pub fn insns(&self) -> &[ClassicInsn] {
        &self.insns
    }

    /// Returns whether a complete frame (without FCS) matches.
    pub fn matches_frame(&self, frame: &[u8]) -> bool {
        // No real frame has 2^32 bytes; the length of a longer input is limited to the largest possible
        // value.
        self.matches_truncated_frame(frame, u32::try_from(frame.len()).unwrap_or(u32::MAX))
    }

    /// Returns whether a truncated frame matches. `bytes` has its first bytes; loads after them count as
    /// outside the frame. For the filter, the length of the frame is `full_len`.
    pub fn matches_truncated_frame(&self, bytes: &[u8], full_len: u32) -> bool {
        run::run_program(&self.ops, bytes, full_len) != 0
    }

    /// Translates the filter into the body of an XDP program with two endings: one for frames that match, the
    /// other for all other frames.
    ///
    /// On entry, R1 contains the `struct xdp_md *`; at the endings, R6 contains it. The body may use all other
    /// registers, and the 64 bytes of the stack below R10. Loading a program whose filter uses `len` needs
    /// CAP_PERFMON, because the program subtracts pointers.
    pub fn translate_to_ebpf(&self, endings: FilterEndings<'_>) -> Result<Vec<EbpfInsn>, ProgramRefusal> {
        translate::translate_program(&self.ops, endings)
    }
}

#[cfg(test)]
mod tests;
