//! `packetrig log`: captures continuously, as a service, on the machine that receives the copies of a link's frames.
//!
//! It uses the recorder of `packetrig capture`. A `LogKeeper` adds the files to an index and removes old files. The
//! command notifies systemd when it listens (`notify`). SIGTERM ends it, and SIGHUP makes it begin another file.

mod check;

use super::notify;
use super::recorded::{self, CaptureProgress, OpenReceiver};
use crate::args::{BeginLog, CaptureBackEndArg, DirectionArg, LogAction, LogArgs as Arguments};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::numbers::format_count;
use crate::output::{CommandOutput, print_remark};
use crate::table::format_table;
use packetrig_engine::capture::numbers::TapNumbers;
use packetrig_engine::capture::record::{
    self, CaptureFileFormat, CaptureRecorder, FileRotation, RecordCounts, RecordLimits, RecordSpec,
    RecordSummary, RecordTarget, RecordingRequest,
};
use packetrig_engine::clock::RealClock;
use packetrig_engine::filter;
use packetrig_engine::packet::{self, PacketTap, TapOptions};
use packetrig_engine::port::{FrameRx, WorkerClock};
use packetrig_engine::xdp::{XdpTap, XdpTapOptions};
use packetrig_link::DIRECTION_NAMES;
use packetrig_link_io::log::{CAPTURE_FILE_PREFIX, FrameLogSource, LogKeeper, LogRetention, LoggedDirection};
use packetrig_plan::PortLocation;
use packetrig_stats::series::RateSeries;
use packetrig_sys::signal;
use packetrig_units::clamp_to_usize;
use std::cell::Cell;
use std::path::Path;

pub(crate) fn run_log(arguments: &Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    if let Some(LogAction::Check(arguments)) = &arguments.action {
        return check::check_log(arguments, output);
    }
    let arguments = &arguments.begin;
    let Some((interface, directory)) = arguments.interface.as_ref().zip(arguments.into.as_ref()) else {
        return Err(Error::Usage("`packetrig log` needs an interface and --into DIR".into()));
    };
    // With space for one file only, the complete one would be deleted while the next one is still empty.
    let file = arguments.rotate_size.0;
    if arguments.keep.keep.is_some_and(|keep| keep.0 < 2 * file) {
        return Err(Error::Usage(
            "--keep must have room for two files of --rotate-size: one complete, one being written".into(),
        ));
    }
    if arguments.back_end == CaptureBackEndArg::Xdp && arguments.direction == DirectionArg::Both {
        return Err(Error::Usage(
            "--direction both needs --back-end packet: xdp sees only frames that arrive".into(),
        ));
    }
    let job = LogCommand { arguments, interface, expression: arguments.expression.join(" ") };
    // The order matters: called after `count_hangups`, `record_end_signals` would make HUP a request to end again.
    signal::record_end_signals()?;
    signal::count_hangups()?;
    let direction = match arguments.direction {
        DirectionArg::In => LoggedDirection::In,
        DirectionArg::Both => LoggedDirection::Both,
    };
    let name = interface.to_string();
    let source = FrameLogSource { interface: &name, direction };
    let keeper = LogKeeper::open_directory(directory, source, retention_from_log_arguments(arguments))?;
    let first_file = keeper.last_file() + 1;
    // The number is read before the keeper moves into the recorder: the result names the first frame of this process.
    let first_frame = keeper.next_frame();
    let outcome = job.open_interface_and_log(keeper, directory)?;
    if arguments.json {
        let mut value = build_outcome_json(&outcome);
        value["first_file"] = first_file.into();
        value["first_frame"] = first_frame.into();
        output.write_json(&value)?;
    } else {
        output.write_text(format_result(&job, &outcome));
    }
    Ok(recorded::report_failure(outcome.summary.recorded.as_ref()))
}

fn retention_from_log_arguments(arguments: &BeginLog) -> LogRetention {
    LogRetention {
        limits: arguments.keep.to_limits(),
        file: arguments.rotate_size.0,
        when_full: arguments.when_full.into(),
    }
}

