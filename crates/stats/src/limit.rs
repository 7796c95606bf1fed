//! The limits of the rig itself, which were measured on this machine. Runs compare their load with them.

use crate::port::BackEnd;
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};

/// If the load of a run is at least this share of a limit (in thousandths), the run reports that it is
/// close to the limit.
pub const NEAR_LIMIT_PERMILLE: u64 = 900;

/// A limit of the rig, for one back end, one driver and one frame size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RigLimit {
    /// The back end that sends and receives the frames.
    pub back_end: BackEnd,
    /// The driver of the interfaces.
    pub driver: String,
    /// Frame size, FCS included.
    pub size: u32,
    /// Highest rate at which packetrig itself lost no frame.
    pub frames_per_second: u64,
    /// Minimum latency: the time that sending and receiving take without a device.
    pub latency_floor: Option<Nanos>,
    /// 99th percentile of the time between the due time of a frame and the time when it was built.
    pub send_error_p99: Option<Nanos>,
    /// Time that one reading of the clock takes.
    pub clock_reading: Nanos,
    /// Kernel release at the time of the measurement.
    pub kernel: String,
    /// Time of the measurement, in nanoseconds since 1970 (UTC).
    pub measured_wall_ns: u64,
}

impl RigLimit {
    /// Returns whether this rate is close to the limit.
    pub fn is_near(&self, frames_per_second: u64) -> bool {
        // The products have 128 bits and there is no division, so the comparison is exact.
        u128::from(frames_per_second) * 1000
            >= u128::from(self.frames_per_second) * u128::from(NEAR_LIMIT_PERMILLE)
    }
}

/// Returns the limit for frames of a mean size: that of the nearest measured size. `None` if the back end and
/// the driver were not measured.
pub fn find_nearest_rig_limit<'a>(
    limits: &'a [RigLimit],
    back_end: BackEnd,
    driver: &str,
    size: u64,
) -> Option<&'a RigLimit> {
    let of_port = limits.iter().filter(|limit| limit.back_end == back_end && limit.driver == driver);
    of_port.min_by_key(|limit| u64::from(limit.size).abs_diff(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(back_end: BackEnd, size: u32, frames_per_second: u64) -> RigLimit {
        RigLimit {
            back_end,
            driver: "veth".into(),
            size,
            frames_per_second,
            latency_floor: None,
            send_error_p99: None,
            clock_reading: Nanos::new(20),
            kernel: "6.1".into(),
            measured_wall_ns: 0,
        }
    }

    #[test]
    fn the_nearest_size_of_the_same_way_counts() {
        let limits =
            [limit(BackEnd::Packet, 64, 10), limit(BackEnd::Packet, 1518, 5), limit(BackEnd::Xdp, 64, 90)];
        let found = |back_end, driver, size| {
            find_nearest_rig_limit(&limits, back_end, driver, size).map(|l| l.frames_per_second)
        };
        assert_eq!(found(BackEnd::Packet, "veth", 500), Some(10));
        assert_eq!(found(BackEnd::Packet, "veth", 1000), Some(5));
        assert_eq!(found(BackEnd::Xdp, "veth", 1000), Some(90));
        assert_eq!(found(BackEnd::Xdp, "igc", 64), None);
    }

    #[test]
    fn near_is_within_a_tenth() {
        let limit = limit(BackEnd::Packet, 64, 1_000_000);
        assert!(limit.is_near(900_000) && !limit.is_near(899_999) && limit.is_near(2_000_000));
    }
}
