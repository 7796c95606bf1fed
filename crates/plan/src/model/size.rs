//! The mean size of frames.

/// The mean size of frames, as the fraction `bytes / frames`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeanSize {
    /// Bytes of `frames` frames, FCS included.
    pub(crate) bytes: u64,
    /// The number of frames that have `bytes` bytes together; at least 1.
    pub(crate) frames: u64,
}

impl From<(u64, u64)> for MeanSize {
    fn from((bytes, frames): (u64, u64)) -> Self {
        Self { bytes, frames }
    }
}

impl MeanSize {
    /// Layer 1 bytes of `frames` frames: 20 more for each frame, for preamble, start of frame and inter-frame gap.
    pub(super) const fn l1_bytes(self) -> u64 {
        self.bytes + self.frames * 20
    }

    pub(crate) fn as_f64(self) -> f64 {
        self.bytes as f64 / self.frames as f64
    }

    /// The bytes of this many frames of the mean size, rounded down; `None` if the number exceeds 64 bits.
    pub(crate) fn bytes_of_frames(self, frames: u64) -> Option<u64> {
        // The product of two 64-bit numbers needs 128 bits.
        u64::try_from(u128::from(frames) * u128::from(self.bytes) / u128::from(self.frames)).ok()
    }
}
