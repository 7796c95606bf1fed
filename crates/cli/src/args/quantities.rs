//! Parsers for the quantities that only the command line accepts.

pub(crate) use packetrig_program::quantities::{
    ListenArg, parse_port, parse_positive_number, parse_positive_time,
};

use packetrig_plan::criteria::{LatencyFigure, LatencyLimit};
use packetrig_stats::figure::{FigureLimit, InvalidFigureLimit};
use packetrig_units::{Error, FrameSize, Nanos, Rate, Share};
use std::net::SocketAddr;
use std::str::FromStr;

/// The largest frame that plans accept; the limit of a port is checked when the port is known.
const MAX_PLAN_FRAME_SIZE: FrameSize = FrameSize::new(16_383);

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
            return parse_frame_size(text).map(Self::Fixed);
        };
        let least = parse_frame_size(least)?;
        // `64..=1518` means the same as `64..1518`: both ends are always included.
        let most = parse_frame_size(most.trim_start_matches('='))?;
        if least > most {
            return Err(format!(
                "the range `{text}` has its larger end first; write {}..{}",
                most.bytes(),
                least.bytes()
            ));
        }
        Ok(Self::Range(least, most))
    }
}

fn parse_frame_size(text: &str) -> Result<FrameSize, String> {
    let size: FrameSize = text.parse().map_err(|_| {
        format!("`{text}` is not a frame size with FCS; write it like 64; some options take 64..1518 or imix")
    })?;
    if (FrameSize::MIN..=MAX_PLAN_FRAME_SIZE).contains(&size) {
        Ok(size)
    } else {
        Err(format!(
            "a frame must have {} to {} bytes, FCS included",
            FrameSize::MIN.bytes(),
            MAX_PLAN_FRAME_SIZE.bytes()
        ))
    }
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
        let (name, time) = text
            .split_once('=')
            .ok_or_else(|| format!("`{text}` is not a latency limit; write it like p99=50us"))?;
        let known = LatencyFigure::ALL.into_iter().find(|(known, _)| *known == name);
        let figure = known.map(|(_, figure)| figure).ok_or_else(|| {
            format!(
                "`{name}` is not a latency figure; use one of {}",
                LatencyFigure::ALL.map(|(name, _)| name).join(", ")
            )
        })?;
        let limit = parse_time_with_unit(time)?;
        Ok(Self(LatencyLimit { figure, limit }))
    }
}

/// Parses a time that decides a verdict. The unit is required: without it, a number that is meant as microseconds
/// would count as seconds.
pub(crate) fn parse_time_with_unit(text: &str) -> Result<Nanos, String> {
    let number = text.trim();
    // The general parser reads a number alone as seconds, so a number alone is refused before.
    if number.parse::<f64>().is_ok() {
        return Err(format!("a unit is missing after the number; write {number}us, {number}ms or {number}s"));
    }
    text.parse().map_err(|error: Error| error.to_string())
}

/// Parses a load. Refuses a share of 0%, and a share of more than 100% of the link.
pub(crate) fn parse_load_rate(text: &str) -> Result<Rate, String> {
    let rate: Rate = text.parse().map_err(|error: Error| error.to_string())?;
    match rate {
        Rate::Share(share) if share > Share::WHOLE_LINK => {
            Err("the load is more than the link carries; write at most 100%".into())
        }
        Rate::Share(share) if share.billionths() == 0 => {
            Err("with this load nothing would be sent; write more than 0%, for example 0.1%".into())
        }
        rate => Ok(rate),
    }
}

/// Parses a VLAN ID. 0 and 4095 are reserved (IEEE 802.1Q).
pub(crate) fn parse_vlan_id(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (1..=4094).contains(number));
    number.ok_or_else(|| format!("`{text}` is not a VLAN ID; write a number from 1 to 4094"))
}

pub(crate) fn parse_socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!(
            "`{text}` is not an IP address with a port; write it like 127.0.0.1:8443 or [2001:db8::1]:8443"
        )
    })
}

/// Checks that a text is `HOST:PORT`, and returns it unchanged. The host may be a name or an address.
pub(crate) fn parse_host_and_port(text: &str) -> Result<String, String> {
    // The last colon separates the port: IPv6 addresses have colons, too.
    let parts = text.rsplit_once(':').filter(|(host, _)| {
        let name = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:".contains(c))
    });
    let is_port = parts.and_then(|(_, port)| port.parse::<u16>().ok()).is_some_and(|port| port > 0);
    if is_port {
        Ok(text.to_owned())
    } else {
        Err(format!("`{text}` is not a host with a port; write it like nats1.example:4222"))
    }
}

