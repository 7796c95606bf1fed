//! Builds the filter program that the kernel runs on each frame before it puts the frame into a ring.
//!
//! The kernel's filter sees frames without the VLAN tag that the kernel removed. Therefore it passes all tagged frames,
//! and the caller checks them again with their tag in place.

use packetrig_sys::pcap::ClassicInsn;
use packetrig_wire::bpf::{self, FilterProgram};

/// Length limit for frames that are recorded in full: more bytes than any frame has.
const ALL: u32 = u32::MAX;

// Codes of classic BPF: 0x06 returns a constant (how many bytes to keep), 0x16 returns the accumulator, 0x20 loads a
// word, 0x15 jumps if equal. A load at SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT (linux/filter.h) does not read the frame.
const fn classic_insn(code: u16, jt: u8, jf: u8, k: u32) -> ClassicInsn {
    ClassicInsn { code, jt, jf, k }
}

/// Returns how many bytes of a frame to record if the filter program returns `k`.
fn bytes_to_record(k: u32, snap_len: Option<u32>) -> u32 {
    if k == 0 { 0 } else { snap_len.unwrap_or(ALL) }
}

/// Builds the program for the kernel. It is empty if the kernel shall deliver every frame in full: there is nothing to
/// filter or cut, or the program would be too long or return a computed length.
pub(super) fn build_kernel_filter(filter: Option<&FilterProgram>, snap_len: Option<u32>) -> Vec<ClassicInsn> {
    /// A load at this offset tells whether the kernel removed a VLAN tag from the frame.
    const VLAN_TAG_REMOVED_OFFSET: u32 = 0xffff_f000 + 48;
    let rest: Vec<_> = match filter {
        Some(program) => program
            .insns()
            .iter()
            .map(|i| {
                classic_insn(
                    i.code,
                    i.jt,
                    i.jf,
                    if i.code == 6 { bytes_to_record(i.k, snap_len) } else { i.k },
                )
            })
            .collect(),
        None if snap_len.is_some() => vec![classic_insn(6, 0, 0, bytes_to_record(ALL, snap_len))],
        None => return Vec::new(),
    };
    // After the jump the accumulator is zero again, as the program expects.
    let tagged = [
        classic_insn(0x20, 0, 0, VLAN_TAG_REMOVED_OFFSET),
        classic_insn(0x15, 1, 0, 0),
        classic_insn(6, 0, 0, ALL),
    ];
    // A program that returns a computed value would cut frames to that length.
    if tagged.len() + rest.len() > bpf::MAX_PROGRAM_INSTRUCTIONS || rest.iter().any(|insn| insn.code == 0x16)
    {
        return Vec::new();
    }
    tagged.into_iter().chain(rest).collect()
}
