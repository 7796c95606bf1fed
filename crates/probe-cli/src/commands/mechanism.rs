//! The release mechanism of a command: either the one that the user named, or the one that packetrig chooses
//! according to the saved calibration.

use crate::args::{MechanismArg, ReleaseFlags};
use crate::error::Error;
use packetrig_plan::PortLocation;
use packetrig_probe::ProbeBudget;
use packetrig_probe::choice::{self, CalibrationResult};
use packetrig_probe::{ReleaseMechanism, TargetLimits};
use packetrig_probe_io::circumstances;
use packetrig_probe_io::release::{self, ReleaseDispatcher, ReleaseOptions};
use packetrig_program::output::print_remark;
use packetrig_sys::data_directory::data_directory;
use packetrig_sys::kernel;
use std::path::PathBuf;

/// A release mechanism with its options, and the reason for the choice.
#[derive(Clone, Debug)]
pub(super) struct ChosenMechanism {
    pub(super) mechanism: ReleaseMechanism,
    pub(super) options: ReleaseOptions,
    pub(super) why: String,
}

impl ChosenMechanism {
    fn new(flags: &ReleaseFlags, mechanism: ReleaseMechanism, why: String) -> Self {
        Self { mechanism, options: release_options(flags, mechanism), why }
    }
}

/// Returns the mechanism that the user named. For `auto`, chooses one that works at this interface.
pub(super) fn choose_mechanism(flags: &ReleaseFlags, location: &PortLocation) -> ChosenMechanism {
    match flags.mechanism {
        MechanismArg::Only(mechanism) => ChosenMechanism::new(flags, mechanism, "asked for".to_owned()),
        MechanismArg::Auto => {
            // Timing errors depend on the kernel and the driver: a calibration with another kernel or driver
            // says nothing about this interface.
            let driver = circumstances::find_driver_name(location);
            let calibration = load_calibration().filter(|kept| {
                kept.kernel == kernel::kernel_release_name() && driver.as_ref() == Some(&kept.driver)
            });
            let (mechanism, why) = choice::choose_mechanism(
                // The mechanism is opened and dropped at once: only this attempt shows whether the kernel,
                // the interface and the rights suffice.
                |wanted| release::open_release(location, wanted, ReleaseOptions::common()).is_ok(),
                calibration.as_ref(),
            );
            ChosenMechanism::new(flags, mechanism, why)
        }
    }
}

/// Chooses a mechanism for trains whose departures are measured. For them, `auto` means `spin`: the
/// departures need not be on time, and a gate that holds a frame blocks all other kernel work on its
/// processor, for example the timer of a shaper on this machine.
pub(super) fn choose_mechanism_for_trains(flags: &ReleaseFlags, location: &PortLocation) -> ChosenMechanism {
    match flags.mechanism {
        MechanismArg::Only(_) => choose_mechanism(flags, location),
        MechanismArg::Auto => {
            ChosenMechanism::new(flags, ReleaseMechanism::Spin, "departures are measured".to_owned())
        }
    }
}

/// Opens a mechanism, and a dispatcher that sends with it within the limits of a target. Prints the remarks of the
/// mechanism on standard error.
pub(super) fn open_dispatcher(
    chosen: &ChosenMechanism,
    location: &PortLocation,
    limits: TargetLimits,
) -> Result<ReleaseDispatcher, Error> {
    let release = release::open_release(location, chosen.mechanism, chosen.options)?;
    for one in release.remarks() {
        print_remark(one);
    }
    Ok(ReleaseDispatcher::new(release, ProbeBudget::new(limits)))
}

fn release_options(flags: &ReleaseFlags, mechanism: ReleaseMechanism) -> ReleaseOptions {
    let usual = ReleaseOptions::default_for(mechanism);
    ReleaseOptions {
        ahead: flags.ahead.unwrap_or(usual.ahead),
        slack: flags.slack.unwrap_or(usual.slack),
        spin_from: flags.spin_from.unwrap_or(usual.spin_from),
        warm: usual.warm && !flags.no_warm_up,
        // `--priority 0` means no real-time priority. Without the flag, the default of the mechanism applies.
        priority: flags.priority.map_or(usual.priority, |priority| (priority > 0).then_some(priority)),
        cpu: flags.cpu,
        stamps: !flags.no_stamps,
        tolerance: flags.tolerance.unwrap_or(usual.tolerance),
    }
}

/// Returns the path that `probe calibrate` writes to by default; `None` if neither `$XDG_DATA_HOME` nor `$HOME` is set.
pub fn default_calibration_file() -> Option<PathBuf> {
    data_directory().map(|directory| directory.join("probe.json"))
}

pub(super) fn require_default_calibration_file() -> Result<PathBuf, Error> {
    default_calibration_file().ok_or(Error::NoDataDirectory)
}

/// Reads the saved calibration. An unreadable calibration counts as none, because every mechanism works without one.
pub fn load_calibration() -> Option<CalibrationResult> {
    // A file that another version of packetrig wrote may be unreadable; the next calibration replaces it.
    let text = std::fs::read_to_string(default_calibration_file()?).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::ProbeCommand;
    use clap::{FromArgMatches, Subcommand};
    use packetrig_units::Nanos;

    fn chosen(more: &[&str]) -> ChosenMechanism {
        let arguments = ["probe", "send", "lo", "--to", "127.0.0.1"];
        let page = ProbeCommand::augment_subcommands(clap::Command::new("probe"));
        let matches = page.try_get_matches_from(arguments.iter().chain(more)).unwrap();
        let ProbeCommand::Send(send) = ProbeCommand::from_arg_matches(&matches).unwrap() else {
            panic!("another command")
        };
        choose_mechanism(&send.release, &send.interface)
    }

    #[test]
    fn flags_change_what_is_usual_for_a_mechanism() {
        let sleep = chosen(&["--mechanism", "sleep"]);
        assert_eq!(
            (sleep.mechanism, sleep.options),
            (ReleaseMechanism::Sleep, ReleaseOptions::default_for(ReleaseMechanism::Sleep))
        );
        let spin = chosen(&[
            "--mechanism",
            "spin",
            "--priority",
            "0",
            "--slack",
            "7us",
            "--no-stamps",
            "--ahead",
            "0ns",
        ]);
        let expected = ReleaseOptions {
            priority: None,
            slack: Nanos::from_micros(7),
            stamps: false,
            ahead: Nanos::ZERO,
            ..ReleaseOptions::common()
        };
        assert_eq!(spin.options, expected);
    }
}
