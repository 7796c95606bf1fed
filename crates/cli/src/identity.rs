//! Names and numbers that make one run different from every other.

use jiff::Timestamp;
use std::hash::{BuildHasher, RandomState};

/// A number nobody can guess or repeat: the standard library seeds its hashers from the kernel's random source.
pub(crate) fn entropy() -> u64 {
    RandomState::new().hash_one("packetrig")
}

/// Who started this program, for people.
pub(crate) fn user_name() -> String {
    let named = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    named.filter(|name| !name.is_empty()).unwrap_or_else(packetrig_sys::sandbox::own_user_name)
}

/// A seed: short enough to type, and for readers of JSON whose numbers are floats.
pub(crate) fn seed() -> u64 {
    entropy() & 0xffff_ffff
}

/// An id that sorts by the time a run began: `20261121-081407-3fa9c1`.
pub(crate) fn run_id(wall_clock_ns: u64, random: u64) -> String {
    let date = timestamp(wall_clock_ns).strftime("%Y%m%d-%H%M%S");
    format!("{date}-{:06x}", random & 0xff_ffff)
}

/// Date and time for people, UTC.
pub(crate) fn date(wall_clock_ns: u64) -> String {
    timestamp(wall_clock_ns).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

fn timestamp(wall_clock_ns: u64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(wall_clock_ns)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_differ_within_a_second() {
        let second = 1_000_000_000;
        assert_eq!(run_id(0, 0xabc), "19700101-000000-000abc");
        assert!(run_id(5 * second, u64::MAX) < run_id(6 * second, 0));
        assert_ne!(run_id(5 * second, 1), run_id(5 * second, 2));
        assert!(!run_id(u64::MAX, 0).is_empty());
    }

    #[test]
    fn entropy_does_not_repeat() {
        assert_ne!(entropy(), entropy());
    }
}
