//! Capacity of a line: the theoretical frames per second of RFC 2544, and a load in other units.

use crate::Load;
use packetrig_units::{BitRate, FrameSize, Nanos};

/// Returns the maximum number of frames of one size that a line carries per second: `bits / (8 * (size + 20))`.
pub fn theoretical_load(line: BitRate, size: FrameSize) -> Load {
    // On the line, Ethernet adds 20 bytes to each frame: 8 of preamble and 12 of gap.
    Load::new(line.bits_per_second() as f64 / (8.0 * f64::from(size.l1_bytes())))
}

/// Converts a load to megabits per second at layer 2, FCS included.
pub fn megabits_per_second(load: Load, size: FrameSize) -> f64 {
    load.frames_per_second() * f64::from(size.bytes()) * 8.0 / 1e6
}

/// Returns a load as a percentage of the line rate, preambles and gaps included.
pub fn percent_of_line(load: Load, line: BitRate, size: FrameSize) -> f64 {
    load_percent_or_zero(load, theoretical_load(line, size))
}

/// Returns a load as a percentage of `whole`; 0 if `whole` is 0.
pub fn load_percent_or_zero(load: Load, whole: Load) -> f64 {
    if whole.frames_per_second() > 0.0 {
        load.frames_per_second() * 100.0 / whole.frames_per_second()
    } else {
        0.0
    }
}

/// Time from the first to the last bit of a frame on the line.
pub fn transmission_time(line: BitRate, size: FrameSize) -> Nanos {
    // Preamble and gap are left out: latency is defined by the bits of the frame (RFC 1242, 3.8).
    line.time_to_send(u64::from(size.bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gigabit_frame_rates_match_rfc_2544() {
        let line = BitRate::new(1_000_000_000);
        let of_size = |bytes| theoretical_load(line, FrameSize::new(bytes)).to_string();
        let loads = [64, 512, 1518].map(of_size);
        assert_eq!(loads, ["1 488 095 frames/s", "234 962 frames/s", "81 274 frames/s"]);
        let half = theoretical_load(line, FrameSize::MIN).scale_by(0.5);
        assert!((percent_of_line(half, line, FrameSize::MIN) - 50.0).abs() < 1e-9);
        assert!((megabits_per_second(half, FrameSize::MIN) - 380.952_381).abs() < 1e-6);
        assert_eq!(transmission_time(line, FrameSize::new(1500)), Nanos::from_micros(12));
    }
}
