//! Formats values of figures for people.

use super::limit::TIME_UNIT;
use packetrig_units::Nanos;
use packetrig_units::number::{NumberFormat, format_decimals};

const NUMBER_FORM: NumberFormat = NumberFormat { space: ' ' };

/// Formats a value with its unit: `1 488 095 frames/s`, `12.5us`, `0.0031 %`.
pub fn format_figure_value(value: f64, unit: &str) -> String {
    if unit == TIME_UNIT {
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("{sign}{}", round_to_nanos(value.abs()));
    }
    let number = format_number(value);
    if unit.is_empty() { number } else { format!("{number} {unit}") }
}

/// Formats a difference with its sign and unit.
pub fn format_figure_difference(difference: f64, unit: &str) -> String {
    let plus = if difference > 0.0 { "+" } else { "" };
    format!("{plus}{}", format_figure_amount(difference, unit))
}

/// Formats the difference of two values. A difference of two percentages is given in points, because `5 %`
/// could be read as a share of the first percentage.
pub(super) fn format_figure_amount(amount: f64, unit: &str) -> String {
    format_figure_value(amount, if unit == "%" { "points" } else { unit })
}

/// Formats a percentage with its sign: `-2.5 %`.
pub fn format_signed_percent(percent: f64) -> String {
    let plus = if percent > 0.0 { "+" } else { "" };
    let number = if percent.abs() < 1000.0 {
        format_decimals(percent, 2)
    } else {
        NUMBER_FORM.group_digits(&format!("{percent:.0}"))
    };
    format!("{plus}{number} %")
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast saturates, and less than 1 ns is nothing"
)]
const fn round_to_nanos(value: f64) -> Nanos {
    Nanos::new(value.round() as u64)
}

fn format_number(value: f64) -> String {
    match value.abs() {
        // This includes -0, which would otherwise be shown with a sign.
        size if size < f64::MIN_POSITIVE => "0".to_owned(),
        // Exponential notation keeps a small loss distinguishable from none.
        size if size < 1e-4 => format!("{value:.3e}"),
        size if size < 1.0 => format_decimals(value, 6),
        size if size < 1000.0 => format_decimals(value, 3),
        _ => NUMBER_FORM.group_digits(&format!("{value:.0}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_with_their_units() {
        assert_eq!(format_figure_value(1_488_095.24, "frames/s"), "1 488 095 frames/s");
        assert_eq!(format_figure_value(-1234.0, ""), "-1 234");
        assert_eq!(format_figure_value(12.5, "%"), "12.5 %");
        assert_eq!(format_figure_value(0.003_1, "%"), "0.0031 %");
        assert_eq!(format_figure_value(0.000_001_2, "%"), "1.200e-6 %");
        assert_eq!(format_figure_value(0.0, "%"), "0 %");
        assert_eq!(format_figure_value(12_500.0, "ns"), Nanos::new(12_500).to_string());
        assert_eq!(format_figure_difference(-12_500.0, "ns"), format!("-{}", Nanos::new(12_500)));
        assert_eq!(format_figure_difference(10.0, "frames/s"), "+10 frames/s");
        assert_eq!(format_figure_difference(0.5, "%"), "+0.5 points");
        let percent = [-2.5, 0.0, 12_345.6].map(format_signed_percent);
        assert_eq!(percent, ["-2.5 %", "0 %", "+12 346 %"]);
    }
}
