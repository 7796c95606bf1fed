//! Follows each figure over many results.

use super::{BetterDirection, ReportFigure, figure_title};
use serde::Serialize;

/// The values of one figure in several results, and their median and extremes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FigureTrend {
    pub name: String,
    pub subject: String,
    pub unit: String,
    pub better: BetterDirection,
    /// The value of each result, from the oldest to the newest; absent if it is not known.
    pub values: Vec<Option<f64>>,
    /// The oldest known value.
    pub first: Option<f64>,
    /// The newest known value.
    pub last: Option<f64>,
    pub min: Option<f64>,
    pub median: Option<f64>,
    pub max: Option<f64>,
}

impl FigureTrend {
    /// Returns name and subject of the figure: `throughput of 64 B`.
    pub fn title(&self) -> String {
        figure_title(&self.name, &self.subject)
    }
}

/// Returns the trends of all figures of `results`, which are in the order from the oldest to the newest. The
/// figures have the order of the newest result that contains them.
pub fn compute_figure_trends(results: &[Vec<ReportFigure>]) -> Vec<FigureTrend> {
    let mut figures: Vec<&ReportFigure> = Vec::new();
    // The newest result comes first, because its order of figures is kept.
    for figure in results.iter().rev().flatten() {
        if !figures.iter().any(|known| known.is_same_figure_as(figure)) {
            figures.push(figure);
        }
    }
    figures.into_iter().map(|figure| figure_trend(figure, results)).collect()
}

fn figure_trend(figure: &ReportFigure, results: &[Vec<ReportFigure>]) -> FigureTrend {
    let value = |result: &Vec<ReportFigure>| {
        // Values with another unit cannot be compared, so they count as unknown.
        result
            .iter()
            .find(|other| other.is_same_figure_as(figure) && other.unit == figure.unit)
            .and_then(|found| found.value)
    };
    let values: Vec<Option<f64>> = results.iter().map(value).collect();
    let known: Vec<f64> = values.iter().flatten().copied().collect();
    let mut sorted = known.clone();
    sorted.sort_by(f64::total_cmp);
    FigureTrend {
        name: figure.name.clone(),
        subject: figure.subject.clone(),
        unit: figure.unit.clone(),
        better: figure.better,
        first: known.first().copied(),
        last: known.last().copied(),
        min: sorted.first().copied(),
        median: median_of_sorted(&sorted),
        max: sorted.last().copied(),
        values,
    }
}

/// Returns the median of sorted values; for an even number of values, the mean of the two middle ones.
fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get(sorted.len() / 2 - 1)?;
    Some(f64::midpoint(lower, upper))
}

/// Returns the median of each figure over `results` as a figure. The results are in the order from the
/// oldest to the newest.
pub fn compute_median_figures(results: &[Vec<ReportFigure>]) -> Vec<ReportFigure> {
    let medians = compute_figure_trends(results)
        .into_iter()
        .map(|trend| ReportFigure::new(trend.name, trend.subject, trend.median, trend.unit, trend.better));
    medians.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(name: &str, value: Option<f64>) -> ReportFigure {
        ReportFigure::new(name, "run", value, "frames/s", BetterDirection::Higher)
    }

    #[test]
    fn trend_keeps_known_values_and_their_median() {
        let of = |value| vec![figure("throughput", value)];
        let results = [
            of(Some(7.0)),
            of(None),
            vec![],
            of(Some(1.0)),
            vec![figure("k", Some(9.0)), figure("throughput", Some(4.0))],
        ];
        let [k, throughput] = &compute_figure_trends(&results)[..] else { panic!("two figures") };
        assert_eq!((k.values.len(), k.first, k.median), (5, Some(9.0), Some(9.0)));
        assert_eq!(throughput.values, [Some(7.0), None, None, Some(1.0), Some(4.0)]);
        let found = [throughput.first, throughput.last, throughput.min, throughput.median, throughput.max];
        assert_eq!(found, [7.0, 4.0, 1.0, 4.0, 7.0].map(Some));
    }

    #[test]
    fn even_count_median_lies_between_middle_two() {
        assert_eq!(
            (median_of_sorted(&[]), median_of_sorted(&[3.0]), median_of_sorted(&[1.0, 2.0, 4.0, 9.0])),
            (None, Some(3.0), Some(3.0))
        );
        let [median] =
            &compute_median_figures(&[vec![figure("k", Some(1.0))], vec![figure("k", Some(2.0))]])[..]
        else {
            panic!("one figure")
        };
        assert_eq!((median.value, median.uncertainty), (Some(1.5), None));
    }
}
