//! Capture filters as OTG defines them: value, mask and negation for bits of the frame. The bits that are 0
//! in the mask must match.
//!
//! A filter can be applied to a frame directly ([`FrameFilter::accepts_frame`]), which defines its meaning,
//! or compiled to classic BPF ([`FrameFilter::compile_program`]), which captures use.
//!
//! Invariant: both ways give the same result for every frame.

mod compile;

use crate::bits;
use crate::bpf::{FilterProgram, ProgramRefusal};
use crate::tag::word_at;
use serde::{Deserialize, Serialize};

/// One condition on a frame: `bits` bits from `bit_offset` on equal `value` where `mask` is 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldCondition {
    /// The header from which `bit_offset` counts.
    pub base: FilterBase,
    /// Offset from the base, in bits.
    pub bit_offset: u32,
    /// Number of bits; at most 128.
    pub bits: u32,
    pub value: u128,
    /// Bits that are 1 here are not compared.
    pub mask: u128,
    /// If true, the condition holds when the bits do not match.
    pub negate: bool,
}

/// Headers from which an offset can count. A frame without the header fails the condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilterBase {
    /// The first byte of the frame.
    Frame,
    /// The tag control information of the first VLAN tag.
    Vlan,
    Ipv4,
    Ipv6,
}

/// A filter of conditions, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameFilter {
    /// The conditions; an empty list accepts every frame.
    pub conditions: Vec<FieldCondition>,
}

impl FrameFilter {
    /// Returns whether `frame` (without FCS) passes the filter.
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
        // If a frame lacks the header or is too short, it fails the condition even if that is negated,
        // because nothing was compared.
        let Some(start) = self.base.find_base_offset(frame) else { return false };
        let at = start as u64 * 8 + u64::from(self.bit_offset);
        let Some(found) = bits::read_bits(frame, at, self.bits.min(128)) else { return false };
        ((found ^ self.value) & !self.mask & crate::pattern::low_mask(self.bits) == 0) != self.negate
    }
}

/// Offset of the EtherType of a frame, or of its first VLAN tag.
const ETHERTYPE_OFFSET: usize = 12;
/// EtherTypes that announce a VLAN tag.
const VLAN_TAG_TYPES: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// Maximum number of VLAN tags that the search for a header skips.
const MAX_TAGS: usize = 8;

/// Returns whether the EtherType at this offset announces a VLAN tag.
fn is_vlan_tag_at(frame: &[u8], at: usize) -> bool {
    word_at(frame, at).is_some_and(|found| VLAN_TAG_TYPES.contains(&found))
}

impl FilterBase {
    fn find_base_offset(self, frame: &[u8]) -> Option<usize> {
        match self {
            Self::Frame => Some(0),
            Self::Vlan => is_vlan_tag_at(frame, ETHERTYPE_OFFSET).then_some(ETHERTYPE_OFFSET + 2),
            Self::Ipv4 | Self::Ipv6 => {
                // The number of tags is limited, because the compiled filter cannot contain loops.
                let tags =
                    (0..MAX_TAGS).take_while(|tag| is_vlan_tag_at(frame, ETHERTYPE_OFFSET + 4 * tag)).count();
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
