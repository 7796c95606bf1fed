//! Ids of runs, random numbers, the user's name, and times as text.

use jiff::Timestamp;
use std::hash::{BuildHasher, RandomState};

/// Returns a random number that cannot be guessed and is very unlikely to repeat.
pub fn random_number() -> u64 {
    // The standard library seeds its hashers from the random source of the kernel, and changes the seed for each hasher.
    RandomState::new().hash_one("packetrig")
}

/// Returns the name of the user who started this program.
pub fn read_user_name() -> String {
    // POSIX defines LOGNAME, and most systems also set USER. A service may have neither.
    let named = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    named.filter(|name| !name.is_empty()).unwrap_or_else(packetrig_sys::sandbox::own_user_name)
}

/// Returns a random seed that is short enough to type.
pub fn random_seed() -> u64 {
    // Programs that read JSON numbers as floats are exact up to 53 bits.
    random_number() & 0xffff_ffff
}

/// Returns an id for a run, such as `20261121-081407-3fa9c1`. Ids sort by the time when the runs began.
pub fn run_id(wall_clock_ns: u64, random: u64) -> String {
    // The time comes first, so that names sort by it. 24 random bits distinguish runs that began in the same second.
    let date = utc_timestamp(wall_clock_ns).strftime("%Y%m%d-%H%M%S");
    format!("{date}-{:06x}", random & 0xff_ffff)
}

/// Formats date and time for people, UTC: `2026-11-22 08:14:07`.
pub fn format_utc_date_time(wall_clock_ns: u64) -> String {
    utc_timestamp(wall_clock_ns).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Formats a time for programs, UTC, to the microsecond: `2026-11-22T08:14:07.123456Z`.
pub fn format_utc_instant(wall_clock_ns: u64) -> String {
    utc_timestamp(wall_clock_ns).strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Returns today's date, UTC: `2026-11-22`.
pub fn format_utc_today() -> String {
    utc_timestamp(packetrig_sys::clock::wall_clock_ns()).strftime("%Y-%m-%d").to_string()
}

fn utc_timestamp(wall_clock_ns: u64) -> Timestamp {
    // jiff's range contains every `u64` of nanoseconds, so `Timestamp::MAX` is never used.
    Timestamp::from_nanosecond(i128::from(wall_clock_ns)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ids_sort_by_time_and_are_unique() {
        let second = 1_000_000_000;
        assert_eq!(run_id(0, 0xabc), "19700101-000000-000abc");
        assert!(run_id(5 * second, u64::MAX) < run_id(6 * second, 0));
        assert_ne!(run_id(5 * second, 1), run_id(5 * second, 2));
        assert!(!run_id(u64::MAX, 0).is_empty());
    }

    #[test]
    fn entropy_does_not_repeat() {
        assert_ne!(random_number(), random_number());
    }
}
