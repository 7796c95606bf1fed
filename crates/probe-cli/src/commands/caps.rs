//! `packetrig probe caps`: shows which release mechanisms and timestamps an interface supports.

use crate::args::CapsArgs as Arguments;
use crate::error::Error;
use packetrig_plan::PortLocation;
use packetrig_probe::DepartureStage;
use packetrig_probe_io::release::{MechanismCapability, find_capabilities};
use packetrig_program::exit::CommandExit;
use packetrig_program::output::CommandOutput;
use packetrig_program::table::format_table;
use packetrig_sys::caps::ThreadRights;
use packetrig_sys::clock::{self, ClockState};
use packetrig_sys::ethtool::EthtoolCalls;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::sched;
use serde_json::{Value, json};

pub(super) fn show_capabilities(
    arguments: &Arguments,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let mut interfaces = Vec::new();
    for location in locations_to_examine(arguments.interface.as_ref())? {
        let found = find_capabilities(&location)?;
        interfaces.push((location, found));
    }
    let machine = machine_facts()?;
    if arguments.json {
        let shown: Vec<Value> =
            interfaces.iter().map(|(location, found)| interface_json(location, found)).collect();
        output.write_json(&json!({"machine": machine, "interfaces": shown}))?;
        return Ok(CommandExit::Ok);
    }
    for (location, found) in &interfaces {
        output.write_line(location);
        output.write_text(format_mechanism_table(found));
        output.write_line(format_args!(
            "  hardware clock of the interface: {}",
            device_clock_or_none(location)
        ));
    }
    output.write_text(format_machine_limits(&machine));
    Ok(CommandExit::Ok)
}

fn locations_to_examine(named: Option<&PortLocation>) -> Result<Vec<PortLocation>, Error> {
    if let Some(location) = named {
        return Ok(vec![location.clone()]);
    }
    let links = NamespaceLinks::open_in(&NetNs::current()?)?.list_links()?;
    // Probes are Ethernet frames, so a link without a MAC address, such as a tunnel, cannot carry them.
    let usable = links.into_iter().filter(|link| link.up && !link.loopback && link.mac.is_some());
    Ok(usable.map(|link| PortLocation { namespace: None, interface: link.name }).collect())
}

fn machine_facts() -> Result<Value, Error> {
    let offset = clock::measure_realtime_offset();
    let clocks = ClockState::read_current()?;
    Ok(json!({
        "kernel": packetrig_sys::kernel::kernel_release_name(),
        "processors": sched::read_allowed_cpus()?.len(),
        "may_have_real_time_priority": ThreadRights::current().has_capability("CAP_SYS_NICE"),
        "real_time_share_us": sched::read_real_time_limits(),
        "clock_comparison_bound_ns": offset.bound_ns,
        // The value is rounded to whole seconds: the two clocks are read one after the other.
        "tai_ahead_s": (clock::tai_ns().saturating_sub(clock::wall_clock_ns()) + 500_000_000) / 1_000_000_000,
        "clocks": clocks,
    }))
}

fn interface_json(location: &PortLocation, found: &[MechanismCapability]) -> Value {
    json!({
        "interface": location.to_string(),
        "mechanisms": found.iter().map(capability_json).collect::<Vec<_>>(),
        "device_clock": device_clock_or_none(location),
    })
}

fn capability_json(can: &MechanismCapability) -> Value {
    json!({
        "mechanism": can.mechanism,
        "can": can.obstacle.is_none(),
        "why_not": can.obstacle.as_ref().map(ToString::to_string),
        "stages": can.stages,
    })
}

fn format_mechanism_table(found: &[MechanismCapability]) -> String {
    let mut text = format_table(&["mechanism", "works", "timestamps"], found.iter().map(capability_row));
    for can in found {
        text.extend(can.obstacle.as_ref().map(|error| format!("  {}: {error}\n", can.mechanism)));
    }
    text
}

fn capability_row(can: &MechanismCapability) -> Vec<String> {
    let has = if can.obstacle.is_some() { "no" } else { "yes" };
    let stamps = match &can.obstacle {
        Some(_) => "–".to_owned(),
        // Without a timestamp from the kernel, only the time of the call that sent the probe is known.
        None if can.stages.is_empty() => "release".to_owned(),
        None => can.stages.iter().copied().map(stage_name).collect::<Vec<_>>().join(", "),
    };
    vec![can.mechanism.to_string(), has.to_owned(), stamps]
}

const fn stage_name(stage: DepartureStage) -> &'static str {
    match stage {
        DepartureStage::Queue => "queue",
        DepartureStage::Capture => "capture",
        DepartureStage::Driver => "driver",
        DepartureStage::Wire => "wire",
    }
}

fn device_clock_or_none(location: &PortLocation) -> String {
    // If the clock cannot be read, none is shown: the rest of the output is still useful.
    let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref());
    let stamping =
        netns.and_then(|netns| EthtoolCalls::open_in(&netns)?.read_stamp_abilities(&location.interface));
    match stamping.ok().and_then(|stamping| stamping.clock) {
        Some(number) => format!("/dev/ptp{number}"),
        None => "none".into(),
    }
}

/// Describes the properties of the machine that limit the accuracy of all mechanisms.
fn format_machine_limits(machine: &Value) -> String {
    let share = match machine["real_time_share_us"].as_array().map(Vec::as_slice) {
        // Real-time threads get at most this part of each period, so that a spinning sender cannot block the
        // machine (sched(7)).
        Some([runtime, period]) => format!("{runtime} of {period} us"),
        _ => "unlimited or unknown".into(),
    };
    let may = if machine["may_have_real_time_priority"] == true { "yes" } else { "no (needs CAP_SYS_NICE)" };
    format!(
        "kernel {}, allowed processors: {}; real-time priority: {may}, CPU share {share}; error of reading \
            the real-time clock: at most {} ns, TAI ahead of this clock: {} s\n",
        machine["kernel"].as_str().unwrap_or_default(),
        machine["processors"],
        machine["clock_comparison_bound_ns"],
        machine["tai_ahead_s"],
    )
}
