//! The schedule that flags or files describe.

use crate::args::{ContentFlags, ScheduleFlags};
use crate::error::Error;
use packetrig_probe::schedule::ScheduledTrain;
use packetrig_probe::script::{self, ChirpScript};
use packetrig_probe::{ProbeSchedule, script::ScriptError};
use packetrig_wire::pcap::{self, CaptureDecoder, DecoderStep};
use std::path::Path;

/// What the flags come to. `seed` is where chance begins.
pub(super) fn schedule(
    flags: &ScheduleFlags,
    content: &ContentFlags,
    seed: u64,
) -> Result<ProbeSchedule, Error> {
    let length = u32::try_from(content.size.kernel_len()).unwrap_or(u32::MAX);
    if let Some(file) = &flags.schedule {
        return script::read(&read(file)?).map_err(|error| refused(file, &error));
    }
    if let Some(file) = &flags.capture {
        return capture(file);
    }
    let made = match (flags.poisson, flags.chirp) {
        (Some(mean), _) => ProbeSchedule::poisson(flags.count, mean, length, seed),
        (None, Some(factor)) if !(factor > 1.0 && factor <= 100.0) => {
            return Err(Error::Usage(format!("--chirp takes a factor above 1 and up to 100, not {factor}")));
        }
        (None, Some(factor)) => {
            let (count, every, of, first_gap) = (flags.count, flags.every, flags.train, flags.gap);
            ChirpScript { count, every, of, first_gap, factor, length }.schedule()
        }
        (None, None) => {
            let train = ScheduledTrain { of: flags.train, gap: flags.gap, length };
            ProbeSchedule::trains(flags.count, flags.every, train)
        }
    };
    made.map_err(|error| Error::Usage(format!("{error}; trains start {} apart (--every), and their probes are --gap apart", flags.every)))
}

fn refused(file: &Path, error: &ScriptError) -> Error {
    Error::Usage(format!("{}: {error}", file.display()))
}

fn read(file: &Path) -> Result<String, Error> {
    let failed = |source| Error::ReadFile { name: file.display().to_string(), source };
    std::fs::read_to_string(file).map_err(failed)
}

/// Times and lengths of a capture file.
fn capture(file: &Path) -> Result<ProbeSchedule, Error> {
    let failed = |source| Error::ReadFile { name: file.display().to_string(), source };
    let bytes = std::fs::read(file).map_err(failed)?;
    let (mut decoder, mut rest, mut frames) = (CaptureDecoder::new(), &bytes[..], Vec::new());
    loop {
        let step =
            decoder.next(rest).map_err(|damage| Error::Usage(format!("{}: {damage}", file.display())))?;
        match step {
            DecoderStep::Record { record, used } => {
                let fcs = if record.has_fcs == Some(true) { 4 } else { 0 };
                let is_frame = record.link_type == pcap::ETHERNET;
                frames.extend(record.at_ns.filter(|_| is_frame).map(|at| (at, record.full_len - fcs)));
                rest = &rest[used..];
            }
            DecoderStep::Skip(used) => {
                rest = usize::try_from(used).ok().and_then(|used| rest.get(used..)).unwrap_or_default();
            }
            DecoderStep::More(_) => break,
        }
    }
    script::of_times(frames).map_err(|error| Error::Usage(format!("{}: {error}", file.display())))
}
