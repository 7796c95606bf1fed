//! Converts values to positions, and finds the marks of axes.

/// The mapping from values to positions on an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AxisScale {
    low: f64,
    high: f64,
    is_log: bool,
}

/// A mark of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AxisTick {
    pub value: f64,
    /// Position from 0 (start of the axis) to 1 (its end).
    pub position: f64,
}

impl AxisScale {
    /// A scale from 0 to the first round number at or above `high`: a start above 0 would make
    /// small differences look large.
    pub fn from_zero(high: f64) -> Self {
        // The step is found by a logarithm, so the value must be above zero.
        let step = choose_round_step(high.max(1e-9), 4.0);
        let high = (high / step).ceil() * step;
        // A length of zero would divide by zero in `position_of`.
        Self { low: 0.0, high: if high > 0.0 { high } else { 1.0 }, is_log: false }
    }

    /// A scale exactly from `low` to `high`.
    pub fn from_bounds(low: f64, high: f64) -> Self {
        // Positions are shares of the length, so the length is never zero.
        let high = if high > low { high } else { low + 1.0 };
        Self { low, high, is_log: false }
    }

    /// A logarithmic scale, from the power of ten at or below `low` to that at or above `high`. Values below `low` are
    /// drawn at its start.
    pub fn log_from_decades(low: f64, high: f64) -> Self {
        let low = 10f64.powf(low.max(1e-9).log10().floor());
        // The two ends must differ, or no position could be computed.
        let high = 10f64.powf(high.max(low * 1.001).log10().ceil());
        Self { low, high, is_log: true }
    }

    /// A logarithmic scale exactly from `low` to `high`.
    pub fn log_from_bounds(low: f64, high: f64) -> Self {
        // A logarithmic axis has no zero.
        let low = low.max(1e-9);
        Self { low, high: high.max(low * 1.001), is_log: true }
    }

    /// Position of a value: 0 at the start, 1 at the end. Values outside are drawn at the nearer end.
    pub fn position_of(&self, value: f64) -> f64 {
        let part = if self.is_log {
            (value.max(self.low).ln() - self.low.ln()) / (self.high.ln() - self.low.ln())
        } else {
            (value - self.low) / (self.high - self.low)
        };
        // A value beyond the axis is drawn at its end: it must neither disappear nor cover other parts of the page.
        part.clamp(0.0, 1.0)
    }

    /// Round values along the axis, about `wanted` of them.
    pub fn choose_round_ticks(&self, wanted: usize) -> Vec<AxisTick> {
        if self.is_log { self.compute_log_ticks(wanted) } else { self.compute_linear_ticks(wanted) }
    }

    fn compute_linear_ticks(&self, wanted: usize) -> Vec<AxisTick> {
        let step = choose_round_step(self.high - self.low, wanted.max(1) as f64);
        let first = (self.low / step).ceil();
        // Ticks are multiples of the step, computed from their index and not by adding: rounding errors must
        // not grow along the axis. The bound ends the list for any step.
        let values = (0..=wanted * 3).map(|n| (first + n as f64) * step);
        // The tolerance keeps a last mark that rounding has put a little above the end.
        values
            .take_while(|value| *value <= self.high + step * 1e-6)
            .map(|value| self.tick_at(value))
            .collect()
    }

    /// Powers of ten; on a short axis also 2 and 5 times these.
    fn compute_log_ticks(&self, wanted: usize) -> Vec<AxisTick> {
        let decades = (self.high / self.low).log10();
        // An axis of one or two decades would have hardly any marks with powers of ten alone.
        let factors: &[f64] = if decades < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let first = self.low.log10().floor();
        // Only every n-th power of ten gets a mark, so that there are about `wanted` marks.
        let every = (1..40).find(|every| decades <= f64::from(*every) * wanted.max(1) as f64).unwrap_or(40);
        // Numbers of 64 bits span 20 decades, and the smallest start of an axis adds nine, so 40 powers are enough.
        let powers = (0..40).filter(|n| n % every == 0).map(|n| 10f64.powf(first + f64::from(n)));
        let values = powers.flat_map(|power| factors.iter().map(move |factor| power * factor));
        // Rounding errors can move a computed power of ten just outside the axis.
        let inside = values.filter(|value| *value >= self.low * 0.999 && *value <= self.high * 1.001);
        inside.map(|value| self.tick_at(value)).collect()
    }

    fn tick_at(&self, value: f64) -> AxisTick {
        AxisTick { value, position: self.position_of(value) }
    }

    pub const fn high(&self) -> f64 {
        self.high
    }

    pub const fn low(&self) -> f64 {
        self.low
    }

    pub const fn is_logarithmic(&self) -> bool {
        self.is_log
    }
}

/// A step of 1, 2, 2.5 or 5 times a power of ten, so that about `wanted` steps cover `span`.
fn choose_round_step(span: f64, wanted: f64) -> f64 {
    let raw = span / wanted;
    let power = 10f64.powf(raw.log10().floor());
    let factor = match raw / power {
        // The tolerance keeps a quotient that should be exactly 1, 2, 2.5 or 5 at that step.
        factor if factor <= 1.000_001 => 1.0,
        factor if factor <= 2.000_001 => 2.0,
        factor if factor <= 2.500_001 => 2.5,
        factor if factor <= 5.000_001 => 5.0,
        _ => 10.0,
    };
    factor * power
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(scale: AxisScale, wanted: usize) -> Vec<f64> {
        scale.choose_round_ticks(wanted).iter().map(|tick| tick.value).collect()
    }

    #[test]
    fn ticks_are_round_and_begin_at_zero() {
        assert_eq!(values(AxisScale::from_zero(950.0), 4), [0.0, 250.0, 500.0, 750.0, 1000.0]);
    }

    #[test]
    fn a_log_axis_has_powers_of_ten() {
        let ticks: Vec<String> = values(AxisScale::log_from_decades(900.0, 3_000_000.0), 6)
            .iter()
            .map(|value| format!("{value:.0}"))
            .collect();
        assert_eq!(ticks, ["100", "1000", "10000", "100000", "1000000", "10000000"]);
    }

    proptest! {
        #[test]
        fn scale_positions_are_monotonic_and_stay_on_axis(a in 0f64..1e12, b in 0f64..1e12, high in 1f64..1e12) {
            for scale in [AxisScale::from_zero(high), AxisScale::log_from_decades(high / 1e3, high)] {
                let (low, other) = (scale.position_of(a.min(b)), scale.position_of(a.max(b)));
                prop_assert!((0.0..=1.0).contains(&low) && low <= other && other <= 1.0);
                prop_assert!(scale.choose_round_ticks(5).len() <= 16);
            }
        }
    }
}
