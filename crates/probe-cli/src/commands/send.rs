//! `packetrig probe send`: sends probes on any schedule, and reports when each one was queued, released and sent.

use super::mechanism::{self, ChosenMechanism};
use super::{bounds, schedule};
use crate::RecordFiles;
use crate::args::SendProbes as Arguments;
use crate::error::Error;
use packetrig_probe::header::ProbeHeader;
use packetrig_probe::{ErrorSpread, ProbePermit, ProbeRecord, ProbeSchedule, ReleaseSummary};
use packetrig_probe_io::circumstances;
use packetrig_probe_io::path;
use packetrig_probe_io::send::{self, ProbeContent, ScheduleTarget, SendOutcome};
use packetrig_program::exit::CommandExit;
use packetrig_program::identity;
use packetrig_program::is_interrupted;
use packetrig_program::numbers::format_count;
use packetrig_program::output::{CommandOutput, print_remark};
use packetrig_program::table::format_table;
use packetrig_sys::loopback::LoopbackSettingsHolder;
use packetrig_sys::signal;
use packetrig_units::Nanos;
use serde_json::json;

pub(super) fn run_send_command(
    arguments: &Arguments,
    files: RecordFiles,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    // The file names are checked before any probe is sent: with an unknown format, the result would be lost.
    arguments.write.iter().try_for_each(|file| files.check_file(file).map(drop))?;
    let seed = arguments.schedule.seed.unwrap_or_else(identity::random_seed);
    let schedule = schedule::make_schedule(&arguments.schedule, &arguments.content, seed)?;
    bounds::print_resolved_addresses(&arguments.to);
    bounds::refuse_repeated_addresses(&arguments.to)?;
    let permit = bounds::read_permit(&arguments.bounds)?;
    let chosen = mechanism::choose_mechanism(&arguments.release, &arguments.interface);
    // The guards are bound to `_loopbacks`, because the pattern `_` would drop them at the end of this
    // statement.
    let TargetSendPaths { mut aims, loopbacks: _loopbacks } =
        open_target_paths(arguments, &permit, &chosen, &schedule)?;
    let mut header = circumstances::build_probe_header(
        &arguments.interface,
        chosen.mechanism,
        &chosen.options,
        Some(&schedule),
    )?;
    header.seed = seed;
    header.why.clone_from(&chosen.why);
    header.targets = arguments.to.iter().map(|target| target.address.to_string()).collect();
    header.about = arguments.content.about.clone().or_else(|| permit.about.clone());
    // All targets use the same mechanism at the same interface, so the remarks are the same for all.
    header.remarks = aims.first().map(|aim| aim.dispatcher.remarks().to_vec()).unwrap_or_default();
    signal::record_end_signals()?;
    let sent = send::send_schedule(&schedule, &mut aims, &is_interrupted)?;
    header.clock_after = circumstances::measure_clock_offset();
    write_and_print_result(arguments, files, &header, &sent, &aims, output)
}

/// For each target: the path, the content of the probes, and a dispatcher that respects the limits of the target.
struct TargetSendPaths {
    aims: Vec<ScheduleTarget>,
    /// Dropping these restores the settings of the loopback interface.
    loopbacks: Vec<LoopbackSettingsHolder>,
}

fn open_target_paths(
    arguments: &Arguments,
    permit: &ProbePermit,
    chosen: &ChosenMechanism,
    schedule: &ProbeSchedule,
) -> Result<TargetSendPaths, Error> {
    let namespace = arguments.interface.namespace.as_deref();
    let name = &arguments.interface.interface;
    let mut targets = TargetSendPaths { aims: Vec::new(), loopbacks: Vec::new() };
    for target in &arguments.to {
        let permitted = bounds::permit_target(permit, target.address)?;
        let way = path::find_path(namespace, permitted, Some(name))?;
        if schedule.longest_frame() as usize > way.longest_frame() {
            let most = way.longest_frame() + 4;
            return Err(Error::Usage(format!(
                "{name} sends frames of at most {most} B with FCS; use a smaller --size, or a schedule with shorter \
                    frames"
            )));
        }
        targets.loopbacks.extend(path::open_loopback(&way)?);
        let content = probe_content(arguments, permit, &way)?;
        let dispatcher = mechanism::open_dispatcher(chosen, &way.location, permitted.limits())?;
        targets.aims.push(ScheduleTarget { way, dispatcher, content });
    }
    Ok(targets)
}

fn probe_content(
    arguments: &Arguments,
    permit: &ProbePermit,
    way: &path::ProbePath,
) -> Result<ProbeContent, Error> {
    let flags = &arguments.content;
    let Some(text) = &flags.frame else {
        let ports = (flags.source_port, flags.port);
        let about = flags.about.clone().or_else(|| permit.about.clone());
        return Ok(ProbeContent::Datagram { ends: way.ends, ports, about });
    };
    let frame = parse_hex(text).ok_or_else(|| {
        Error::Usage("the value of --frame must consist of pairs of hexadecimal digits".into())
    })?;
    // The permission applies to the target: a frame with another destination would bypass the permission, and
    // with another source address other hosts would receive the answers.
    if frame.len() > way.longest_frame() || !send::is_allowed_probe_frame(&frame, &way.ends) {
        let from = way.ends.source;
        let to = way.ends.target;
        let most = way.longest_frame();
        return Err(Error::Usage(format!(
            "the value of --frame must be an untagged Ethernet frame of at most {most} bytes with an IP \
                packet from {from} to {to}: no other source or destination is allowed"
        )));
    }
    Ok(ProbeContent::Frame(frame))
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> = text
        .chars()
        // Other programs print spaces or colons between the bytes.
        .filter(|c| !c.is_whitespace() && *c != ':')
        .map(|c| c.to_digit(16))
        .collect::<Option<_>>()?;
    // With an odd number of digits, the last byte would be incomplete, so the text is refused.
    digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair.get(1)?).ok()).collect()
}

