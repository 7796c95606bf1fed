//! Arguments for times in the past, and their parsers. Times without an offset are UTC, like all
//! times that packetrig shows.

use clap::Args;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use packetrig_sys::clock;
use packetrig_units::Nanos;

const TIME_EXAMPLES: &str = "2026-11-21, 2026-11-21T13:00, 2026-11-21T13:00+01:00, today, yesterday or now";

/// Flags for the earliest time of the results to show; without a flag, all results are shown.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct SinceArgs {
    /// Leave out everything before this time: 2026-11-21, 2026-11-21T13:00, or yesterday; in UTC without an
    /// offset such as +01:00
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    since: Option<u64>,
    /// Leave out everything that is older than this, such as 90min, 24h or 7d
    #[arg(long, value_name = "TIME", value_parser = parse_age, conflicts_with = "since")]
    last: Option<Nanos>,
}

impl SinceArgs {
    /// Returns the earliest time in nanoseconds since 1970; 0 without a flag.
    pub(crate) fn since_ns(self) -> u64 {
        self.since.or_else(|| self.last.map(wall_time_before_now)).unwrap_or(0)
    }
}

/// Returns the time `age` before now, in nanoseconds since 1970.
pub(crate) fn wall_time_before_now(age: Nanos) -> u64 {
    clock::wall_clock_ns().saturating_sub(age.as_u64())
}

/// Parses a time and returns nanoseconds since 1970.
pub(crate) fn parse_moment(text: &str) -> Result<u64, String> {
    let now = i128::from(clock::wall_clock_ns());
    parse_moment_at(text, Timestamp::from_nanosecond(now).unwrap_or(Timestamp::UNIX_EPOCH))
        .ok_or_else(|| format!("`{text}` is not a date or time; write it like {TIME_EXAMPLES}"))
}

/// Returns `None` also for times that records cannot have: before 1970, or after the year 2554.
fn parse_moment_at(text: &str, now: Timestamp) -> Option<u64> {
    let midnight = now.to_zoned(TimeZone::UTC).start_of_day().ok()?;
    let time = match text {
        "now" => now,
        "today" => midnight.timestamp(),
        "yesterday" => midnight.checked_sub(1.day()).ok()?.timestamp(),
        // The format with an offset is tried first: the parser of civil times would ignore the offset.
        _ => match text.parse() {
            Ok(time) => time,
            Err(_) => text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp(),
        },
    };
    u64::try_from(time.as_nanosecond()).ok()
}

/// Parses how long ago something was: `90min`, `24h`, `7d`.
pub(crate) fn parse_age(text: &str) -> Result<Nanos, String> {
    const DAY: u64 = 86_400;
    let days = text.trim().strip_suffix('d').map(str::trim);
    let age = match days {
        // Options for a duration do not accept `d`. An age may have it, because ages are often many days.
        Some(days) => days.parse().ok().and_then(|days: u64| days.checked_mul(DAY)).map(Nanos::from_secs),
        // A number alone would mean seconds, but users hardly ever want only the last few seconds.
        None if text.trim().bytes().all(|byte| byte.is_ascii_digit()) => None,
        None => text.parse().ok(),
    };
    age.filter(|age| *age > Nanos::ZERO)
        .ok_or_else(|| format!("`{text}` is not an age; write it with its unit, like 7d, 24h or 90min"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn moments_are_utc_or_have_an_offset() {
        let now = Timestamp::from_nanosecond(i128::from(50 * HOUR)).unwrap();
        for (text, at) in [
            ("1970-01-01", 0),
            ("1970-01-02T00:00", 24 * HOUR),
            ("1970-01-01T00:00:01.5", 1_500_000_000),
            ("1970-01-01T00:00:01Z", 1_000_000_000),
            ("1970-01-02T03:00+02:00", 25 * HOUR),
            ("now", 50 * HOUR),
            ("today", 48 * HOUR),
            ("yesterday", 24 * HOUR),
        ] {
            assert_eq!(parse_moment_at(text, now), Some(at), "{text}");
        }
        for wrong in ["", "tomorrow", "1969-12-31", "2026-13-01", "13:00", "24h"] {
            assert_eq!(parse_moment_at(wrong, now), None, "{wrong}");
        }
    }

    #[test]
    fn age_has_days_too() {
        assert_eq!(parse_age("7d"), Ok(Nanos::from_secs(7 * 86_400)));
        assert_eq!(parse_age("90min"), Ok(Nanos::from_secs(5400)));
        for wrong in ["", "d", "0d", "-1d", "1w", "24", "18446744073709551615d"] {
            assert!(parse_age(wrong).is_err_and(|error| error.contains("7d")), "{wrong}");
        }
    }
}
