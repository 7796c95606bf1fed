//! Limits on how much worse a figure may be: `5%`, `throughput=2%`, `latency-p99=20us`, `loss=0.1`, `latency-max=any`.

use super::words::format_figure_amount;
use super::{BetterDirection, ReportFigure};
use packetrig_units::Nanos;
use std::str::FromStr;

/// The unit of figures that are times.
pub(super) const TIME_UNIT: &str = "ns";

/// By how much a figure may become worse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AllowedChange {
    /// A share of the earlier value; 0.05 is 5 %.
    Share(f64),
    /// An amount in the unit of the figure.
    Amount(f64),
    /// A time, for figures that are times.
    Time(Nanos),
    /// The figure is not judged.
    Any,
}

/// A limit as the user writes it.
#[derive(Clone, Debug, PartialEq)]
pub struct FigureLimit {
    /// Name of the figure; `None` for a limit on all figures that no other limit names.
    pub figure: Option<String>,
    pub allowed: AllowedChange,
}

/// The text is not a valid limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a limit; write it like 5%, throughput=2%, latency-p99=20us, loss=0.1 or latency-max=any"
)]
pub struct InvalidFigureLimit(String);

impl FromStr for FigureLimit {
    type Err = InvalidFigureLimit;

    fn from_str(text: &str) -> Result<Self, InvalidFigureLimit> {
        let bad = || InvalidFigureLimit(text.to_owned());
        let (figure, allowed) = match text.split_once('=') {
            Some((name, _)) if name.trim().is_empty() => return Err(bad()),
            Some((name, allowed)) => (Some(name.trim().to_owned()), allowed.trim()),
            None => (None, text.trim()),
        };
        let allowed = parse_allowed_change(allowed).ok_or_else(bad)?;
        // Figures have different units, so one amount cannot apply to all of them.
        if figure.is_none() && !matches!(allowed, AllowedChange::Share(_)) {
            return Err(bad());
        }
        Ok(Self { figure, allowed })
    }
}

fn parse_allowed_change(text: &str) -> Option<AllowedChange> {
    if text == "any" {
        return Some(AllowedChange::Any);
    }
    if let Some(percent) = text.strip_suffix('%') {
        return Some(AllowedChange::Share(parse_limit_amount(percent)? / 100.0));
    }
    if text.parse::<f64>().is_ok() {
        return parse_limit_amount(text).map(AllowedChange::Amount);
    }
    // Plain numbers were handled above, so only texts with a unit of time are left.
    text.parse().ok().map(AllowedChange::Time)
}

/// Parses a number that is not negative: a negative limit would demand an improvement.
fn parse_limit_amount(text: &str) -> Option<f64> {
    let number: f64 = text.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

/// The limits of a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FigureLimits(Vec<FigureLimit>);

impl FigureLimits {
    /// Creates the limits. If a figure has several limits, the last one applies.
    pub const fn new(limits: Vec<FigureLimit>) -> Self {
        Self(limits)
    }

    /// Returns whether there is no limit at all.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the names of the figures with a limit of their own, except the limit `any`. The comparison
    /// does not pass if one of these figures is missing.
    pub(super) fn figures_with_own_limit(&self) -> impl Iterator<Item = &str> {
        let judged = self.0.iter().filter(|limit| limit.allowed != AllowedChange::Any);
        judged.filter_map(|limit| limit.figure.as_deref())
    }

    /// Returns the allowed change of a figure; `None` if it is not judged.
    pub(super) fn allowed_change_for(&self, figure: &ReportFigure) -> Option<AllowedChange> {
        // The search starts at the end, because the last of several limits applies.
        let own = self.0.iter().rev().find(|limit| limit.figure.as_deref() == Some(&figure.name));
        own.or_else(|| {
            let common = self.0.iter().rev().find(|limit| limit.figure.is_none());
            // A figure of which neither higher nor lower values are better is not subject to the common limit.
            common.filter(|_| figure.better != BetterDirection::Neither)
        })
        .map(|limit| limit.allowed)
        .filter(|allowed| *allowed != AllowedChange::Any)
    }
}

impl AllowedChange {
    /// Returns the limit as text for tables: `5%`, `0.1 points`, `20us`.
    pub fn describe_allowed_change(self, unit: &str) -> String {
        match self {
            // The number is rounded to three decimal places, because 0.07 * 100 gives 7.000000000000001.
            Self::Share(share) => format!("{}%", (share * 100_000.0).round() / 1000.0),
            Self::Amount(amount) => format_figure_amount(amount, unit),
            Self::Time(time) => time.to_string(),
            Self::Any => "any".to_owned(),
        }
    }

    /// Returns by how much a figure may become worse, in its unit; `None` if the limit is a time and the figure is not.
    pub(super) fn allowed_amount(self, before: f64, unit: &str) -> Option<f64> {
        match self {
            Self::Share(share) => Some(share * before.abs()),
            Self::Amount(amount) => Some(amount),
            Self::Time(time) => (unit == TIME_UNIT).then_some(time.as_u64() as f64),
            Self::Any => Some(f64::INFINITY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(text: &str) -> FigureLimit {
        text.parse().unwrap()
    }

    #[test]
    fn limits_are_read_as_people_write_them() {
        let named = |name: &str, allowed| FigureLimit { figure: Some(name.to_owned()), allowed };
        assert_eq!(limit("5%"), FigureLimit { figure: None, allowed: AllowedChange::Share(0.05) });
        assert_eq!(limit("throughput=2 %"), named("throughput", AllowedChange::Share(0.02)));
        assert_eq!(limit("loss = 0.1"), named("loss", AllowedChange::Amount(0.1)));
        assert_eq!(
            limit("latency-p99=20us"),
            named("latency-p99", AllowedChange::Time(Nanos::from_micros(20)))
        );
        assert_eq!(limit("latency-max=any"), named("latency-max", AllowedChange::Any));
        for wrong in
            ["", "5", "any", "20us", "=5%", "loss=", "loss=-1", "loss=soon", "-5%", "x%", "nan%", "inf%"]
        {
            let error = wrong.parse::<FigureLimit>().unwrap_err();
            assert!(error.to_string().contains("throughput=2%"), "{wrong}");
        }
    }

    #[test]
    fn limits_are_written_with_their_unit() {
        for text in ["5%", "0.07%", "7%", "12.5%"] {
            assert_eq!(limit(text).allowed.describe_allowed_change("ns"), text);
        }
        assert_eq!(limit("loss=0.1").allowed.describe_allowed_change("%"), "0.1 points");
        assert_eq!(limit("throughput=1500").allowed.describe_allowed_change("frames/s"), "1 500 frames/s");
        assert_eq!(
            limit("latency-p99=20us").allowed.describe_allowed_change("ns"),
            Nanos::from_micros(20).to_string()
        );
    }

    #[test]
    fn figure_specific_limit_overrides_common_one() {
        let limits = FigureLimits::new(["5%", "loss=1", "jitter=any", "loss=2"].map(limit).to_vec());
        let of =
            |name: &str, better| limits.allowed_change_for(&ReportFigure::new(name, "", None, "", better));
        assert_eq!(of("loss", BetterDirection::Lower), Some(AllowedChange::Amount(2.0)));
        assert_eq!(of("throughput", BetterDirection::Higher), Some(AllowedChange::Share(0.05)));
        assert_eq!(of("jitter", BetterDirection::Lower), None);
        assert_eq!(of("sent-rate", BetterDirection::Neither), None);
        assert_eq!(limits.figures_with_own_limit().collect::<Vec<_>>(), ["loss", "loss"]);
    }
}
