//! Comparison of a run's load with the limits of the rig itself.

use super::{LossPlaces, MeanRate, PortReport, StreamReport};
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_stats::limit::{RigLimit, find_nearest_rig_limit};
use packetrig_units::clamp_to_u64;

/// Caveats for ports whose load is near their limit. A caveat matters if frames are missing: the rig may have lost them.
pub(super) fn near_limit_caveats(
    ports: &[PortReport],
    streams: &[StreamReport],
    limits: &[RigLimit],
    lost: LossPlaces,
) -> Vec<Caveat> {
    let found = ports.iter().filter_map(|port| {
        let sums = SendingSums::sum_port_streams(streams, &port.info.name);
        let sent = port.tx_rate.map(|rate| PortLoad::from_sender(rate, &sums));
        let received = port.rx_rate.map(PortLoad::from_receiver);
        // The calibrated limit is for one direction, so the direction with the higher load is compared with it.
        let load = sent.into_iter().chain(received).max_by_key(|load| load.frames_per_second)?;
        // Bits per second over frames per second: the mean size of a frame, in bytes.
        let size = load.rate.l2.bits_per_second().checked_div(8 * (load.rate.frames_milli / 1000))?;
        let limit = find_nearest_rig_limit(limits, port.info.back_end, &port.info.driver, size)?;
        limit.is_near(load.frames_per_second).then(|| Caveat {
            doubt: CaveatKind::NearLimit,
            subject: port.info.name.clone(),
            text: load.describe_share_of_limit(limit),
            // If no frame is missing, the rig was fast enough, even if it was near its limit.
            matters: lost.total > 0 || sums.unsent > 0,
        })
    });
    found.collect()
}

/// Limits that were measured with the back ends and drivers of these ports.
pub(super) fn select_port_limits(ports: &[PortReport], limits: &[RigLimit]) -> Vec<RigLimit> {
    let used = limits.iter().filter(|limit| {
        ports.iter().any(|port| port.info.back_end == limit.back_end && port.info.driver == limit.driver)
    });
    used.cloned().collect()
}

/// Load of one direction of a port.
struct PortLoad {
    frames_per_second: u64,
    rate: MeanRate,
    /// `to send` or `received`.
    what: &'static str,
}

impl PortLoad {
    /// Load of a sender: the requested load counts, also where the sender fell short of it.
    fn from_sender(rate: MeanRate, sums: &SendingSums) -> Self {
        let sent = u128::from(sums.planned - sums.unsent);
        let asked = u128::from(rate.frames_milli / 1000) * u128::from(sums.planned);
        let frames_per_second = clamp_to_u64(asked.checked_div(sent).unwrap_or(0));
        Self { frames_per_second, rate, what: "to send" }
    }

    const fn from_receiver(rate: MeanRate) -> Self {
        Self { frames_per_second: rate.frames_milli / 1000, rate, what: "received" }
    }

    fn describe_share_of_limit(&self, limit: &RigLimit) -> String {
        format!(
            "{} frames/s {}, and this rig's own limit is {} frames/s (frames of {} B, back end {}, as calibrated)",
            self.frames_per_second,
            self.what,
            limit.frames_per_second,
            limit.size,
            limit.back_end.name()
        )
    }
}

/// Planned and unsent frames of all streams that a port sends.
#[derive(Default)]
struct SendingSums {
    planned: u64,
    unsent: u64,
}

impl SendingSums {
    fn sum_port_streams(streams: &[StreamReport], port: &str) -> Self {
        let mut sums = Self::default();
        let own = streams.iter().filter(|stream| stream.tx_port == port);
        for sent in own.filter_map(|stream| stream.sent.as_ref()) {
            sums.planned = sums.planned.saturating_add(sent.planned);
            sums.unsent = sums.unsent.saturating_add(sent.unsent);
        }
        sums
    }
}
