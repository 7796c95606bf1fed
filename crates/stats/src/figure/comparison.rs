//! Compares the figures of two results, and judges whether the later ones are worse than allowed.

use super::{
    AllowedChange, BetterDirection, FigureLimits, ReportFigure, figure_title, format_figure_value,
    format_signed_percent,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The change of a figure between two results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FigureChange {
    Better,
    Worse,
    /// The values are equal, or their difference is at most the sum of their uncertainties.
    Same,
    /// The value changed, but neither higher nor lower values are better.
    Different,
    /// One of the two values is not known, or the values have different units.
    Unknown,
    /// Only the later result has the figure.
    New,
}

impl FigureChange {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "same",
            Self::Different => "different",
            Self::Unknown => "unknown",
            Self::New => "new",
        }
    }
}

/// Whether the change of a figure stays within its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum FigureVerdict {
    Pass,
    /// A value is not known, or the figure exceeds its limit by no more than the uncertainty of the difference.
    Unknown,
    Fail,
}

impl FigureVerdict {
    /// Returns the word that users see. Programs read the serialised form: `UNKNOWN`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Unknown => "INCONCLUSIVE",
            Self::Fail => "FAIL",
        }
    }
}

impl fmt::Display for FigureVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// The comparison of one figure in two results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedFigure {
    pub name: String,
    pub subject: String,
    pub unit: String,
    pub better: BetterDirection,
    /// Value in the earlier result; absent if it is not known.
    pub before: Option<f64>,
    /// Value in the later result; absent if it is not known.
    pub after: Option<f64>,
    /// `after` minus `before`; absent if a value is not known or the units differ.
    pub difference: Option<f64>,
    /// The difference in percent of the absolute value of `before`; absent if `before` is zero,
    /// or without a difference.
    pub percent: Option<f64>,
    /// Error bound of the difference; absent if neither value has one.
    pub uncertainty: Option<f64>,
    pub change: FigureChange,
    /// The limit: by how much the figure may become worse; absent if the figure is not judged.
    pub limit: Option<String>,
    /// The verdict on the limit; absent if the figure is not judged.
    pub verdict: Option<FigureVerdict>,
}

impl ComparedFigure {
    /// Returns name and subject of the figure: `throughput of 64 B`.
    pub fn title(&self) -> String {
        figure_title(&self.name, &self.subject)
    }

    /// Explains, with the numbers, why the verdict is not PASS; `None` if it is PASS or if the figure is not judged.
    pub fn reason(&self) -> Option<String> {
        let verdict = self.verdict.filter(|verdict| *verdict != FigureVerdict::Pass)?;
        let words = |value: Option<f64>| {
            value.map_or_else(|| "unknown".to_owned(), |value| format_figure_value(value, &self.unit))
        };
        let percent = self.percent.map(|percent| format!(" ({})", format_signed_percent(percent)));
        let limit = self.limit.as_ref().map(|limit| format!("; at most {limit} worse is allowed"));
        let is_doubtful = verdict == FigureVerdict::Unknown && self.difference.is_some();
        let doubt = self.uncertainty.filter(|_| is_doubtful);
        let doubt = doubt.map(|doubt| {
            format!("; the difference may be wrong by {}", format_figure_value(doubt, &self.unit))
        });
        let first = format!("{}: {} before, {} now", self.title(), words(self.before), words(self.after));
        Some([Some(first), percent, limit, doubt].into_iter().flatten().collect())
    }
}

/// The comparison of all figures of two results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FigureComparison {
    /// The figures in the order of the earlier result, followed by the figures that only the later result has.
    pub figures: Vec<ComparedFigure>,
    /// Names of the figures that have a limit of their own and that neither result has.
    pub missing: Vec<String>,
    /// The worst verdict of all figures, where a missing figure counts as INCONCLUSIVE; PASS if no limit applies.
    pub verdict: FigureVerdict,
}

