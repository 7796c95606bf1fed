//! Translates a filter program into eBPF.
//!
//! Each operation becomes a few instructions that produce the same A, X and memory as [`super::run`], or that
//! jump to the ending for frames that do not match. Before each load, the packet pointer is compared with the
//! end of the frame, because both libpcap and the kernel's verifier require this. An index is limited before
//! it is added, because the verifier tracks packet pointers only up to 65535 bytes. Unreachable code is left
//! out, because the verifier refuses it.

use super::decode::{
    AluOperation, BpfOperation, BpfRegister, JumpCondition, LoadWidth, SecondOperand, ValueSource,
};
use super::ebpf::register::{A, CONTEXT, DATA, END, FRAME, SCRATCH, X};
use super::{EbpfInsn, FilterEndings, ProgramRefusal, SCRATCH_WORDS, ebpf::alu, ebpf::jump};

/// Largest offset from the start of a frame that the verifier lets a program read.
const MAX_FRAME_OFFSET: u32 = 0xffff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JumpTarget {
    Op(usize),
    Match,
    Mismatch,
}

/// Whether an operation continues with the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextOperation {
    On,
    Away,
}

pub(super) fn translate_program(
    ops: &[BpfOperation],
    endings: FilterEndings<'_>,
) -> Result<Vec<EbpfInsn>, ProgramRefusal> {
    let mut code = TranslatedCode { insns: Vec::new(), jumps: Vec::new(), wanted: vec![false; ops.len()] };
    code.emit_prologue(ops);
    let mut starts = vec![0; ops.len()];
    let mut flow = NextOperation::On;
    for (at, op) in ops.iter().enumerate() {
        // All jumps lead forward, so every jump to this operation has been emitted by now.
        if flow == NextOperation::On || code.wanted[at] {
            starts[at] = code.insns.len();
            flow = code.emit_operation(at, *op);
        }
    }
    // The endings come last, so that jumps to them lead forward, too.
    let on_match = code.emit_ending(JumpTarget::Match, endings.on_match);
    let on_mismatch = code.emit_ending(JumpTarget::Mismatch, endings.on_mismatch);
    code.resolve_jumps(|label| match label {
        JumpTarget::Op(at) => starts[at],
        JumpTarget::Match => on_match,
        JumpTarget::Mismatch => on_mismatch,
    })
}

struct TranslatedCode {
    insns: Vec<EbpfInsn>,
    /// Positions and targets of the jumps whose offset is filled in later.
    jumps: Vec<(usize, JumpTarget)>,
    /// For each operation, whether a jump leads to it.
    wanted: Vec<bool>,
}

impl TranslatedCode {
    fn emit_prologue(&mut self, ops: &[BpfOperation]) {
        self.emit_instruction(EbpfInsn::alu_wide_register(alu::MOV, CONTEXT, 1));
        self.emit_instruction(EbpfInsn::load(0, DATA, CONTEXT, 0));
        self.emit_instruction(EbpfInsn::load(0, END, CONTEXT, 4));
        self.emit_instruction(EbpfInsn::alu(alu::MOV, A, 0));
        self.emit_instruction(EbpfInsn::alu(alu::MOV, X, 0));
        // Cells that are read are set to zero first, as in libpcap: the verifier refuses reads of unwritten
        // stack memory. Cells that are never read need no instruction.
        for cell in 0..SCRATCH_WORDS {
            if ops
                .iter()
                .any(|op| matches!(op, BpfOperation::Set(_, ValueSource::Memory(read)) if *read == cell))
            {
                self.emit_instruction(EbpfInsn::store(FRAME, A, stack_offset_of(cell)));
            }
        }
    }

