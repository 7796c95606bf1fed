//! Rates. A frame rate is an exact fraction, so the due time of the millionth frame is as exact as that of the first.

use crate::number::format_decimals;
use crate::{FrameSize, Nanos, clamp_to_u64};
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BitRate(u64);

impl BitRate {
    /// Creates a rate of `bps` bits per second.
    pub const fn new(bps: u64) -> Self {
        Self(bps)
    }
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }
    /// Returns the time that `bytes` take at this rate, rounded to the nearest nanosecond; zero for a rate of zero.
    pub fn time_to_send(self, bytes: u64) -> Nanos {
        if self.0 == 0 {
            return Nanos::ZERO;
        }
        let rate = u128::from(self.0);
        // 128 bits: the product exceeds 64 bits from 2.3 GB on.
        let ns = (u128::from(bytes) * 8_000_000_000 + rate / 2) / rate;
        Nanos::new(clamp_to_u64(ns))
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scale, unit) = match self.0 {
            0..1_000 => (1.0, "bit/s"),
            1_000..1_000_000 => (1e3, "kbit/s"),
            1_000_000..1_000_000_000 => (1e6, "Mbit/s"),
            _ => (1e9, "Gbit/s"),
        };
        f.pad(&format!("{:.3} {unit}", self.0 as f64 / scale))
    }
}

/// A part of the speed of a link, in billionths. The parser of plans converts OTG's `percentage` into a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Share(u64);

impl Share {
    pub const WHOLE_LINK: Self = Self(1_000_000_000);

    /// Creates a share of `billionths` of the link's speed.
    pub const fn from_billionths(billionths: u64) -> Self {
        Self(billionths)
    }
    /// Returns the share in billionths of the link's speed.
    pub const fn billionths(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.0 as f64 / 1e7)
    }
}

/// Frames per second as an exact fraction `frames / seconds`; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FrameRate {
    frames: u64,
    seconds: u64,
}

impl FrameRate {
    /// Creates the rate of `frames` in every `seconds`; `None` if either is zero.
    pub fn new(frames: u64, seconds: u64) -> Option<Self> {
        Self::from_fraction(u128::from(frames), u128::from(seconds))
    }

    /// Creates a rate of `pps` frames per second; `None` for zero.
    pub fn per_second(pps: u64) -> Option<Self> {
        Self::new(pps, 1)
    }

    /// Returns the frame rate that has the bit rate `bits`, if `count` frames have `bytes` bytes together. For an L2
    /// rate pass L2 bytes, for an L1 rate pass L1 bytes. `None` if an argument is zero.
    pub fn from_bits(bits: BitRate, bytes: u64, count: u64) -> Option<Self> {
        Self::from_fraction(u128::from(bits.bits_per_second()) * u128::from(count), u128::from(bytes) * 8)
    }

    /// Works like [`Self::from_bits`] for a share of the speed `link`. `None` also if a product exceeds 128 bits.
    pub fn from_share(link: BitRate, share: Share, l1_bytes: u64, count: u64) -> Option<Self> {
        let bits = u128::from(link.bits_per_second()) * u128::from(share.billionths());
        // A rate and a share can fill 128 bits, so the product with a third number is checked.
        let frames = bits.checked_mul(u128::from(count))?;
        Self::from_fraction(frames, u128::from(l1_bytes) * 8 * 1_000_000_000)
    }

    fn from_fraction(frames: u128, seconds: u128) -> Option<Self> {
        if frames == 0 || seconds == 0 {
            return None;
        }
        let divisor = greatest_common_divisor(frames, seconds);
        let mut frames = frames / divisor;
        let mut seconds = seconds / divisor;
        // If a number has more than 64 bits, both lose their last bits. The smaller one is then wrong by at most 1.
        while frames > u128::from(u64::MAX) || seconds > u128::from(u64::MAX) {
            frames = (frames >> 1).max(1);
            seconds = (seconds >> 1).max(1);
        }
        Some(Self { frames: u64::try_from(frames).ok()?, seconds: u64::try_from(seconds).ok()? })
    }

    /// Returns the rate divided by `parts`; `None` if `parts` is zero.
    pub fn divide_by(self, parts: u64) -> Option<Self> {
        Self::from_fraction(u128::from(self.frames), u128::from(self.seconds) * u128::from(parts))
    }

    /// Returns when frame `n` is due, counted from frame 0: `n / rate`, rounded down. Rounding errors do not add up.
    pub fn due_time(self, n: u64) -> Nanos {
        // The time is computed from the number of the frame and not from the frame before it: rounding errors
        // cannot add up, and any frame can be computed. The product fits 128 bits as long as the result fits
        // 64, because `frames` is a number of 64 bits.
        let ns = u128::from(n) * u128::from(self.seconds) * 1_000_000_000 / u128::from(self.frames);
        Nanos::new(clamp_to_u64(ns))
    }

    /// Returns the number of frames that are due before `length`, counted from frame 0, which is due at 0.
    pub fn frames_within(self, length: Nanos) -> u64 {
        let unit = u128::from(self.seconds) * 1_000_000_000;
        let scaled = u128::from(length.as_u64()) * u128::from(self.frames);
        // Frame 0 is due at 0, so the number of frames with n / rate < length is length * rate rounded up.
        clamp_to_u64(scaled.div_ceil(unit))
    }

    /// Returns the numerator of the fraction: the number of frames in every [`Self::seconds`].
    pub const fn frames(self) -> u64 {
        self.frames
    }

    /// Returns the denominator of the fraction, in seconds.
    pub const fn seconds(self) -> u64 {
        self.seconds
    }

    /// Returns the frames per second, for display only.
    pub fn as_f64(self) -> f64 {
        self.frames as f64 / self.seconds as f64
    }

    /// Returns the bit rate, rounded down, if `count` frames have `bytes` bytes together.
    pub fn bit_rate(self, bytes: u64, count: u64) -> BitRate {
        let bits = u128::from(bytes) * 8 * u128::from(self.frames);
        // A count of zero has no mean; dividing by one avoids a division by zero.
        let per = u128::from(count.max(1)) * u128::from(self.seconds);
        BitRate::new(clamp_to_u64(bits / per))
    }

    /// Returns the bit rate on the line (layer 1) if all frames have this size.
    pub fn l1_bit_rate(self, size: FrameSize) -> BitRate {
        self.bit_rate(u64::from(size.l1_bytes()), 1)
    }
}

impl fmt::Display for FrameRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} frames/s", format_decimals(self.as_f64(), 3)))
    }
}

fn greatest_common_divisor(a: u128, b: u128) -> u128 {
    // Euclid's algorithm: two steps halve the larger number, so 128 bits take at most 256 calls.
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
