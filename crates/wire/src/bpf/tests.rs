use super::*;
use proptest::prelude::*;

fn insn(code: u16, jt: u8, jf: u8, k: u32) -> ClassicInsn {
    ClassicInsn { code, jt, jf, k }
}

fn program(insns: &[(u16, u8, u8, u32)]) -> FilterProgram {
    FilterProgram::new(insns.iter().map(|&(code, jt, jf, k)| insn(code, jt, jf, k)).collect()).unwrap()
}

const ENDINGS: FilterEndings<'static> = FilterEndings {
    on_match: &[EbpfInsn::set_result(2), EbpfInsn::exit()],
    on_mismatch: &[EbpfInsn::set_result(1), EbpfInsn::exit()],
};

#[test]
fn unsound_programs_are_refused_by_name() {
    let refused = |insns: &[ClassicInsn]| FilterProgram::new(insns.to_vec()).unwrap_err();
    assert_eq!(refused(&[]), ProgramRefusal::Length(0));
    assert_eq!(
        refused(&vec![insn(6, 0, 0, 1); MAX_PROGRAM_INSTRUCTIONS + 1]),
        ProgramRefusal::Length(MAX_PROGRAM_INSTRUCTIONS + 1)
    );
    assert_eq!(refused(&[insn(0x28, 0, 0, 12)]), ProgramRefusal::Target(0), "runs off its end");
    assert_eq!(refused(&[insn(0x15, 1, 0, 0), insn(6, 0, 0, 0)]), ProgramRefusal::Target(0));
    assert_eq!(refused(&[insn(0x05, 0, 0, u32::MAX), insn(6, 0, 0, 0)]), ProgramRefusal::Target(0));
    assert_eq!(refused(&[insn(0xff, 0, 0, 0)]), ProgramRefusal::Instruction { at: 0, code: 0xff });
    assert_eq!(refused(&[insn(0x60, 0, 0, 16)]), ProgramRefusal::Instruction { at: 0, code: 0x60 });
}

#[test]
fn invalid_load_or_division_by_zero_never_matches() {
    let one = program(&[(0x30, 0, 0, 4), (0x16, 0, 0, 0)]);
    assert!(one.matches_frame(&[0, 0, 0, 0, 1]));
    assert!(!one.matches_frame(&[1, 1, 1, 1]));
    let far = program(&[(0x01, 0, 0, u32::MAX), (0x50, 0, 0, 1), (6, 0, 0, 1)]);
    assert!(!far.matches_frame(&[1; 60]), "an index does not wrap");
    let divide = program(&[(0x30, 0, 0, 0), (0x07, 0, 0, 0), (0x3c, 0, 0, 0), (6, 0, 0, 1)]);
    assert!(divide.matches_frame(&[1]) && !divide.matches_frame(&[0]));
    assert!(!program(&[(0x34, 0, 0, 0), (6, 0, 0, 1)]).matches_frame(&[]));
}

#[test]
fn shifts_beyond_the_word_leave_nothing() {
    let shifted = |code, by| program(&[(0x00, 0, 0, 1), (0x01, 0, 0, by), (code, 0, 0, by), (0x16, 0, 0, 0)]);
    assert!(shifted(0x64, 31).matches_frame(&[]) && shifted(0x6c, 31).matches_frame(&[]));
    assert!(!shifted(0x64, 32).matches_frame(&[]) && !shifted(0x6c, 33).matches_frame(&[]));
}

#[test]
fn the_length_is_that_before_the_cut() {
    let length = program(&[(0x80, 0, 0, 0), (0x25, 0, 1, 100), (6, 0, 0, 1), (6, 0, 0, 0)]);
    assert!(!length.matches_frame(&[0; 60]));
    assert!(length.matches_truncated_frame(&[0; 60], 101));
}

#[test]
fn endings_nothing_leads_to_are_left_out() {
    let all = program(&[(6, 0, 0, 1)]).translate_to_ebpf(ENDINGS).unwrap();
    assert_eq!(all.last(), Some(&EbpfInsn::exit()));
    assert!(all.contains(&EbpfInsn::set_result(2)) && !all.contains(&EbpfInsn::set_result(1)));
    let none = program(&[(0x20, 0, 0, 0xffff), (6, 0, 0, 1)]).translate_to_ebpf(ENDINGS).unwrap();
    assert!(!none.contains(&EbpfInsn::set_result(2)), "frames are never that long");
}

#[test]
fn an_instruction_has_the_layout_of_the_kernel() {
    let insn = EbpfInsn { code: 0x1d, dst: 9, src: 5, off: -2, imm: 0x0102_0304 };
    if cfg!(target_endian = "little") {
        assert_eq!(insn.to_bytes(), [0x1d, 0x59, 0xfe, 0xff, 4, 3, 2, 1]);
    }
}

fn any_insn() -> impl Strategy<Value = ClassicInsn> {
    let codes = prop::sample::select(vec![
        0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x0c, 0x14, 0x15, 0x16, 0x1c, 0x1d, 0x20, 0x25, 0x28,
        0x2d, 0x30, 0x34, 0x3c, 0x40, 0x45, 0x48, 0x50, 0x54, 0x60, 0x61, 0x64, 0x6c, 0x74, 0x80, 0x81, 0x84,
        0x87, 0x94, 0x9c, 0xa4, 0xb1,
    ]);
    let k = prop_oneof![0..16u32, 0..2000u32, any::<u32>()];
    (codes, 0..4u8, 0..4u8, k).prop_map(|(code, jt, jf, k)| insn(code, jt, jf, k))
}

proptest! {
    #[test]
    fn sound_programs_end_and_translate_into_forward_jumps(
        mut insns in prop::collection::vec(any_insn(), 1..40),
        frame in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        insns.extend([insn(6, 0, 0, 1); 4]);
        let Ok(program) = FilterProgram::new(insns) else { return Ok(()) };
        program.matches_frame(&frame);
        let code = program.translate_to_ebpf(ENDINGS).unwrap();
        for (at, insn) in code.iter().enumerate() {
            let is_jump = matches!(insn.code & 7, 5 | 6) && *insn != EbpfInsn::exit();
            if is_jump {
                let to = at + 1 + usize::try_from(insn.off).unwrap();
                prop_assert!(to < code.len(), "instruction {at} of {}", code.len());
            }
        }
    }
}
