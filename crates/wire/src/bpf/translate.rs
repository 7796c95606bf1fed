//! Translation into eBPF.
//!
//! Each operation becomes a few instructions that end with the same A, X and memory as [`super::run`] does, or a jump
//! to the ending for frames that do not pass. Before each load the packet pointer is compared with the end of the
//! frame, which is both libpcap's rule and what the kernel's verifier wants to see; an index is bounded before it is
//! added, because the verifier follows packet pointers for 65535 bytes only. Code that cannot be reached is left out:
//! the verifier refuses it.

use super::decode::{Alu, Condition, Op, Operand, Register, Value, Width};
use super::ebpf::register::{A, CONTEXT, DATA, END, FRAME, SCRATCH, X};
use super::{EbpfInsn, Endings, MEMORY, Unsupported, ebpf::alu, ebpf::jump};

/// How far behind the start of a frame the verifier lets a program look.
const REACH: u32 = 0xffff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Op(usize),
    Match,
    Mismatch,
}

/// Whether an operation goes on to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    On,
    Away,
}

pub(super) fn translate(ops: &[Op], endings: Endings<'_>) -> Result<Vec<EbpfInsn>, Unsupported> {
    let mut code = Code { insns: Vec::new(), jumps: Vec::new(), wanted: vec![false; ops.len()] };
    code.begin(ops);
    let mut starts = vec![0; ops.len()];
    let mut flow = Flow::On;
    for (at, op) in ops.iter().enumerate() {
        if flow == Flow::On || code.wanted[at] {
            starts[at] = code.insns.len();
            flow = code.op(at, *op);
        }
    }
    let on_match = code.ending(Label::Match, endings.on_match);
    let on_mismatch = code.ending(Label::Mismatch, endings.on_mismatch);
    code.link(|label| match label {
        Label::Op(at) => starts[at],
        Label::Match => on_match,
        Label::Mismatch => on_mismatch,
    })
}

struct Code {
    insns: Vec<EbpfInsn>,
    /// Instructions whose offset is still to be filled in.
    jumps: Vec<(usize, Label)>,
    /// Operations that are jumped to.
    wanted: Vec<bool>,
}

impl Code {
    fn begin(&mut self, ops: &[Op]) {
        self.emit(EbpfInsn::wide_register(alu::MOV, CONTEXT, 1));
        self.emit(EbpfInsn::load(0, DATA, CONTEXT, 0));
        self.emit(EbpfInsn::load(0, END, CONTEXT, 4));
        self.emit(EbpfInsn::alu(alu::MOV, A, 0));
        self.emit(EbpfInsn::alu(alu::MOV, X, 0));
        for cell in 0..MEMORY {
            if ops.iter().any(|op| matches!(op, Op::Set(_, Value::Memory(read)) if *read == cell)) {
                self.emit(EbpfInsn::store(FRAME, A, offset_of(cell)));
            }
        }
    }

    fn op(&mut self, at: usize, op: Op) -> Flow {
        match op {
            Op::Load(width, at) => return self.load(width, at),
            Op::LoadIndexed(width, at) => return self.load_indexed(width, at),
            Op::LoadHeaderLength(at) => return self.load_header_length(at),
            Op::Set(register, value) => self.set(register, value),
            Op::Store(register, cell) => self.emit(EbpfInsn::store(FRAME, number(register), offset_of(cell))),
            Op::Alu(operation, operand) => return self.compute(operation, operand),
            Op::Negate => self.emit(EbpfInsn::alu(alu::NEG, A, 0)),
            Op::CopyAToX => self.emit(EbpfInsn::alu_register(alu::MOV, X, A)),
            Op::CopyXToA => self.emit(EbpfInsn::alu_register(alu::MOV, A, X)),
            Op::Jump(to) => return self.go(at, to),
            Op::Branch { condition, with, yes, no } => return self.branch(at, (condition, with), yes, no),
            Op::ReturnConstant(0) => return self.away(Label::Mismatch),
            Op::ReturnConstant(_) => return self.away(Label::Match),
            Op::ReturnA => {
                self.jump(EbpfInsn::jump_if(jump::EQ, A, 0), Label::Mismatch);
                return self.away(Label::Match);
            }
        }
        Flow::On
    }

    fn load(&mut self, width: Width, at: u32) -> Flow {
        let Some(end) = at.checked_add(width.bytes()).filter(|end| *end <= REACH) else {
            return self.away(Label::Mismatch);
        };
        self.emit(EbpfInsn::wide_register(alu::MOV, SCRATCH, DATA));
        self.read(width, A, end)
    }

    fn load_indexed(&mut self, width: Width, at: u32) -> Flow {
        let Some(end) = at.checked_add(width.bytes()).filter(|end| *end <= REACH) else {
            return self.away(Label::Mismatch);
        };
        self.emit(EbpfInsn::alu_register(alu::MOV, SCRATCH, X));
        self.jump(EbpfInsn::jump_if_wide(jump::GT, SCRATCH, REACH - end), Label::Mismatch);
        self.emit(EbpfInsn::wide_register(alu::ADD, SCRATCH, DATA));
        self.read(width, A, end)
    }

    fn load_header_length(&mut self, at: u32) -> Flow {
        let Some(end) = at.checked_add(1).filter(|end| *end <= REACH) else {
            return self.away(Label::Mismatch);
        };
        self.emit(EbpfInsn::wide_register(alu::MOV, SCRATCH, DATA));
        self.read(Width::Byte, X, end);
        self.emit(EbpfInsn::alu(alu::AND, X, 0xf));
        self.emit(EbpfInsn::alu(alu::LSH, X, 2));
        Flow::On
    }