pub(crate) fn parse_host_name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:[]".contains(c));
    if is_name {
        Ok(text.to_owned())
    } else {
        Err(format!("`{text}` is not a host name; write it like rack2.example"))
    }
}

/// Parses the number of a user. User names are refused: a name can get another number while the program runs.
pub(crate) fn parse_user_id(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("`{text}` is not a numeric user ID; `id -u NAME` prints the ID"))
}

/// A size of files or memory in bytes, not zero. Users write it with decimal (kB) or binary (KiB) units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BytesArg(pub(crate) u64);

impl FromStr for BytesArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = parse_bytes(text.trim()).map(Self);
        bytes.ok_or_else(|| format!("`{text}` is not a size; write it like 500kB, 100MB or 1GiB"))
    }
}

/// Parses a size. Also returns `None` for zero, which is no useful size, and for more than 2^64 - 1 bytes.
fn parse_bytes(text: &str) -> Option<u64> {
    // Only whole numbers are accepted: `1.5GB` may mean different bytes to different readers, and 1500MB does not.
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

/// Parses a limit of a figure: the share by which the figure may be worse, an amount in its unit, or `any`.
pub(crate) fn parse_figure_limit(text: &str) -> Result<FigureLimit, String> {
    text.parse().map_err(|error: InvalidFigureLimit| error.to_string())
}

/// Parses days, written `30` or `30d`.
pub(crate) fn parse_days(text: &str) -> Result<u64, String> {
    let number = text.trim().trim_end_matches('d').trim();
    number.parse().map_err(|_| format!("`{text}` is not a number of days; write it like 30"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_sizes_are_parsed() {
        let frame = FrameSize::new;
        assert_eq!("64".parse(), Ok(SizeArg::Fixed(frame(64))));
        assert_eq!("1518B".parse(), Ok(SizeArg::Fixed(frame(1518))));
        assert_eq!("64..1518".parse(), Ok(SizeArg::Range(frame(64), frame(1518))));
        assert_eq!("64..=1518".parse(), Ok(SizeArg::Range(frame(64), frame(1518))));
        assert_eq!("IMIX".parse(), Ok(SizeArg::Imix));
    }

    #[test]
    fn invalid_size_error_shows_valid_form() {
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
    fn a_limit_without_a_unit_is_refused() {
        for text in ["5", "0.5", " 5 "] {
            assert!(parse_time_with_unit(text).unwrap_err().contains("a unit is missing"), "{text}");
            assert!(format!("p99={text}").parse::<LatencyBound>().is_err(), "{text}");
        }
        assert_eq!(parse_time_with_unit("5us"), Ok(Nanos::new(5_000)));
        assert_eq!(parse_positive_time("5"), Ok(Nanos::from_secs(5)));
        assert!(parse_positive_time("0s").is_err());
    }

    #[test]
    fn reserved_vlans_and_empty_numbers_are_refused() {
        assert_eq!((parse_vlan_id("1"), parse_vlan_id("4094")), (Ok(1), Ok(4094)));
        assert!(["0", "4095", "5000", "x"].iter().all(|text| parse_vlan_id(text).is_err()));
        assert!(
            parse_positive_number::<u32>("0").is_err() && parse_positive_number::<u32>("4294967296").is_err()
        );
        assert_eq!(parse_positive_number::<u32>("1"), Ok(1));
        assert!(parse_port("http").unwrap_err().contains("65535"));
    }

    #[test]
    fn a_load_fits_the_link() {
        assert!(parse_load_rate("200%").unwrap_err().contains("100%") && parse_load_rate("0%").is_err());
        assert!(parse_load_rate("100%").is_ok() && parse_load_rate("0.1pps").is_ok());
    }

    #[test]
    fn a_server_has_a_host_and_a_port() {
        for right in ["nats1:4222", "192.0.2.1:4222", "[2001:db8::1]:4222"] {
            assert_eq!(parse_host_and_port(right).as_deref(), Ok(right));
        }
        for wrong in ["nats1", "nats1:99999", "nats1:0", ":4222", "a b:1", ""] {
            assert!(parse_host_and_port(wrong).is_err(), "{wrong}");
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

    #[test]
    fn days_have_a_unit_or_none() {
        assert_eq!((parse_days("30"), parse_days("7d"), parse_days("0")), (Ok(30), Ok(7), Ok(0)));
        assert!(parse_days("a week").is_err() && parse_days("-1").is_err());
    }
}
