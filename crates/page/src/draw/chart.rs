//! Charts with axes: series over time, points, levels and bars.

use super::columns::SampleColumns;
use super::scale::{AxisScale, AxisTick};
use super::{FormattedText, format_coordinate};
use crate::markup::Markup;
use crate::quantity;
use packetrig_units::Nanos;

const CHART_WIDTH: f64 = 400.0;
const CHART_HEIGHT: f64 = 220.0;
const LEFT_MARGIN: f64 = 62.0;
const RIGHT_MARGIN: f64 = 14.0;
const TOP_MARGIN: f64 = 26.0;
const BOTTOM_MARGIN: f64 = 40.0;
const PLOT_WIDTH: f64 = CHART_WIDTH - LEFT_MARGIN - RIGHT_MARGIN;
const PLOT_HEIGHT: f64 = CHART_HEIGHT - TOP_MARGIN - BOTTOM_MARGIN;
/// Number of rows in which the names of marked values are written.
const VALUE_NAME_ROWS: usize = 6;

/// Maximum number of columns of a series. The plot is about this many SVG units wide.
pub const MAX_COLUMNS: usize = 320;

/// The quantity of an axis. Tick labels of times and percentages include the unit. Other units are in the axis name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisUnit {
    Seconds,
    /// Values are nanoseconds.
    Time,
    Frames,
    FramesPerSecond,
    Percent,
    Bytes,
    Number,
}

impl AxisUnit {
    pub(super) fn format_tick_value(self, value: f64) -> String {
        match self {
            Self::Time => quantity::format_time(round_to_nanos(value)),
            Self::Seconds => format!("{} s", quantity::format_decimals(value, 3)),
            Self::Percent => format!("{} %", quantity::format_decimals(value, 4)),
            Self::Frames | Self::FramesPerSecond | Self::Bytes | Self::Number => {
                quantity::format_scaled(value, "").trim_end().to_owned()
            }
        }
    }

    /// True if the quantity has only whole values, such as a number of frames.
    const fn has_only_whole_values(self) -> bool {
        matches!(self, Self::Frames | Self::Number)
    }

    /// The name of the unit in the page's script.
    const fn name(self) -> &'static str {
        match self {
            Self::Seconds => "s",
            Self::Time => "ns",
            Self::Frames => "frames",
            Self::FramesPerSecond => "frames/s",
            Self::Percent => "%",
            Self::Bytes => "B",
            Self::Number => "",
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "marks of an axis are positive and saturate"
)]
fn round_to_nanos(value: f64) -> Nanos {
    // Tick values are multiples of a float step, so they may lie just below the whole number: rounding corrects that.
    Nanos::new(value.round() as u64)
}

impl ChartAxis {
    fn choose_axis_ticks(&self, wanted: usize) -> Vec<AxisTick> {
        let mut ticks = self.scale.choose_round_ticks(wanted);
        if self.unit.has_only_whole_values() {
            // The tolerance accepts ticks that rounding errors moved away from a whole number.
            ticks.retain(|tick| (tick.value - tick.value.round()).abs() < 1e-6);
        }
        ticks
    }
}

/// An axis, such as `latency` with values in ns.
#[derive(Clone, Debug)]
pub struct ChartAxis {
    pub name: String,
    pub unit: AxisUnit,
    pub scale: AxisScale,
}

/// The meaning of a mark in a chart. Each meaning has its own shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkShape {
    /// No mark: only the line passes through the point.
    Hidden,
    /// A plain value.
    Dot,
    /// The device carried the load without loss: a ring.
    Carried,
    /// Frames were lost: a cross.
    Lost,
    /// The rig could not sustain the load: a square.
    Rig,
}

/// A point, with the text that is shown while a pointer rests on it.
#[derive(Clone, Debug)]
pub struct ChartPoint {
    pub x: f64,
    pub y: f64,
    pub shape: MarkShape,
    pub text: String,
}

/// A line of a chart. `style` is a number from 1 to 5 that selects a colour and a dash pattern.
#[derive(Clone, Debug)]
pub enum ChartLine {
    /// Values over time, one column after the other from 0.
    Series { name: String, style: usize, columns: SampleColumns },
    /// Points; if `is_joined`, joined in their order, as steps if `has_steps`.
    Points { style: usize, points: Vec<ChartPoint>, is_joined: bool, has_steps: bool },
    /// A constant: a requested value, or a limit.
    Level { name: String, style: usize, value: f64 },
}

