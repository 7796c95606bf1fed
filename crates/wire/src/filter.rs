//! Capture filters as OTG defines them: value, mask and negate on bits of the frame. Mask bit 0 = must match.
//!
//! A filter can be applied to a frame directly ([`FrameFilter::accepts_frame`]), which defines its meaning, or compiled
//! ([`FrameFilter::compile_program`]), which captures do.
//!
//! Invariant: both give the same result for every frame.

mod compile;

use crate::bits;
use crate::bpf::{FilterProgram, ProgramRefusal};
use crate::tag::word_at;
use serde::{Deserialize, Serialize};

/// One condition on a frame: `bits` bits from `bit_offset` equal `value` where `mask` is 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldCondition {
    /// Base from which the condition's offset counts.
    pub base: FilterBase,
    /// Bits from the base.
    pub bit_offset: u32,
    /// Number of bits; at most 128.
    pub bits: u32,
    pub value: u128,
    /// 1 = do not care.
    pub mask: u128,
    /// The condition holds when the bits do not match.
    pub negate: bool,
}

/// Headers a filter can point into; a frame that lacks the header fails the condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilterBase {
    /// The first byte of the frame.
    Frame,
    /// The tag control information of the first VLAN tag.
    Vlan,
    Ipv4,
    Ipv6,
}

/// All conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameFilter {
    /// Joined by AND; empty accepts every frame.
    pub conditions: Vec<FieldCondition>,
}

impl FrameFilter {
    /// Reports whether `frame` (without FCS) passes.
    pub fn accepts_frame(&self, frame: &[u8]) -> bool {
        self.conditions.iter().all(|condition| condition.holds_for_frame(frame))
    }

    /// Compiles the filter to classic BPF; `None` if every frame passes.
    pub fn compile_program(&self) -> Result<Option<FilterProgram>, ProgramRefusal> {
        if self.conditions.is_empty() {
            Ok(None)
        } else {
            compile::compile_conditions(&self.conditions).map(Some)
        }
    }
}

impl FieldCondition {
    fn holds_for_frame(&self, frame: &[u8]) -> bool {
        // If a frame lacks the header or is too short, it fails the condition even if that is negated:
        // nothing was compared.
        let Some(start) = self.base.find_offset(frame) else { return false };
        let at = start as u64 * 8 + u64::from(self.bit_offset);
        let Some(found) = bits::read_bits(frame, at, self.bits.min(128)) else { return false };
        ((found ^ self.value) & !self.mask & crate::pattern::low_mask(self.bits) == 0) != self.negate
    }
}

/// Offset of a frame's type, or of its first VLAN tag.
const ETHERTYPE_OFFSET: usize = 12;
/// Types that announce a VLAN tag.
const VLAN_TAG_TYPES: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// Maximum number of VLAN tags that the search for a header skips.
const MAX_TAGS: usize = 8;

/// Reports whether the type at this offset announces a VLAN tag.
fn is_tag(frame: &[u8], at: usize) -> bool {
    word_at(frame, at).is_some_and(|found| VLAN_TAG_TYPES.contains(&found))
}

impl FilterBase {
    fn find_offset(self, frame: &[u8]) -> Option<usize> {
        match self {
            Self::Frame => Some(0),
            Self::Vlan => is_tag(frame, ETHERTYPE_OFFSET).then_some(ETHERTYPE_OFFSET + 2),
            Self::Ipv4 | Self::Ipv6 => {
                // The loop is bounded, because the compiled filter writes it out.
                let tags = (0..MAX_TAGS).take_while(|tag| is_tag(frame, ETHERTYPE_OFFSET + 4 * tag)).count();
                let at = ETHERTYPE_OFFSET + 4 * tags;
                (word_at(frame, at)? == self.ether_type()).then_some(at + 2)
            }
        }
    }

    fn ether_type(self) -> u16 {
        if self == Self::Ipv6 { 0x86dd } else { 0x0800 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Vec<u8> {
        let mut frame = vec![0u8; 60];
        frame[5] = 0xab;
        frame[12..18].copy_from_slice(&[0x81, 0, 0x60, 0x64, 8, 0]);
        frame[18] = 0x45;
        frame
    }

    fn condition(base: FilterBase, bit_offset: u32, bits: u32, value: u128) -> FieldCondition {
        FieldCondition { base, bit_offset, bits, value, mask: 0, negate: false }
    }

    #[test]
    fn zero_mask_bits_must_match_ones_are_ignored() {
        let mut filter = FrameFilter { conditions: vec![condition(FilterBase::Frame, 40, 8, 0xac)] };
        assert!(!filter.accepts_frame(&frame()));
        filter.conditions[0].mask = 0x07;
        assert!(filter.accepts_frame(&frame()));
        filter.conditions[0].negate = true;
        assert!(!filter.accepts_frame(&frame()));
    }

    #[test]
    fn filter_finds_headers_behind_vlan_and_fails_missing() {
        let holds = |condition| FrameFilter { conditions: vec![condition] }.accepts_frame(&frame());
        assert!(holds(condition(FilterBase::Vlan, 4, 12, 100)));
        assert!(holds(condition(FilterBase::Ipv4, 0, 4, 4)));
        assert!(!holds(condition(FilterBase::Ipv6, 0, 4, 0)));
        assert!(!holds(condition(FilterBase::Frame, 8 * 60, 8, 0)));
        assert!(FrameFilter::default().accepts_frame(&[]));
    }
}
