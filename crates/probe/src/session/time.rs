//! STAMP's formats of times and of their errors.
//!
//! Both formats hold a time of the real-time clock in 64 bits. Invariant: a time that is written and read again is the same to the
//! nanosecond, from 2000 to 2036 (NTP) or to 2106 (PTP).

use serde::Serialize;

/// Seconds from 1900 to 1970.
const NTP_ORIGIN: u64 = 2_208_988_800;
const SECOND: u64 = 1_000_000_000;

/// The format of a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeFormat {
    /// Seconds since 1900 and their 2^32nd parts.
    Ntp,
    /// Seconds since 1970 and nanoseconds (the truncated format of IEEE 1588).
    #[default]
    Ptp,
}

impl TimeFormat {
    /// Writes nanoseconds since 1970.
    pub const fn encode_time(self, realtime_ns: u64) -> u64 {
        let seconds = realtime_ns / SECOND;
        let ns = realtime_ns % SECOND;
        match self {
            // The value is rounded up, so that decoding, which rounds down, returns the same nanosecond.
            Self::Ntp => ((seconds + NTP_ORIGIN) << 32) | (ns << 32).div_ceil(SECOND),
            Self::Ptp => (seconds << 32) | ns,
        }
    }

    /// Reads nanoseconds since 1970; `None` if the bits are no valid time.
    pub const fn decode_time(self, bits: u64) -> Option<u64> {
        let seconds = bits >> 32;
        let part = bits & 0xffff_ffff;
        match self {
            Self::Ntp if seconds >= NTP_ORIGIN => {
                Some((seconds - NTP_ORIGIN) * SECOND + ((part * SECOND) >> 32))
            }
            Self::Ptp if part < SECOND => Some(seconds * SECOND + part),
            _ => None,
        }
    }
}

/// The largest error of a clock, as its owner states it (RFC 4656, section 4.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ErrorEstimate {
    /// True if the owner states that the clock is synchronised to UTC.
    pub is_synchronised: bool,
    pub format: TimeFormat,
    /// The error is `multiplier * 2^(scale - 32)` seconds; with a multiplier of zero there is no estimate.
    pub scale: u8,
    pub multiplier: u8,
}

impl ErrorEstimate {
    /// The smallest estimate that covers an error; the largest possible one if the error is too large for all.
    pub const fn from_error(error_ns: u64, format: TimeFormat, is_synchronised: bool) -> Self {
        // The estimate is in 2^32nd parts of a second, always rounded up: it may be too large, but never too small.
        let mut parts = ((error_ns as u128) << 32).div_ceil(SECOND as u128);
        let mut scale = 0;
        while parts > 255 && scale < 63 {
            parts = parts.div_ceil(2);
            scale += 1;
        }
        let [.., low] = parts.to_be_bytes();
        let multiplier = if parts > 255 {
            255
        } else if low == 0 {
            // An error of 0 still gets the least multiplier: a multiplier of 0 would make the estimate invalid.
            1
        } else {
            low
        };
        Self { is_synchronised, format, scale, multiplier }
    }

    /// Writes S, Z, scale and multiplier (RFC 4656, 4.1.2; Z: RFC 8186).
    pub const fn to_bits(self) -> u16 {
        let format = matches!(self.format, TimeFormat::Ptp);
        (self.is_synchronised as u16) << 15
            | (format as u16) << 14
            | ((self.scale & 63) as u16) << 8
            | self.multiplier as u16
    }

    pub const fn from_bits(bits: u16) -> Self {
        let format = if bits & 0x4000 == 0 { TimeFormat::Ntp } else { TimeFormat::Ptp };
        let [high, low] = bits.to_be_bytes();
        // The low six bits of the first byte are the scale (RFC 4656, 4.1.2).
        Self { is_synchronised: bits & 0x8000 != 0, format, scale: high & 63, multiplier: low }
    }

    /// The error in nanoseconds; `None` if there is no estimate.
    pub fn error_ns(self) -> Option<u64> {
        if self.multiplier == 0 {
            return None;
        }
        let parts = u128::from(self.multiplier) << self.scale;
        u64::try_from((parts * u128::from(SECOND)).div_ceil(1 << 32)).ok()
    }
}