/// A marked part of the x axis: an outage, a partial second.
#[derive(Clone, Debug)]
pub struct MarkedSpan {
    pub from: f64,
    pub until: f64,
    /// Text that is shown while a pointer rests on it.
    pub text: String,
    pub is_partial: bool,
}

/// A bar of a histogram: the frames from one value of the x axis to below another.
#[derive(Clone, Copy, Debug)]
pub struct HistogramBar {
    pub from: u64,
    pub below: u64,
    pub frames: u64,
}

/// A vertical line with a name at a value of x, such as a percentile.
#[derive(Clone, Debug)]
pub struct NamedValue {
    pub name: String,
    pub value: f64,
}

/// A chart with its axes, lines, bars and marks.
#[derive(Clone, Debug)]
pub struct Chart {
    /// A description of the chart for screen readers.
    pub description: String,
    pub x: ChartAxis,
    pub y: ChartAxis,
    pub lines: Vec<ChartLine>,
    pub spans: Vec<MarkedSpan>,
    pub bars: Vec<HistogramBar>,
    pub values: Vec<NamedValue>,
}

impl Chart {
    pub const fn new(description: String, x: ChartAxis, y: ChartAxis) -> Self {
        Self { description, x, y, lines: Vec::new(), spans: Vec::new(), bars: Vec::new(), values: Vec::new() }
    }

    /// Draws the chart. Series pass their values to the page's script.
    pub fn draw_chart(&self) -> Markup {
        let mut svg = Markup::new();
        let view = format!("0 0 {CHART_WIDTH} {CHART_HEIGHT}");
        let plot = format!("{LEFT_MARGIN} {TOP_MARGIN} {PLOT_WIDTH} {PLOT_HEIGHT}");
        // The script needs this length to find the second under the pointer.
        let seconds = format_coordinate(self.x.scale.high());
        let mut attributes = vec![
            ("class", "chart"),
            ("viewBox", view.as_str()),
            ("role", "img"),
            ("aria-label", self.description.as_str()),
        ];
        let has_bars = !self.bars.is_empty();
        let has_series = self.lines.iter().any(|line| matches!(line, ChartLine::Series { .. }));
        // The page's script shows values under the pointer only in charts with these attributes.
        if has_series || has_bars {
            attributes.extend([
                ("data-plot", plot.as_str()),
                ("data-seconds", &seconds),
                ("data-unit", self.y.unit.name()),
            ]);
        }
        // SVG has no z-index: later elements cover earlier ones. Spans are the background, values are on top.
        svg.open_element("svg", &attributes);
        self.spans.iter().for_each(|span| self.draw_span(&mut svg, span));
        self.draw_axes(&mut svg);
        self.draw_bars(&mut svg);
        self.lines.iter().for_each(|line| self.draw_line(&mut svg, line));
        self.draw_value_lines(&mut svg);
        svg.close_element("svg");
        svg
    }

    fn x_coordinate_of(&self, value: f64) -> f64 {
        LEFT_MARGIN + self.x.scale.position_of(value) * PLOT_WIDTH
    }

    fn y_coordinate_of(&self, value: f64) -> f64 {
        TOP_MARGIN + (1.0 - self.y.scale.position_of(value)) * PLOT_HEIGHT
    }

    fn draw_axes(&self, svg: &mut Markup) {
        let y_ticks = self.y.choose_axis_ticks(4);
        let x_ticks = self.choose_fitting_x_ticks();
        let mut grid = FormattedText::default();
        for tick in &y_ticks {
            let y = format_coordinate(TOP_MARGIN + (1.0 - tick.position) * PLOT_HEIGHT);
            grid.add_part(format_args!("M{LEFT_MARGIN} {y}h{PLOT_WIDTH}"));
        }
        svg.empty_element("path", &[("class", "grid"), ("d", grid.as_str())]);
        let base = TOP_MARGIN + PLOT_HEIGHT;
        let axis = format!("M{LEFT_MARGIN} {TOP_MARGIN}V{base}H{}", LEFT_MARGIN + PLOT_WIDTH);
        svg.empty_element("path", &[("class", "axis"), ("d", &axis)]);
        // Screen readers get the description of the chart, because single numbers of an axis would not help.
        svg.open_element("g", &[("class", "y-marks"), ("aria-hidden", "true")]);
        for tick in &y_ticks {
            let y = format_coordinate(TOP_MARGIN + (1.0 - tick.position) * PLOT_HEIGHT + 4.0);
            svg.add_element(
                "text",
                &[("x", &format_coordinate(LEFT_MARGIN - 6.0)), ("y", &y)],
                &self.y.unit.format_tick_value(tick.value),
            );
        }
        svg.close_element("g");
        svg.open_element("g", &[("class", "x-marks"), ("aria-hidden", "true")]);
        for tick in &x_ticks {
            let x = format_coordinate(LEFT_MARGIN + tick.position * PLOT_WIDTH);
            svg.add_element(
                "text",
                &[("x", &x), ("y", &format_coordinate(base + 16.0))],
                &self.x.unit.format_tick_value(tick.value),
            );
        }
        svg.close_element("g");
        svg.add_element("text", &[("class", "axis-name"), ("x", "2"), ("y", "13")], &self.y.name);
        let x = format_coordinate(LEFT_MARGIN + PLOT_WIDTH);
        let y = format_coordinate(CHART_HEIGHT - 5.0);
        svg.add_element("text", &[("class", "axis-name end"), ("x", &x), ("y", &y)], &self.x.name);
    }

