//! Formats numbers as text for people. The page's script writes the same forms (`assets/report.js`).

use packetrig_units::Nanos;
pub use packetrig_units::number::format_decimals;
use packetrig_units::number::{NumberFormat, trim_trailing_zeros};

/// Narrow space that does not break: between groups of digits, and between a number and its unit.
const THIN_SPACE: char = '\u{202f}';

const NUMBER_FORM: NumberFormat = NumberFormat { space: THIN_SPACE };

/// A count with its digits in groups of three.
pub fn format_count(value: u64) -> String {
    NUMBER_FORM.format_count(value)
}

/// A number as text, with its digits in groups of three.
pub fn group_digits(number: &str) -> String {
    NUMBER_FORM.group_digits(number)
}

/// A count with its unit; the unit is plural unless the count is 1.
pub fn format_count_with_unit(value: u64, singular: &str) -> String {
    let ending = if value == 1 { "" } else { "s" };
    format!("{} {singular}{ending}", format_count(value))
}

/// A time in the largest unit that keeps the number at one or more, with at most three decimals.
pub fn format_time(value: Nanos) -> String {
    // The unit is chosen before rounding, so a value just below a limit can show as 1000 of the smaller unit.
    let (scale, unit) = match value.as_u64() {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    format!("{}{THIN_SPACE}{unit}", format_decimals(value.as_u64() as f64 / f64::from(scale), 3))
}

/// A signed time in nanoseconds, in the form of [`format_time`].
pub fn format_signed_time(ns: i64) -> String {
    let sign = if ns < 0 { "−" } else { "+" };
    format!("{sign}{}", format_time(Nanos::new(ns.unsigned_abs())))
}

/// A time that may be negative, such as a delay between two clocks, in the form of [`format_time`].
pub fn format_delay(ns: i64) -> String {
    let sign = if ns < 0 { "−" } else { "" };
    format!("{sign}{}", format_time(Nanos::new(ns.unsigned_abs())))
}

/// Like [`format_delay`], rounded to three digits, for small spaces.
pub fn format_short_delay(ns: i64) -> String {
    let digits = ns.unsigned_abs().checked_ilog10().unwrap_or(0);
    // The value is rounded to three digits first: `format_delay` alone would show up to six.
    let step = 10_i64.pow(digits.saturating_sub(2));
    let half = if ns < 0 { -(step / 2) } else { step / 2 };
    format_delay(ns.saturating_add(half) / step * step)
}

/// A rate in frames per second. `milli`: thousandths of a frame per second.
pub fn format_frame_rate(milli: u64) -> String {
    let whole = format_count(milli / 1000);
    let fraction = milli % 1000;
    // Decimals are shown only below 1000 frames/s. From there on, a thousandth is less than a millionth of the value.
    if milli >= 1_000_000 || fraction == 0 {
        return format!("{whole} frames/s");
    }
    let number = format!("{whole}.{fraction:03}");
    format!("{} frames/s", trim_trailing_zeros(&number))
}

/// A value with the unit prefix that leaves at most three digits before the decimal point.
pub fn format_scaled(value: f64, unit: &str) -> String {
    NUMBER_FORM.format_scaled(value, unit)
}

/// `part` of `whole` in percent, never rounded to 0 % or 100 % unless it is exactly that.
pub fn format_percent(part: u64, whole: u64) -> String {
    NUMBER_FORM.format_percent(part, whole)
}

/// Like [`format_percent`], with fewer digits if the part is large, for drawings.
pub fn format_short_percent(part: u64, whole: u64) -> String {
    let percent_of = part as f64 * 100.0 / whole.max(1) as f64;
    if part < whole && (1.0..99.99).contains(&percent_of) {
        return format!("{}{THIN_SPACE}%", format_decimals(percent_of, 2));
    }
    format_percent(part, whole)
}

/// Bytes with a decimal prefix.
pub fn format_bytes(value: u64) -> String {
    match value {
        0..10_000 => format!("{}{THIN_SPACE}B", format_count(value)),
        10_000..10_000_000 => format!("{}{THIN_SPACE}kB", format_decimals(value as f64 / 1e3, 1)),
        _ => format!("{}{THIN_SPACE}MB", format_decimals(value as f64 / 1e6, 1)),
    }
}

/// Nanoseconds since 1970 as a UTC time to the second, in the form of ISO 8601 that machines read; `None`
/// beyond the year 9999.
pub fn format_iso_utc(wall_ns: u64) -> Option<String> {
    Some(to_utc(wall_ns)?.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// Nanoseconds since 1970 as a UTC time to the second, for people.
pub fn format_utc(wall_ns: u64) -> String {
    to_utc(wall_ns).map_or_else(
        || "at an unknown time".to_owned(),
        |time| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
    )
}

fn to_utc(wall_ns: u64) -> Option<jiff::Zoned> {
    // The report may come from another program, so its times can be outside the range of the calendar.
    let timestamp = jiff::Timestamp::from_nanosecond(i128::from(wall_ns)).ok()?;
    Some(timestamp.to_zoned(jiff::tz::TimeZone::UTC))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// The page's script passes the same cases (`tests/tests/page`).
    #[test]
    fn numbers_are_formatted_as_in_page_script() {
        let cases: Value = serde_json::from_str(include_str!("../assets/number_cases.json")).unwrap();
        for case in cases["exact"].as_array().unwrap() {
            let number = case[1].as_u64().unwrap_or_default();
            let text = match case[0].as_str().unwrap() {
                "frames" => format_count(number),
                "time" => format_time(Nanos::new(number)),
                "rate" => format_frame_rate(number),
                "bits" => format_scaled(number as f64, "bit/s"),
                _ => {
                    let (part, whole) = case[1].as_str().unwrap().split_once('/').unwrap();
                    format_percent(part.parse().unwrap(), whole.parse().unwrap())
                }
            };
            assert_eq!(text, case[2].as_str().unwrap(), "{case}");
        }
    }

    #[test]
    fn formatted_numbers_have_units_and_stay_nonzero() {
        assert_eq!(format_count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(format_count_with_unit(1, "frame"), "1 frame");
        assert_eq!(format_time(Nanos::new(1_500)), "1.5\u{202f}µs");
        assert_eq!(format_signed_time(-20), "−20\u{202f}ns");
        assert_eq!(format_delay(-1_500), "−1.5\u{202f}µs");
        assert_eq!(format_short_delay(41_251), "41.3\u{202f}µs");
        assert_eq!(format_short_delay(-999_600), "−1\u{202f}ms");
        assert_eq!(
            [0, 7, i64::MIN].map(format_short_delay),
            ["0\u{202f}ns", "7\u{202f}ns", "−9220000000\u{202f}s"]
        );
        assert_eq!(format_frame_rate(999_500), "999.5 frames/s");
        assert_eq!(format_frame_rate(1_000_499), "1\u{202f}000 frames/s");
        assert_eq!(format_percent(3, 1_000_000_000), "<\u{202f}0.0001\u{202f}%");
        assert_eq!(format_percent(999_999_999, 1_000_000_000), ">\u{202f}99.9999\u{202f}%");
        assert_eq!(format_percent(0, 5), "0\u{202f}%");
        assert_eq!(format_scaled(12_345_678.0, "bit/s"), "12.346\u{202f}Mbit/s");
    }

    #[test]
    fn times_are_of_the_year_they_say() {
        assert_eq!(format_utc(1_700_000_000_000_000_000), "2023-11-14 22:13:20 UTC");
        assert_eq!(format_iso_utc(1_700_000_000_000_000_000).unwrap(), "2023-11-14T22:13:20Z");
    }
}
