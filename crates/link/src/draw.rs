//! Numbers drawn from a seed: random access, whole numbers only, so they are the same on every machine.

use packetrig_units::clamp_to_u64;
use packetrig_wire::pattern::keyed_mix;

/// Number of millionths in a probability of 1.
pub(super) const MILLION: u64 = 1_000_000;

/// Returns true if an event with the probability `millionths` happens at `position`.
pub(super) fn happens_at(seed: u64, position: u64, millionths: u32) -> bool {
    // 2^64 is so much larger than a million that the bias of the remainder is below 1 in 10^13.
    keyed_mix(seed, position) % MILLION < u64::from(millionths)
}

/// Draws a whole number from 0 to `most`. All are equally likely, up to a relative error of about `most` / 2^64.
pub(super) fn draw_integer_up_to(seed: u64, position: u64, most: u64) -> u64 {
    // Multiply and shift instead of a remainder: no division, and the bias is spread over the whole range.
    let wide = u128::from(keyed_mix(seed, position)) * (u128::from(most) + 1);
    // After the shift 64 bits are left, so nothing is clamped.
    clamp_to_u64(wide >> 64)
}

/// Draws a whole number from `-most` to `most`; a larger `most` counts as 2^62. All are equally
/// likely, as in [`draw_integer_up_to`].
pub(super) fn draw_uniform_number(seed: u64, position: u64, most: u64) -> i64 {
    // Twice this value must fit into 64 bits.
    let most = most.min(1 << 62);
    draw_integer_up_to(seed, position, 2 * most).cast_signed() - most.cast_signed()
}

/// Draws from a normal distribution around zero with this standard deviation. The result is a scaled sum of twelve
/// uniform numbers. Up to three deviations this is practically a normal distribution; it never exceeds six deviations.
pub(super) fn draw_normal_number(seed: u64, position: u64, deviation: u64) -> i64 {
    // The sum of twelve numbers from 0 to 0xffff has the mean 6 * 0xffff. In units of 0x1_0000 it has the variance 1,
    // because each number has the variance 1/12.
    const HALF: i128 = 6 * 0xffff;
    let sum: i128 = (0..3)
        // Three words of 64 bits are twelve numbers of 16 bits.
        .map(|n| keyed_mix(seed.wrapping_add(n), position))
        .map(|word| (0..4).map(|part| i128::from(word >> (16 * part) & 0xffff)).sum::<i128>())
        .sum();
    let scaled = i128::from(deviation) * (sum - HALF) / 0x1_0000;
    // Overflows only if the deviation is more than 48 years in ns.
    i64::try_from(scaled).unwrap_or(if scaled < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and standard deviation.
    fn moments(values: impl Iterator<Item = i64>) -> (f64, f64) {
        let values: Vec<f64> = values.map(|value| value as f64).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, square.sqrt())
    }

    #[test]
    fn uniform_numbers_fill_their_range_and_no_more() {
        let drawn: Vec<i64> = (0..100_000).map(|n| draw_uniform_number(7, n, 1000)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&-1000), Some(&1000)));
        let (mean, deviation) = moments(drawn.into_iter());
        // 1000 / sqrt(3) = 577; a mean of 100 000 of them has a deviation of 1.8.
        assert!(mean.abs() < 8.0 && (deviation - 577.6).abs() < 6.0, "{mean} {deviation}");
    }

    #[test]
    fn normal_draws_have_requested_deviation_and_tails() {
        let drawn: Vec<i64> = (0..100_000).map(|n| draw_normal_number(7, n, 10_000)).collect();
        let (mean, deviation) = moments(drawn.iter().copied());
        assert!(mean.abs() < 150.0 && (deviation - 10_000.0).abs() < 100.0, "{mean} {deviation}");
        let beyond = |sigmas: i64| drawn.iter().filter(|value| value.abs() > sigmas * 10_000).count();
        // 31.7 % and 4.55 % of a normal distribution.
        assert!(
            (31_000..32_400).contains(&beyond(1)) && (4_200..4_900).contains(&beyond(2)),
            "{}",
            beyond(2)
        );
        assert_eq!(beyond(6), 0);
    }
}
