//! `packetrig probe calibrate`: how exact each mechanism is here.

use super::mechanism;
use super::send::micros;
use crate::args::CalibrateProbes as Arguments;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::numbers::count;
use crate::output::{CommandOutput, remark};
use crate::table::table;
use packetrig_plan::PortLocation;
use packetrig_probe::choice::{self, CalibrationResult};
use packetrig_probe::{ErrorSpread, ReleaseMechanism};
use packetrig_prober::calibrate::{self, CalibrationExtent, FoundMechanism};
use packetrig_sys::bpf::BpfAttachment;
use packetrig_sys::{private_files, signal, xdp};
use packetrig_testkit::Lab;
use serde_json::json;
use std::path::Path;

/// Probes of a train.
const TRAIN: u32 = 50;

pub(super) fn perform(arguments: &Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    signal::latch()?;
    let bench = ProbeBench::open(&arguments.interfaces)?;
    let wanted =
        if arguments.mechanism.is_empty() { &ReleaseMechanism::ALL[..] } else { &arguments.mechanism };
    let extent = CalibrationExtent { count: arguments.count, gap: arguments.gap, train: TRAIN };
    let stop = || signal::received().is_some();
    let found = calibrate::perform((&bench.near, &bench.far), &arguments.confirm, wanted, extent, &stop)?;
    if stop() {
        return Ok(CommandExit::Interrupted);
    }
    let kept = calibrate::kept(&bench.near, &found);
    let (mechanism, why) = choice::choose(|_| true, Some(&kept));
    let place = arguments.keep.clone().map_or_else(mechanism::place, Ok)?;
    keep(&place, &kept)?;
    if arguments.json {
        output.json(&json!({"found": found, "chosen": mechanism, "why": why, "kept_in": place}))?;
    } else {
        output.text(text(&found));
        output
            .line(format_args!("`--mechanism auto` uses {mechanism} ({why}); saved in {}", place.display()));
    }
    for found in &found {
        found.remarks.iter().for_each(|line| remark(format_args!("{}: {line}", found.mechanism)));
    }
    let wrong = found.iter().any(|found| found.out_of_order > 0 || found.arrived < found.sent);
    Ok(if wrong { CommandExit::Inconclusive } else { CommandExit::Ok })
}

/// Two interfaces, of a lab if none were named.
struct ProbeBench {
    near: PortLocation,
    far: PortLocation,
    _pass: Option<BpfAttachment>,
    _lab: Option<Lab>,
}

impl ProbeBench {
    fn open(named: &[PortLocation]) -> Result<Self, Error> {
        if let [near, far] = named {
            return Ok(Self { near: near.clone(), far: far.clone(), _pass: None, _lab: None });
        }
        let lab = Lab::pair()?;
        let at = |index: usize| PortLocation {
            namespace: Some(lab.ports()[index].namespace().to_owned()),
            interface: lab.ports()[index].link.name.clone(),
        };
        let (near, far) = (at(0), at(1));
        // Live frames arrive only where a program or GRO takes them; without the rights for it that mechanism says why not.
        let port = &lab.ports()[1];
        let pass = xdp::pass(port.netns(), port.link.index, &far.interface).ok();
        Ok(Self { near, far, _pass: pass, _lab: Some(lab) })
    }
}

fn keep(place: &Path, kept: &CalibrationResult) -> Result<(), Error> {
    let failed = |source| Error::Write { what: place.display().to_string(), source };
    let text = serde_json::to_string_pretty(kept).map_err(|error| failed(error.into()))?;
    place.parent().map_or(Ok(()), private_files::create_directories).map_err(failed)?;
    private_files::write(place, text + "\n").map_err(failed)
}

fn text(found: &[FoundMechanism]) -> String {
    let row = |found: &FoundMechanism| {
        let end = |spread: Option<ErrorSpread>, of: fn(ErrorSpread) -> i64| {
            spread.map_or_else(|| "–".into(), |s| micros(of(s)))
        };
        if found.obstacle.is_some() {
            let dashes = std::iter::repeat_n("–".to_owned(), 8);
            return [found.mechanism.to_string()].into_iter().chain(dashes).collect();
        }
        vec![
            found.mechanism.to_string(),
            format!("{}/{}", count(found.arrived), count(found.sent)),
            end(found.error_ns, |s| s.p50),
            end(found.error_ns, |s| s.p99),
            end(found.error_ns, |s| s.most),
            end(found.spacing_error_ns, |s| s.p99),
            end(found.release_to_arrival_ns, |s| s.p50),
            end(found.driver_to_arrival_ns, |s| s.p50),
            count(found.out_of_order),
        ]
    };
    let header = [
        "us",
        "arrived",
        "deadline to arrival p50",
        "p99",
        "most",
        "spacing error p99",
        "release to arrival p50",
        "driver to arrival p50",
        "out of order",
    ];
    let why =
        |found: &FoundMechanism| found.obstacle.as_ref().map(|why| format!("  {}: {why}\n", found.mechanism));
    [table(&header, found.iter().map(row))].into_iter().chain(found.iter().filter_map(why)).collect()
}