    /// Returns as many ticks as fit without overlapping labels.
    fn choose_fitting_x_ticks(&self) -> Vec<AxisTick> {
        for wanted in [6, 5, 4, 3, 2] {
            let ticks = self.x.choose_axis_ticks(wanted);
            // A character of a mark is about 6.6 units wide.
            let needed = |tick: &AxisTick| {
                self.x.unit.format_tick_value(tick.value).chars().count() as f64 * 6.6 + 10.0
            };
            let fits = ticks.windows(2).all(|pair| {
                let room = (pair[1].position - pair[0].position) * PLOT_WIDTH;
                // Texts are centred at their marks, so half of each lies between the two.
                room >= needed(&pair[0]).midpoint(needed(&pair[1]))
            });
            if fits {
                return ticks;
            }
        }
        // On a short logarithmic axis, only the labels of the two ends fit.
        let ticks = self.x.choose_axis_ticks(2);
        ticks.first().into_iter().chain(ticks.last().filter(|_| ticks.len() > 1)).copied().collect()
    }

    fn draw_line(&self, svg: &mut Markup, line: &ChartLine) {
        match line {
            ChartLine::Series { name, style, columns } => self.draw_series(svg, name, *style, columns),
            ChartLine::Level { name, style, value } => {
                let path = format!(
                    "M{LEFT_MARGIN} {}h{PLOT_WIDTH}",
                    format_coordinate(self.y_coordinate_of(*value))
                );
                svg.open_element("path", &[("class", &format!("line line-{style} level")), ("d", &path)]);
                svg.add_element("title", &[], name).close_element("path");
            }
            ChartLine::Points { style, points, is_joined, has_steps } => {
                if *is_joined {
                    let path = self.build_line_path(points, *has_steps);
                    svg.empty_element(
                        "path",
                        &[("class", &format!("line line-{style}")), ("d", path.as_str())],
                    );
                }
                for point in points {
                    self.draw_mark(svg, *style, point);
                }
            }
        }
    }

    fn build_line_path(&self, points: &[ChartPoint], has_steps: bool) -> FormattedText {
        let mut path = FormattedText::default();
        for (index, point) in points.iter().enumerate() {
            let (x, y) = (
                format_coordinate(self.x_coordinate_of(point.x)),
                format_coordinate(self.y_coordinate_of(point.y)),
            );
            match (index, has_steps) {
                (0, _) => path.add_part(format_args!("M{x} {y}")),
                // The step is horizontal first, then vertical, because a bound holds until the trial that changes it.
                (_, true) => path.add_part(format_args!("H{x}V{y}")),
                (_, false) => path.add_part(format_args!("L{x} {y}")),
            }
        }
        path
    }

