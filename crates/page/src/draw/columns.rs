//! Shortens series for drawing: keeps the least and the greatest value of each column, so that no extreme is lost.

/// The smallest and the largest of several successive samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleExtremes {
    pub low: u64,
    pub high: u64,
}

/// A series in columns of equal width.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleColumns {
    /// Samples in each column; the last one may have fewer.
    pub step: usize,
    /// `None` for columns without a measured value.
    pub values: Vec<Option<SampleExtremes>>,
}

impl SampleColumns {
    /// Divides these samples into at most `most` columns.
    pub fn from_samples(samples: &[Option<u64>], most: usize) -> Self {
        // The number is rounded up, so that there are at most `most` columns.
        let step = samples.len().div_ceil(most.max(1)).max(1);
        let values = samples.chunks(step).map(|column| {
            let known = column.iter().flatten();
            // A column in which no sample was measured is a gap, not a zero.
            let low = known.clone().min()?;
            Some(SampleExtremes { low: *low, high: *known.max()? })
        });
        Self { step, values: values.collect() }
    }

    /// The largest value of all columns.
    pub fn high(&self) -> Option<u64> {
        self.values.iter().flatten().map(|column| column.high).max()
    }

    pub fn low(&self) -> Option<u64> {
        self.values.iter().flatten().map(|column| column.low).min()
    }

    /// The values for the page's script: `5 7*3 -` is 5, three times 7, and one value that was not measured.
    pub(crate) fn format_script_values(&self, of: impl Fn(SampleExtremes) -> u64) -> String {
        let values: Vec<Option<u64>> = self.values.iter().map(|column| column.map(&of)).collect();
        let mut text = String::with_capacity(values.len() * 4);
        // Most series stay constant for long times, so run-length encoding makes the page much shorter.
        for equal in values.chunk_by(|one, next| one == next) {
            if !text.is_empty() {
                text.push(' ');
            }
            match equal[0] {
                Some(value) => text.push_str(&value.to_string()),
                None => text.push('-'),
            }
            if equal.len() > 1 {
                text.push('*');
                text.push_str(&equal.len().to_string());
            }
        }
        text
    }

    /// True if the smallest and the largest value of each column are equal.
    pub(crate) fn has_single_values(&self) -> bool {
        self.values.iter().flatten().all(|column| column.low == column.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn repeated_values_are_counted() {
        let columns = SampleColumns::from_samples(&[Some(5), Some(7), Some(7), Some(7), None], 9);
        assert_eq!(columns.format_script_values(|column| column.high), "5 7*3 -");
        assert!(columns.has_single_values());
    }

    proptest! {
        #[test]
        fn columns_keep_every_extreme(samples in prop::collection::vec(prop::option::of(0u64..1000), 1..700), most in 1usize..200) {
            let columns = SampleColumns::from_samples(&samples, most);
            prop_assert!(columns.values.len() <= most);
            prop_assert_eq!(columns.high(), samples.iter().flatten().max().copied());
            prop_assert_eq!(columns.low(), samples.iter().flatten().min().copied());
        }
    }
}
