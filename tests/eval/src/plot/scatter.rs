//! Points of several series over two logarithmic axes.

use super::{BOTTOM, Canvas, HEIGHT, LEFT, RIGHT, TOP, Titles, WIDTH, colour, short};

/// A logarithmic axis from one power of ten to another.
struct DecadeAxis {
    low: f64,
    high: f64,
}

impl DecadeAxis {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values
            .filter(|value| *value > 0.0)
            .fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        if low > high {
            return Self { low: 0.0, high: 1.0 };
        }
        let low = low.log10().floor();
        Self { low, high: high.log10().ceil().max(low + 1.0) }
    }

    /// The place of a value, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        ((value.log10() - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    fn decades(&self) -> Vec<f64> {
        let mut decades = vec![self.low];
        while let Some(next) = decades.last().map(|last| last + 1.0).filter(|next| *next <= self.high) {
            decades.push(next);
        }
        decades.iter().map(|decade| 10f64.powf(*decade)).collect()
    }
}

/// Points (x, y) of named series, both axes logarithmic. Values must be above 0.
pub fn scatter(titles: Titles<'_>, series: &[(&str, Vec<(f64, f64)>)]) -> String {
    let points = || series.iter().flat_map(|(_, points)| points);
    let (x_axis, y_axis) =
        (DecadeAxis::of(points().map(|(x, _)| *x)), DecadeAxis::of(points().map(|(_, y)| *y)));
    let x_at = |x: f64| LEFT + (WIDTH - LEFT - RIGHT) * x_axis.share(x);
    let y_at = |y: f64| HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * y_axis.share(y);
    let mut canvas = Canvas::with_titles(titles, 1.0);
    for x in x_axis.decades() {
        let place = x_at(x);
        canvas.push(format!(
            "<line x1='{place:.1}' y1='{TOP}' x2='{place:.1}' y2='{}' stroke='#ddd'/>",
            HEIGHT - BOTTOM
        ));
        canvas.text((place, HEIGHT - BOTTOM + 20.0), "middle", &short(x));
    }
    for y in y_axis.decades() {
        let place = y_at(y);
        canvas.push(format!(
            "<line x1='{LEFT}' y1='{place:.1}' x2='{}' y2='{place:.1}' stroke='#ddd'/>",
            WIDTH - RIGHT
        ));
        canvas.text((LEFT - 8.0, place + 4.0), "end", &short(y));
    }
    canvas.legend(&series.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for (index, (_, points)) in (0u8..).zip(series) {
        for (x, y) in points {
            canvas.push(format!(
                "<circle cx='{:.1}' cy='{:.1}' r='4' fill='{}' fill-opacity='0.5'/>",
                x_at(*x),
                y_at(*y),
                colour(index)
            ));
        }
    }
    canvas.finish(HEIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_has_a_circle_on_the_canvas() {
        let titles = Titles { plot: "p", x: "x", y: "y" };
        let svg = scatter(titles, &[("one", vec![(1.0, 0.1), (1000.0, 100.0)]), ("none", Vec::new())]);
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains(&format!("cx='{LEFT:.1}'")) && svg.contains(&format!("cy='{TOP:.1}'")));
    }
}
