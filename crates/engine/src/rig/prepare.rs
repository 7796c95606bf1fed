//! Prepares a plan for a run on this node: opens ports, computes schedules and compiles templates.

use super::places::{self, PortAssignment};
use super::{OpenPort, PortOpener};
use crate::Error;
use crate::stream::{FrameSource, StreamSpec};
use packetrig_plan::device::Mac;
use packetrig_plan::{BoundPlan, Plan, PlanProblem, PlanProblems};
use packetrig_stats::port::PortInfo;
use packetrig_units::FrameSize;
use std::sync::Arc;

/// Opens the local ports in parallel: the kernel needs time to create rings.
pub(super) fn open_local_ports(
    plan: &Plan,
    places: &PortAssignment,
    opener: &dyn PortOpener,
) -> Result<Vec<(usize, OpenPort)>, Error> {
    std::thread::scope(|scope| {
        let ports = plan.ports.iter().enumerate().filter(|(index, _)| places.is_local_port(*index));
        let mut opening = Vec::new();
        for (index, port) in ports {
            let sent = plan.streams.iter().filter(|stream| stream.tx == index);
            // `None` marks a port that sends nothing.
            let largest = sent.map(|stream| stream.frames.largest_frame()).max();
            opening.push((index, scope.spawn(move || opener.open_port(port, largest))));
        }
        let outcomes = opening.into_iter().map(|(index, opened)| {
            // A panic continues in this thread with its own message, which an error would lose.
            let opened = opened.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            opened.map(|port| (index, port))
        });
        // All threads are joined before the first error is returned, so that the other ports are restored.
        let outcomes: Vec<Result<(usize, OpenPort), Error>> = outcomes.collect();
        outcomes.into_iter().collect()
    })
}

/// Computes rates and gaps of the streams from the link speeds of the local ports. Fails if a port is too
/// slow for its streams.
pub(super) fn bind_plan(
    plan: Plan,
    places: &PortAssignment,
    infos: &[(usize, PortInfo)],
) -> Result<BoundPlan, Error> {
    let mut speeds = vec![None; plan.ports.len()];
    for (port, info) in infos {
        speeds[*port] = info.speed;
    }
    Ok(plan.bind_to_links_of_node(&speeds, &|port| places.is_local_port(port))?)
}

/// Builds frames and schedule of a stream of the plan. `mac` is the MAC address of its next hop, if that was found.
pub(super) fn build_stream_spec(
    plan: &BoundPlan,
    places: &PortAssignment,
    stream: usize,
    mac: Option<Mac>,
) -> Result<Arc<StreamSpec>, Error> {
    let of_plan = &plan.plan.streams[stream];
    let number =
        u16::try_from(stream).map_err(|_| Error::Bug("a plan has more streams than tags can name"))?;
    let sent_elsewhere = !places.is_local_port(of_plan.tx);
    // This node does not see which neighbours another node has found. If the neighbour is an emulated interface of the
    // plan, the plan has its MAC address.
    let mac = mac.or_else(|| {
        of_plan
            .awaits
            .filter(|_| sent_elsewhere)
            .and_then(|of| places::find_mac_by_address(&plan.plan, of.ip))
    });
    let source = match mac {
        Some(mac) => FrameSource::from_origin(
            &of_plan
                .frames_with_mac(mac)
                .map_err(|_| Error::Bug("resolving a MAC address changed a frame size"))?,
        ),
        None => FrameSource::from_origin(&of_plan.frames),
    };
    Ok(Arc::new(StreamSpec {
        number,
        source,
        timeline: plan.streams[stream].timeline,
        latency: of_plan.metrics.latency,
        sent_elsewhere,
        untimed: !sent_elsewhere && places.is_sent_by_engine(),
    }))
}

/// Checks that no frame is longer than its local ports can carry.
pub(super) fn check_frame_sizes(plan: &Plan, infos: &[(usize, PortInfo)]) -> Result<(), Error> {
    let too_large = plan.streams.iter().filter_map(|stream| {
        let largest: FrameSize = stream.frames.largest_frame();
        // The kernel accepts one 802.1Q tag beyond the MTU.
        let measured = stream.frames.largest_untagged().bytes();
        let info = infos.iter().find(|(port, info)| {
            (*port == stream.tx || stream.rx.contains(port)) && measured > info.max_frame
        });
        info.map(|(_, info)| {
            PlanProblem::error(
                format!("flows[{}].size", stream.flow),
                format!(
                    "frames of {} B are too long for port `{}` ({}), which carries at most {} B",
                    largest.bytes(),
                    info.name,
                    info.location,
                    info.max_frame
                ),
            )
            .with_hint(
                "make the frames smaller, or set a larger `mtu` in `layer1`; the limit does not include one 802.1Q tag",
            )
        })
    });
    let problems: Vec<PlanProblem> = too_large.collect();
    if problems.is_empty() { Ok(()) } else { Err(Error::Plan(PlanProblems(problems))) }
}