    /// Reads the field that ends `end` bytes behind the pointer in the scratch register.
    fn read(&mut self, width: Width, into: u8, end: u32) -> Flow {
        self.emit(EbpfInsn::wide(alu::ADD, SCRATCH, end));
        self.jump(EbpfInsn::jump_if_beyond(SCRATCH, END), Label::Mismatch);
        let (size, back, bits) = match width {
            Width::Word => (0x00, -4, 32),
            Width::Half => (0x08, -2, 16),
            Width::Byte => (0x10, -1, 8),
        };
        self.emit(EbpfInsn::load(size, into, SCRATCH, back));
        if width != Width::Byte {
            self.emit(EbpfInsn::alu(alu::TO_BIG_ENDIAN, into, bits));
        }
        Flow::On
    }

    fn set(&mut self, register: Register, value: Value) {
        let into = number(register);
        match value {
            Value::Constant(k) => self.emit(EbpfInsn::alu(alu::MOV, into, k)),
            Value::Memory(cell) => self.emit(EbpfInsn::load(0, into, FRAME, offset_of(cell))),
            Value::Length => {
                self.emit(EbpfInsn::wide_register(alu::MOV, SCRATCH, END));
                self.emit(EbpfInsn::wide_register(alu::SUB, SCRATCH, DATA));
                self.emit(EbpfInsn::alu_register(alu::MOV, into, SCRATCH));
            }
        }
    }

    fn compute(&mut self, operation: Alu, operand: Operand) -> Flow {
        let divides = matches!(operation, Alu::Div | Alu::Mod);
        let shifts = matches!(operation, Alu::ShiftLeft | Alu::ShiftRight);
        let code = operation_code(operation);
        match operand {
            Operand::K(0) if divides => return self.away(Label::Mismatch),
            Operand::K(32..) if shifts => self.emit(EbpfInsn::alu(alu::MOV, A, 0)),
            Operand::K(k) => self.emit(EbpfInsn::alu(code, A, k)),
            Operand::X if shifts => {
                self.emit(EbpfInsn::alu_register(code, A, X));
                // The processor looks at the low bits of X only.
                self.emit(EbpfInsn { off: 1, ..EbpfInsn::jump_if(jump::LT, X, 32) });
                self.emit(EbpfInsn::alu(alu::MOV, A, 0));
            }
            Operand::X => {
                if divides {
                    self.jump(EbpfInsn::jump_if(jump::EQ, X, 0), Label::Mismatch);
                }
                self.emit(EbpfInsn::alu_register(code, A, X));
            }
        }
        Flow::On
    }

    fn branch(&mut self, at: usize, test: (Condition, Operand), yes: usize, no: usize) -> Flow {
        if yes == no {
            return self.go(at, yes);
        }
        let (straight, inverse) = condition_codes(test.0);
        let compare = |code| match test.1 {
            Operand::K(k) => EbpfInsn::jump_if(code, A, k),
            Operand::X => EbpfInsn::jump_if_register(code, A, X),
        };
        match inverse {
            Some(inverse) if yes == at + 1 => self.jump(compare(inverse), Label::Op(no)),
            _ => {
                self.jump(compare(straight), Label::Op(yes));
                return self.go(at, no);
            }
        }
        Flow::On
    }

    fn go(&mut self, at: usize, to: usize) -> Flow {
        if to == at + 1 { Flow::On } else { self.away(Label::Op(to)) }
    }

    fn away(&mut self, label: Label) -> Flow {
        self.jump(EbpfInsn::always(), label);
        Flow::Away
    }

    fn emit(&mut self, insn: EbpfInsn) {
        self.insns.push(insn);
    }

    fn jump(&mut self, insn: EbpfInsn, label: Label) {
        if let Label::Op(to) = label {
            self.wanted[to] = true;
        }
        self.jumps.push((self.insns.len(), label));
        self.emit(insn);
    }

    /// Appends what the caller wants at a label, if anything leads there.
    fn ending(&mut self, label: Label, insns: &[EbpfInsn]) -> usize {
        let start = self.insns.len();
        if self.jumps.iter().any(|(_, to)| *to == label) {
            self.insns.extend_from_slice(insns);
        }
        start
    }

    fn link(mut self, position: impl Fn(Label) -> usize) -> Result<Vec<EbpfInsn>, Unsupported> {
        for (at, label) in self.jumps {
            // All jumps go forward.
            let distance = position(label) - at - 1;
            self.insns[at].off = i16::try_from(distance).map_err(|_| Unsupported::Distance(distance))?;
        }
        Ok(self.insns)
    }
}

fn number(register: Register) -> u8 {
    match register {
        Register::A => A,
        Register::X => X,
    }
}

/// Where a cell of memory is on the stack.
fn offset_of(cell: usize) -> i16 {
    let cell = i16::try_from(cell.min(MEMORY)).unwrap_or(0);
    -64 + 4 * cell
}

fn operation_code(operation: Alu) -> u8 {
    match operation {
        Alu::Add => alu::ADD,
        Alu::Sub => alu::SUB,
        Alu::Mul => alu::MUL,
        Alu::Div => alu::DIV,
        Alu::Mod => alu::MOD,
        Alu::And => alu::AND,
        Alu::Or => alu::OR,
        Alu::Xor => alu::XOR,
        Alu::ShiftLeft => alu::LSH,
        Alu::ShiftRight => alu::RSH,
    }
}

/// The condition, and its inverse where there is one.
fn condition_codes(condition: Condition) -> (u8, Option<u8>) {
    match condition {
        Condition::Equal => (jump::EQ, Some(jump::NE)),
        Condition::Greater => (jump::GT, Some(jump::LE)),
        Condition::GreaterOrEqual => (jump::GE, Some(jump::LT)),
        Condition::AnyBit => (jump::SET, None),
    }
}
