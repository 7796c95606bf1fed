//! Compiles the conditions of a filter into classic BPF.
//!
//! ```text
//!  for each condition: find its base (X = offset of the EtherType, for headers behind VLAN tags)
//!                      -> last byte inside the frame? -> words of up to 4 bytes: load, and, compare -> next | reject
//!  accept
//! ```
//! Classic BPF has no loops, so the code that skips a VLAN tag is repeated [`MAX_TAGS`] times. Jumps skip at
//! most 255 instructions, so each condition contains its own instruction that rejects the frame.

use super::{FieldCondition, FilterBase, VLAN_TAG_TYPES};
use crate::bpf::{ClassicInsn, FilterProgram, ProgramRefusal};

/// The codes for a load of this many bytes: from offset k (`plain`) and from X + k (`indexed`).
#[derive(Clone, Copy)]
struct LoadCodes {
    bytes: u32,
    plain: u16,
    indexed: u16,
}

// The constants of `FilterBase::find_base_offset`, in the types that instructions use.
const ETHERTYPE_OFFSET: u32 = 12;
const MAX_TAGS: u8 = 8;
const _: () =
    assert!(ETHERTYPE_OFFSET as usize == super::ETHERTYPE_OFFSET && MAX_TAGS as usize == super::MAX_TAGS);

// Codes of classic BPF.
const LOAD_CODES: [LoadCodes; 3] = [
    LoadCodes { bytes: 4, plain: 0x20, indexed: 0x40 },
    LoadCodes { bytes: 2, plain: 0x28, indexed: 0x48 },
    BYTE_LOAD,
];
const BYTE_LOAD: LoadCodes = LoadCodes { bytes: 1, plain: 0x30, indexed: 0x50 };
const BPF_LOAD_HALF: u16 = 0x28;
const BPF_LOAD_HALF_INDEXED: u16 = 0x48;
const BPF_LOAD_X_IMMEDIATE: u16 = 0x01;
const BPF_ADD: u16 = 0x04;
const BPF_AND: u16 = 0x54;
const BPF_JUMP_EQUAL: u16 = 0x15;
const BPF_JUMP_ALWAYS: u16 = 0x05;
const BPF_RETURN: u16 = 0x06;
const BPF_COPY_A_TO_X: u16 = 0x07;
const BPF_COPY_X_TO_A: u16 = 0x87;

pub(super) fn compile_conditions(conditions: &[FieldCondition]) -> Result<FilterProgram, ProgramRefusal> {
    let mut code = FilterCode { insns: Vec::new(), is_found: false };
    for condition in conditions {
        code.emit_condition(condition);
    }
    code.emit_instruction(BPF_RETURN, 0, 0, u32::MAX);
    FilterProgram::new(code.insns)
}

/// Where the program continues after a condition.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConditionExit {
    Next,
    Reject,
}

struct FilterCode {
    insns: Vec<ClassicInsn>,
    /// True after code was emitted that sets X to the offset of the EtherType after all VLAN tags.
    is_found: bool,
}

impl FilterCode {
    fn emit_instruction(&mut self, code: u16, jt: u8, jf: u8, k: u32) {
        self.insns.push(ClassicInsn { code, jt, jf, k });
    }

    fn emit_condition(&mut self, condition: &FieldCondition) {
        let start = match condition.base {
            FilterBase::Frame => 0,
            FilterBase::Vlan => {
                self.emit_instruction(BPF_LOAD_HALF, 0, 0, ETHERTYPE_OFFSET);
                // The jump either skips the rejection or leads to it.
                self.emit_tag_check(1, 0);
                self.emit_instruction(BPF_RETURN, 0, 0, 0);
                ETHERTYPE_OFFSET + 2
            }
            FilterBase::Ipv4 | FilterBase::Ipv6 => {
                self.emit_type_search();
                self.emit_instruction(BPF_LOAD_HALF_INDEXED, 0, 0, 0);
                self.emit_instruction(BPF_JUMP_EQUAL, 1, 0, condition.base.ether_type().into());
                self.emit_instruction(BPF_RETURN, 0, 0, 0);
                2
            }
        };
        self.emit_comparison(condition, start);
    }

