//! Plots as SVG: grouped bars, boxes of quartiles, points over logarithmic axes, and named rows of them.

mod scatter;

pub use scatter::scatter;

use crate::Quartiles;
use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 90.0;
const BOTTOM: f64 = 60.0;
const TOP: f64 = 60.0;
const RIGHT: f64 = 30.0;
/// Of rows with names: the room for these, and from one to the next.
const NAMES: f64 = 270.0;
const STEP: f64 = 17.0;
const COLOURS: [&str; 5] = ["#1b6ca8", "#d98e04", "#5a8f29", "#8a4f9e", "#6b6b6b"];

/// Titles of a plot and of its axes.
#[derive(Clone, Copy, Debug)]
pub struct Titles<'a> {
    /// Of the plot.
    pub plot: &'a str,
    /// Of the horizontal axis.
    pub x: &'a str,
    /// Of the vertical axis.
    pub y: &'a str,
}

struct Canvas {
    body: String,
    y_top: f64,
}

impl Canvas {
    /// Titles alone.
    fn with_titles(titles: Titles<'_>, y_top: f64) -> Self {
        let mut canvas = Self { body: String::new(), y_top };
        canvas.text((WIDTH / 2.0, 24.0), "middle", titles.plot);
        canvas.text(((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12.0), "middle", titles.x);
        canvas.push(format!(
            "<text transform='translate(20,{}) rotate(-90)' text-anchor='middle'>{}</text>",
            HEIGHT / 2.0,
            escape(titles.y)
        ));
        canvas
    }

    /// Titles, and lines of a vertical axis from 0.
    fn new(titles: Titles<'_>, y_top: f64) -> Self {
        let mut canvas = Self::with_titles(titles, y_top);
        for step in 0..=5u8 {
            let value = canvas.y_top * f64::from(step) / 5.0;
            let y = canvas.y(value);
            canvas.push(format!(
                "<line x1='{LEFT}' y1='{y:.1}' x2='{}' y2='{y:.1}' stroke='#ddd'/>",
                WIDTH - RIGHT
            ));
            canvas.text((LEFT - 8.0, y + 4.0), "end", &short(value));
        }
        canvas
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value / self.y_top)
    }

    fn push(&mut self, element: String) {
        self.body.push_str(&element);
        self.body.push('\n');
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: &str, text: &str) {
        self.push(format!("<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'>{}</text>", escape(text)));
    }

    fn quartiles(&mut self, x: f64, width: f64, of: &Quartiles, colour: &str) {
        let [least, first, median, third, most] =
            [of.least, of.first, of.median, of.third, of.most].map(|value| self.y(value));
        let middle = x + width / 2.0;
        self.push(format!(
            "<line x1='{middle:.1}' y1='{most:.1}' x2='{middle:.1}' y2='{least:.1}' stroke='{colour}'/>"
        ));
        self.push(format!(
            "<rect x='{x:.1}' y='{third:.1}' width='{width:.1}' height='{:.1}' fill='white' stroke='{colour}'/>",
            first - third
        ));
        self.push(format!(
            "<line x1='{x:.1}' y1='{median:.1}' x2='{:.1}' y2='{median:.1}' stroke='{colour}' stroke-width='2'/>",
            x + width
        ));
    }

    fn legend(&mut self, names: &[&str]) {
        for (index, name) in (0u8..).zip(names) {
            let x = LEFT + (WIDTH - LEFT - RIGHT) / COLOURS.len() as f64 * f64::from(index);
            self.push(format!("<rect x='{x}' y='36' width='12' height='12' fill='{}'/>", colour(index)));
            self.text((x + 18.0, 47.0), "start", name);
        }
    }

    fn finish(self, height: f64) -> String {
        format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' font-family='sans-serif' \
             font-size='13'>\n<rect width='100%' height='100%' fill='white'/>\n{}</svg>\n",
            self.body
        )
    }
}

/// Bars in groups: one group per label, one bar per name.
pub fn bars(titles: Titles<'_>, names: &[&str], groups: &[(String, Vec<f64>)]) -> String {
    let mut canvas = Canvas::new(titles, ceiling(groups.iter().flat_map(|(_, values)| values)));
    canvas.legend(names);
    let room = (WIDTH - LEFT - RIGHT) / count(groups.len());
    let bar = room * 0.8 / count(names.len());
    for (group, (label, values)) in groups.iter().enumerate() {
        let start = LEFT + room * (count(group) + 0.1);
        canvas.text((start + room * 0.4, HEIGHT - BOTTOM + 20.0), "middle", label);
        for (index, value) in (0u8..).zip(values) {
            let (x, y) = (start + bar * f64::from(index), canvas.y(*value));
            let height = HEIGHT - BOTTOM - y;
            canvas.push(format!(
                "<rect x='{x:.1}' y='{y:.1}' width='{:.1}' height='{height:.1}' fill='{}'/>",
                bar * 0.92,
                colour(index)
            ));
            canvas.text((x + bar * 0.46, y - 5.0), "middle", &short(*value));
        }
    }
    canvas.finish(HEIGHT)
}

