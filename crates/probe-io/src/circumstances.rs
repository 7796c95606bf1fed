//! Records the conditions of a series of probes that may explain its results later: kernel, driver, queues, offloads.
//!
//! The functions change no setting, and leave out values that the system does not report.

use crate::Error;
use crate::release::ReleaseOptions;
use packetrig_plan::PortLocation;
use packetrig_probe::header::{ClockOffset, PROBE_RECORD_FORMAT, ProbeHeader};
use packetrig_probe::{ProbeSchedule, ReleaseMechanism};
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::{clock, kernel, qdisc, sched};

/// Measures the offset of the real-time clock against the monotonic one.
pub fn measure_clock_offset() -> ClockOffset {
    let offset = clock::measure_realtime_offset();
    ClockOffset { offset_ns: offset.offset_ns, bound_ns: offset.bound_ns }
}

/// Returns the name of an interface's driver; `None` if the namespace cannot be opened or the kernel reports no driver.
pub fn find_driver_name(location: &PortLocation) -> Option<String> {
    let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref()).ok()?;
    EthtoolCalls::open_in(&netns).ok()?.read_driver_name(&location.interface).ok().map(|driver| driver.name)
}

/// Builds the header of a probe file, as far as it is known before the first probe leaves. The caller adds the
/// seed, the targets, the contact, the reason for the mechanism and its remarks, and the clock offset after the
/// last probe. `schedule` is `None` if an estimator requests trains one by one.
pub fn build_probe_header(
    location: &PortLocation,
    mechanism: ReleaseMechanism,
    options: &ReleaseOptions,
    schedule: Option<&ProbeSchedule>,
) -> Result<ProbeHeader, Error> {
    let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref())?;
    let link = NamespaceLinks::open_in(&netns)?.find_link_by_name(&location.interface)?;
    let ethtool = EthtoolCalls::open_in(&netns)?;
    let offloads = Offload::ALL
        .into_iter()
        .filter(|offload| ethtool.is_offload_on(&link.name, *offload).unwrap_or(false));
    let qdiscs = qdisc::read_qdiscs(&netns, link.index, &link.name).unwrap_or_default();
    let before = measure_clock_offset();
    Ok(ProbeHeader {
        format: PROBE_RECORD_FORMAT.into(),
        argv: std::env::args().collect(),
        seed: 0,
        schedule: schedule.map(ProbeSchedule::fingerprint).unwrap_or_default(),
        probes: schedule.map_or(0, |schedule| schedule.probes().len() as u64),
        targets: Vec::new(),
        about: None,
        interface: location.to_string(),
        mechanism,
        why: String::new(),
        remarks: Vec::new(),
        ahead_ns: options.ahead.as_u64(),
        slack_ns: options.slack.as_u64(),
        priority: options.priority,
        cpu: options.cpu,
        tolerance_ns: options.tolerance.as_u64(),
        kernel: kernel::kernel_release_name(),
        driver: ethtool.read_driver_name(&link.name).map(|driver| driver.name).unwrap_or_default(),
        qdiscs: qdiscs.into_iter().map(|qdisc| qdisc.kind).collect(),
        offloads: offloads.map(|offload| offload.name().to_owned()).collect(),
        real_time_share_us: sched::read_real_time_limits(),
        clock_before: before,
        // The caller replaces this value when the last probe has left.
        clock_after: before,
    })
}