    fn emit_operation(&mut self, at: usize, op: BpfOperation) -> NextOperation {
        match op {
            BpfOperation::Load(width, at) => return self.emit_load(width, at),
            BpfOperation::LoadIndexed(width, at) => return self.emit_load_indexed(width, at),
            BpfOperation::LoadHeaderLength(at) => return self.emit_load_header_length(at),
            BpfOperation::Set(register, value) => self.emit_set_register(register, value),
            BpfOperation::Store(register, cell) => {
                let from = register_number(register);
                self.emit_instruction(EbpfInsn::store(FRAME, from, stack_offset_of(cell)));
            }
            BpfOperation::Alu(operation, operand) => return self.emit_alu(operation, operand),
            BpfOperation::Negate => self.emit_instruction(EbpfInsn::alu(alu::NEG, A, 0)),
            BpfOperation::CopyAToX => self.emit_instruction(EbpfInsn::alu_register(alu::MOV, X, A)),
            BpfOperation::CopyXToA => self.emit_instruction(EbpfInsn::alu_register(alu::MOV, A, X)),
            BpfOperation::Jump(to) => return self.emit_goto(at, to),
            BpfOperation::Branch { condition, with, yes, no } => {
                return self.emit_branch(at, condition, with, yes, no);
            }
            BpfOperation::ReturnConstant(0) => return self.emit_jump_away(JumpTarget::Mismatch),
            BpfOperation::ReturnConstant(_) => return self.emit_jump_away(JumpTarget::Match),
            BpfOperation::ReturnA => {
                self.emit_jump(EbpfInsn::jump_if(jump::EQ, A, 0), JumpTarget::Mismatch);
                return self.emit_jump_away(JumpTarget::Match);
            }
        }
        NextOperation::On
    }

    fn emit_load(&mut self, width: LoadWidth, at: u32) -> NextOperation {
        // No frame is longer than `MAX_FRAME_OFFSET`, so a load after that offset never succeeds.
        let Some(end) = at.checked_add(width.bytes()).filter(|end| *end <= MAX_FRAME_OFFSET) else {
            return self.emit_jump_away(JumpTarget::Mismatch);
        };
        self.emit_instruction(EbpfInsn::alu_wide_register(alu::MOV, SCRATCH, DATA));
        self.emit_checked_load(width, A, end)
    }

    fn emit_load_indexed(&mut self, width: LoadWidth, at: u32) -> NextOperation {
        let Some(end) = at.checked_add(width.bytes()).filter(|end| *end <= MAX_FRAME_OFFSET) else {
            return self.emit_jump_away(JumpTarget::Mismatch);
        };
        self.emit_instruction(EbpfInsn::alu_register(alu::MOV, SCRATCH, X));
        // The comparison uses 64 bits, because the verifier must know a bound of the whole register before
        // the register is added to a pointer.
        self.emit_jump(
            EbpfInsn::jump_if_wide(jump::GT, SCRATCH, MAX_FRAME_OFFSET - end),
            JumpTarget::Mismatch,
        );
        self.emit_instruction(EbpfInsn::alu_wide_register(alu::ADD, SCRATCH, DATA));
        self.emit_checked_load(width, A, end)
    }

    fn emit_load_header_length(&mut self, at: u32) -> NextOperation {
        let Some(end) = at.checked_add(1).filter(|end| *end <= MAX_FRAME_OFFSET) else {
            return self.emit_jump_away(JumpTarget::Mismatch);
        };
        self.emit_instruction(EbpfInsn::alu_wide_register(alu::MOV, SCRATCH, DATA));
        self.emit_checked_load(LoadWidth::Byte, X, end);
        self.emit_instruction(EbpfInsn::alu(alu::AND, X, 0xf));
        self.emit_instruction(EbpfInsn::alu(alu::LSH, X, 2));
        NextOperation::On
    }