/// Box plots in groups: one group per label, one box per name. A box is from the first to the third quartile with a line at the
/// median; its whiskers reach to the least and the greatest figure.
pub fn boxes(titles: Titles<'_>, names: &[&str], groups: &[(String, Vec<Option<Quartiles>>)]) -> String {
    let greatest: Vec<f64> =
        groups.iter().flat_map(|(_, boxes)| boxes.iter().flatten().map(|b| b.most)).collect();
    let mut canvas = Canvas::new(titles, ceiling(greatest.iter()));
    canvas.legend(names);
    let room = (WIDTH - LEFT - RIGHT) / count(groups.len());
    let width = room * 0.8 / count(names.len());
    for (group, (label, boxes)) in groups.iter().enumerate() {
        let start = LEFT + room * (count(group) + 0.1);
        canvas.text((start + room * 0.4, HEIGHT - BOTTOM + 20.0), "middle", label);
        for (index, quartiles) in (0u8..).zip(boxes) {
            if let Some(quartiles) = quartiles {
                canvas.quartiles(start + width * f64::from(index), width * 0.8, quartiles, colour(index));
            }
        }
    }
    canvas.finish(HEIGHT)
}

/// Points (x, y) joined by a line, x on a logarithmic axis.
pub fn points(titles: Titles<'_>, points: &[(f64, f64)]) -> String {
    let mut canvas = Canvas::new(titles, ceiling(points.iter().map(|(_, y)| y)));
    let logs = || points.iter().map(|(x, _)| x.log10());
    let (low, high) = logs().fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)));
    let place =
        |x: f64| LEFT + 20.0 + (WIDTH - LEFT - RIGHT - 40.0) * (x.log10() - low) / (high - low).max(1e-9);
    let mut line = String::new();
    for (x, y) in points {
        let (px, py) = (place(*x), canvas.y(*y));
        write!(line, "{px:.1},{py:.1} ").unwrap_or(());
        canvas.push(format!("<circle cx='{px:.1}' cy='{py:.1}' r='4' fill='{}'/>", COLOURS[0]));
        canvas.text((px, HEIGHT - BOTTOM + 20.0), "middle", &short(*x));
    }
    canvas.push(format!("<polyline points='{line}' fill='none' stroke='{}'/>", COLOURS[0]));
    canvas.finish(HEIGHT)
}

/// Rows of points over a logarithmic axis of decades, one group of rows below the other: names on the left, values beside the points.
pub fn ladder(titles: Titles<'_>, groups: &[(String, Vec<(String, f64)>)]) -> String {
    let values = || groups.iter().flat_map(|(_, rows)| rows.iter().map(|(_, value)| value.max(1e-3)));
    let low = values().fold(f64::MAX, f64::min).log10().floor();
    let high = values().fold(1e-3, f64::max).log10().ceil().max(low + 1.0);
    let lines: usize = groups.iter().map(|(_, rows)| rows.len() + 1).sum();
    let height = 70.0 + STEP * count(lines) + 30.0;
    let place = |value: f64| NAMES + (WIDTH - NAMES - 70.0) * (value.max(1e-3).log10() - low) / (high - low);
    let mut canvas = Canvas { body: String::new(), y_top: 1.0 };
    canvas.text((WIDTH / 2.0, 24.0), "middle", titles.plot);
    canvas.text((f64::midpoint(NAMES, WIDTH), height - 8.0), "middle", titles.y);
    let mut decade = low;
    while decade <= high {
        let (x, bottom) = (place(10f64.powf(decade)), height - 42.0);
        canvas.push(format!("<line x1='{x:.1}' y1='50' x2='{x:.1}' y2='{bottom}' stroke='#ddd'/>"));
        canvas.text((x, height - 26.0), "middle", &short(10f64.powf(decade)));
        decade += 1.0;
    }
    let mut y = 60.0;
    for (index, (label, rows)) in (0u8..).zip(groups) {
        canvas.push(format!("<text x='8' y='{y:.1}' font-weight='bold'>{}</text>", escape(label)));
        for (name, value) in rows {
            y += STEP;
            let x = place(*value);
            canvas.text((NAMES - 10.0, y), "end", name);
            canvas.push(format!("<circle cx='{x:.1}' cy='{:.1}' r='4' fill='{}'/>", y - 4.0, colour(index)));
            canvas.text((x + 8.0, y), "start", &short(*value));
        }
        y += STEP;
    }
    canvas.finish(height)
}

fn colour(index: u8) -> &'static str {
    COLOURS[usize::from(index) % COLOURS.len()]
}

fn count(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}

/// A round number above all values.
fn ceiling<'a>(values: impl Iterator<Item = &'a f64>) -> f64 {
    let largest = values.fold(0.0f64, |a, b| a.max(*b)).max(1e-6) * 1.08;
    let unit = 10f64.powf(largest.log10().floor());
    [1.0, 1.25, 1.5, 2.0, 2.5, 4.0, 5.0, 7.5, 10.0]
        .map(|m| m * unit)
        .into_iter()
        .find(|top| *top >= largest)
        .unwrap_or(largest)
}

fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.2} M", v / 1e6),
        v if v >= 1e3 => format!("{:.0} k", v / 1e3),
        v if v >= 10.0 || v == 0.0 => format!("{v:.0}"),
        v => format!("{v:.2}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn box_plot_draws_one_box_per_quartiles() {
        let titles = Titles { plot: "p", x: "x", y: "y" };
        let of = Quartiles::of(&[1.0, 2.0, 3.0]);
        let drawn = |boxes| boxes_in(&super::boxes(titles, &["one"], &[("a".to_owned(), boxes)]));
        assert_eq!(drawn(vec![None]), 0);
        assert_eq!(drawn(vec![of]), 1);
    }

    fn boxes_in(svg: &str) -> usize {
        svg.matches("stroke-width='2'").count()
    }
}
