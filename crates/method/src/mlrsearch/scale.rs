//! Maps loads to whole numbers on a logarithmic scale: 0 is the minimum load, and the top number is the maximum load.
//!
//! Widths and steps are differences of these numbers. So a step up and the same step down lead back to the
//! same load, which floats do not guarantee. Every float operation here is in the order of the reference
//! library: loads are equal to the last bit.

/// A scale fits a width if a whole number of its units is between these shares of the width. Both are below 1, so that
/// a result is never wider than the width.
const MIN_FIT: f64 = 0.99;
const MAX_FIT: f64 = 0.999_999;
/// Maximum number of candidates to try. The widths of a real search need a few hundred.
const MAX_CANDIDATES: u32 = 1_000_000;

/// The scale of one search.
#[derive(Clone, Debug)]
pub(super) struct LoadNumberScale {
    min: f64,
    max: f64,
    top: i64,
}

impl LoadNumberScale {
    /// Creates a scale on which every width is nearly a whole number of units; `None` if there is no such scale.
    pub(super) fn new(min: f64, max: f64, widths: &[f64]) -> Option<Self> {
        // The logarithms are subtracted, as in the reference library: the logarithm of the
        // quotient may round differently.
        let whole = max.ln() - min.ln();
        // `-ln(1 - width)`: the logarithmic distance of two loads whose difference is this share of the upper one.
        let logs: Vec<f64> = widths.iter().map(|width| -(-width).ln_1p()).collect();
        let mut candidate = 1.0;
        for _ in 0..MAX_CANDIDATES {
            match next_candidate(whole, &logs, candidate) {
                None => return Some(Self { min, max, top: to_index(candidate) }),
                Some(next) => candidate = next,
            }
        }
        None
    }

    /// The number of the maximum load.
    pub(super) const fn top_index(&self) -> i64 {
        self.top
    }

    /// Returns the load of a number; numbers beyond the ends have the loads of the ends.
    pub(super) fn load_at(&self, index: i64) -> f64 {
        // The ends are the numbers of the options, without the rounding of `exp`.
        if index <= 0 {
            return self.min;
        }
        if index >= self.top {
            return self.max;
        }
        // The halving is the same as in `index_of`, so that each function exactly reverses the other.
        let mut interval = ScaleInterval::whole_scale(self);
        while interval.high - interval.low >= 2 {
            let (middle, load) = interval.split_interval();
            match middle.cmp(&index) {
                std::cmp::Ordering::Equal => return load,
                std::cmp::Ordering::Less => interval.set_low_end(middle, load),
                std::cmp::Ordering::Greater => interval.set_high_end(middle, load),
            }
        }
        interval.low_load
    }

    /// Returns the number of a load, rounded down.
    pub(super) fn index_of(&self, load: f64) -> i64 {
        if load <= self.min {
            return 0;
        }
        if load >= self.max {
            return self.top;
        }
        let mut interval = ScaleInterval::whole_scale(self);
        while interval.high - interval.low >= 2 {
            let (middle, middle_load) = interval.split_interval();
            if middle_load < load {
                interval.set_low_end(middle, middle_load);
            } else if middle_load > load {
                interval.set_high_end(middle, middle_load);
            } else {
                return middle;
            }
        }
        interval.low
    }

    /// Returns the number of units of a relative width, rounded down.
    pub(super) fn units_of_width(&self, relative: f64) -> i64 {
        // A width is a share of the upper load of a pair. If the lower load is `min`, the upper one is this.
        let increased = self.min / (1.0 - relative);
        let width = self.index_of(increased);
        // One unit less, if rounding made the pair wider than the goal allows.
        if self.load_at(width) > increased { width - 1 } else { width }
    }
}

/// Returns the next number of units to try, or `None` if this one fits all widths.
fn next_candidate(whole: f64, logs: &[f64], candidate: f64) -> Option<f64> {
    let unit = whole / candidate;
    let mut next: Option<f64> = None;
    for log in logs {
        let units = log / unit;
        let fit = units.floor() / units;
        if !(MIN_FIT..=MAX_FIT).contains(&fit) {
            let wanted = (units.floor() + 1.0) / MAX_FIT;
            let further = (wanted / units) * candidate;
            // The width that needs the most units decides. The number grows by at least one, so that the search ends.
            next = Some(next.unwrap_or(candidate + 1.0).max(further));
        }
    }
    // A scale has a whole number of units.
    next.map(f64::ceil)
}