    /// Loads the field that ends `end` bytes after the pointer in the scratch register.
    fn emit_checked_load(&mut self, width: LoadWidth, into: u8, end: u32) -> NextOperation {
        // The end of the field is compared, not its start: from this comparison, the verifier knows that the
        // bytes before the pointer may be read. So the loads have negative offsets.
        self.emit_instruction(EbpfInsn::alu_wide(alu::ADD, SCRATCH, end));
        self.emit_jump(EbpfInsn::jump_if_greater(SCRATCH, END), JumpTarget::Mismatch);
        self.emit_instruction(match width {
            LoadWidth::Word => EbpfInsn::load(0x00, into, SCRATCH, -4),
            LoadWidth::Half => EbpfInsn::load(0x08, into, SCRATCH, -2),
            LoadWidth::Byte => EbpfInsn::load(0x10, into, SCRATCH, -1),
        });
        // Classic BPF reads fields in network byte order, but eBPF reads them in the byte order of the
        // machine.
        if width != LoadWidth::Byte {
            self.emit_instruction(EbpfInsn::alu(alu::TO_BIG_ENDIAN, into, 8 * width.bytes()));
        }
        NextOperation::On
    }

    fn emit_set_register(&mut self, register: BpfRegister, value: ValueSource) {
        let into = register_number(register);
        match value {
            ValueSource::Constant(k) => self.emit_instruction(EbpfInsn::alu(alu::MOV, into, k)),
            ValueSource::Memory(cell) => {
                self.emit_instruction(EbpfInsn::load(0, into, FRAME, stack_offset_of(cell)));
            }
            ValueSource::Length => {
                self.emit_instruction(EbpfInsn::alu_wide_register(alu::MOV, SCRATCH, END));
                self.emit_instruction(EbpfInsn::alu_wide_register(alu::SUB, SCRATCH, DATA));
                self.emit_instruction(EbpfInsn::alu_register(alu::MOV, into, SCRATCH));
            }
        }
    }

    fn emit_alu(&mut self, operation: AluOperation, operand: SecondOperand) -> NextOperation {
        let divides = matches!(operation, AluOperation::Div | AluOperation::Mod);
        let shifts = matches!(operation, AluOperation::ShiftLeft | AluOperation::ShiftRight);
        let code = operation_code(operation);
        match operand {
            // The verifier refuses a division by the constant 0; in classic BPF it ends the program with "no
            // match".
            SecondOperand::K(0) if divides => return self.emit_jump_away(JumpTarget::Mismatch),
            SecondOperand::K(32..) if shifts => self.emit_instruction(EbpfInsn::alu(alu::MOV, A, 0)),
            SecondOperand::K(k) => self.emit_instruction(EbpfInsn::alu(code, A, k)),
            SecondOperand::X if shifts => {
                self.emit_instruction(EbpfInsn::alu_register(code, A, X));
                // In libpcap, a shift by 32 or more gives 0. eBPF uses only the low bits of X, so the result
                // is replaced by 0 unless X is below 32.
                self.emit_instruction(EbpfInsn { off: 1, ..EbpfInsn::jump_if(jump::LT, X, 32) });
                self.emit_instruction(EbpfInsn::alu(alu::MOV, A, 0));
            }
            SecondOperand::X => {
                // In eBPF a division by 0 gives a result, but a classic program must end there.
                if divides {
                    self.emit_jump(EbpfInsn::jump_if(jump::EQ, X, 0), JumpTarget::Mismatch);
                }
                self.emit_instruction(EbpfInsn::alu_register(code, A, X));
            }
        }
        NextOperation::On
    }

    fn emit_branch(
        &mut self,
        at: usize,
        condition: JumpCondition,
        with: SecondOperand,
        yes: usize,
        no: usize,
    ) -> NextOperation {
        if yes == no {
            return self.emit_goto(at, yes);
        }
        // A branch of classic BPF has two targets, a jump of eBPF only one. If the target for "yes" is the
        // next operation, the inverse condition saves a second jump.
        match inverse_condition_code(condition) {
            Some(inverse) if yes == at + 1 => {
                self.emit_jump(comparison_jump(inverse, with), JumpTarget::Op(no));
                NextOperation::On
            }
            _ => {
                self.emit_jump(comparison_jump(condition_code(condition), with), JumpTarget::Op(yes));
                self.emit_goto(at, no)
            }
        }
    }

