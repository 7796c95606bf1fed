//! The eBPF instructions that translated filters need.

/// An instruction of eBPF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EbpfInsn {
    pub code: u8,
    pub dst: u8,
    pub src: u8,
    /// Offset of a load, a store or a jump.
    pub off: i16,
    pub imm: i32,
}

/// The instructions that follow the decision of a translated filter. Each ending must end with `exit`, or
/// with a tail call and an `exit` after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterEndings<'a> {
    /// Instructions that run for frames that match.
    pub on_match: &'a [EbpfInsn],
    /// Instructions that run for frames that do not match.
    pub on_mismatch: &'a [EbpfInsn],
}

pub(super) mod register {
    pub(in super::super) const SCRATCH: u8 = 2;
    pub(in super::super) const X: u8 = 5;
    pub(in super::super) const CONTEXT: u8 = 6;
    pub(in super::super) const DATA: u8 = 7;
    pub(in super::super) const END: u8 = 8;
    pub(in super::super) const A: u8 = 9;
    pub(in super::super) const FRAME: u8 = 10;
}

// Classes, sizes and operations, combined by `|`.
const CLASS_LOAD: u8 = 0x61; // load from memory through a register, 32 bits
const CLASS_STORE: u8 = 0x63; // store of a register, 32 bits
const CLASS_ALU: u8 = 0x04; // 32 bits; the upper half becomes zero
const CLASS_ALU64: u8 = 0x07;
const CLASS_JUMP: u8 = 0x05;
const CLASS_JUMP32: u8 = 0x06;
const FROM_REGISTER: u8 = 0x08;

pub(super) mod alu {
    pub(in super::super) const ADD: u8 = 0x00;
    pub(in super::super) const SUB: u8 = 0x10;
    pub(in super::super) const MUL: u8 = 0x20;
    pub(in super::super) const DIV: u8 = 0x30;
    pub(in super::super) const OR: u8 = 0x40;
    pub(in super::super) const AND: u8 = 0x50;
    pub(in super::super) const LSH: u8 = 0x60;
    pub(in super::super) const RSH: u8 = 0x70;
    pub(in super::super) const NEG: u8 = 0x80;
    pub(in super::super) const MOD: u8 = 0x90;
    pub(in super::super) const XOR: u8 = 0xa0;
    pub(in super::super) const MOV: u8 = 0xb0;
    pub(in super::super) const TO_BIG_ENDIAN: u8 = 0xd8;
}

/// Conditions of jumps; the compared values are unsigned.
pub(super) mod jump {
    pub(in super::super) const ALWAYS: u8 = 0x00;
    pub(in super::super) const EQ: u8 = 0x10;
    pub(in super::super) const GT: u8 = 0x20;
    pub(in super::super) const GE: u8 = 0x30;
    pub(in super::super) const SET: u8 = 0x40;
    pub(in super::super) const NE: u8 = 0x50;
    pub(in super::super) const LT: u8 = 0xa0;
    pub(in super::super) const LE: u8 = 0xb0;
}

impl EbpfInsn {
    /// Encodes the instruction in the form that the kernel of this machine expects.
    pub fn to_bytes(self) -> [u8; 8] {
        // The kernel declares the two registers as bit fields of one byte, so their order depends on the byte
        // order of the machine.
        let registers =
            if cfg!(target_endian = "big") { self.dst << 4 | self.src } else { self.src << 4 | self.dst };
        let [off0, off1] = self.off.to_ne_bytes();
        let [imm0, imm1, imm2, imm3] = self.imm.to_ne_bytes();
        [self.code, registers, off0, off1, imm0, imm1, imm2, imm3]
    }

    /// Decodes an instruction in the form that a kernel on a little-endian machine uses.
    pub fn from_word(word: u64) -> Self {
        let [code, registers, off0, off1, imm @ ..] = word.to_le_bytes();
        Self {
            code,
            dst: registers & 0xf,
            src: registers >> 4,
            off: i16::from_le_bytes([off0, off1]),
            imm: i32::from_le_bytes(imm),
        }
    }

    /// R0 = `value`.
    pub const fn set_result(value: i32) -> Self {
        Self { code: CLASS_ALU64 | alu::MOV, dst: 0, src: 0, off: 0, imm: value }
    }

    /// Ends the program; its result is R0.
    pub const fn exit() -> Self {
        Self { code: CLASS_JUMP | 0x90, dst: 0, src: 0, off: 0, imm: 0 }
    }

    pub(super) fn load(size: u8, dst: u8, src: u8, off: i16) -> Self {
        Self { code: CLASS_LOAD | size, dst, src, off, imm: 0 }
    }

    pub(super) fn store(dst: u8, src: u8, off: i16) -> Self {
        Self { code: CLASS_STORE, dst, src, off, imm: 0 }
    }

    pub(super) fn alu(operation: u8, dst: u8, k: u32) -> Self {
        Self { code: CLASS_ALU | operation, dst, imm: k.cast_signed(), ..Self::default() }
    }

    pub(super) fn alu_register(operation: u8, dst: u8, src: u8) -> Self {
        Self { code: CLASS_ALU | FROM_REGISTER | operation, dst, src, ..Self::default() }
    }

    pub(super) fn alu_wide(operation: u8, dst: u8, k: u32) -> Self {
        Self { code: CLASS_ALU64 | operation, dst, imm: k.cast_signed(), ..Self::default() }
    }

    pub(super) fn alu_wide_register(operation: u8, dst: u8, src: u8) -> Self {
        Self { code: CLASS_ALU64 | FROM_REGISTER | operation, dst, src, ..Self::default() }
    }

    pub(super) fn jump_always() -> Self {
        Self { code: CLASS_JUMP | jump::ALWAYS, ..Self::default() }
    }

    /// Compares 32 bits with a constant.
    pub(super) fn jump_if(condition: u8, dst: u8, k: u32) -> Self {
        Self { code: CLASS_JUMP32 | condition, dst, imm: k.cast_signed(), ..Self::default() }
    }

    /// Compares all 64 bits with a constant.
    pub(super) fn jump_if_wide(condition: u8, dst: u8, k: u32) -> Self {
        // The kernel sign-extends the constant; all callers pass values below 2^31.
        Self { code: CLASS_JUMP | condition, dst, imm: k.cast_signed(), ..Self::default() }
    }

    /// Compares 32 bits of two registers.
    pub(super) fn jump_if_register(condition: u8, dst: u8, src: u8) -> Self {
        Self { code: CLASS_JUMP32 | FROM_REGISTER | condition, dst, src, ..Self::default() }
    }

    pub(super) fn jump_if_greater(dst: u8, src: u8) -> Self {
        Self { code: CLASS_JUMP | FROM_REGISTER | jump::GT, dst, src, ..Self::default() }
    }
}