    fn draw_mark(&self, svg: &mut Markup, style: usize, point: &ChartPoint) {
        let (x, y) = (self.x_coordinate_of(point.x), self.y_coordinate_of(point.y));
        // Shapes differ, not only colours: the meaning must remain on paper and for readers who cannot distinguish
        // colours.
        let path = match point.shape {
            // These points only define the line. A mark here would look like a trial.
            MarkShape::Hidden => return,
            MarkShape::Dot => {
                format!(
                    "M{} {}a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0",
                    format_coordinate(x - 2.5),
                    format_coordinate(y)
                )
            }
            MarkShape::Carried => {
                format!(
                    "M{} {}a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
                    format_coordinate(x - 4.0),
                    format_coordinate(y)
                )
            }
            MarkShape::Lost => {
                format!("M{} {}l8 8m0-8l-8 8", format_coordinate(x - 4.0), format_coordinate(y - 4.0))
            }
            MarkShape::Rig => {
                format!("M{} {}h8v8h-8z", format_coordinate(x - 4.0), format_coordinate(y - 4.0))
            }
        };
        let shape = match point.shape {
            MarkShape::Hidden | MarkShape::Dot => "dot",
            MarkShape::Carried => "carried",
            MarkShape::Lost => "lost",
            MarkShape::Rig => "rig",
        };
        svg.open_element("path", &[("class", &format!("mark mark-{shape} line-{style}")), ("d", &path)]);
        svg.add_element("title", &[], &point.text).close_element("path");
    }

    /// Draws a step for each column; in a column with several values, a line up and down between its extremes.
    fn draw_series(&self, svg: &mut Markup, name: &str, style: usize, columns: &SampleColumns) {
        let width = columns.step as f64;
        let mut path = FormattedText::default();
        let mut is_down = false;
        let mut pen: Option<String> = None;
        for (index, column) in columns.values.iter().enumerate() {
            let Some(column) = column else {
                // A column without a value leaves a gap. A line across it would show values that nobody measured.
                pen = None;
                continue;
            };
            let x = format_coordinate(self.x_coordinate_of(index as f64 * width));
            let (low, high) = (
                format_coordinate(self.y_coordinate_of(column.low as f64)),
                format_coordinate(self.y_coordinate_of(column.high as f64)),
            );
            // The line is a zigzag: each column starts at the extreme at which the previous column ended.
            let (first, second) = if is_down { (&low, &high) } else { (&high, &low) };
            is_down = !is_down;
            match &pen {
                None => path.add_part(format_args!("M{x} {first}")),
                // A flat column at the same height adds nothing: the line is continued only when it turns or ends.
                Some(y) if y != first || first != second => path.add_part(format_args!("H{x}V{first}")),
                Some(_) => {}
            }
            if first != second {
                path.add_part(format_args!("V{second}"));
            }
            pen = Some(second.clone());
            // The line goes to the right edge of its last column: a single column would otherwise be a point
            // without a width.
            let is_last_of_run = columns.values.get(index + 1).is_none_or(Option::is_none);
            if is_last_of_run {
                let end = format_coordinate(self.x_coordinate_of((index + 1) as f64 * width));
                path.add_part(format_args!("H{end}"));
            }
        }
        let class = format!("line line-{style}");
        // The script reads these values and not the path, because coordinates in the path are rounded to a tenth.
        let low = columns.format_script_values(|column| column.low);
        let step = columns.step.to_string();
        let mut attributes = vec![
            ("class", class.as_str()),
            ("d", path.as_str()),
            ("data-name", name),
            ("data-step", &step),
            ("data-low", &low),
        ];
        let high = columns.format_script_values(|column| column.high);
        // Without `data-high`, the page's script uses `data-low` for both.
        if !columns.has_single_values() {
            attributes.push(("data-high", &high));
        }
        svg.empty_element("path", &attributes);
    }

    fn draw_span(&self, svg: &mut Markup, span: &MarkedSpan) {
        let x = self.x_coordinate_of(span.from);
        // The bar has a minimum width: an outage of a microsecond must be visible.
        let width = (self.x_coordinate_of(span.until) - x).max(1.5);
        let class = if span.is_partial { "partial" } else { "outage" };
        let (x, width) = (format_coordinate(x), format_coordinate(width));
        let (y, height) = (format_coordinate(TOP_MARGIN), format_coordinate(PLOT_HEIGHT));
        svg.open_element(
            "rect",
            &[("class", class), ("x", &x), ("y", &y), ("width", &width), ("height", &height)],
        );
        svg.add_element("title", &[], &span.text).close_element("rect");
        if !span.is_partial {
            // A mark above the plot, so that outages are not recognised by colour alone.
            let mark = format!("M{x} {}l-4-7h8z", format_coordinate(TOP_MARGIN));
            svg.empty_element("path", &[("class", "outage-mark"), ("d", &mark)]);
        }
    }

