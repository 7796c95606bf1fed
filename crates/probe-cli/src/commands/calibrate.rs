//! `packetrig probe calibrate`: measures how exactly each release mechanism sends on time on this machine.

use super::mechanism;
use super::send::format_micros;
use crate::args::CalibrateProbes as Arguments;
use crate::error::Error;
use packetrig_plan::PortLocation;
use packetrig_probe::choice::{self, CalibrationResult};
use packetrig_probe::{ErrorSpread, ReleaseMechanism};
use packetrig_probe_io::calibrate::{self, CalibratedMechanism, CalibrationOptions};
use packetrig_program::exit::CommandExit;
use packetrig_program::is_interrupted;
use packetrig_program::numbers::format_count;
use packetrig_program::output::{CommandOutput, print_remark};
use packetrig_program::table::format_table;
use packetrig_sys::bpf::BpfAttachment;
use packetrig_sys::{private_files, signal, xdp};
use packetrig_testkit::Lab;
use serde_json::json;
use std::io;
use std::path::Path;

/// Number of probes in a train.
// `--count` must be at least this number, so each mechanism sends at least one complete train.
const FRAMES_PER_TRAIN: u32 = 50;

pub(super) fn run_calibration(
    arguments: &Arguments,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    signal::record_end_signals()?;
    let ports = ConnectedPorts::open_ports(&arguments.interfaces)?;
    let wanted =
        if arguments.mechanism.is_empty() { &ReleaseMechanism::ALL[..] } else { &arguments.mechanism };
    let extent = CalibrationOptions { count: arguments.count, gap: arguments.gap, train: FRAMES_PER_TRAIN };
    let ends = (&ports.near, &ports.far);
    let found = calibrate::calibrate_mechanisms(ends, &arguments.confirm, wanted, extent, &is_interrupted)?;
    // An incomplete calibration is not saved: `auto` would choose between mechanisms of which some were not
    // measured.
    if is_interrupted() {
        return Ok(CommandExit::Interrupted);
    }
    let kept = calibrate::build_stored_calibration(&ports.near, &found);
    // Every mechanism counts as available here: `kept` contains only the mechanisms that have just worked.
    let (mechanism, why) = choice::choose_mechanism(|_| true, Some(&kept));
    let place = arguments.write.clone().map_or_else(mechanism::require_default_calibration_file, Ok)?;
    save_calibration(&place, &kept)?;
    if arguments.json {
        output.write_json(&json!({"found": found, "chosen": mechanism, "why": why, "kept_in": place}))?;
    } else {
        output.write_text(format_calibration_table(&found));
        output.write_line(format_args!(
            "with this calibration, `--mechanism auto` uses {mechanism} ({why}); it is saved in {}",
            place.display()
        ));
    }
    for found in &found {
        found.remarks.iter().for_each(|line| print_remark(format_args!("{}: {line}", found.mechanism)));
    }
    // A cable neither loses nor reorders frames, so lost or reordered frames put the measurement in doubt.
    let wrong = found.iter().any(|found| found.out_of_order > 0 || found.arrived < found.sent);
    Ok(if wrong { CommandExit::Inconclusive } else { CommandExit::Ok })
}

/// Two connected interfaces: those that the user names, otherwise the two ends of a new veth pair in a lab.
struct ConnectedPorts {
    near: PortLocation,
    far: PortLocation,
    // Fields are dropped in this order: the XDP program is detached before the lab with its interface is
    // removed.
    _pass: Option<BpfAttachment>,
    _lab: Option<Lab>,
}

impl ConnectedPorts {
    fn open_ports(named: &[PortLocation]) -> Result<Self, Error> {
        if let [near, far] = named {
            return Ok(Self { near: near.clone(), far: far.clone(), _pass: None, _lab: None });
        }
        let lab = Lab::cabled_pair()?;
        let near = lab_location(&lab, 0);
        let far = lab_location(&lab, 1);
        // A veth interface accepts redirected frames only while its peer has an XDP program or GRO. Without
        // the rights to load a program, the mechanism `live` reports that it is not available.
        let port = &lab.ports()[1];
        let pass = xdp::attach_xdp_pass_program(port.netns(), port.link.index, &far.interface).ok();
        Ok(Self { near, far, _pass: pass, _lab: Some(lab) })
    }
}

fn lab_location(lab: &Lab, index: usize) -> PortLocation {
    let port = &lab.ports()[index];
    PortLocation { namespace: Some(port.namespace().to_owned()), interface: port.link.name.clone() }
}

fn save_calibration(place: &Path, kept: &CalibrationResult) -> Result<(), Error> {
    try_save_result(place, kept).map_err(|source| Error::unwritable_file(place, source))
}

fn try_save_result(place: &Path, kept: &CalibrationResult) -> io::Result<()> {
    // The result is encoded before any directory is created: an error then leaves no empty directory behind.
    let text = serde_json::to_string_pretty(kept)?;
    place.parent().map_or(Ok(()), private_files::create_directories)?;
    private_files::write_file(place, text + "\n")
}

fn format_calibration_table(found: &[CalibratedMechanism]) -> String {
    let header = [
        "mechanism (times in us)",
        "arrived",
        "deadline to arrival p50",
        "p99",
        "max",
        "spacing error p99",
        "release to arrival p50",
        "driver to arrival p50",
        "out of order",
    ];
    let mut text = format_table(&header, found.iter().map(mechanism_row));
    for found in found {
        text.extend(found.obstacle.as_ref().map(|why| format!("  {}: {why}\n", found.mechanism)));
    }
    text
}

fn mechanism_row(found: &CalibratedMechanism) -> Vec<String> {
    if found.obstacle.is_some() {
        // The header has eight columns after the name.
        let dashes = std::iter::repeat_n(super::UNKNOWN_FIGURE.to_owned(), 8);
        return [found.mechanism.to_string()].into_iter().chain(dashes).collect();
    }
    vec![
        found.mechanism.to_string(),
        format!("{}/{}", format_count(found.arrived), format_count(found.sent)),
        micros_cell(found.error_ns, |spread| Some(spread.p50)),
        micros_cell(found.error_ns, |spread| spread.p99),
        micros_cell(found.error_ns, |spread| Some(spread.most)),
        micros_cell(found.spacing_error_ns, |spread| spread.p99),
        micros_cell(found.release_to_arrival_ns, |spread| Some(spread.p50)),
        micros_cell(found.driver_to_arrival_ns, |spread| Some(spread.p50)),
        format_count(found.out_of_order),
    ]
}

fn micros_cell(spread: Option<ErrorSpread>, of: fn(ErrorSpread) -> Option<i64>) -> String {
    spread.and_then(of).map_or_else(|| super::UNKNOWN_FIGURE.to_owned(), format_micros)
}
