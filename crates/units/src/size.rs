//! Frame sizes. A *frame size* always includes the 4-byte FCS; the other lengths are derived by name.

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
    /// Preamble, start delimiter and minimum gap: bytes that a frame takes on the line in addition to its own.
    // IEEE 802.3: 7 bytes of preamble, 1 of start delimiter, and a gap of at least 12.
    pub const LAYER1_OVERHEAD_BYTES: u32 = 20;
    /// The smallest legal Ethernet frame.
    pub const MIN: Self = Self(64);

    /// A frame of `bytes`, FCS included.
    pub const fn new(bytes: u32) -> Self {
        Self(bytes)
    }
    /// The size of a frame with `len` bytes without FCS, as the kernel shows it.
    pub fn from_kernel_len(len: usize) -> Self {
        // The network card strips the FCS before the kernel sees the frame.
        Self(clamp_to_u32(len).saturating_add(Self::FCS))
    }
    /// Bytes with FCS: the meaning of rates and byte counters at layer 2.
    pub const fn bytes(self) -> u32 {
        self.0
    }
    /// Bytes handed to the kernel: without FCS.
    pub const fn kernel_len(self) -> usize {
        self.0.saturating_sub(Self::FCS) as usize
    }
    /// Bytes the frame takes on the line: with FCS, preamble and minimum gap.
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