    /// Emits code that sets X to the offset of the EtherType after all VLAN tags.
    fn emit_type_search(&mut self) {
        /// Number of instructions that skip one tag.
        const TAG_STEP_INSTRUCTIONS: u8 = 7;
        // X does not change between conditions, so the first search is sufficient for all of them.
        if std::mem::replace(&mut self.is_found, true) {
            return;
        }
        self.emit_instruction(BPF_LOAD_X_IMMEDIATE, 0, 0, ETHERTYPE_OFFSET);
        for tag in 0..MAX_TAGS {
            // If there is no tag here, X is final: the program skips the rest of this step and all later
            // steps, at most 52 instructions.
            let left = MAX_TAGS - 1 - tag;
            self.emit_instruction(BPF_LOAD_HALF_INDEXED, 0, 0, 0);
            self.emit_tag_check(0, 3 + left * TAG_STEP_INSTRUCTIONS);
            self.emit_instruction(BPF_COPY_X_TO_A, 0, 0, 0);
            self.emit_instruction(BPF_ADD, 0, 0, 4);
            self.emit_instruction(BPF_COPY_A_TO_X, 0, 0, 0);
        }
    }

    /// Emits code that skips `yes` instructions if A is the EtherType of a VLAN tag, otherwise `no` instructions.
    fn emit_tag_check(&mut self, yes: u8, no: u8) {
        for (tag, left) in VLAN_TAG_TYPES.into_iter().zip([2, 1, 0]) {
            self.emit_instruction(BPF_JUMP_EQUAL, left + yes, if left > 0 { 0 } else { no }, tag.into());
        }
    }

    /// Emits the comparison of a condition. `start` is the offset of the base from the beginning of the
    /// frame, or from X.
    fn emit_comparison(&mut self, condition: &FieldCondition, start: u32) {
        if condition.bits == 0 {
            // No bit is compared, so the condition matches.
            if condition.negate {
                self.emit_instruction(BPF_RETURN, 0, 0, 0);
            }
            return;
        }
        let bits = condition.bits.min(128);
        let first = start + condition.bit_offset / 8;
        let before = condition.bit_offset % 8;
        let bytes = (before + bits).div_ceil(8);
        let is_indexed = matches!(condition.base, FilterBase::Ipv4 | FilterBase::Ipv6);
        // The condition fails if the frame ends before the last bit of the condition, even if that bit is not
        // compared: this load then rejects the frame.
        self.emit_load(BYTE_LOAD, first + bytes - 1, is_indexed);
        let found = if condition.negate { ConditionExit::Reject } else { ConditionExit::Next };
        let otherwise = if condition.negate { ConditionExit::Next } else { ConditionExit::Reject };
        // The widest loads that fit are used. Parts without compared bits are not loaded.
        let mut jumps = Vec::new();
        let mut at = 0;
        while at < bytes {
            let load = LOAD_CODES.into_iter().find(|load| at + load.bytes <= bytes).unwrap_or(BYTE_LOAD);
            let part = compared_bits(condition, bits, before, at * 8, load.bytes * 8);
            if part.care != 0 {
                self.emit_load(load, first + at, is_indexed);
                self.emit_instruction(BPF_AND, 0, 0, part.care);
                jumps.push(self.insns.len());
                self.emit_instruction(BPF_JUMP_EQUAL, 0, 0, part.wanted);
            }
            at += load.bytes;
        }
        self.emit_outcome(&jumps, found, otherwise);
    }

    /// Emits the end of a condition: after equal comparisons the program continues at `found`, after an
    /// unequal one at `otherwise`.
    fn emit_outcome(&mut self, jumps: &[usize], found: ConditionExit, otherwise: ConditionExit) {
        if found == ConditionExit::Next {
            if jumps.is_empty() {
                return;
            }
            self.emit_instruction(BPF_JUMP_ALWAYS, 0, 0, 1);
        }
        let rejection = self.insns.len();
        self.emit_instruction(BPF_RETURN, 0, 0, 0);
        let to = if otherwise == ConditionExit::Reject { rejection } else { rejection + 1 };
        for jump in jumps {
            // At most 17 bytes are compared, in five parts of three instructions each, so the jump fits.
            self.insns[*jump].jf = narrow_jump_distance(to - jump - 1);
        }
    }

    fn emit_load(&mut self, load: LoadCodes, at: u32, is_indexed: bool) {
        self.emit_instruction(if is_indexed { load.indexed } else { load.plain }, 0, 0, at);
    }
}

