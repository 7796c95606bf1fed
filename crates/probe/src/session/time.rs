//! Times and their errors as STAMP writes them.
//!
//! Both formats hold a moment of the real-time clock in 64 bits. Invariant: a time that is written and read is off by less than a
//! nanosecond, for moments from 2000 to 2036 (NTP) and to 2106 (PTP).

use serde::Serialize;

/// Seconds from 1900 to 1970.
const NTP_ORIGIN: u64 = 2_208_988_800;
const SECOND: u64 = 1_000_000_000;

/// How a time is written.
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
    /// Nanoseconds since 1970 as 64 bits.
    pub const fn write(self, realtime_ns: u64) -> u64 {
        let (seconds, ns) = (realtime_ns / SECOND, realtime_ns % SECOND);
        match self {
            // Rounded up, so that reading it, which rounds down, gives the same nanosecond.
            Self::Ntp => ((seconds + NTP_ORIGIN) << 32) | (ns << 32).div_ceil(SECOND),
            Self::Ptp => (seconds << 32) | ns,
        }
    }

    /// What 64 bits say, in nanoseconds since 1970; `None` if they are no time.
    pub const fn read(self, bits: u64) -> Option<u64> {
        let (seconds, part) = (bits >> 32, bits & 0xffff_ffff);
        match self {
            Self::Ntp if seconds >= NTP_ORIGIN => {
                Some((seconds - NTP_ORIGIN) * SECOND + ((part * SECOND) >> 32))
            }
            Self::Ptp if part < SECOND => Some(seconds * SECOND + part),
            _ => None,
        }
    }
}

/// How far a clock may be off, as its owner says (RFC 4656, section 4.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ErrorEstimate {
    /// The owner believes that the clock is set by a source of UTC.
    pub is_synchronised: bool,
    /// How times are written.
    pub format: TimeFormat,
    /// The error is `multiplier * 2^(scale - 32)` seconds; a multiplier of zero makes it no estimate.
    pub scale: u8,
    /// See [`Self::scale`].
    pub multiplier: u8,
}

impl ErrorEstimate {
    /// The smallest that holds an error.
    pub const fn of(error_ns: u64, format: TimeFormat, is_synchronised: bool) -> Self {
        // In 2^32nd parts of a second, rounded up.
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
            1
        } else {
            low
        };
        Self { is_synchronised, format, scale, multiplier }
    }

    /// As sixteen bits.
    pub const fn write(self) -> u16 {
        let format = matches!(self.format, TimeFormat::Ptp);
        (self.is_synchronised as u16) << 15
            | (format as u16) << 14
            | ((self.scale & 63) as u16) << 8
            | self.multiplier as u16
    }

    /// What sixteen bits say.
    pub const fn read(bits: u16) -> Self {
        let format = if bits & 0x4000 == 0 { TimeFormat::Ntp } else { TimeFormat::Ptp };
        let [high, low] = bits.to_be_bytes();
        Self { is_synchronised: bits & 0x8000 != 0, format, scale: high & 63, multiplier: low }
    }

    /// The error in nanoseconds; `None` if it says nothing.
    pub fn error_ns(self) -> Option<u64> {
        if self.multiplier == 0 {
            return None;
        }
        let parts = u128::from(self.multiplier) << self.scale;
        u64::try_from((parts * u128::from(SECOND)).div_ceil(1 << 32)).ok()
    }
}
