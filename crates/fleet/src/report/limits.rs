//! Whether a run came near what the rig itself can do.

use super::{LossPlaces, MeanRate, PortReport, StreamReport};
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_stats::limit::{RigLimit, nearest};

/// A caveat for each port whose load is near its limit. It matters where frames are missing: the rig may have lost them.
pub(super) fn near(
    ports: &[PortReport],
    streams: &[StreamReport],
    limits: &[RigLimit],
    lost: LossPlaces,
) -> Vec<Caveat> {
    let found = ports.iter().filter_map(|port| {
        let (planned, unsent) = planned_on(streams, &port.info.name);
        // What was asked for is the load, also where the sender fell short of it.
        let asked = |rate: MeanRate| scaled(rate.frames_milli / 1000, planned, planned - unsent);
        let sent = port.tx_rate.map(|rate| (asked(rate), rate, "to send"));
        let received = port.rx_rate.map(|rate| (rate.frames_milli / 1000, rate, "received"));
        let (load, rate, what) = sent.into_iter().chain(received).max_by_key(|(load, ..)| *load)?;
        // Bits per second over frames per second: the mean size of a frame, in bytes.
        let size = rate.l2.bits_per_second().checked_div(8 * (rate.frames_milli / 1000))?;
        let limit = nearest(limits, port.info.back_end, &port.info.driver, size)?;
        limit.is_near(load).then(|| Caveat {
            doubt: CaveatKind::NearLimit,
            subject: port.info.name.clone(),
            text: text(load, what, limit),
            matters: lost.total > 0 || unsent > 0,
        })
    });
    found.collect()
}

fn text(load: u64, what: &str, limit: &RigLimit) -> String {
    format!(
        "{load} frames/s {what}, and this rig's own limit is {} frames/s (frames of {} B, back end {}, as calibrated)",
        limit.frames_per_second,
        limit.size,
        limit.back_end.name()
    )
}

/// (planned, unsent) of all streams of a port.
fn planned_on(streams: &[StreamReport], port: &str) -> (u64, u64) {
    let sent =
        streams.iter().filter(|stream| stream.tx_port == port).filter_map(|stream| stream.sent.as_ref());
    sent.fold((0, 0), |(planned, unsent), sent| (planned + sent.planned, unsent + sent.unsent))
}

fn scaled(rate: u64, part: u64, whole: u64) -> u64 {
    let scaled = (u128::from(rate) * u128::from(part)).checked_div(u128::from(whole)).unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
