//! Parses quantities as people type them: `64`, `1500B`, `10Gbit/s`, `200kpps`, `50%`, `1.5ms`.

use crate::{BitRate, FrameRate, FrameSize, Nanos, Share};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A text that is not a quantity of the expected kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {kind}; write it like {example}")]
pub struct Error {
    pub text: String,
    /// The expected kind: `rate`, `time` and so on.
    pub kind: &'static str,
    /// Examples of the right form.
    pub example: &'static str,
}

/// A requested load. Only frame size and link speed turn it into a frame rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rate {
    Frames(FrameRate),
    /// Bits per second at layer 2, FCS included.
    Bits(BitRate),
    /// A share of the link at layer 1.
    Share(Share),
}

/// An exact decimal: `digits / 10^scale`. Keeps "0.1" exact where a float would not.
#[derive(Clone, Copy)]
struct Decimal {
    digits: u64,
    scale: u32,
}

impl Decimal {
    /// Splits `1.5ms` into 1.5 and `ms`.
    fn split_unit(text: &str) -> Option<(Self, &str)> {
        let text = text.trim();
        // Signs and exponents are refused: no quantity here is negative, and people write units rather than powers.
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let number: String = number.chars().filter(|c| *c != '_').collect();
        let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
        if whole.is_empty() || fraction.contains('.') {
            return None;
        }
        // The decimal point only moves into `scale`, so nothing is rounded here.
        let digits = format!("{whole}{fraction}").parse().ok()?;
        Some((Self { digits, scale: u32::try_from(fraction.len()).ok()? }, unit.trim()))
    }

    /// Returns the value times `factor`; `None` if the product is not a whole number, or is too large for 64 bits.
    fn multiply_exactly(self, factor: u64) -> Option<u64> {
        let scaled = u128::from(self.digits) * u128::from(factor);
        // Integers only: 0.1 Gbit/s must be exactly 100 000 000 bit/s. A value that is not whole in the smallest
        // unit is refused rather than rounded.
        let unit = 10u128.checked_pow(self.scale)?;
        if scaled % unit == 0 { u64::try_from(scaled / unit).ok() } else { None }
    }
}

impl FromStr for Nanos {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = Decimal::split_unit(text).and_then(|(value, unit)| {
            let factor = match unit {
                "ns" => 1,
                "us" | "µs" => 1_000,
                "ms" => 1_000_000,
                "s" | "" => 1_000_000_000,
                "m" | "min" => 60_000_000_000,
                "h" => 3_600_000_000_000,
                _ => return None,
            };
            value.multiply_exactly(factor)
        });
        parsed.map(Self::new).ok_or_else(|| Error {
            text: text.to_owned(),
            kind: "time",
            example: "72h, 2min, 10s, 1.5ms or 250us",
        })
    }
}

impl FromStr for Share {
    type Err = Error;

    /// Parses a percentage, with or without `%`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = Decimal::split_unit(text).and_then(|(value, unit)| match unit {
            "" | "%" => value.multiply_exactly(10_000_000).map(Self::from_billionths),
            _ => None,
        });
        parsed.filter(|share| *share <= Self::WHOLE_LINK).ok_or_else(|| Error {
            text: text.to_owned(),
            kind: "percentage",
            example: "0.5%, between 0 and 100",
        })
    }
}

impl FromStr for FrameSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = Decimal::split_unit(text).and_then(|(value, unit)| match unit {
            "" | "B" => value.multiply_exactly(1),
            _ => None,
        });
        parsed.and_then(|bytes| u32::try_from(bytes).ok()).map(Self::new).ok_or_else(|| Error {
            text: text.to_owned(),
            kind: "frame size",
            example: "64 or 1518B (FCS included)",
        })
    }
}

impl FromStr for BitRate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed =
            Decimal::split_unit(text).and_then(|(value, unit)| value.multiply_exactly(bits_per_unit(unit)?));
        parsed.map(Self::new).ok_or_else(|| Error {
            text: text.to_owned(),
            kind: "bit rate",
            example: "10Gbit/s, 100Mbit/s or 64kbit/s",
        })
    }
}

impl FromStr for Rate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = Decimal::split_unit(text).and_then(|(value, unit)| {
            if let Some(factor) = bits_per_unit(unit) {
                return value
                    .multiply_exactly(factor)
                    .filter(|bps| *bps > 0)
                    .map(BitRate::new)
                    .map(Self::Bits);
            }
            let factor = match unit.to_ascii_lowercase().as_str() {
                "%" => {
                    return value.multiply_exactly(10_000_000).map(Share::from_billionths).map(Self::Share);
                }
                "" | "pps" | "fps" | "frames/s" => 1,
                "kpps" => 1_000,
                "mpps" => 1_000_000,
                _ => return None,
            };
            // A rate below one frame per second is valid: 0.1pps is one frame every ten seconds.
            let frames = value.digits.checked_mul(factor)?;
            FrameRate::new(frames, 10u64.checked_pow(value.scale)?).map(Self::Frames)
        });
        parsed.ok_or_else(|| Error {
            text: text.to_owned(),
            kind: "rate",
            example: "1Gbit/s, 200kpps, 0.1pps or 50%",
        })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frames(rate) => rate.fmt(f),
            Self::Bits(rate) => rate.fmt(f),
            Self::Share(share) => write!(f, "{share} of the link"),
        }
    }
}

fn bits_per_unit(unit: &str) -> Option<u64> {
    // Upper and lower case are equal: no rate is in millibits, and other tools accept `1gbps`.
    match unit.to_ascii_lowercase().as_str() {
        "bit/s" | "bps" => Some(1),
        "kbit/s" | "kbps" => Some(1_000),
        "mbit/s" | "mbps" => Some(1_000_000),
        "gbit/s" | "gbps" => Some(1_000_000_000),
        "tbit/s" | "tbps" => Some(1_000_000_000_000),
        _ => None,
    }
}
