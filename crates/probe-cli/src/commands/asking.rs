//! Common code of the commands that wait for answers: paths, schedules, record files and exit codes.

use super::{bounds, mechanism};
use crate::args::ProbeSeriesArgs;
use crate::error::Error;
use crate::viewer::{ViewedSeries, show_event};
use crate::{HostProgram, RecordFiles};
use packetrig_probe::header::ProbeHeader;
use packetrig_probe::method::ProbeMethod;
use packetrig_probe::{PermittedTarget, ProbePermit, ProbeSchedule};
use packetrig_probe_io::ask::{
    self, ProbeLine, ProbeSeriesEvent, ProbeSeriesOptions, ProbeSeriesOutcome, SeriesEndReason,
};
use packetrig_probe_io::circumstances;
use packetrig_probe_io::listener::{PacketListener, WantedPackets};
use packetrig_probe_io::path::{self, ProbePath};
use packetrig_program::exit::CommandExit;
use packetrig_program::identity;
use packetrig_program::is_interrupted;
use packetrig_sys::clock;
use packetrig_sys::loopback::LoopbackSettingsHolder;
use packetrig_units::{Nanos, clamp_to_u32};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Maximum number of probes of a series without `--count`. A schedule is a list in memory, so its length is limited.
const ENDLESS_SERIES_PROBES: u64 = 1_000_000;

/// Finds the path to a target; fails if the permit does not allow the target.
pub(super) fn find_permitted_path(
    asking: &ProbeSeriesArgs,
    permit: &ProbePermit,
    target: IpAddr,
) -> Result<ProbePath, Error> {
    let permitted: PermittedTarget = bounds::permit_target(permit, target)?;
    let from = asking.through.as_ref();
    let namespace = from.and_then(|from| from.namespace.as_deref());
    Ok(path::find_path(namespace, permitted, from.map(|from| from.interface.as_str()))?)
}

/// Changes the settings of the loopback interface that probes to this machine's own addresses need. Dropping
/// the result restores them.
pub(super) fn open_loopback(ways: &[ProbePath]) -> Result<Vec<LoopbackSettingsHolder>, Error> {
    // Paths to other machines need no change: `open_loopback` returns `None` for them.
    ways.iter().filter_map(|way| path::open_loopback(way).transpose()).map(|opened| Ok(opened?)).collect()
}

/// Opens a listener at each interface that answers arrive at. Targets behind the same interface share one
/// listener, because each listener has its own packet ring.
pub(super) fn open_listeners(ways: &[ProbePath], port: Option<u16>) -> Result<Vec<PacketListener>, Error> {
    let mut listeners = Vec::new();
    for (nth, way) in ways.iter().enumerate() {
        // The listener that the first path through an interface opened also receives the packets of the later
        // paths.
        if ways[..nth].iter().any(|earlier| earlier.index == way.index) {
            continue;
        }
        let same_interface = ways.iter().filter(|other| other.index == way.index);
        let mut addresses: Vec<IpAddr> = same_interface.map(|other| other.ends.source).collect();
        // Paths through one interface usually have the same source address, and the filter needs each address
        // only once.
        addresses.sort_unstable();
        addresses.dedup();
        let wanted = WantedPackets { addresses, port };
        listeners.push(PacketListener::open_at_interface(&way.location, way.index, &wanted)?);
    }
    Ok(listeners)
}

/// Position of a line (the probes to one target) among all lines of a command. The lines send in turn.
#[derive(Clone, Copy)]
pub(super) struct ProbeLineTurn {
    pub(super) nth: usize,
    pub(super) of: usize,
}

impl ProbeLineTurn {
    pub(super) const ALONE: Self = Self { nth: 0, of: 1 };
}

/// The probes to one target, and the header of their records.
pub(super) struct TargetProbeSeries<'m> {
    pub(super) line: ProbeLine<'m>,
    pub(super) header: ProbeHeader,
}