/// The bits of a word that are compared, and the values that they must have.
struct ComparedWordBits {
    care: u32,
    wanted: u32,
}

/// Returns which of the `len` bits from bit `from` on are compared. Bit 0 is the first bit of the first byte
/// that the condition touches. The condition begins at bit `before` and has `bits` bits.
fn compared_bits(
    condition: &FieldCondition,
    bits: u32,
    before: u32,
    from: u32,
    len: u32,
) -> ComparedWordBits {
    let mut care = 0;
    let mut wanted = 0;
    for bit in from..from + len {
        wanted <<= 1;
        care <<= 1;
        if let Some(own) = bit.checked_sub(before).filter(|own| *own < bits) {
            let place = bits - 1 - own;
            let is_looked_at = condition.mask >> place & 1 == 0;
            care |= u32::from(is_looked_at);
            wanted |= u32::from(is_looked_at && condition.value >> place & 1 == 1);
        }
    }
    ComparedWordBits { care, wanted }
}

/// Converts the length of a jump, which is known to fit.
fn narrow_jump_distance(distance: usize) -> u8 {
    debug_assert!(distance <= 255, "a jump over {distance} instructions");
    distance.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::FrameFilter;
    use proptest::prelude::*;

    fn header() -> impl Strategy<Value = Vec<u8>> {
        let tag = prop::sample::select(vec![0x8100u16, 0x88a8, 0x9100]);
        let kind = prop::sample::select(vec![0x0800u16, 0x86dd, 0x0806]);
        (prop::collection::vec((tag, any::<u16>()), 0..11), kind).prop_map(|(tags, kind)| {
            let tags = tags.into_iter().flat_map(|(tag, id)| [tag.to_be_bytes(), id.to_be_bytes()].concat());
            tags.chain(kind.to_be_bytes()).collect()
        })
    }

    /// Frames with tags in front of anything, cut anywhere; few values, so that conditions hold now and then.
    fn frame() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![0u8..2, any::<u8>()];
        let bytes = prop::collection::vec(byte, 80);
        (bytes, header(), 0usize..120).prop_map(|(bytes, header, cut)| {
            let mut frame = [&bytes[..12], &header[..], &bytes[12..]].concat();
            frame.truncate(cut.max(1));
            frame
        })
    }

    fn condition() -> impl Strategy<Value = (FilterBase, u32, u32, u128, u128, bool, bool)> {
        let base = prop::sample::select(vec![
            FilterBase::Frame,
            FilterBase::Vlan,
            FilterBase::Ipv4,
            FilterBase::Ipv6,
        ]);
        let value = prop_oneof![Just(0u128), 0u128..3, any::<u128>()];
        let mask = prop_oneof![Just(0u128), Just(u128::MAX), any::<u128>()];
        (base, 0u32..400, 0u32..131, value, mask, any::<bool>(), any::<bool>())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn the_program_says_what_the_filter_says(
            frame in frame(),
            conditions in prop::collection::vec(condition(), 1..4),
        ) {
            let conditions = conditions.into_iter().map(|(base, bit_offset, bits, value, mask, negate, is_true)| {
                // Half of them want what stands there.
                let at = base.find_base_offset(&frame).map(|start| start as u64 * 8 + u64::from(bit_offset));
                let there = at.and_then(|at| crate::bits::read_bits(&frame, at, bits.min(128)));
                let value = if is_true { there.unwrap_or(value) } else { value };
                FieldCondition { base, bit_offset, bits, value, mask, negate }
            });
            let filter = FrameFilter { conditions: conditions.collect() };
            let program = filter.compile_program().unwrap().unwrap();
            prop_assert_eq!(program.matches_frame(&frame), filter.accepts_frame(&frame), "{:?}", program.insns());
        }
    }

    #[test]
    fn empty_filter_compiles_to_none_huge_is_refused() {
        assert_eq!(FrameFilter::default().compile_program(), Ok(None));
        let one = FieldCondition {
            base: FilterBase::Frame,
            bit_offset: 3,
            bits: 128,
            value: 0,
            mask: 0,
            negate: false,
        };
        let refused = FrameFilter { conditions: vec![one; 1000] }.compile_program();
        assert!(matches!(refused, Err(ProgramRefusal::Length(_))), "{refused:?}");
    }
}
