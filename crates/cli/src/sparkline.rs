//! Draws a row of values as blocks of eight heights, for a column of a table.

const SPARKLINE_BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Renders the last `most` values, the least as the lowest block and the greatest as the highest. A blank stands
/// for an unknown value.
pub(crate) fn render_sparkline(values: &[Option<f64>], most: usize) -> String {
    let shown = &values[values.len().saturating_sub(most)..];
    // Infinite values and NaN become blanks: beside them, all other values would have the same height.
    let known = || shown.iter().flatten().copied().filter(|value| value.is_finite());
    let least = known().fold(f64::INFINITY, f64::min);
    let span = known().fold(f64::NEG_INFINITY, f64::max) - least;
    // If all values are equal, they become blocks of middle height.
    let finite = shown.iter().map(|value| value.filter(|value| value.is_finite()));
    let shares = finite.map(|value| value.map(|value| if span > 0.0 { (value - least) / span } else { 0.5 }));
    shares.map(|share| share.map_or(' ', choose_block_character)).collect()
}

/// Returns the block for a height between 0 (lowest block) and 1 (highest).
fn choose_block_character(share: f64) -> char {
    // The eight blocks have the indexes 0 to 7.
    let mut blocks = SPARKLINE_BLOCKS.iter().enumerate();
    blocks.find(|(index, _)| (*index as f64 - share * 7.0).abs() <= 0.5).map_or(' ', |(_, block)| *block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_is_lowest_and_the_greatest_highest() {
        assert_eq!(render_sparkline(&[Some(1.0), None, Some(2.0), Some(8.0)], 9), "▁ ▂█");
        assert_eq!(render_sparkline(&[Some(1.0), Some(5.0), Some(5.0)], 2), "▄▄");
        assert_eq!(render_sparkline(&[], 9), "");
        assert_eq!(render_sparkline(&[Some(f64::NAN), Some(f64::INFINITY), Some(1.0)], 9), "  ▄");
    }
}
