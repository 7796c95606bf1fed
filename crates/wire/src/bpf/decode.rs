//! Decodes instructions into operations, and refuses invalid programs.

use super::{ClassicInsn, MAX_PROGRAM_INSTRUCTIONS, ProgramRefusal, SCRATCH_WORDS};

/// The width of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadWidth {
    Word,
    Half,
    Byte,
}

impl LoadWidth {
    pub(super) fn bytes(self) -> u32 {
        match self {
            Self::Word => 4,
            Self::Half => 2,
            Self::Byte => 1,
        }
    }
}

/// The second operand of an operation: a constant or the register X.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecondOperand {
    K(u32),
    X,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AluOperation {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JumpCondition {
    Equal,
    Greater,
    GreaterOrEqual,
    AnyBit,
}

/// A source other than the frame for a value of A or X.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueSource {
    Constant(u32),
    Memory(usize),
    Length,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BpfRegister {
    A,
    X,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BpfOperation {
    /// A = the bytes of the frame at `k`.
    Load(LoadWidth, u32),
    /// A = the bytes of the frame at X + `k`.
    LoadIndexed(LoadWidth, u32),
    /// X = the length of the IPv4 header that begins at `k`.
    LoadHeaderLength(u32),
    Set(BpfRegister, ValueSource),
    Store(BpfRegister, usize),
    Alu(AluOperation, SecondOperand),
    Negate,
    Jump(usize),
    Branch {
        condition: JumpCondition,
        with: SecondOperand,
        yes: usize,
        no: usize,
    },
    ReturnConstant(u32),
    ReturnA,
    CopyAToX,
    CopyXToA,
}

pub(super) fn decode_program(insns: &[ClassicInsn]) -> Result<Vec<BpfOperation>, ProgramRefusal> {
    if insns.is_empty() || insns.len() > MAX_PROGRAM_INSTRUCTIONS {
        return Err(ProgramRefusal::Length(insns.len()));
    }
    let ops = insns.iter().enumerate().map(|(at, insn)| {
        let op = decode_operation(at, *insn).ok_or(ProgramRefusal::Instruction { at, code: insn.code })?;
        // The highest index that the next instruction can have. Offsets are unsigned, so every jump leads forward
        // and each program ends.
        let last = match op {
            BpfOperation::ReturnConstant(_) | BpfOperation::ReturnA => at,
            BpfOperation::Jump(to) => to,
            BpfOperation::Branch { yes, no, .. } => yes.max(no),
            _ => at + 1,
        };
        if last < insns.len() { Ok(op) } else { Err(ProgramRefusal::Target(at)) }
    });
    ops.collect()
}

fn decode_operation(at: usize, insn: ClassicInsn) -> Option<BpfOperation> {
    let k = insn.k;
    // The low three bits are the instruction class: load, load X, store, store X, arithmetic, jump, return,
    // copy.
    Some(match insn.code & 7 {
        0 => decode_load(insn)?,
        1 => match insn.code {
            // BPF_MSH: tcpdump uses this instruction to skip the options of an IPv4 header.
            0xb1 => BpfOperation::LoadHeaderLength(k),
            // The codes of LDX are the codes of LD plus 1.
            code => BpfOperation::Set(BpfRegister::X, decode_value(code & !1, k)?),
        },
        // A store has neither a size nor a mode, so every other code of its class is invalid.
        2 if insn.code == 2 => BpfOperation::Store(BpfRegister::A, checked_memory_cell(k)?),
        3 if insn.code == 3 => BpfOperation::Store(BpfRegister::X, checked_memory_cell(k)?),
        4 if insn.code == 0x84 => BpfOperation::Negate,
        4 => decode_alu(insn)?,
        5 if insn.code == 0x05 => {
            BpfOperation::Jump(at.checked_add(1)?.checked_add(usize::try_from(k).ok()?)?)
        }
        5 => decode_branch(at, insn)?,
        6 if insn.code == 0x06 => BpfOperation::ReturnConstant(k),
        6 if insn.code == 0x16 => BpfOperation::ReturnA,
        7 if insn.code == 0x07 => BpfOperation::CopyAToX,
        7 if insn.code == 0x87 => BpfOperation::CopyXToA,
        _ => return None,
    })
}

fn decode_load(insn: ClassicInsn) -> Option<BpfOperation> {
    Some(match insn.code {
        0x20 => BpfOperation::Load(LoadWidth::Word, insn.k),
        0x28 => BpfOperation::Load(LoadWidth::Half, insn.k),
        0x30 => BpfOperation::Load(LoadWidth::Byte, insn.k),
        0x40 => BpfOperation::LoadIndexed(LoadWidth::Word, insn.k),
        0x48 => BpfOperation::LoadIndexed(LoadWidth::Half, insn.k),
        0x50 => BpfOperation::LoadIndexed(LoadWidth::Byte, insn.k),
        code => BpfOperation::Set(BpfRegister::A, decode_value(code, insn.k)?),
    })
}

fn decode_value(code: u16, k: u32) -> Option<ValueSource> {
    Some(match code {
        0x00 => ValueSource::Constant(k),
        0x60 => ValueSource::Memory(checked_memory_cell(k)?),
        0x80 => ValueSource::Length,
        _ => return None,
    })
}

fn checked_memory_cell(k: u32) -> Option<usize> {
    usize::try_from(k).ok().filter(|cell| *cell < SCRATCH_WORDS)
}

/// Decodes the second operand: bit 3 of the code selects the constant or X.
fn decode_operand(insn: ClassicInsn) -> SecondOperand {
    if insn.code & 8 == 0 { SecondOperand::K(insn.k) } else { SecondOperand::X }
}

fn decode_alu(insn: ClassicInsn) -> Option<BpfOperation> {
    let operation = match insn.code & 0xf0 {
        0x00 => AluOperation::Add,
        0x10 => AluOperation::Sub,
        0x20 => AluOperation::Mul,
        0x30 => AluOperation::Div,
        0x40 => AluOperation::Or,
        0x50 => AluOperation::And,
        0x60 => AluOperation::ShiftLeft,
        0x70 => AluOperation::ShiftRight,
        0x90 => AluOperation::Mod,
        0xa0 => AluOperation::Xor,
        _ => return None,
    };
    // The class and the operation are in the low byte, so the high byte must be zero.
    let known = insn.code < 0x100;
    known.then(|| BpfOperation::Alu(operation, decode_operand(insn)))
}

fn decode_branch(at: usize, insn: ClassicInsn) -> Option<BpfOperation> {
    let condition = match insn.code & 0xf0 {
        0x10 => JumpCondition::Equal,
        0x20 => JumpCondition::Greater,
        0x30 => JumpCondition::GreaterOrEqual,
        0x40 => JumpCondition::AnyBit,
        _ => return None,
    };
    let known = insn.code < 0x100;
    known.then(|| BpfOperation::Branch {
        condition,
        with: decode_operand(insn),
        // Offsets count from the next instruction.
        yes: at + 1 + usize::from(insn.jt),
        no: at + 1 + usize::from(insn.jf),
    })
}
