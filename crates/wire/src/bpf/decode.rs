//! From instruction codes to operations: what cannot be run does not get past here.

use super::{ClassicInsn, LONGEST, MEMORY, Unsupported};

/// The width of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Word,
    Half,
    Byte,
}

impl Width {
    pub(super) fn bytes(self) -> u32 {
        match self {
            Self::Word => 4,
            Self::Half => 2,
            Self::Byte => 1,
        }
    }
}

/// The second operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    K(u32),
    X,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alu {
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
pub(super) enum Condition {
    Equal,
    Greater,
    GreaterOrEqual,
    AnyBit,
}

/// Where a value for A or X comes from that is not in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Constant(u32),
    Memory(usize),
    Length,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Register {
    A,
    X,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// A = the frame at `k`.
    Load(Width, u32),
    /// A = the frame at X + `k`.
    LoadIndexed(Width, u32),
    /// X = length of the IPv4 header that starts at `k`.
    LoadHeaderLength(u32),
    Set(Register, Value),
    Store(Register, usize),
    Alu(Alu, Operand),
    Negate,
    Jump(usize),
    Branch {
        condition: Condition,
        with: Operand,
        yes: usize,
        no: usize,
    },
    ReturnConstant(u32),
    ReturnA,
    CopyAToX,
    CopyXToA,
}

pub(super) fn decode(insns: &[ClassicInsn]) -> Result<Vec<Op>, Unsupported> {
    if insns.is_empty() || insns.len() > LONGEST {
        return Err(Unsupported::Length(insns.len()));
    }
    let ops = insns.iter().enumerate().map(|(at, insn)| {
        let op = op(at, *insn).ok_or(Unsupported::Instruction { at, code: insn.code })?;
        let last = match op {
            Op::ReturnConstant(_) | Op::ReturnA => at,
            Op::Jump(to) => to,
            Op::Branch { yes, no, .. } => yes.max(no),
            _ => at + 1,
        };
        if last < insns.len() { Ok(op) } else { Err(Unsupported::Target(at)) }
    });
    ops.collect()
}

fn op(at: usize, insn: ClassicInsn) -> Option<Op> {
    let k = insn.k;
    Some(match insn.code & 7 {
        0 => load(insn)?,
        1 => match insn.code {
            0xb1 => Op::LoadHeaderLength(k),
            code => Op::Set(Register::X, value(code & !1, k)?),
        },
        2 if insn.code == 2 => Op::Store(Register::A, cell(k)?),
        3 if insn.code == 3 => Op::Store(Register::X, cell(k)?),
        4 if insn.code == 0x84 => Op::Negate,
        4 => alu(insn)?,
        5 if insn.code == 0x05 => Op::Jump(at.checked_add(1)?.checked_add(usize::try_from(k).ok()?)?),
        5 => branch(at, insn)?,
        6 if insn.code == 0x06 => Op::ReturnConstant(k),
        6 if insn.code == 0x16 => Op::ReturnA,
        7 if insn.code == 0x07 => Op::CopyAToX,
        7 if insn.code == 0x87 => Op::CopyXToA,
        _ => return None,
    })
}

fn load(insn: ClassicInsn) -> Option<Op> {
    Some(match insn.code {
        0x20 => Op::Load(Width::Word, insn.k),
        0x28 => Op::Load(Width::Half, insn.k),
        0x30 => Op::Load(Width::Byte, insn.k),
        0x40 => Op::LoadIndexed(Width::Word, insn.k),
        0x48 => Op::LoadIndexed(Width::Half, insn.k),
        0x50 => Op::LoadIndexed(Width::Byte, insn.k),
        code => Op::Set(Register::A, value(code, insn.k)?),
    })
}

fn value(code: u16, k: u32) -> Option<Value> {
    Some(match code {
        0x00 => Value::Constant(k),
        0x60 => Value::Memory(cell(k)?),
        0x80 => Value::Length,
        _ => return None,
    })
}

fn cell(k: u32) -> Option<usize> {
    usize::try_from(k).ok().filter(|cell| *cell < MEMORY)
}

/// Bit 3 chooses between the constant and X.
fn operand(insn: ClassicInsn) -> Operand {
    if insn.code & 8 == 0 { Operand::K(insn.k) } else { Operand::X }
}

fn alu(insn: ClassicInsn) -> Option<Op> {
    let operation = match insn.code & 0xf0 {
        0x00 => Alu::Add,
        0x10 => Alu::Sub,
        0x20 => Alu::Mul,
        0x30 => Alu::Div,
        0x40 => Alu::Or,
        0x50 => Alu::And,
        0x60 => Alu::ShiftLeft,
        0x70 => Alu::ShiftRight,
        0x90 => Alu::Mod,
        0xa0 => Alu::Xor,
        _ => return None,
    };
    let known = insn.code < 0x100;
    known.then(|| Op::Alu(operation, operand(insn)))
}

fn branch(at: usize, insn: ClassicInsn) -> Option<Op> {
    let condition = match insn.code & 0xf0 {
        0x10 => Condition::Equal,
        0x20 => Condition::Greater,
        0x30 => Condition::GreaterOrEqual,
        0x40 => Condition::AnyBit,
        _ => return None,
    };
    let target = |skip: u8| at + 1 + usize::from(skip);
    let known = insn.code < 0x100;
    known.then(|| Op::Branch { condition, with: operand(insn), yes: target(insn.jt), no: target(insn.jf) })
}
