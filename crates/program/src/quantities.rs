//! Parsers for quantities that commands of several programs take.

use packetrig_units::Nanos;

/// Parses a time that must not be zero, such as the length of a run.
pub fn parse_positive_time(text: &str) -> Result<Nanos, String> {
    match text.parse::<Nanos>() {
        Ok(Nanos::ZERO) => Err("it must be longer than zero".into()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a whole number from 1.
pub fn parse_positive<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let number: Option<u64> = text.parse().ok().filter(|number| *number > 0);
    let number = number.and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| "write a whole number from 1".into())
}

/// Parses a port number. Zero is accepted, because some options give it a meaning.
pub fn parse_port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "not a port; write a number from 0 to 65535".into())
}