    fn emit_goto(&mut self, at: usize, to: usize) -> NextOperation {
        if to == at + 1 { NextOperation::On } else { self.emit_jump_away(JumpTarget::Op(to)) }
    }

    fn emit_jump_away(&mut self, label: JumpTarget) -> NextOperation {
        self.emit_jump(EbpfInsn::jump_always(), label);
        NextOperation::Away
    }

    fn emit_instruction(&mut self, insn: EbpfInsn) {
        self.insns.push(insn);
    }

    fn emit_jump(&mut self, insn: EbpfInsn, label: JumpTarget) {
        if let JumpTarget::Op(to) = label {
            self.wanted[to] = true;
        }
        self.jumps.push((self.insns.len(), label));
        self.emit_instruction(insn);
    }

    /// Appends the caller's instructions for an ending, if a jump leads to it. Returns its position.
    fn emit_ending(&mut self, label: JumpTarget, insns: &[EbpfInsn]) -> usize {
        let start = self.insns.len();
        if self.jumps.iter().any(|(_, to)| *to == label) {
            self.insns.extend_from_slice(insns);
        }
        start
    }

    fn resolve_jumps(
        mut self,
        position: impl Fn(JumpTarget) -> usize,
    ) -> Result<Vec<EbpfInsn>, ProgramRefusal> {
        for (at, label) in self.jumps {
            // All jumps lead forward, so the distance is not negative.
            let distance = position(label) - at - 1;
            self.insns[at].off = i16::try_from(distance).map_err(|_| ProgramRefusal::Distance(distance))?;
        }
        Ok(self.insns)
    }
}

fn register_number(register: BpfRegister) -> u8 {
    match register {
        BpfRegister::A => A,
        BpfRegister::X => X,
    }
}

/// Returns the stack offset of a memory cell.
fn stack_offset_of(cell: usize) -> i16 {
    // `decode_program` refuses cells beyond the memory, which has sixteen words: 64 bytes below the frame
    // pointer.
    debug_assert!(cell < SCRATCH_WORDS, "cell {cell} is outside the memory");
    -64 + 4 * i16::from(cell.to_le_bytes()[0])
}

fn operation_code(operation: AluOperation) -> u8 {
    match operation {
        AluOperation::Add => alu::ADD,
        AluOperation::Sub => alu::SUB,
        AluOperation::Mul => alu::MUL,
        AluOperation::Div => alu::DIV,
        AluOperation::Mod => alu::MOD,
        AluOperation::And => alu::AND,
        AluOperation::Or => alu::OR,
        AluOperation::Xor => alu::XOR,
        AluOperation::ShiftLeft => alu::LSH,
        AluOperation::ShiftRight => alu::RSH,
    }
}

/// Returns a jump that compares A with the operand.
fn comparison_jump(code: u8, with: SecondOperand) -> EbpfInsn {
    match with {
        SecondOperand::K(k) => EbpfInsn::jump_if(code, A, k),
        SecondOperand::X => EbpfInsn::jump_if_register(code, A, X),
    }
}

fn condition_code(condition: JumpCondition) -> u8 {
    match condition {
        JumpCondition::Equal => jump::EQ,
        JumpCondition::Greater => jump::GT,
        JumpCondition::GreaterOrEqual => jump::GE,
        JumpCondition::AnyBit => jump::SET,
    }
}

/// Returns the code of the opposite condition; `None` for "any bit is set", because eBPF has no condition
/// "no bit is set".
fn inverse_condition_code(condition: JumpCondition) -> Option<u8> {
    match condition {
        JumpCondition::Equal => Some(jump::NE),
        JumpCondition::Greater => Some(jump::LE),
        JumpCondition::GreaterOrEqual => Some(jump::LT),
        JumpCondition::AnyBit => None,
    }
}
