//! Runs a program on a frame.

use super::MEMORY;
use super::decode::{Alu, Condition, Op, Operand, Register, Value, Width};

#[derive(Default)]
struct Machine {
    a: u32,
    x: u32,
    memory: [u32; MEMORY],
}

/// What the program returns; 0 is "no match".
pub(super) fn run(ops: &[Op], bytes: &[u8], full_len: u32) -> u32 {
    let mut machine = Machine::default();
    let mut next = 0;
    // Jumps go forward, so this ends.
    while let Some(op) = ops.get(next) {
        next += 1;
        match *op {
            Op::ReturnConstant(k) => return k,
            Op::ReturnA => return machine.a,
            Op::Jump(to) => next = to,
            Op::Branch { condition, with, yes, no } => {
                next = if machine.holds(condition, with) { yes } else { no };
            }
            op => {
                if machine.step(op, bytes, full_len).is_none() {
                    return 0;
                }
            }
        }
    }
    0
}

impl Machine {
    /// One operation that goes on to the next; `None` ends the program with "no match".
    fn step(&mut self, op: Op, bytes: &[u8], full_len: u32) -> Option<()> {
        match op {
            Op::Load(width, at) => self.a = read(bytes, width, at)?,
            Op::LoadIndexed(width, at) => self.a = read(bytes, width, self.x.checked_add(at)?)?,
            Op::LoadHeaderLength(at) => self.x = (read(bytes, Width::Byte, at)? & 0xf) * 4,
            Op::Set(register, value) => *self.register(register) = self.value(value, full_len),
            Op::Store(register, cell) => self.memory[cell] = *self.register(register),
            Op::Alu(alu, operand) => self.a = self.compute(alu, self.operand(operand))?,
            Op::Negate => self.a = self.a.wrapping_neg(),
            Op::CopyAToX => self.x = self.a,
            Op::CopyXToA => self.a = self.x,
            Op::Jump(_) | Op::Branch { .. } | Op::ReturnConstant(_) | Op::ReturnA => {}
        }
        Some(())
    }

    fn register(&mut self, register: Register) -> &mut u32 {
        match register {
            Register::A => &mut self.a,
            Register::X => &mut self.x,
        }
    }

    fn value(&self, value: Value, full_len: u32) -> u32 {
        match value {
            Value::Constant(k) => k,
            Value::Memory(cell) => self.memory[cell],
            Value::Length => full_len,
        }
    }

    fn operand(&self, operand: Operand) -> u32 {
        match operand {
            Operand::K(k) => k,
            Operand::X => self.x,
        }
    }

    fn compute(&self, alu: Alu, by: u32) -> Option<u32> {
        let a = self.a;
        Some(match alu {
            Alu::Add => a.wrapping_add(by),
            Alu::Sub => a.wrapping_sub(by),
            Alu::Mul => a.wrapping_mul(by),
            Alu::Div => a.checked_div(by)?,
            Alu::Mod => a.checked_rem(by)?,
            Alu::And => a & by,
            Alu::Or => a | by,
            Alu::Xor => a ^ by,
            Alu::ShiftLeft => a.checked_shl(by).unwrap_or(0),
            Alu::ShiftRight => a.checked_shr(by).unwrap_or(0),
        })
    }

    fn holds(&self, condition: Condition, with: Operand) -> bool {
        let with = self.operand(with);
        match condition {
            Condition::Equal => self.a == with,
            Condition::Greater => self.a > with,
            Condition::GreaterOrEqual => self.a >= with,
            Condition::AnyBit => self.a & with != 0,
        }
    }
}

fn read(bytes: &[u8], width: Width, at: u32) -> Option<u32> {
    let at = usize::try_from(at).ok()?;
    let field = bytes.get(at..)?.get(..width.bytes() as usize)?;
    Some(field.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
}
