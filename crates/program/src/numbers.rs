//! Formats numbers for people. Display only: exact counts are in the report's JSON.

use packetrig_units::Nanos;

/// Formats a count with its digits in threes: `1 234 567`.
pub fn format_count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Formats a signed count like [`format_count`].
pub fn format_signed(value: i64) -> String {
    format!("{}{}", if value < 0 { "-" } else { "" }, format_count(value.unsigned_abs()))
}

/// Formats a value with the prefix that leaves at most three digits before the point: `1.234 M`.
pub fn format_scaled(value: f64, unit: &str) -> String {
    // A value just below a limit can round up to `1000`, which is still right.
    let prefixes = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let fitting = prefixes.into_iter().find(|(scale, _)| value.abs() >= *scale);
    let (scale, prefix) = fitting.unwrap_or((1.0, ""));
    let number = format!("{:.3}", value / scale);
    let number = number.trim_end_matches('0').trim_end_matches('.');
    format!("{number} {prefix}{unit}").trim_end().to_owned()
}

/// Formats a value with at most three digits and the prefix that fits, for screens that change: `1.5 Mbit/s`.
pub fn format_short(value: f64, unit: &str) -> String {
    let prefixes = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    // 999.5 would be rounded to a number with a digit more.
    let fitting = prefixes.into_iter().find(|(scale, _)| value.abs() >= scale * 0.9995);
    let (scale, prefix) = fitting.unwrap_or((1.0, ""));
    format!("{} {prefix}{unit}", three_digits(value / scale)).trim_end().to_owned()
}

/// Formats a time in nanoseconds with at most three digits: `12.3 us`.
pub fn format_short_time(ns: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "us")];
    let fitting = units.into_iter().find(|(scale, _)| ns.abs() >= scale * 0.9995);
    let (scale, unit) = fitting.unwrap_or((1.0, "ns"));
    format!("{} {unit}", three_digits(ns / scale))
}

fn three_digits(value: f64) -> String {
    let places = match value.abs() {
        size if size >= 100.0 => return format!("{value:.0}"),
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.places$}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Events per second; zero if no time passed.
pub fn per_second(events: u64, length: Nanos) -> f64 {
    let seconds = length.as_secs_f64();
    if seconds > 0.0 { events as f64 / seconds } else { 0.0 }
}

/// Formats `part` of `whole` in percent. It is never rounded to 0 or 100 if it is not.
pub fn format_percent(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "0 %".into();
    }
    let percent = part as f64 * 100.0 / whole as f64;
    // Four decimals alone would round a small share to 0 % and a large one to 100 %.
    match percent {
        p if p < 0.0001 => "< 0.0001 %".into(),
        p if part < whole && p > 99.9999 => "> 99.9999 %".into(),
        p => {
            let text = format!("{p:.4}");
            format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
        }
    }
}

/// Formats a time, or a dash if there is none.
pub fn format_time(value: Option<Nanos>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_come_in_threes() {
        for (value, text) in
            [(0, "0"), (999, "999"), (1_000, "1 000"), (12_345, "12 345"), (1_234_567, "1 234 567")]
        {
            assert_eq!(format_count(value), text);
        }
        assert_eq!(format_signed(-1_234), "-1 234");
        assert_eq!(format_count(u64::MAX), "18 446 744 073 709 551 615");
    }

    #[test]
    fn prefixes_follow_size() {
        assert_eq!(format_scaled(0.0, "bit/s"), "0 bit/s");
        assert_eq!(format_scaled(999.0, "bit/s"), "999 bit/s");
        assert_eq!(format_scaled(1_234_567.0, "bit/s"), "1.235 Mbit/s");
        assert_eq!(format_scaled(200_000.0, ""), "200 k");
    }

    #[test]
    fn a_share_never_looks_like_none_or_all() {
        assert_eq!(format_percent(0, 10), "0 %");
        assert_eq!(format_percent(0, 0), "0 %");
        assert_eq!(format_percent(1, 10_000_000), "< 0.0001 %");
        assert_eq!(format_percent(9_999_999, 10_000_000), "> 99.9999 %");
        assert_eq!(format_percent(10, 10), "100 %");
        assert_eq!(format_percent(1, 3), "33.3333 %");
    }

    #[test]
    fn no_time_gives_no_rate() {
        assert!(per_second(5, Nanos::ZERO) < f64::EPSILON);
        assert!((per_second(5, Nanos::from_millis(500)) - 10.0).abs() < 1e-9);
    }
}
