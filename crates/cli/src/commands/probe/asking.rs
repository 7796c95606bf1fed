//! What commands that ask have in common: the way out, when probes leave, and how it ends.

use super::{bounds, mechanism};
use crate::args::AskingArgs;
use crate::error::Error;
use crate::exit::CommandExit;
use packetrig_probe::header::ProbeHeader;
use packetrig_probe::method::ProbeMethod;
use packetrig_probe::{PermittedTarget, ProbePermit, ProbeSchedule};
use packetrig_prober::ask::{AskOptions, LineEnd, LineOutcome, ProbeLine};
use packetrig_prober::circumstances;
use packetrig_prober::ear::{PacketListener, WantedPackets};
use packetrig_prober::path::{self, OpenLoopback, ProbePath};
use packetrig_store::probes::{self, ProbeForm};
use packetrig_sys::{clock, signal};
use packetrig_units::Nanos;
use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Probes of a series that is to go on until it is interrupted.
const ENDLESS: u64 = 1_000_000;

/// Where probes to a target leave; refused if nobody allows them.
pub(super) fn way(asking: &AskingArgs, permit: &ProbePermit, target: IpAddr) -> Result<ProbePath, Error> {
    let permitted: PermittedTarget = bounds::permitted(permit, target)?;
    let from = asking.through.as_ref();
    let namespace = from.and_then(|from| from.namespace.as_deref());
    Ok(path::find(namespace, permitted, from.map(|from| from.interface.as_str()))?)
}

/// Settings of the loopback interface that ways need, until they are dropped.
pub(super) fn open_loopback(ways: &[ProbePath]) -> Result<Vec<OpenLoopback>, Error> {
    ways.iter().map(|way| Ok(OpenLoopback::open(way)?)).collect()
}

/// An ear at each interface that answers come back to.
pub(super) fn ears(ways: &[ProbePath], port: Option<u16>) -> Result<Vec<PacketListener>, Error> {
    let mut places: Vec<&ProbePath> = Vec::new();
    for way in ways {
        if !places.iter().any(|known| known.index == way.index) {
            places.push(way);
        }
    }
    let ear = |place: &&ProbePath| {
        let of_place = ways.iter().filter(|way| way.index == place.index);
        let mut addresses: Vec<IpAddr> = of_place.map(|way| way.ends.source).collect();
        addresses.sort_unstable();
        addresses.dedup();
        Ok(PacketListener::open(&place.location, place.index, &WantedPackets { addresses, port })?)
    };
    places.iter().map(ear).collect()
}

/// A line of `of` that take turns, and what is said in front of its records.
pub(super) fn line<'m>(
    asking: &AskingArgs,
    way: ProbePath,
    method: Box<dyn ProbeMethod + 'm>,
    (nth, of): (usize, usize),
) -> Result<(ProbeLine<'m>, ProbeHeader), Error> {
    asking.write.iter().try_for_each(|file| tabular(file))?;
    let chosen = mechanism::choose(&asking.manner, &way.location);
    let turn = asking.interval.as_u64() / u64::try_from(of.max(1)).unwrap_or(1);
    let schedule = schedule(asking, &way)?;
    let dispatcher = mechanism::open(&chosen, &way.location, way.permitted.limits())?;
    let mut header = circumstances::header(&way.location, chosen.mechanism, &chosen.manner, Some(&schedule))?;
    (header.seed, header.why) = (asking.poisson.unwrap_or(0), chosen.why);
    header.targets = vec![way.ends.target.to_string()];
    header.remarks = dispatcher.remarks().to_vec();
    let line = ProbeLine {
        dispatcher,
        schedule,
        shift: Nanos::new(turn * u64::try_from(nth).unwrap_or(0)),
        way,
        method,
    };
    Ok((line, header))
}

/// Refuses forms that hold frames: of an exchange, a capture has them.
pub(super) fn tabular(file: &Path) -> Result<(), Error> {
    match ProbeForm::of(file)? {
        ProbeForm::JsonLines | ProbeForm::Parquet => Ok(()),
        ProbeForm::Pcapng => Err(Error::Usage(format!(
            "{}: records go to .jsonl or .parquet files; to write frames of both directions, use `packetrig capture`",
            file.display()
        ))),
    }
}

/// Writes the records of each line where it was asked for.
pub(super) fn write(
    asking: &AskingArgs,
    headers: &[ProbeHeader],
    outcomes: &[LineOutcome],
) -> Result<(), Error> {
    for file in &asking.write {
        for (header, outcome) in headers.iter().zip(outcomes) {
            let target = header.targets.first().filter(|_| headers.len() > 1);
            let file = target.map_or_else(|| file.clone(), |target| named_after(file, target));
            let header = ProbeHeader { clock_after: circumstances::clocks(), ..header.clone() };
            probes::write(&file, &header, outcome.series.records(), &mut |_, _| {})?;
        }
    }
    Ok(())
}

/// `a.jsonl` becomes `a-192.0.2.1.jsonl`.
fn named_after(file: &Path, target: &str) -> PathBuf {
    let part = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    file.with_file_name(format!("{}-{target}.{}", part(file.file_stem()), part(file.extension())))
}

fn schedule(asking: &AskingArgs, way: &ProbePath) -> Result<ProbeSchedule, Error> {
    let longest = way.longest_frame();
    let length = asking.size.kernel_len();
    if length > longest {
        return Err(Error::Usage(format!(
            "a probe of {} B does not fit: the MTU of {} is {}",
            asking.size.bytes(),
            way.location,
            way.mtu
        )));
    }
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let endless = way.permitted.limits().most.min(ENDLESS);
    let count = asking.count.unwrap_or_else(|| u32::try_from(endless).unwrap_or(u32::MAX));
    let schedule = match asking.poisson {
        Some(seed) => ProbeSchedule::poisson(count, asking.interval, length, seed),
        None => ProbeSchedule::periodic(count, asking.interval, length),
    };
    schedule.map_err(|refused| Error::Usage(refused.to_string()))
}

/// Waits for answers as long as was asked, and stops when interrupted.
pub(super) fn patience(asking: &AskingArgs) -> AskOptions<'static> {
    AskOptions { answer: asking.wait, stop: &|| signal::received().is_some() }
}

/// A number that differs from run to run, for identifiers.
pub(super) fn any_number() -> u64 {
    packetrig_wire::pattern::mix(clock::wall_clock_ns(), u64::from(std::process::id()))
}

/// How a command ends: by the worst of its lines.
pub(super) fn exit(asking: &AskingArgs, outcomes: &[LineOutcome]) -> CommandExit {
    let is_refused = |outcome: &LineOutcome| {
        matches!(outcome.end, LineEnd::Lossy | LineEnd::Prohibited | LineEnd::Limits(_))
    };
    if outcomes.iter().any(is_refused) {
        CommandExit::World
    } else if outcomes.iter().any(|outcome| outcome.series.counts().answered == 0) {
        CommandExit::Fail
    } else if asking.count.is_some() && outcomes.iter().any(|outcome| outcome.end == LineEnd::Stopped) {
        CommandExit::Interrupted
    } else {
        CommandExit::Ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_has_a_file() {
        assert_eq!(named_after(Path::new("d/a.b.jsonl"), "192.0.2.1"), Path::new("d/a.b-192.0.2.1.jsonl"));
        assert!(tabular(Path::new("a.parquet")).is_ok());
        assert!(tabular(Path::new("a.pcapng")).is_err() && tabular(Path::new("a.txt")).is_err());
    }
}