    /// Draws all bars as one path. The page's script finds the bar under the pointer by its position in the list.
    fn draw_bars(&self, svg: &mut Markup) {
        if self.bars.is_empty() {
            return;
        }
        let base = TOP_MARGIN + PLOT_HEIGHT;
        let mut path = FormattedText::default();
        let mut list = FormattedText::default();
        for (index, bar) in self.bars.iter().enumerate() {
            let (left, right) =
                (self.x_coordinate_of(bar.from as f64), self.x_coordinate_of(bar.below as f64));
            // The bar has a minimum height: a single frame must be visible where the axis begins.
            let height = (base - self.y_coordinate_of(bar.frames as f64)).max(1.0);
            // On an axis of many decades, a bucket would be too thin to see.
            let width = (right - left).max(0.8);
            let [x, height, width] = [left, height, width].map(format_coordinate);
            path.add_part(format_args!("M{x} {base}v-{height}h{width}v{height}z"));
            let comma = if index == 0 { "" } else { " " };
            list.add_part(format_args!("{comma}{},{},{}", bar.from, bar.below, bar.frames));
        }
        let ends = format!("{} {}", self.x.scale.low(), self.x.scale.high());
        svg.empty_element(
            "path",
            &[("class", "bar"), ("d", path.as_str()), ("data-bars", list.as_str()), ("data-ends", &ends)],
        );
    }

    fn draw_value_lines(&self, svg: &mut Markup) {
        // Names that would overlap go to the next row.
        let mut ends = [f64::MIN; VALUE_NAME_ROWS];
        for value in &self.values {
            let x = self.x_coordinate_of(value.value);
            let width = value.name.chars().count() as f64 * 6.4 + 6.0;
            // Near the right edge a name is written to the left of its line.
            // The drawing ends there, and text beyond its edge would be cut off.
            let is_at_end = x + width > CHART_WIDTH;
            let (from, until) = if is_at_end { (x - width, x) } else { (x, x + width) };
            // A name that fits into no row overlaps in the last one.
            let row = ends.iter().position(|end| *end < from).unwrap_or(VALUE_NAME_ROWS - 1);
            ends[row] = until;
            let path = format!("M{} {TOP_MARGIN}v{PLOT_HEIGHT}", format_coordinate(x));
            svg.empty_element("path", &[("class", "value-line"), ("d", &path)]);
            let class = if is_at_end { "value-name end" } else { "value-name" };
            let x = if is_at_end { x - 3.0 } else { x + 3.0 };
            let y = format_coordinate(TOP_MARGIN + 10.0 + row as f64 * 13.0);
            svg.add_element(
                "text",
                &[("class", class), ("x", &format_coordinate(x)), ("y", &y)],
                &value.name,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let axis =
            |name: &str, unit, high| ChartAxis { name: name.into(), unit, scale: AxisScale::from_zero(high) };
        Chart::new(
            "frames per second".into(),
            ChartAxis {
                name: "time".into(),
                unit: AxisUnit::Seconds,
                scale: AxisScale::from_bounds(0.0, 4.0),
            },
            axis("rate, frames/s", AxisUnit::FramesPerSecond, 1000.0),
        )
    }

    #[test]
    fn chart_series_has_steps_and_gaps() {
        let mut chart = chart();
        let columns = SampleColumns::from_samples(&[Some(1000), Some(1000), None, Some(0)], 10);
        chart.lines.push(ChartLine::Series { name: "sent".into(), style: 1, columns });
        let svg = chart.draw_chart().into_string();
        assert!(svg.contains("d=\"M62 26H224M305 180H386\""), "{svg}");
        assert!(svg.contains("data-low=\"1000*2 - 0\""), "{svg}");
    }

    #[test]
    fn column_extremes_are_drawn_and_listed() {
        let mut chart = chart();
        let columns = SampleColumns::from_samples(&[Some(0), Some(1000), Some(500), Some(500)], 2);
        chart.lines.push(ChartLine::Series { name: "sent".into(), style: 1, columns });
        let svg = chart.draw_chart().into_string();
        assert!(svg.contains("d=\"M62 26V180H224V103H386\""), "{svg}");
        assert!(svg.contains("data-low=\"0 500\"") && svg.contains("data-high=\"1000 500\""), "{svg}");
    }

    #[test]
    fn microsecond_outage_is_drawn_as_line() {
        let mut chart = chart();
        chart.spans.push(MarkedSpan {
            from: 1.0,
            until: 1.000_001,
            text: "1 frame".into(),
            is_partial: false,
        });
        assert!(chart.draw_chart().as_str().contains("width=\"1.5\""));
    }
}
