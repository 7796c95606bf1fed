//! Whether a run came near what the rig itself can do.

use super::{LossPlaces, PortReport};
use packetrig_stats::caveat::{Caveat, Doubt};
use packetrig_stats::limit::{RigLimit, nearest};

/// A caveat for each port whose load is near its limit. It matters where frames were lost: they may have been lost here.
pub(super) fn near(ports: &[PortReport], limits: &[RigLimit], lost: LossPlaces) -> Vec<Caveat> {
    ports.iter().filter_map(|port| near_one(port, limits, lost)).collect()
}

fn near_one(port: &PortReport, limits: &[RigLimit], lost: LossPlaces) -> Option<Caveat> {
    let loads = [(port.tx_rate, "sent"), (port.rx_rate, "received")];
    let (rate, what) = loads
        .into_iter()
        .filter_map(|(rate, what)| Some((rate?, what)))
        .max_by_key(|(rate, _)| rate.frames_milli)?;
    let frames_per_second = rate.frames_milli / 1000;
    let size = rate.l2.bits_per_second().checked_div(8 * frames_per_second)?;
    let limit = nearest(limits, port.info.back_end, &port.info.driver, size)?;
    limit.is_near(frames_per_second).then(|| Caveat {
        doubt: Doubt::NearLimit,
        subject: port.info.name.clone(),
        text: format!(
            "{frames_per_second} frames/s {what}, and this rig's own limit is {} frames/s (frames of {} B, back end {}, \
             as calibrated)",
            limit.frames_per_second,
            limit.size,
            format!("{:?}", limit.back_end).to_lowercase()
        ),
        matters: lost.total > 0,
    })
}
