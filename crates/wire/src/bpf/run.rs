//! Runs a classic BPF program on a frame.

use super::SCRATCH_WORDS;
use super::decode::{
    AluOperation, BpfOperation, BpfRegister, JumpCondition, LoadWidth, SecondOperand, ValueSource,
};

#[derive(Default)]
struct BpfMachine {
    a: u32,
    x: u32,
    memory: [u32; SCRATCH_WORDS],
}

/// Runs the program on a frame and returns its result; 0 means "no match".
pub(super) fn run_program(ops: &[BpfOperation], bytes: &[u8], full_len: u32) -> u32 {
    let mut machine = BpfMachine::default();
    let mut next = 0;
    // All jumps lead forward, so the loop ends.
    while let Some(op) = ops.get(next) {
        next += 1;
        match *op {
            BpfOperation::ReturnConstant(k) => return k,
            BpfOperation::ReturnA => return machine.a,
            BpfOperation::Jump(to) => next = to,
            BpfOperation::Branch { condition, with, yes, no } => {
                next = if machine.condition_holds(condition, with) { yes } else { no };
            }
            op => {
                // A load beyond the frame or a division by 0 ends a classic BPF program with "no match".
                if machine.run_operation(op, bytes, full_len).is_none() {
                    return 0;
                }
            }
        }
    }
    0
}

impl BpfMachine {
    /// Runs an operation that is neither a jump nor a return; `None` ends the program with "no match".
    fn run_operation(&mut self, op: BpfOperation, bytes: &[u8], full_len: u32) -> Option<()> {
        match op {
            BpfOperation::Load(width, at) => self.a = read_field(bytes, width, at)?,
            // An index that overflows is outside the frame: it must not wrap around to the beginning of the
            // frame.
            BpfOperation::LoadIndexed(width, at) => {
                self.a = read_field(bytes, width, self.x.checked_add(at)?)?;
            }
            BpfOperation::LoadHeaderLength(at) => {
                // The low four bits of the first byte of an IPv4 header are its length in words of four bytes
                // (RFC 791, section 3.1).
                self.x = (read_field(bytes, LoadWidth::Byte, at)? & 0xf) * 4;
            }
            BpfOperation::Set(register, value) => {
                *self.register_mut(register) = self.resolve_value(value, full_len);
            }
            // The index is within the memory, because `decode_program` refuses other cells.
            BpfOperation::Store(register, cell) => self.memory[cell] = *self.register_mut(register),
            BpfOperation::Alu(alu, operand) => {
                self.a = self.compute_alu(alu, self.resolve_operand(operand))?;
            }
            BpfOperation::Negate => self.a = self.a.wrapping_neg(),
            BpfOperation::CopyAToX => self.x = self.a,
            BpfOperation::CopyXToA => self.a = self.x,
            BpfOperation::Jump(_)
            | BpfOperation::Branch { .. }
            | BpfOperation::ReturnConstant(_)
            | BpfOperation::ReturnA => {}
        }
        Some(())
    }

    fn register_mut(&mut self, register: BpfRegister) -> &mut u32 {
        match register {
            BpfRegister::A => &mut self.a,
            BpfRegister::X => &mut self.x,
        }
    }

    fn resolve_value(&self, value: ValueSource, full_len: u32) -> u32 {
        match value {
            ValueSource::Constant(k) => k,
            ValueSource::Memory(cell) => self.memory[cell],
            ValueSource::Length => full_len,
        }
    }

    fn resolve_operand(&self, operand: SecondOperand) -> u32 {
        match operand {
            SecondOperand::K(k) => k,
            SecondOperand::X => self.x,
        }
    }

    fn compute_alu(&self, alu: AluOperation, by: u32) -> Option<u32> {
        let a = self.a;
        Some(match alu {
            // The 32-bit arithmetic wraps, as in the kernel: a filter may rely on that.
            AluOperation::Add => a.wrapping_add(by),
            AluOperation::Sub => a.wrapping_sub(by),
            AluOperation::Mul => a.wrapping_mul(by),
            AluOperation::Div => a.checked_div(by)?,
            AluOperation::Mod => a.checked_rem(by)?,
            AluOperation::And => a & by,
            AluOperation::Or => a | by,
            AluOperation::Xor => a ^ by,
            // A shift by 32 or more gives 0, as in libpcap.
            AluOperation::ShiftLeft => a.checked_shl(by).unwrap_or(0),
            AluOperation::ShiftRight => a.checked_shr(by).unwrap_or(0),
        })
    }

    fn condition_holds(&self, condition: JumpCondition, with: SecondOperand) -> bool {
        let with = self.resolve_operand(with);
        match condition {
            JumpCondition::Equal => self.a == with,
            JumpCondition::Greater => self.a > with,
            JumpCondition::GreaterOrEqual => self.a >= with,
            JumpCondition::AnyBit => self.a & with != 0,
        }
    }
}

fn read_field(bytes: &[u8], width: LoadWidth, at: u32) -> Option<u32> {
    let at = usize::try_from(at).ok()?;
    let field = bytes.get(at..)?.get(..width.bytes() as usize)?;
    Some(field.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
}
