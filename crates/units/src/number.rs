//! Formats numbers for people: digits in groups of three, no trailing zeros, unit prefixes. For display only.

/// Format of numbers for display; only the space can be chosen.
#[derive(Clone, Copy, Debug)]
pub struct NumberFormat {
    /// Space between groups of digits, and before a unit.
    pub space: char,
}

impl NumberFormat {
    /// Formats a count with its digits in threes: `1 234 567`.
    pub fn format_count(self, value: u64) -> String {
        self.group_digits(&value.to_string())
    }

    /// Groups the digits before the decimal point of a number in threes.
    pub fn group_digits(self, number: &str) -> String {
        let digits = number.trim_start_matches('-');
        let whole = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let mut text = number[..number.len() - digits.len()].to_owned();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && index < whole && (whole - index).is_multiple_of(3) {
                text.push(self.space);
            }
            text.push(digit);
        }
        text
    }

    /// Formats a value with the largest of the prefixes k, M and G that does not exceed it: `1.234 M`.
    pub fn format_scaled(self, value: f64, unit: &str) -> String {
        // A value just below a limit can round up to `1000`, which is still right.
        let prefixes = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
        let fitting = prefixes.into_iter().find(|(scale, _)| value.abs() >= *scale);
        let (scale, prefix) = fitting.unwrap_or((1.0, ""));
        let number = format_decimals(value / scale, 3);
        format!("{number}{}{prefix}{unit}", self.space).trim_end().to_owned()
    }

    /// Formats `part` of `whole` in percent. A share that is not exactly 0 % or 100 % is never rounded to that.
    pub fn format_percent(self, part: u64, whole: u64) -> String {
        let space = self.space;
        if part == 0 || whole == 0 {
            return format!("0{space}%");
        }
        // Four decimals alone would round a small share to 0 % and a large one to 100 %.
        match part as f64 * 100.0 / whole as f64 {
            percent if percent < 0.0001 => format!("<{space}0.0001{space}%"),
            percent if part < whole && percent > 99.9999 => format!(">{space}99.9999{space}%"),
            percent => format!("{}{space}%", format_decimals(percent, 4)),
        }
    }
}

/// Formats a number with at most this many decimals, and no zeros at the end.
pub fn format_decimals(value: f64, decimals: usize) -> String {
    trim_trailing_zeros(&format!("{value:.decimals$}")).to_owned()
}

/// Removes trailing zeros after the decimal point, and the point itself if no digit is left after it.
pub fn trim_trailing_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: NumberFormat = NumberFormat { space: ' ' };

    #[test]
    fn digits_come_in_threes() {
        for (value, text) in
            [(0, "0"), (999, "999"), (1_000, "1 000"), (12_345, "12 345"), (1_234_567, "1 234 567")]
        {
            assert_eq!(FORM.format_count(value), text);
        }
        assert_eq!(FORM.format_count(u64::MAX), "18 446 744 073 709 551 615");
        let numbers = ["1488095.2415", "-3", "-1234.5678", "12"].map(|number| FORM.group_digits(number));
        assert_eq!(numbers, ["1 488 095.2415", "-3", "-1 234.5678", "12"]);
    }

    #[test]
    fn prefixes_follow_size() {
        assert_eq!(FORM.format_scaled(0.0, "bit/s"), "0 bit/s");
        assert_eq!(FORM.format_scaled(999.0, "bit/s"), "999 bit/s");
        assert_eq!(FORM.format_scaled(1_234_567.0, "bit/s"), "1.235 Mbit/s");
        assert_eq!(FORM.format_scaled(200_000.0, ""), "200 k");
        assert_eq!(format_decimals(100.0, 0), "100");
    }

    #[test]
    fn a_share_never_looks_like_none_or_all() {
        assert_eq!(FORM.format_percent(0, 10), "0 %");
        assert_eq!(FORM.format_percent(0, 0), "0 %");
        assert_eq!(FORM.format_percent(1, 10_000_000), "< 0.0001 %");
        assert_eq!(FORM.format_percent(9_999_999, 10_000_000), "> 99.9999 %");
        assert_eq!(FORM.format_percent(10, 10), "100 %");
        assert_eq!(FORM.format_percent(1, 3), "33.3333 %");
    }
}
