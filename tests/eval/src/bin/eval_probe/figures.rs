//! Series of times and what is said of them.
//!
//! Nothing is left out of a series: what did not arrive is counted beside it.

/// Errors or times, nanoseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series(Vec<i64>);

impl Series {
    pub(crate) fn push(&mut self, value: i64) {
        self.0.push(value);
    }

    pub(crate) fn extend(&mut self, values: impl IntoIterator<Item = i64>) {
        self.0.extend(values);
    }

    pub(crate) fn append(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The value that so many of a thousand do not exceed; `None` of nothing.
    pub(crate) fn permille(&self, share: usize) -> Option<i64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        sorted.get((sorted.len() * share).div_ceil(1000).saturating_sub(1).min(last)).copied()
    }

    /// The same values without their signs.
    pub(crate) fn absolute(&self) -> Self {
        Self(self.0.iter().map(|value| value.saturating_abs()).collect())
    }
}

/// `b - a`.
pub(crate) fn difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(b) - i128::from(a)).unwrap_or(i64::MAX)
}

/// In microseconds, for a table.
pub(crate) fn micros(ns: Option<i64>) -> String {
    ns.map_or_else(|| "–".to_owned(), |ns| format!("{:.2}", ns as f64 / 1e3))
}
