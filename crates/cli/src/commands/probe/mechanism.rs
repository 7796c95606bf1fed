//! The mechanism a command releases its probes with: as it was asked for, or as calibration suggests.

use crate::args::{MannerFlags, MechanismArg};
use crate::error::Error;
use crate::output::remark;
use packetrig_plan::PortLocation;
use packetrig_probe::ProbeBudget;
use packetrig_probe::choice::{self, CalibrationResult};
use packetrig_probe::{ReleaseMechanism, TargetLimits};
use packetrig_prober::circumstances;
use packetrig_prober::release::{self, ReleaseDispatcher, ReleaseOptions};
use packetrig_sys::kernel;
use packetrig_units::Nanos;
use std::path::PathBuf;

/// A mechanism with how it works and why it was taken.
#[derive(Clone, Debug)]
pub(super) struct ChosenMechanism {
    pub(super) mechanism: ReleaseMechanism,
    pub(super) manner: ReleaseOptions,
    pub(super) why: String,
}

/// What the flags come to at an interface.
pub(super) fn choose(flags: &MannerFlags, location: &PortLocation) -> ChosenMechanism {
    let (mechanism, why) = match flags.mechanism {
        MechanismArg::Only(mechanism) => (mechanism, "asked for".to_owned()),
        MechanismArg::Auto => {
            let here = (kernel::release(), circumstances::driver(location));
            let calibration = kept().filter(|kept| (kept.kernel.clone(), Some(kept.driver.clone())) == here);
            let can = |wanted| release::open(location, wanted, ReleaseOptions::usual()).is_ok();
            choice::choose(can, calibration.as_ref())
        }
    };
    ChosenMechanism { mechanism, manner: manner(flags, mechanism), why }
}

/// The same for trains that are compared with their measured departures. `auto` is `spin` then: they need not be exact, and while a gate
/// holds them nothing else of the kernel goes on at its processor, the timer of a shaper on this machine included.
pub(super) fn choose_for_trains(flags: &MannerFlags, location: &PortLocation) -> ChosenMechanism {
    match flags.mechanism {
        MechanismArg::Only(_) => choose(flags, location),
        MechanismArg::Auto => {
            let mechanism = ReleaseMechanism::Spin;
            ChosenMechanism {
                mechanism,
                manner: manner(flags, mechanism),
                why: "departures are measured".to_owned(),
            }
        }
    }
}

/// Opens it behind the limits of a target.
pub(super) fn open(
    chosen: &ChosenMechanism,
    location: &PortLocation,
    limits: TargetLimits,
) -> Result<ReleaseDispatcher, Error> {
    let release = release::open(location, chosen.mechanism, chosen.manner)?;
    for one in release.remarks() {
        remark(one);
    }
    Ok(ReleaseDispatcher::new(release, ProbeBudget::new(limits)))
}

fn manner(flags: &MannerFlags, mechanism: ReleaseMechanism) -> ReleaseOptions {
    let usual = ReleaseOptions::usual_for(mechanism);
    let or = |flag: Option<Nanos>, usual| flag.unwrap_or(usual);
    ReleaseOptions {
        ahead: or(flags.ahead, usual.ahead),
        slack: or(flags.slack, usual.slack),
        spin_from: or(flags.spin_from, usual.spin_from),
        warm: usual.warm && !flags.no_warm_up,
        priority: flags.priority.map_or(usual.priority, |priority| (priority > 0).then_some(priority)),
        cpu: flags.cpu,
        stamps: !flags.no_stamps,
        tolerance: or(flags.tolerance, usual.tolerance),
    }
}

/// Where calibration is kept.
pub(super) fn place() -> Result<PathBuf, Error> {
    Ok(packetrig_store::default_place()?.join("probe.json"))
}

/// What was kept, if anything was.
pub(super) fn kept() -> Option<CalibrationResult> {
    let text = std::fs::read_to_string(place().ok()?).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::CommandLine;
    use crate::args::{ProbeCommand, RigCommand};
    use clap::Parser;

    fn chosen(more: &[&str]) -> ChosenMechanism {
        let arguments = ["packetrig", "probe", "send", "lo", "--to", "127.0.0.1"];
        let cli = CommandLine::try_parse_from(arguments.iter().chain(more)).unwrap();
        let RigCommand::Probe(probe) = cli.command else { panic!("another command") };
        let ProbeCommand::Send(send) = *probe else { panic!("another command") };
        choose(&send.manner, &send.interface)
    }

    #[test]
    fn flags_change_what_is_usual_for_a_mechanism() {
        let sleep = chosen(&["--mechanism", "sleep"]);
        assert_eq!(
            (sleep.mechanism, sleep.manner),
            (ReleaseMechanism::Sleep, ReleaseOptions::usual_for(ReleaseMechanism::Sleep))
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
            ..ReleaseOptions::usual()
        };
        assert_eq!(spin.manner, expected);
    }
}