pub(super) fn open_probe_line<'m>(
    asking: &ProbeSeriesArgs,
    files: RecordFiles,
    way: ProbePath,
    method: Box<dyn ProbeMethod + 'm>,
    turn: ProbeLineTurn,
) -> Result<TargetProbeSeries<'m>, Error> {
    // The names are checked before any probe is sent: with a format that cannot be written, the result would
    // be lost.
    files.check_table_files(&asking.write)?;
    let chosen = mechanism::choose_mechanism(&asking.release, &way.location);
    let seed = asking.seed.unwrap_or_else(identity::random_seed);
    let schedule = make_schedule(asking, &way, seed)?;
    let dispatcher = mechanism::open_dispatcher(&chosen, &way.location, way.permitted.limits())?;
    let mut header =
        circumstances::build_probe_header(&way.location, chosen.mechanism, &chosen.options, Some(&schedule))?;
    // Only random intervals use the seed. In other series, a seed in the records would wrongly suggest that
    // the seed determines them.
    header.seed = if asking.poisson { seed } else { 0 };
    header.why = chosen.why;
    header.targets = vec![way.ends.target.to_string()];
    header.remarks = dispatcher.remarks().to_vec();
    // The lines start at evenly spaced times within the interval. With regular intervals, probes to different
    // targets then never leave at the same time and do not delay each other. The quotient is rounded down, so
    // the last line starts before the first line sends again.
    let gap = asking.interval.as_u64() / turn.of.max(1) as u64;
    let shift = Nanos::new(gap * turn.nth as u64);
    Ok(TargetProbeSeries { line: ProbeLine { dispatcher, schedule, shift, way, method }, header })
}

/// What is needed to run the lines of a command and to show them to viewers.
pub(super) struct ProbeLineRun<'a> {
    pub(super) asking: &'a ProbeSeriesArgs,
    pub(super) host: HostProgram,
    /// The measured quantity, in the form of a phrase before the target: `round trip to`.
    pub(super) measured: &'a str,
    /// The headers of the records, one for each line.
    pub(super) headers: &'a [ProbeHeader],
}

impl ProbeLineRun<'_> {
    /// Runs the lines to their end. If the program has a server for viewers, viewers see the probes and
    /// answers while the lines run.
    pub(super) fn run_lines(
        &self,
        lines: &mut [ProbeLine<'_>],
        listeners: &mut [PacketListener],
        on_event: &mut dyn FnMut(ProbeSeriesEvent<'_>),
    ) -> Result<Vec<ProbeSeriesOutcome>, Error> {
        // The viewer is opened before the first probe is sent, so that it shows the whole series.
        let viewer = self.host.open_viewer.map(|open_viewer| {
            // `packetrig watch` lists this command under this name.
            let name = format!("probe: {} {}", self.measured, join_targets(self.headers));
            open_viewer(&name, self.viewed_series(lines))
        });
        Ok(ask::run_lines(lines, listeners, make_series_options(self.asking), &mut |event| {
            if let Some(viewer) = &viewer {
                show_event(viewer.as_ref(), &event);
            }
            on_event(event);
        })?)
    }

    fn viewed_series(&self, lines: &[ProbeLine<'_>]) -> Vec<ViewedSeries> {
        let series = lines.iter().zip(self.headers).map(|(line, header)| {
            let target = header.targets.concat();
            ViewedSeries {
                name: format!("{} {target}", self.measured),
                interface: line.way.location.to_string(),
                target,
                frame_bytes: self.asking.size.bytes().into(),
                answer_within: self.asking.wait,
            }
        });
        series.collect()
    }
}

fn join_targets(headers: &[ProbeHeader]) -> String {
    headers.iter().flat_map(|header| &header.targets).cloned().collect::<Vec<_>>().join(", ")
}

/// Writes the records of each line to the files that `--write` names.
pub(super) fn write_records(
    asking: &ProbeSeriesArgs,
    files: RecordFiles,
    headers: &[ProbeHeader],
    outcomes: &[ProbeSeriesOutcome],
) -> Result<(), Error> {
    for file in &asking.write {
        for (header, outcome) in headers.iter().zip(outcomes) {
            // With a single target, the file has exactly the name that the user gave.
            let target = header.targets.first().filter(|_| headers.len() > 1);
            let file = target.map_or_else(|| file.clone(), |target| file_name_for_target(file, target));
            // The monotonic clock and the wall clock are compared again at the end: the difference shows
            // whether the wall clock was set in between.
            let header = ProbeHeader { clock_after: circumstances::measure_clock_offset(), ..header.clone() };
            files.write_file(&file, &header, outcome.series.records(), &mut |_, _| {})?;
        }
    }
    Ok(())
}

/// Inserts the target into a file name: `a.jsonl` becomes `a-192.0.2.1.jsonl`.
fn file_name_for_target(file: &Path, target: &str) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let extension = file.extension().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!("{stem}-{target}.{extension}"))
}

