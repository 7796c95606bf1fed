//! Makes the schedule that the flags or a file describe.

use crate::args::{ContentFlags, ScheduleFlags};
use crate::error::Error;
use packetrig_probe::schedule::ScheduledTrain;
use packetrig_probe::script::{self, ChirpScript};
use packetrig_probe::{ProbeSchedule, script::ScriptError};
use packetrig_units::{clamp_to_u32, clamp_to_usize};
use packetrig_wire::pcap::{self, CaptureDecoder, DecodedElement};
use std::path::Path;

/// Returns the schedule for these flags. `seed` determines random intervals.
pub(super) fn make_schedule(
    flags: &ScheduleFlags,
    content: &ContentFlags,
    seed: u64,
) -> Result<ProbeSchedule, Error> {
    let length = clamp_to_u32(content.size.kernel_len() as u64);
    // A schedule file or a capture contains the length of each frame, so `--size` is not used for them.
    if let Some(file) = &flags.schedule {
        return script::read_schedule(&read_text(file)?)
            .map_err(|error| invalid_schedule_error(file, &error));
    }
    if let Some(file) = &flags.from_capture {
        return read_capture_schedule(file);
    }
    let made = match (flags.poisson, flags.chirp) {
        (Some(mean), _) => ProbeSchedule::poisson(flags.count, mean, length, seed),
        // With the condition in this form, NaN is refused, too.
        (None, Some(factor)) if !(factor > 1.0 && factor <= 100.0) => {
            return Err(Error::Usage(format!("--chirp takes a factor above 1 and up to 100, not {factor}")));
        }
        (None, Some(factor)) => ChirpScript {
            count: flags.count,
            every: flags.every,
            of: flags.train,
            first_gap: flags.gap,
            factor,
            length,
        }
        .to_schedule(),
        (None, None) => {
            let train = ScheduledTrain { of: flags.train, gap: flags.gap, length };
            ProbeSchedule::periodic_trains(flags.count, flags.every, train)
        }
    };
    made.map_err(|error| {
        // Poisson times have neither trains nor gaps.
        if flags.poisson.is_some() {
            return Error::Usage(error.to_string());
        }
        Error::Usage(format!(
            "{error}; trains start {} apart (--every), and their probes are --gap apart",
            flags.every
        ))
    })
}

fn invalid_schedule_error(file: &Path, error: &ScriptError) -> Error {
    Error::Usage(format!("{}: {error}", file.display()))
}

fn read_text(file: &Path) -> Result<String, Error> {
    std::fs::read_to_string(file).map_err(|source| Error::unreadable_file(file, source))
}

/// Reads the times and lengths of the frames in a capture file.
fn read_capture_schedule(file: &Path) -> Result<ProbeSchedule, Error> {
    // The whole file is read at once, because a schedule holds all of its probes in memory anyway.
    let bytes = std::fs::read(file).map_err(|source| Error::unreadable_file(file, source))?;
    let mut decoder = CaptureDecoder::new();
    let mut rest = &bytes[..];
    let mut frames = Vec::new();
    loop {
        let step = decoder
            .next_step(rest)
            .map_err(|damage| Error::Usage(format!("{}: {damage}", file.display())))?;
        match step {
            DecodedElement::Record { record, used } => {
                // Lengths in a schedule do not include the FCS. Most captures contain no FCS, but a pcapng
                // interface can state that its frames have one.
                let fcs = if record.has_fcs == Some(true) { 4 } else { 0 };
                let is_frame = record.link_type == pcap::ETHERNET_LINK_TYPE;
                frames.extend(
                    record.at_ns.filter(|_| is_frame).map(|at| (at, record.full_len.saturating_sub(fcs))),
                );
                rest = &rest[used..];
            }
            DecodedElement::Skip(used) => {
                // A block that is cut off at the end of the file can state a length that exceeds the rest of
                // the file.
                rest = rest.get(clamp_to_usize(used)..).unwrap_or_default();
            }
            // The whole file has been passed to the decoder: a request for more bytes means the end of the
            // file, or a record that is cut off.
            DecodedElement::More(_) => break,
        }
    }
    script::schedule_from_capture_times(frames)
        .map_err(|error| Error::Usage(format!("{}: {error}", file.display())))
}
