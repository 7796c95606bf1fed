//! Quantities that only the command line knows.

use packetrig_plan::criteria::{LatencyFigure, LatencyLimit};
use packetrig_units::{Error, FrameSize, Nanos, Share};
use std::str::FromStr;

/// Frame sizes as flags write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizeArg {
    /// All frames have this size.
    Fixed(FrameSize),
    /// All sizes from the first to the second, equally often.
    Range(FrameSize, FrameSize),
    /// The simple Internet mix: 64, 570 and 1518 B as 7 : 4 : 1.
    Imix,
}

impl FromStr for SizeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("imix") {
            return Ok(Self::Imix);
        }
        let Some((least, most)) = text.split_once("..") else {
            return size(text).map(Self::Fixed);
        };
        let least = size(least)?;
        // `64..=1518` means the same: both ends are always included.
        let most = size(most.trim_start_matches('='))?;
        if least > most {
            return Err(format!("`{text}` ends before it starts; write {}..{}", most.bytes(), least.bytes()));
        }
        Ok(Self::Range(least, most))
    }
}

fn size(text: &str) -> Result<FrameSize, String> {
    text.parse().map_err(|_| {
        format!("`{text}` is not a frame size; write it like 64, 64..1518 or imix (FCS included)")
    })
}

/// A share written in percent, with or without the sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PercentArg(pub(crate) Share);

impl FromStr for PercentArg {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        text.parse().map(Self)
    }
}

/// The largest latency that passes, as flags write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LatencyBound(pub(crate) LatencyLimit);

impl FromStr for LatencyBound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, time) = text.split_once('=').ok_or_else(|| format!("write `{text}` like p99=50us"))?;
        let known = LatencyFigure::ALL.into_iter().find(|(known, _)| *known == name);
        let figure = known.map(|(_, figure)| figure).ok_or_else(|| {
            format!("`{name}` is not one of {}", LatencyFigure::ALL.map(|(name, _)| name).join(", "))
        })?;
        let limit = time.parse::<Nanos>().map_err(|error| error.to_string())?;
        Ok(Self(LatencyLimit { figure, limit }))
    }
}

/// A size of files or memory: decimal or binary units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BytesArg(pub(crate) u64);

impl FromStr for BytesArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = bytes(text.trim()).map(Self);
        bytes.ok_or_else(|| format!("`{text}` is not a size; write it like 500kB, 100MB or 1GiB"))
    }
}

/// `None` also for zero, which no option can mean, and for more than 64 bits hold.
fn bytes(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor: u64 = match text[end..].trim() {
        "" | "B" => 1,
        "k" | "kB" | "KB" => 1_000,
        "M" | "MB" => 1_000_000,
        "G" | "GB" => 1_000_000_000,
        "T" | "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    let number: u64 = text[..end].parse().ok()?;
    number.checked_mul(factor).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let frame = FrameSize::new;
        assert_eq!("64".parse(), Ok(SizeArg::Fixed(frame(64))));
        assert_eq!("1518B".parse(), Ok(SizeArg::Fixed(frame(1518))));
        assert_eq!("64..1518".parse(), Ok(SizeArg::Range(frame(64), frame(1518))));
        assert_eq!("64..=1518".parse(), Ok(SizeArg::Range(frame(64), frame(1518))));
        assert_eq!("IMIX".parse(), Ok(SizeArg::Imix));
    }

    #[test]
    fn a_wrong_size_says_how_to_write_it() {
        for (text, hint) in [("big", "imix"), ("1518..64", "64..1518"), ("..9", "64..1518"), ("", "imix")] {
            let error = text.parse::<SizeArg>().unwrap_err();
            assert!(error.contains(hint), "{error}");
        }
    }

    #[test]
    fn sizes_of_files_have_decimal_and_binary_units() {
        for (text, bytes) in [("7", 7), ("100MB", 100_000_000), ("64 MiB", 64 << 20), ("1GiB", 1 << 30)] {
            assert_eq!(text.parse(), Ok(BytesArg(bytes)), "{text}");
        }
        for wrong in ["", "MB", "0", "-1MB", "1.5GB", "1 furlong", "99999999TB"] {
            assert!(wrong.parse::<BytesArg>().is_err_and(|error| error.contains("100MB")), "{wrong}");
        }
    }

    #[test]
    fn percentages_are_exact() {
        let billionths = |text: &str| text.parse::<PercentArg>().map(|percent| percent.0.billionths());
        assert_eq!(billionths("0"), Ok(0));
        assert_eq!(billionths("0.1%"), Ok(1_000_000));
        assert_eq!(billionths("0.0000001 %"), Ok(1));
        assert_eq!(billionths("100%"), Ok(1_000_000_000));
        for wrong in ["", "%", "-1", "101", "100.0000001", "1e2", "0.00000001", "x", "1.2.3"] {
            assert!(billionths(wrong).is_err(), "{wrong}");
        }
    }
}