fn write_and_print_result(
    arguments: &Arguments,
    files: RecordFiles,
    header: &ProbeHeader,
    sent: &SendOutcome,
    aims: &[ScheduleTarget],
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let summary = ReleaseSummary::from_records(&sent.records);
    let trains: Vec<u32> = sent.records.iter().map(|record| record.train).collect();
    let turns = count_trains_before_each(&trains);
    for file in &arguments.write {
        files.write_file(file, header, &sent.records, &mut |record: &ProbeRecord, out: &mut Vec<u8>| {
            // The sent frames were not stored: each frame is built again from its record.
            let turn = turns.get(record.number as usize).copied().unwrap_or(0);
            write_frame(aims, turn, record, out);
        })?;
    }
    if arguments.json {
        output.write_json(
            &json!({"header": header, "summary": summary, "ended_by": sent.refused.map(|e| e.to_string())}),
        )?;
    } else {
        output.write_text(summary_text(header, &summary));
    }
    for line in &header.remarks {
        print_remark(format_args!("probe send: {line}"));
    }
    // The records have already been written, so this error does not lose them.
    if let Some(refused) = sent.refused {
        return Err(packetrig_probe_io::Error::from(refused).into());
    }
    Ok(match signal::first_recorded_end_signal() {
        Some(_) => CommandExit::Interrupted,
        None if summary.is_doubtful() => CommandExit::Inconclusive,
        None => CommandExit::Ok,
    })
}

/// Writes the frame of a probe whose train came after `turn` other trains. The trains go to the targets in turn.
fn write_frame(aims: &[ScheduleTarget], turn: usize, record: &ProbeRecord, out: &mut Vec<u8>) {
    let probe = packetrig_probe::PlannedProbe {
        number: record.number,
        train: record.train,
        kind: record.kind,
        at: Nanos::ZERO,
        length: record.length,
    };
    if let Some(aim) = aims.get(turn % aims.len().max(1)) {
        aim.content.write_frame(&probe, out);
    }
}

/// Returns the number of trains before the train of each probe; `trains` has the train number of each probe,
/// in the order of the probes.
fn count_trains_before_each(trains: &[u32]) -> Vec<usize> {
    let trains = trains.chunk_by(|one, other| one == other).enumerate();
    trains.flat_map(|(turn, probes)| probes.iter().map(move |_| turn)).collect()
}

fn summary_text(header: &ProbeHeader, summary: &ReleaseSummary) -> String {
    let mut text = format!(
        "{} of {} probes sent through {} by mechanism {} ({})\n",
        format_count(summary.sent),
        format_count(summary.planned),
        header.interface,
        header.mechanism,
        header.why
    );
    let rows = [
        ("deadline to departure", summary.release_error_ns),
        ("spacing error", summary.spacing_error_ns),
        ("timestamp error at most", summary.stamp_bound_ns),
    ];
    let header_row = ["times in us", "min", "p50", "p95", "p99", "max"];
    text += &format_table(
        &header_row,
        rows.into_iter().filter_map(|(name, spread)| Some(spread_row(name, spread?))),
    );
    let doubts = [
        ("late", summary.late),
        ("early", summary.early),
        ("dropped", summary.dropped),
        ("unsent", summary.unsent),
        ("CPU taken away", summary.stolen),
        ("stamps missing", summary.stamps_missing),
        ("contradictory timestamps", summary.stamps_disagree),
    ];
    let doubts: Vec<_> = doubts
        .iter()
        .filter(|(_, n)| *n > 0)
        .map(|(name, n)| format!("{} {name}", format_count(*n)))
        .collect();
    if !doubts.is_empty() {
        text += &doubts.join(", ");
        text.push('\n');
    }
    text
}

fn spread_row(name: &str, spread: ErrorSpread) -> Vec<String> {
    let ErrorSpread { least, p50, p95, p99, most } = spread;
    let figures = [Some(least), Some(p50), p95, p99, Some(most)];
    // A percentile is absent if the sample is too small for it.
    let figures = figures.map(|ns| ns.map_or_else(|| super::UNKNOWN_FIGURE.to_owned(), format_micros));
    std::iter::once(name.to_owned()).chain(figures).collect()
}

/// Formats nanoseconds as microseconds with three decimal places.
pub(super) fn format_micros(ns: i64) -> String {
    format!("{:.3}", ns as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_is_read_as_tools_print_it() {
        assert_eq!(parse_hex("00 ff:7A"), Some(vec![0, 255, 0x7a]));
        assert_eq!(parse_hex("0"), None);
        assert_eq!(parse_hex("0g"), None);
    }

    #[test]
    fn probes_of_one_train_share_turn_number() {
        assert_eq!(count_trains_before_each(&[7, 7, 8, 8, 8, 20]), [0, 0, 1, 1, 1, 2]);
    }
}
