//! Frame sizes. A *frame size* always includes the 4-byte FCS; a method for each other length derives it.

use crate::clamp_to_u32;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The size of an Ethernet frame in bytes, FCS included, VLAN tags included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FrameSize(u32);

impl FrameSize {
    /// Bytes of the frame check sequence.
    pub const FCS: u32 = 4;
    /// Preamble, start delimiter and minimum gap: bytes that a frame takes on the line in addition to its size.
    // IEEE 802.3: 7 bytes of preamble, 1 of start delimiter, and a gap of at least 12.
    pub const LAYER1_OVERHEAD_BYTES: u32 = 20;
    /// The smallest legal Ethernet frame.
    pub const MIN: Self = Self(64);

    /// Creates the size `bytes`, FCS included.
    pub const fn new(bytes: u32) -> Self {
        Self(bytes)
    }
    /// Creates the size of a frame that has `len` bytes without FCS, which is how the kernel counts.
    pub fn from_kernel_len(len: usize) -> Self {
        // The network card strips the FCS before the kernel sees the frame.
        Self(clamp_to_u32(len).saturating_add(Self::FCS))
    }
    /// Returns the bytes with FCS, which is how layer 2 rates and byte counters count.
    pub const fn bytes(self) -> u32 {
        self.0
    }
    /// Returns the bytes without FCS, as they are handed to the kernel.
    pub const fn kernel_len(self) -> usize {
        self.0.saturating_sub(Self::FCS) as usize
    }
    /// Returns the bytes that the frame takes on the line: with FCS, preamble, start delimiter and minimum gap.
    pub const fn l1_bytes(self) -> u32 {
        self.0.saturating_add(Self::LAYER1_OVERHEAD_BYTES)
    }
}

impl fmt::Display for FrameSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_bytes_of_greatest_size_saturate() {
        assert_eq!(FrameSize::MIN.l1_bytes(), 84);
        assert_eq!(FrameSize::new(u32::MAX).l1_bytes(), u32::MAX);
    }
}
