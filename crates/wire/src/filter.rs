//! Capture filters as OTG defines them: value, mask and negate on bits of the frame. Mask bit 0 = must match.

use crate::bits;
use serde::{Deserialize, Serialize};

/// One condition on a frame: `bits` bits from `bit_offset` equal `value` where `mask` is 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Where the condition's offset counts from.
    pub base: Base,
    /// Bits from the base.
    pub bit_offset: u32,
    /// How many bits; at most 128.
    pub bits: u32,
    /// Wanted value, right-aligned.
    pub value: u128,
    /// 1 = do not care.
    pub mask: u128,
    /// The condition holds when the bits do not match.
    pub negate: bool,
}

/// Headers a filter can point into; a frame that lacks the header fails the condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Base {
    /// The first byte of the frame.
    Frame,
    /// The tag control information of the first VLAN tag.
    Vlan,
    /// The IPv4 header.
    Ipv4,
    /// The IPv6 header.
    Ipv6,
}

/// All conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Joined by AND; empty accepts every frame.
    pub conditions: Vec<Condition>,
}

impl Filter {
    /// Whether `frame` (without FCS) passes.
    pub fn accepts(&self, frame: &[u8]) -> bool {
        self.conditions.iter().all(|condition| condition.holds(frame))
    }
}

impl Condition {
    fn holds(&self, frame: &[u8]) -> bool {
        let Some(start) = self.base.find(frame) else { return false };
        let at = start as u64 * 8 + u64::from(self.bit_offset);
        let Some(found) = bits::read(frame, at, self.bits.min(128)) else { return false };
        ((found ^ self.value) & !self.mask & crate::pattern::low_mask(self.bits) == 0) != self.negate
    }
}

impl Base {
    fn find(self, frame: &[u8]) -> Option<usize> {
        let ether_type = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
        let mut at = 12;
        let mut first_tag = None;
        while matches!(ether_type(at)?, 0x8100 | 0x88a8 | 0x9100) {
            first_tag.get_or_insert(at + 2);
            at += 4;
        }
        match (self, ether_type(at)?) {
            (Self::Frame, _) => Some(0),
            (Self::Vlan, _) => first_tag,
            (Self::Ipv4, 0x0800) | (Self::Ipv6, 0x86dd) => Some(at + 2),
            _ => None,
        }
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

    fn condition(base: Base, bit_offset: u32, bits: u32, value: u128) -> Condition {
        Condition { base, bit_offset, bits, value, mask: 0, negate: false }
    }

    #[test]
    fn zero_in_the_mask_must_match_and_one_need_not() {
        let mut filter = Filter { conditions: vec![condition(Base::Frame, 40, 8, 0xac)] };
        assert!(!filter.accepts(&frame()));
        filter.conditions[0].mask = 0x07;
        assert!(filter.accepts(&frame()));
        filter.conditions[0].negate = true;
        assert!(!filter.accepts(&frame()));
    }

    #[test]
    fn headers_are_found_behind_vlan_tags_and_missing_ones_fail() {
        let holds = |condition| Filter { conditions: vec![condition] }.accepts(&frame());
        assert!(holds(condition(Base::Vlan, 4, 12, 100)));
        assert!(holds(condition(Base::Ipv4, 0, 4, 4)));
        assert!(!holds(condition(Base::Ipv6, 0, 4, 0)));
        assert!(!holds(condition(Base::Frame, 8 * 60, 8, 0)));
        assert!(Filter::default().accepts(&[]));
    }
}
