//! Parsers for option values that commands of several programs accept: times, numbers, ports, listen addresses.

use packetrig_units::Nanos;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// Parses a time that must not be zero, such as the length of a run.
pub fn parse_positive_time(text: &str) -> Result<Nanos, String> {
    match text.parse::<Nanos>() {
        Ok(Nanos::ZERO) => Err("the time must be longer than zero".into()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a whole number of at least 1, and at most the largest value of `T`.
pub fn parse_positive_number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let number: Option<u64> = text.parse().ok().filter(|number| *number > 0);
    let number = number.ok_or("must be a whole number of at least 1")?;
    let most = u64::MAX >> (u64::BITS as usize - 8 * size_of::<T>());
    T::try_from(number).map_err(|_| format!("must be at most {most}"))
}

/// Parses a port number. Zero is accepted, because some options give it a meaning.
pub fn parse_port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "a port must be a number from 0 to 65535".into())
}

/// Address to listen on; a port alone means 127.0.0.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenArg(pub SocketAddr);

impl FromStr for ListenArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A port without an address means 127.0.0.1, so that the network can read counters only if the user names an
        // address. `:9100` is accepted, because many programs write a port without an address in this way.
        let port = text.trim_start_matches(':').parse::<u16>().ok();
        let address = port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let address = address.or_else(|| text.parse().ok());
        address
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a valid listen address; write 9100 or 0.0.0.0:9100"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_out_of_range_is_refused_with_its_bound() {
        assert_eq!(parse_positive_number::<u8>("255"), Ok(255));
        assert_eq!(parse_positive_number::<u8>("300"), Err("must be at most 255".into()));
        assert_eq!(parse_positive_number::<u64>("18446744073709551615"), Ok(u64::MAX));
        for text in ["0", "-1", "many", "1.5"] {
            assert_eq!(
                parse_positive_number::<u16>(text),
                Err("must be a whole number of at least 1".into())
            );
        }
    }

    #[test]
    fn a_port_alone_is_one_of_this_machine() {
        assert_eq!("9100".parse::<ListenArg>().unwrap().0.to_string(), "127.0.0.1:9100");
        assert_eq!(":9100".parse::<ListenArg>().unwrap().0.to_string(), "127.0.0.1:9100");
        assert_eq!("0.0.0.0:9".parse::<ListenArg>().unwrap().0.to_string(), "0.0.0.0:9");
        assert!("everywhere".parse::<ListenArg>().is_err());
    }
}
