//! Rounds floats to whole numbers.

use packetrig_units::Nanos;

/// Returns the whole part; 0 for negative values and not-a-number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast saturates")]
pub(crate) fn whole_part(value: f64) -> u64 {
    value as u64
}

/// Returns the nearest time in whole nanoseconds.
pub(crate) fn nanos_from_float(ns: f64) -> Nanos {
    Nanos::new(whole_part(ns.round()))
}

/// Returns the time of this many frames at a rate; `None` if the rate is not above 0.
pub(crate) fn time_of_frames(frames: u64, frames_per_second: f64) -> Option<Nanos> {
    (frames_per_second > 0.0).then(|| nanos_from_float(frames as f64 * 1e9 / frames_per_second))
}