#[expect(clippy::cast_possible_truncation, reason = "a whole number far below 2^53")]
const fn to_index(whole: f64) -> i64 {
    whole as i64
}

/// Two numbers and their loads. Halving the whole scale reaches each number in only one way, so its load
/// is always the same.
struct ScaleInterval {
    low: i64,
    high: i64,
    low_load: f64,
    high_load: f64,
}

impl ScaleInterval {
    const fn whole_scale(scale: &LoadNumberScale) -> Self {
        Self { low: 0, high: scale.top, low_load: scale.min, high_load: scale.max }
    }

    /// The middle number and its load.
    fn split_interval(&self) -> (i64, f64) {
        let middle = self.low.midpoint(self.high);
        let share = (middle - self.low) as f64 / (self.high - self.low) as f64;
        let log = (self.high_load.ln() - self.low_load.ln()) * share;
        (middle, self.low_load * log.exp())
    }

    const fn set_low_end(&mut self, middle: i64, load: f64) {
        self.low = middle;
        self.low_load = load;
    }

    const fn set_high_end(&mut self, middle: i64, load: f64) {
        self.high = middle;
        self.high_load = load;
    }
}

/// An interval between two bounds, as numbers of the scale. Where a bound is missing, the interval extends to the
/// end of the scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LoadInterval {
    pub(super) lower: Option<i64>,
    pub(super) upper: Option<i64>,
}

impl LoadInterval {
    /// True if a trial at a load would give no new information: the load is outside the bounds, or the
    /// bounds are close enough.
    pub(super) fn is_load_uninformative(self, load: i64, width: i64) -> bool {
        let is_narrow = matches!((self.lower, self.upper), (Some(low), Some(high)) if high - low <= width);
        is_narrow || self.lower.is_some_and(|low| load <= low) || self.upper.is_some_and(|high| load >= high)
    }

    /// Moves a load so that it is at least the width away from both bounds, if there is room for that. `None` if no
    /// trial is useful.
    pub(super) fn move_away_from_bounds(self, load: i64, width: i64, top: i64) -> Option<i64> {
        // Callers may pass loads beyond the scale; they are clamped only here.
        let load = load.clamp(0, top);
        if self.lower.is_some_and(|low| load <= low) || self.upper.is_some_and(|high| load >= high) {
            return None;
        }
        let low = self.lower.unwrap_or(0);
        let high = self.upper.unwrap_or(top);
        // An end of the range that is not a bound was not tried yet, so the load may be that end.
        let low_end = self.lower.is_none().then_some(low);
        let high_end = self.upper.is_none().then_some(high);
        if high - low <= width {
            return low_end.or(high_end);
        }
        let mut soft_low = low + width;
        let mut soft_high = high - width;
        // The interval is narrower than two widths, so no load is a full width away from both ends.
        if soft_low > soft_high {
            soft_low = choose_split_point(low, high, width);
            soft_high = soft_low;
        }
        if load < soft_low {
            return Some(low_end.unwrap_or(soft_low));
        }
        if load > soft_high {
            return Some(high_end.unwrap_or(soft_high));
        }
        Some(load)
    }
}

/// Returns the load at which to split an interval wider than `width`. One part is the width times a power of
/// two, as near to half as possible. The lower part is the smaller one.
pub(super) fn choose_split_point(low: i64, high: i64, width: i64) -> i64 {
    let whole = high - low;
    if whole == 2 * width {
        return low + width;
    }
    if whole < 2 * width {
        // Halved widths keep the parts in powers of two. An odd width has no half, so the plain middle must do.
        return if width % 2 == 0 && width > 1 {
            choose_split_point(low, high, width / 2)
        } else {
            low + whole / 2
        };
    }
    // A width of 0 would stay 0 however often it is doubled.
    let mut part = width.max(1);
    while whole - 2 * part > 2 * part {
        part *= 2;
    }
    let smaller = part;
    let larger = whole - part;
    let next_larger = 2 * part;
    let next_smaller = whole - 2 * part;
    // The numbers of a fine scale are large, and their products may exceed 64 bits.
    let is_first_more_even =
        i128::from(smaller) * i128::from(larger) > i128::from(next_larger) * i128::from(next_smaller);
    low + if is_first_more_even { smaller } else { next_smaller }
}