fn make_schedule(asking: &ProbeSeriesArgs, way: &ProbePath, seed: u64) -> Result<ProbeSchedule, Error> {
    // Frames that are too long are refused here, with the reason: otherwise the kernel would refuse every
    // frame when it is due.
    let longest = way.longest_frame();
    let length = asking.size.kernel_len();
    if length > longest {
        return Err(Error::Usage(format!(
            "a probe of {} B is too long: the MTU of {} is {}; use a smaller --size",
            asking.size.bytes(),
            way.location,
            way.mtu
        )));
    }
    let length = clamp_to_u32(length as u64);
    // Without `--count`, the series has as many probes as the limits of the target allow in total, at most
    // `ENDLESS_SERIES_PROBES`.
    let endless = way.permitted.limits().most.min(ENDLESS_SERIES_PROBES);
    let count = asking.count.unwrap_or_else(|| clamp_to_u32(endless));
    let schedule = if asking.poisson {
        ProbeSchedule::poisson(count, asking.interval, length, seed)
    } else {
        ProbeSchedule::periodic(count, asking.interval, length)
    };
    schedule.map_err(|refused| Error::Usage(refused.to_string()))
}

/// Returns the time limit for answers, and a stop condition that is true after an end signal.
fn make_series_options(asking: &ProbeSeriesArgs) -> ProbeSeriesOptions<'static> {
    ProbeSeriesOptions { answer: asking.wait, stop: &is_interrupted }
}

/// Returns a number that differs from run to run, for identifiers.
pub(super) fn random_number() -> u64 {
    packetrig_wire::pattern::keyed_mix(clock::wall_clock_ns(), u64::from(std::process::id()))
}

/// Returns the exit code of a command: the worst result of all its targets.
pub(super) fn exit_code_of_series(asking: &ProbeSeriesArgs, outcomes: &[ProbeSeriesOutcome]) -> CommandExit {
    // This check comes first: if a limit, a host or losses ended a series early, its missing answers say
    // little about the path.
    if outcomes.iter().any(was_stopped_by_limits) {
        CommandExit::World
    } else if outcomes.iter().any(|outcome| outcome.series.counts().answered == 0) {
        CommandExit::Fail
    // Without `--count`, an interrupt is the normal end of a series and not a failure.
    } else if asking.count.is_some() && outcomes.iter().any(|outcome| outcome.end == SeriesEndReason::Stopped)
    {
        CommandExit::Interrupted
    } else {
        CommandExit::Ok
    }
}

fn was_stopped_by_limits(outcome: &ProbeSeriesOutcome) -> bool {
    matches!(outcome.end, SeriesEndReason::Lossy | SeriesEndReason::Prohibited | SeriesEndReason::Limits(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_has_a_file() {
        assert_eq!(
            file_name_for_target(Path::new("d/a.b.jsonl"), "192.0.2.1"),
            Path::new("d/a.b-192.0.2.1.jsonl")
        );
    }
}
