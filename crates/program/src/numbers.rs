//! Formats numbers for people. For display only: the JSON of a report has the exact counts.

use packetrig_units::Nanos;
use packetrig_units::number::{NumberFormat, format_decimals};

const NUMBER_FORM: NumberFormat = NumberFormat { space: ' ' };

/// Formats a count with its digits in threes: `1 234 567`.
pub fn format_count(value: u64) -> String {
    NUMBER_FORM.format_count(value)
}

/// Formats a count with the name of what is counted, which gets an `s` unless the count is 1: `1 file`, `1 234 files`.
pub fn format_count_with_unit(value: u64, singular: &str) -> String {
    format!("{} {singular}{}", format_count(value), if value == 1 { "" } else { "s" })
}

/// Formats a signed count like [`format_count`].
pub fn format_signed(value: i64) -> String {
    format!("{}{}", if value < 0 { "-" } else { "" }, format_count(value.unsigned_abs()))
}

/// Formats a value with the largest of the prefixes k, M and G that does not exceed it: `1.234 M`.
pub fn format_scaled(value: f64, unit: &str) -> String {
    NUMBER_FORM.format_scaled(value, unit)
}

/// Formats a value with a prefix and at most three digits, for screens that are updated: `1.5 Mbit/s`.
pub fn format_short(value: f64, unit: &str) -> String {
    let prefixes = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    // 999.5 would be rounded to 1000, which has four digits, so the next prefix begins there.
    let fitting = prefixes.into_iter().find(|(scale, _)| value.abs() >= scale * 0.9995);
    let (scale, prefix) = fitting.unwrap_or((1.0, ""));
    format!("{} {prefix}{unit}", format_three_digits(value / scale)).trim_end().to_owned()
}

/// Formats a time in nanoseconds with at most three digits: `12.3 us`.
pub fn format_short_time(ns: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "us")];
    let fitting = units.into_iter().find(|(scale, _)| ns.abs() >= scale * 0.9995);
    let (scale, unit) = fitting.unwrap_or((1.0, "ns"));
    format!("{} {unit}", format_three_digits(ns / scale))
}

fn format_three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format_decimals(value, decimals)
}

/// Returns the mean number of events per second; 0 for a duration of zero.
pub fn per_second(events: u64, length: Nanos) -> f64 {
    let seconds = length.as_secs_f64();
    if seconds > 0.0 { events as f64 / seconds } else { 0.0 }
}

/// Formats `part` of `whole` in percent. A share between 0 and 100 % is never rounded to 0 or 100.
pub fn format_percent(part: u64, whole: u64) -> String {
    NUMBER_FORM.format_percent(part, whole)
}

/// Formats a time, or a dash if there is none.
pub fn format_time_or_dash(value: Option<Nanos>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_counts_keep_their_sign() {
        assert_eq!(format_signed(-1_234), "-1 234");
    }

    #[test]
    fn no_time_gives_no_rate() {
        assert!(per_second(5, Nanos::ZERO) < f64::EPSILON);
        assert!((per_second(5, Nanos::from_millis(500)) - 10.0).abs() < 1e-9);
    }
}
