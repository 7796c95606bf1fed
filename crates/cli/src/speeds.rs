//! Speeds of the links in a plan, if their drivers report them. Never fails: a speed that cannot be read is unknown. In
//! another network namespace, reading it needs CAP_SYS_ADMIN.

use packetrig_plan::{Plan, PortLocation};
use packetrig_sys::ethtool::EthtoolCalls;
use packetrig_sys::netns::NetNs;
use packetrig_units::{BitRate, Nanos};

/// Returns the link speed of each port of the plan: that of `layer1.speed`, otherwise the speed
/// that the driver reports.
pub(crate) fn port_speeds(plan: &Plan) -> Vec<Option<BitRate>> {
    plan.ports.iter().map(|port| port.speed.or_else(|| link_speed(&port.location))).collect()
}

fn link_speed(location: &PortLocation) -> Option<BitRate> {
    let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref()).ok()?;
    let speed = EthtoolCalls::open_in(&netns).ok()?.read_link_speed(&location.interface).ok()??;
    Some(BitRate::new(u64::from(speed.mbits) * 1_000_000))
}

/// Returns how long the plan's senders send; `None` if a stream has no end, if the time depends on an unknown speed, or
/// if the load exceeds a link.
pub(crate) fn sending_time(plan: &Plan) -> Option<Nanos> {
    // Errors are ignored: this time is only for the progress line, and the run reports problems itself.
    let bound = plan.clone().bind_to_links(&port_speeds(plan)).ok()?;
    let ends: Option<Vec<Nanos>> = bound.streams.iter().map(|stream| stream.timeline.end_time()).collect();
    ends?.into_iter().max()
}
