//! Times as ranges on one logarithmic axis: a row for each subject, from its smallest to its largest time.

use super::chart::AxisUnit;
use super::format_coordinate;
use super::scale::AxisScale;
use crate::markup::Markup;
use crate::quantity;
use packetrig_units::Nanos;

/// Times of one subject in nanoseconds, in ascending order. The smallest is above zero, because a logarithmic
/// axis has no zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeRange {
    pub name: String,
    pub min_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

const CHART_WIDTH: f64 = 400.0;
const LEFT_MARGIN: f64 = 118.0;
const RIGHT_MARGIN: f64 = 18.0;
const TOP_MARGIN: f64 = 6.0;
const ROW_HEIGHT: f64 = 18.0;
const BOTTOM_MARGIN: f64 = 22.0;
/// Characters of a name that fit on the left of the plot.
const MAX_NAME: usize = 17;
/// Minimum distance, in SVG units, between two marks of the axis that have a text.
const MIN_MARK_DISTANCE: f64 = 50.0;

/// Draws the ranges in their order. `description` is for readers who do not see the picture.
pub fn draw_ranges(description: &str, ranges: &[TimeRange]) -> Markup {
    let height = TOP_MARGIN + ranges.len() as f64 * ROW_HEIGHT + BOTTOM_MARGIN;
    let view = format!("0 0 {CHART_WIDTH} {}", format_coordinate(height));
    let low = ranges.iter().map(|range| range.min_ns).min().unwrap_or(1);
    let high = ranges.iter().map(|range| range.max_ns).max().unwrap_or(1);
    // The scale is logarithmic, because the times of the lines of one plan can differ by powers of ten.
    let scale = AxisScale::log_from_decades(low as f64, high as f64);
    let mut svg = Markup::new();
    svg.open_element(
        "svg",
        &[("class", "ranges"), ("viewBox", &view), ("role", "img"), ("aria-label", description)],
    );
    draw_axis(&mut svg, &scale, height - BOTTOM_MARGIN);
    for (row, range) in ranges.iter().enumerate() {
        draw_range(&mut svg, &scale, range, TOP_MARGIN + (row as f64 + 0.5) * ROW_HEIGHT);
    }
    svg.close_element("svg");
    svg
}

fn x_coordinate_of(scale: &AxisScale, value: f64) -> f64 {
    LEFT_MARGIN + scale.position_of(value) * (CHART_WIDTH - LEFT_MARGIN - RIGHT_MARGIN)
}

fn draw_axis(svg: &mut Markup, scale: &AxisScale, base: f64) {
    let ticks = scale.choose_round_ticks(5);
    svg.open_element("g", &[("class", "x-marks")]);
    let mut free_from = f64::NEG_INFINITY;
    for tick in &ticks {
        let x = x_coordinate_of(scale, tick.value);
        let line = format!("M{} {TOP_MARGIN}V{}", format_coordinate(x), format_coordinate(base));
        svg.empty_element("path", &[("class", "grid"), ("d", &line)]);
        // Marks that are too close to each other have a line but no text.
        if x >= free_from {
            let (x_text, y) = (format_coordinate(x), format_coordinate(base + 15.0));
            svg.add_element(
                "text",
                &[("x", &x_text), ("y", &y)],
                &AxisUnit::Time.format_tick_value(tick.value),
            );
            free_from = x + MIN_MARK_DISTANCE;
        }
    }
    svg.close_element("g");
}

fn draw_range(svg: &mut Markup, scale: &AxisScale, range: &TimeRange, y: f64) {
    let [min, p50, p99, max] = [range.min_ns, range.p50_ns, range.p99_ns, range.max_ns]
        .map(|value| format_coordinate(x_coordinate_of(scale, value as f64)));
    let line = format_coordinate(y);
    // SVG 1.1: the title must be the first child of its group, or some browsers do not show it.
    svg.open_element("g", &[]).add_element("title", &[], &range.describe_range());
    let (x, base) = (format_coordinate(LEFT_MARGIN - 8.0), format_coordinate(y + 4.0));
    svg.add_element("text", &[("class", "end"), ("x", &x), ("y", &base)], &shorten_name(&range.name));
    svg.empty_element("path", &[("class", "range-whole"), ("d", &format!("M{min} {line}H{max}"))]);
    svg.empty_element("path", &[("class", "range-upper"), ("d", &format!("M{p50} {line}H{p99}"))]);
    let median = format!("M{p50} {}v12", format_coordinate(y - 6.0));
    svg.empty_element("path", &[("class", "range-median"), ("d", &median)]).close_element("g");
}

impl TimeRange {
    fn describe_range(&self) -> String {
        let [min, p50, p99, max] = [self.min_ns, self.p50_ns, self.p99_ns, self.max_ns]
            .map(|value| quantity::format_time(Nanos::new(value)));
        format!("{}: min {min}, median {p50}, p99 {p99}, max {max}", self.name)
    }
}

/// Shortens a name that is too long. The title of its row has the whole name.
fn shorten_name(name: &str) -> String {
    if name.chars().count() <= MAX_NAME {
        return name.to_owned();
    }
    name.chars().take(MAX_NAME - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(name: &str, times: [u64; 4]) -> TimeRange {
        let [min_ns, p50_ns, p99_ns, max_ns] = times;
        TimeRange { name: name.into(), min_ns, p50_ns, p99_ns, max_ns }
    }

    #[test]
    fn time_range_is_drawn_at_its_axis_position() {
        let svg = draw_ranges("", &[range("a → b", [1_000, 10_000, 100_000, 1_000_000])]).into_string();
        // Three powers of ten on 264 units from 118 on.
        assert!(svg.contains("class=\"range-whole\" d=\"M118 15H382\""), "{svg}");
        assert!(svg.contains("class=\"range-upper\" d=\"M206 15H294\""), "{svg}");
        assert!(svg.contains("class=\"range-median\" d=\"M206 9v12\""), "{svg}");
        assert!(svg.contains("median 10\u{202f}µs, p99 100\u{202f}µs"), "{svg}");
    }

    #[test]
    fn range_row_is_small_and_truncates_long_name() {
        let name = "<b> of a long name → another long name";
        let one = draw_ranges("", &[range(name, [1, 2, 3, 4])]).into_string();
        assert!(one.contains("<title>&lt;b&gt; of a long name → another long name: min"), "{one}");
        assert!(one.contains(">&lt;b&gt; of a long na…</text>"), "{one}");
        let rows: Vec<TimeRange> = (0..2).map(|_| range(name, [1, 2, 3, 4])).collect();
        let added = draw_ranges("", &rows).as_str().len() - one.len();
        assert!(added < 600, "{added} bytes for a row");
    }
}