/// Counts of a log, and the frame numbers from the trailers that a tap has added to the frames.
struct LogOutcome {
    summary: RecordSummary,
    numbers: TapNumbers,
}

struct LogCommand<'a> {
    arguments: &'a BeginLog,
    interface: &'a PortLocation,
    expression: String,
}

impl LogCommand<'_> {
    fn open_interface_and_log(&self, keeper: LogKeeper, directory: &Path) -> Result<LogOutcome, Error> {
        let program = if self.expression.trim().is_empty() {
            None
        } else {
            Some(filter::compile_filter(&self.expression)?)
        };
        match self.arguments.back_end {
            CaptureBackEndArg::Packet => {
                // The kernel must not cut frames, because the trailer of a tap is at their end. The recorder cuts
                // them to `--snap`.
                let options = TapOptions {
                    filter: program,
                    snap_len: None,
                    promiscuous: !self.arguments.no_promiscuous,
                    outgoing: self.arguments.direction == DirectionArg::Both,
                    blocks: packet::TAP_RING_BLOCKS,
                };
                let tap = PacketTap::open_interface(self.interface, options)?;
                let open = OpenReceiver { offset: tap.offset(), is_up: tap.is_up(), receiver: tap };
                self.log_packets_until_end(open, keeper, directory)
            }
            CaptureBackEndArg::Xdp => {
                // As above, frames must not be cut: the trailer of a tap is at the end of its frame.
                let options = XdpTapOptions { filter: program, snap_len: None, pass: false };
                let tap = XdpTap::open_interface(self.interface, &options)?;
                let open = OpenReceiver { offset: tap.offset(), is_up: tap.is_up(), receiver: tap };
                self.log_packets_until_end(open, keeper, directory)
            }
        }
    }

    fn log_packets_until_end<R: FrameRx>(
        &self,
        open: OpenReceiver<R>,
        keeper: LogKeeper,
        directory: &Path,
    ) -> Result<LogOutcome, Error> {
        let OpenReceiver { mut receiver, offset, is_up } = open;
        let clock = RealClock::new();
        if !is_up {
            print_remark(format_args!(
                "log: warning: {} is down; nothing arrives until it is up",
                self.interface
            ));
        }
        if let Some(remark) = describe_added_files(keeper.added_files()) {
            print_remark(format_args!("log: {remark}"));
        }
        // The numbers in the tap's trailers continue from the earlier files of this log: a restart of the log must not
        // look like a gap.
        let first = keeper.last_file() + 1;
        let known = keeper.tap_numbers();
        let spec = self.record_spec(directory, keeper.last_file());
        let recorder =
            CaptureRecorder::start_with_keeper(spec, (Box::new(keeper), known), offset, clock.now())?;
        if !self.arguments.quiet {
            let frames = match self.arguments.direction {
                DirectionArg::In => "frames that arrive",
                DirectionArg::Both => "frames in both directions",
            };
            print_remark(format_args!(
                "log: listening on {}, first file number {first}, {frames}",
                self.interface
            ));
        }
        // systemd is notified only now, because units ordered after this one may start the traffic.
        notify::notify_manager("READY=1");
        let limits = RecordLimits { frames: None, time: self.arguments.time };
        let hangups = Cell::new(0);
        let live = CaptureProgress::new(!self.arguments.quiet);
        let names = ("log", "packetrig_log_");
        let mut live = live.with_metrics(names, self.arguments.metrics, self.interface)?;
        let done = record::record_with_rotation(
            &mut receiver,
            &clock,
            Some(recorder),
            (limits, &|| take_signal_request(&hangups)),
            &mut |counts: &RecordCounts, _: &RateSeries| live.show_counts(counts),
        );
        live.clear_line();
        // The service manager is notified before `?` returns: it must not mistake a failed log for a hanging one.
        notify::notify_manager("STOPPING=1");
        let summary = done?;
        let numbers = summary.recorded.as_ref().map_or(known, |recorded| recorded.numbers);
        Ok(LogOutcome { summary, numbers })
    }

    fn record_spec(&self, directory: &Path, before: u64) -> RecordSpec {
        let arguments = self.arguments;
        let extension = if arguments.zstd.is_some() { "pcapng.zst" } else { "pcapng" };
        RecordSpec {
            target: RecordTarget::File(directory.join(format!("{CAPTURE_FILE_PREFIX}.{extension}"))),
            format: CaptureFileFormat::Pcapng,
            interface: self.interface.to_string(),
            further: Vec::new(),
            comment: format!("packetrig log {}", self.interface),
            filter: self.expression.clone(),
            snap_len: arguments.snap,
            fcs: false,
            budget: None,
            rotation: FileRotation {
                bytes: Some(arguments.rotate_size.0),
                every: arguments.rotate_every,
                keep: None,
                before,
            },
            zstd: arguments.zstd,
            queue: clamp_to_usize(arguments.queue.0),
        }
    }
}