/// Compares the figures of two results, and judges each figure that has a limit.
pub fn compare_figures(
    before: &[ReportFigure],
    after: &[ReportFigure],
    limits: &FigureLimits,
) -> FigureComparison {
    let later = |figure: &ReportFigure| after.iter().find(|other| other.is_same_figure_as(figure));
    let in_both = before.iter().map(|figure| compare_figure(Some(figure), later(figure), limits));
    // Figures that only the later result has are listed, too, so that no figure is left out.
    let only_later =
        after.iter().filter(|figure| !before.iter().any(|other| other.is_same_figure_as(figure)));
    let only_later = only_later.map(|figure| compare_figure(None, Some(figure), limits));
    let figures: Vec<ComparedFigure> = in_both.chain(only_later).flatten().collect();
    let mut missing: Vec<String> = Vec::new();
    for name in limits.figures_with_own_limit() {
        let is_known =
            figures.iter().any(|figure| figure.name == name) || missing.iter().any(|known| known == name);
        if !is_known {
            missing.push(name.to_owned());
        }
    }
    // If a limit names a figure and the figure is missing, the comparison must not pass.
    let of_missing = (!missing.is_empty()).then_some(FigureVerdict::Unknown);
    let verdicts = figures.iter().filter_map(|figure| figure.verdict).chain(of_missing);
    // The worst verdict counts. The variants of the type are in the order from best to worst.
    let verdict = verdicts.max().unwrap_or(FigureVerdict::Pass);
    FigureComparison { figures, missing, verdict }
}

/// Compares one figure; `None` if neither result has it.
fn compare_figure(
    before: Option<&ReportFigure>,
    after: Option<&ReportFigure>,
    limits: &FigureLimits,
) -> Option<ComparedFigure> {
    let figure = after.or(before)?;
    let is_one_unit = before.is_none_or(|before| before.unit == figure.unit);
    let from = before.and_then(|figure| figure.value);
    let to = after.and_then(|figure| figure.value);
    // Values with different units cannot be subtracted.
    let difference = from.zip(to).filter(|_| is_one_unit).map(|(from, to)| to - from);
    let uncertainty = sum_uncertainties(before, after);
    let allowed = limits.allowed_change_for(figure);
    let worse = difference.map(|difference| compute_worsening(figure.better, difference));
    // The common limit does not apply to a figure that only the later result has: a newer version of
    // packetrig may have added it.
    let is_judged = before.is_some() || limits.figures_with_own_limit().any(|name| name == figure.name);
    let verdict = allowed
        .filter(|_| is_judged)
        .map(|allowed| judge_change(allowed, from, worse, uncertainty.unwrap_or(0.0), &figure.unit));
    Some(ComparedFigure {
        name: figure.name.clone(),
        subject: figure.subject.clone(),
        unit: figure.unit.clone(),
        better: figure.better,
        before: from,
        after: to,
        difference,
        percent: difference
            .zip(from)
            // A difference in percent of 0 is not defined.
            .filter(|(_, from)| from.abs() > 0.0)
            .map(|(by, from)| by * 100.0 / from.abs()),
        uncertainty,
        change: classify_change(before.is_none(), figure.better, difference, uncertainty.unwrap_or(0.0)),
        limit: verdict.and(allowed).map(|allowed| allowed.describe_allowed_change(&figure.unit)),
        verdict,
    })
}

/// Returns the sum of both uncertainties, because the errors of two measurements may have opposite signs.
fn sum_uncertainties(before: Option<&ReportFigure>, after: Option<&ReportFigure>) -> Option<f64> {
    let doubts = [before, after].into_iter().flatten().filter_map(|figure| figure.uncertainty);
    doubts.reduce(|sum, doubt| sum + doubt)
}

/// Returns by how much a difference makes a figure worse; negative if it makes the figure better. For
/// [`BetterDirection::Neither`], every change counts as worse.
fn compute_worsening(better: BetterDirection, difference: f64) -> f64 {
    match better {
        BetterDirection::Higher => -difference,
        BetterDirection::Lower => difference,
        BetterDirection::Neither => difference.abs(),
    }
}

