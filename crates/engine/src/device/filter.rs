//! Kernel filter of the emulated interfaces: a classic BPF program that passes the protocols they may have to answer,
//! also behind VLAN tags (the kernel removes the outermost tag before the program sees a frame).

use packetrig_sys::pcap::ClassicInsn;

/// Maximum number of VLAN tags that the program skips.
const MAX_SKIPPED_VLAN_TAGS: u32 = 4;
const BPF_LOAD_HALF: u16 = 0x28;
const BPF_LOAD_BYTE: u16 = 0x30;
const BPF_JUMP_EQUAL: u16 = 0x15;
const BPF_RETURN: u16 = 0x06;
const WHOLE_FRAME_BYTES: u32 = 0x0004_0000;

const fn classic_insn(code: u16, jt: u8, jf: u8, k: u32) -> ClassicInsn {
    ClassicInsn { code, jt, jf, k }
}

/// Builds the program that passes ARP, ICMP and ICMPv6, untagged or tagged.
pub(crate) fn build_protocol_filter() -> Vec<ClassicInsn> {
    let mut program = Vec::new();
    for tags in 0..=MAX_SKIPPED_VLAN_TAGS {
        // The EtherType follows both MAC addresses and 4 bytes for each tag.
        let at = 12 + 4 * tags;
        // One level is 17 instructions: a tagged frame continues at the next level, and every other
        // frame is decided here.
        program.extend([
            classic_insn(BPF_LOAD_HALF, 0, 0, at),
            classic_insn(BPF_JUMP_EQUAL, 14, 0, 0x0806),
            classic_insn(BPF_JUMP_EQUAL, 7, 0, 0x0800),
            classic_insn(BPF_JUMP_EQUAL, 9, 0, 0x86dd),
            classic_insn(BPF_JUMP_EQUAL, 12, 0, 0x8100),
            classic_insn(BPF_JUMP_EQUAL, 11, 0, 0x88a8),
            classic_insn(BPF_JUMP_EQUAL, 10, 0, 0x9100),
            classic_insn(BPF_JUMP_EQUAL, 9, 0, 0x9200),
            classic_insn(BPF_JUMP_EQUAL, 8, 0, 0x9300),
            classic_insn(BPF_RETURN, 0, 0, 0),
            // From the EtherType on, byte 11 is the protocol of IPv4, and byte 8 the next header of IPv6.
            classic_insn(BPF_LOAD_BYTE, 0, 0, at + 11),
            classic_insn(BPF_JUMP_EQUAL, 4, 0, 1),
            classic_insn(BPF_RETURN, 0, 0, 0),
            classic_insn(BPF_LOAD_BYTE, 0, 0, at + 8),
            classic_insn(BPF_JUMP_EQUAL, 1, 0, 58),
            classic_insn(BPF_RETURN, 0, 0, 0),
            classic_insn(BPF_RETURN, 0, 0, WHOLE_FRAME_BYTES),
        ]);
    }
    // More tags than the program skips: drop.
    program.push(classic_insn(BPF_RETURN, 0, 0, 0));
    program
}