/// Describes the files of a killed log that were added to the index; `None` if there are none.
fn describe_added_files(files: u64) -> Option<String> {
    let which = match files {
        0 => return None,
        1 => "its last file was".to_owned(),
        _ => format!("{} of its files were", format_count(files)),
    };
    Some(format!("the previous `packetrig log` was killed; {which} added to the index"))
}

/// Returns the action that signals have requested. Several HUPs since the last call start one new file.
fn take_signal_request(hangups: &Cell<u32>) -> RecordingRequest {
    match (signal::first_recorded_end_signal(), signal::hangup_count()) {
        // A request to end takes precedence: a new file requested by HUP would be empty.
        (Some(_), _) => RecordingRequest::End,
        (None, now) if now != hangups.replace(now) => RecordingRequest::Rotate,
        (None, _) => RecordingRequest::GoOn,
    }
}

fn build_account_row(what: &str, frames: u64) -> Vec<String> {
    vec![what.to_owned(), format_count(frames)]
}

/// Formats the result: a row for each count of frames, and a row for each direction of the tap.
fn format_result(job: &LogCommand<'_>, outcome: &LogOutcome) -> String {
    let LogOutcome { summary, numbers } = outcome;
    let counts = &summary.counts;
    let written = summary.recorded.as_ref().map_or(0, |recorded| recorded.written);
    let mut text = recorded::format_sums_line(job.interface, counts);
    text.push_str(&format_table(
        &["", "frames"],
        [
            build_account_row("passed the filter", counts.frames + counts.kernel_dropped),
            build_account_row("written", written),
            build_account_row("dropped: kernel ring", counts.kernel_dropped),
            build_account_row("dropped: packetrig's queue", counts.queue_dropped),
            build_account_row("dropped: disk", counts.disk_lost),
        ],
    ));
    text.push_str(&recorded::format_merges_line(counts, Some(CaptureFileFormat::Pcapng)));
    text.push_str(&format_trailers_table(*numbers));
    text
}

/// Table of the frame numbers from the trailers of a tap; empty if no frame has a trailer.
fn format_trailers_table(numbers: TapNumbers) -> String {
    let rows = DIRECTION_NAMES.iter().zip(numbers).filter_map(|(direction, numbered)| {
        let numbered = numbered?;
        let cells = [
            numbered.first,
            numbered.last,
            numbered.seen,
            numbered.missing,
            numbered.absent,
            numbered.duplicates,
        ];
        Some(std::iter::once((*direction).to_owned()).chain(cells.map(format_count)).collect::<Vec<_>>())
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    format_table(&["of the tap", "first", "last", "seen", "missing", "not logged", "twice"], rows)
}

fn build_outcome_json(outcome: &LogOutcome) -> serde_json::Value {
    let LogOutcome { summary, numbers } = outcome;
    let mut value = recorded::summary_json(summary);
    value["files"] = serde_json::json!(summary.recorded.as_ref().map(|recorded| recorded.files.len()));
    value["numbers"] = serde_json::json!(numbers);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remark_on_added_files_has_their_number() {
        let remark = |files| describe_added_files(files).unwrap_or_default();
        assert_eq!(remark(0), "");
        assert_eq!(
            remark(1),
            "the previous `packetrig log` was killed; its last file was added to the index"
        );
        assert_eq!(
            remark(2),
            "the previous `packetrig log` was killed; 2 of its files were added to the index"
        );
    }
}