/// Judges a change. The verdict is FAIL only if the excess over the limit is larger than the uncertainty.
fn judge_change(
    allowed: AllowedChange,
    before: Option<f64>,
    worse: Option<f64>,
    doubt: f64,
    unit: &str,
) -> FigureVerdict {
    let limit = before.and_then(|before| allowed.allowed_amount(before, unit));
    match worse.zip(limit) {
        None => FigureVerdict::Unknown,
        // Decision 0032: a value within the limit passes, even if the uncertainty is larger than the limit.
        // Otherwise a result would not pass a comparison with itself.
        Some((worse, limit)) if worse <= limit => FigureVerdict::Pass,
        Some((worse, limit)) if worse - doubt <= limit => FigureVerdict::Unknown,
        Some(_) => FigureVerdict::Fail,
    }
}

fn classify_change(
    is_new: bool,
    better: BetterDirection,
    difference: Option<f64>,
    doubt: f64,
) -> FigureChange {
    let Some(difference) = difference else {
        return if is_new { FigureChange::New } else { FigureChange::Unknown };
    };
    // A change within the uncertainty may be no change at all.
    if difference.abs() <= doubt {
        return FigureChange::Same;
    }
    match better {
        BetterDirection::Neither => FigureChange::Different,
        better if compute_worsening(better, difference) > 0.0 => FigureChange::Worse,
        _ => FigureChange::Better,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const THROUGHPUT: &str = "throughput";

    fn throughput(value: Option<f64>) -> ReportFigure {
        ReportFigure::new(THROUGHPUT, "64 B", value, "frames/s", BetterDirection::Higher)
    }

    fn loss(value: f64) -> ReportFigure {
        ReportFigure::new("loss", "run", Some(value), "%", BetterDirection::Lower)
    }

    fn limits(texts: &[&str]) -> FigureLimits {
        FigureLimits::new(texts.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn verdict(before: &ReportFigure, after: &ReportFigure, limit: &str) -> FigureVerdict {
        compare_figures(std::slice::from_ref(before), std::slice::from_ref(after), &limits(&[limit])).verdict
    }

    #[test]
    fn compared_figures_show_difference_and_change() {
        let sent =
            |rate| ReportFigure::new("sent-rate", "run", Some(rate), "frames/s", BetterDirection::Neither);
        let before = [throughput(Some(1000.0)), loss(0.0), sent(9.0)];
        let after = [loss(0.5), throughput(Some(1100.0)), sent(8.0), loss(3.0)];
        let compared = compare_figures(&before, &after, &FigureLimits::default());
        let [first, second, third] = &compared.figures[..] else { panic!("{compared:?}") };
        assert_eq!(
            (first.difference, first.percent, first.change),
            (Some(100.0), Some(10.0), FigureChange::Better)
        );
        assert_eq!(
            (second.difference, second.percent, second.change),
            (Some(0.5), None, FigureChange::Worse)
        );
        assert_eq!((third.change, third.verdict), (FigureChange::Different, None));
        assert_eq!(compared.verdict, FigureVerdict::Pass, "nothing is judged");
    }

    #[test]
    fn change_worse_than_limit_fails() {
        let of = |value| throughput(Some(value));
        assert_eq!(verdict(&of(1000.0), &of(980.0), "2%"), FigureVerdict::Pass);
        assert_eq!(verdict(&of(1000.0), &of(979.0), "2%"), FigureVerdict::Fail);
        assert_eq!(verdict(&of(1000.0), &of(5000.0), "2%"), FigureVerdict::Pass, "better is never too much");
        assert_eq!(verdict(&of(1000.0), &of(990.0), "throughput=10"), FigureVerdict::Pass);
        assert_eq!(verdict(&of(1000.0), &of(989.0), "throughput=10"), FigureVerdict::Fail);
        assert_eq!(
            verdict(&loss(0.0), &loss(0.001), "5%"),
            FigureVerdict::Fail,
            "no share of nothing is allowed"
        );
        assert_eq!(verdict(&loss(0.0), &loss(0.001), "loss=0.01"), FigureVerdict::Pass);
    }

    #[test]
    fn difference_within_uncertainty_is_unknown() {
        let of = |value| throughput(Some(value)).with_uncertainty(Some(5.0));
        let compared = compare_figures(&[of(1000.0)], &[of(975.0)], &limits(&["2%"]));
        assert_eq!((compared.verdict, compared.figures[0].uncertainty), (FigureVerdict::Unknown, Some(10.0)));
        let reason = "throughput of 64 B: 1 000 frames/s before, 975 frames/s now (-2.5 %); at most 2% worse \
            is allowed; the difference may be wrong by 10 frames/s";
        assert_eq!(compared.figures[0].reason().as_deref(), Some(reason));
        assert_eq!(verdict(&of(1000.0), &of(969.0), "2%"), FigureVerdict::Fail);
        assert_eq!(
            compare_figures(&[of(1000.0)], &[of(991.0)], &limits(&[])).figures[0].change,
            FigureChange::Same
        );
    }

    #[test]
    fn missing_figure_is_unknown_and_new_one_unjudged() {
        let known = [throughput(Some(1000.0))];
        for after in [
            vec![],
            vec![throughput(None)],
            vec![ReportFigure { unit: "bit/s".into(), ..throughput(Some(1.0)) }],
        ] {
            let compared = compare_figures(&known, &after, &limits(&["2%"]));
            assert_eq!(
                (compared.verdict, compared.figures[0].change),
                (FigureVerdict::Unknown, FigureChange::Unknown)
            );
        }
        let compared = compare_figures(&[], &known, &limits(&["2%"]));
        assert_eq!((compared.verdict, compared.figures[0].change), (FigureVerdict::Pass, FigureChange::New));
        assert_eq!(compare_figures(&[], &known, &limits(&["throughput=2%"])).verdict, FigureVerdict::Unknown);
        let compared = compare_figures(&known, &known, &limits(&["thruput=2%"]));
        assert_eq!(
            (compared.missing, compared.verdict),
            (vec!["thruput".to_owned()], FigureVerdict::Unknown)
        );
        let compared = compare_figures(&known, &known, &limits(&["b=2%", "a=2%", "b=1%"]));
        assert_eq!(compared.missing, ["b", "a"]);
    }

    #[test]
    fn time_limit_applies_only_to_time_figures() {
        let latency =
            |value| ReportFigure::new("latency-p99", "s", Some(value), "ns", BetterDirection::Lower);
        assert_eq!(verdict(&latency(1000.0), &latency(21_000.0), "latency-p99=20us"), FigureVerdict::Pass);
        assert_eq!(verdict(&latency(1000.0), &latency(21_001.0), "latency-p99=20us"), FigureVerdict::Fail);
        assert_eq!(verdict(&loss(0.0), &loss(0.0), "loss=20us"), FigureVerdict::Unknown);
    }

    proptest! {
        #[test]
        fn doubt_never_causes_fail_nor_worse_value_pass(
            before in 1.0f64..1e6, after in 0.0f64..1e6, doubt in 0.0f64..1e3, more in 0.0f64..1e3, share in 0.0f64..50.0,
        ) {
            let limit = format!("{share}%");
            let of = |value, doubt| throughput(Some(value)).with_uncertainty(Some(doubt));
            let plain = verdict(&of(before, 0.0), &of(after, doubt), &limit);
            let doubtful = verdict(&of(before, 0.0), &of(after, doubt + more), &limit);
            prop_assert!(doubtful != FigureVerdict::Fail || plain == FigureVerdict::Fail);
            let worse = verdict(&of(before, 0.0), &of(after - more, doubt), &limit);
            prop_assert!(worse >= plain);
        }
    }
}
