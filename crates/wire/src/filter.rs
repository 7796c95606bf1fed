//! Capture filters as OTG defines them: value, mask and negate on bits of the frame. Mask bit 0 = must match.

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
    /// The TCI of the first VLAN tag.
    Vlan,
    /// The first IPv4 header.
    Ipv4,
    /// The first IPv6 header.
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
        let _ = frame;
        todo!()
    }
}
