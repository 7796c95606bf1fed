//! `packetrig capture`: filters and counts the frames of an interface, and writes them to files.

use super::is_interrupted;
use super::recorded::{self, CaptureProgress, OpenReceiver};
use crate::args::{CaptureArgs as Arguments, CaptureBackEndArg, DirectionArg};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::numbers::{format_count, format_scaled};
use crate::output::{CommandOutput, print_remark};
use crate::table::format_table;
use packetrig_engine::capture::record::{
    self, CaptureFileFormat, CaptureRecorder, FileRotation, RecordCounts, RecordLimits, RecordSpec,
    RecordSummary, RecordTarget, RecordingOutcome,
};
use packetrig_engine::clock::RealClock;
use packetrig_engine::filter;
use packetrig_engine::packet::{self, PacketTap, TapOptions};
use packetrig_engine::port::{FrameRx, WorkerClock};
use packetrig_engine::xdp::{XdpTap, XdpTapOptions};
use packetrig_stats::series::RateSeries;
use packetrig_sys::signal;
use packetrig_units::{Nanos, clamp_to_usize};
use std::path::Path;

/// Compression level if the file's name ends in `.zst` and the user gave no level.
const ZSTD_LEVEL: i32 = 3;
/// Delay after which the counts of a second are complete: the kernel delivers frames only when it closes the block of
/// the ring that contains them.
const CAPTURE_DELIVERY_DELAY: Nanos = Nanos::from_millis(200);

pub(crate) fn run_capture(arguments: &Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    if arguments.ring_files.is_some() && arguments.ring_size.is_none() && arguments.rotate_every.is_none() {
        return Err(Error::Usage("--ring-files needs --ring-size or --rotate-every".into()));
    }
    let is_xdp = arguments.back_end == CaptureBackEndArg::Xdp;
    if arguments.pass && !is_xdp {
        return Err(Error::Usage("--pass has an effect with --back-end xdp only".into()));
    }
    if is_xdp && arguments.direction == Some(DirectionArg::Both) {
        return Err(Error::Usage(
            "--direction both needs --back-end packet: xdp sees only frames that arrive".into(),
        ));
    }
    // The options are checked before the interface is opened: a wrong option must not change its settings.
    let is_standard_output = arguments.write.as_deref() == Some(Path::new("-"));
    if is_standard_output && (arguments.ring_size.is_some() || arguments.rotate_every.is_some()) {
        return Err(Error::Usage(
            "standard output cannot be split into several files; name a file with --write".into(),
        ));
    }
    let expression = arguments.expression.join(" ");
    let program =
        if expression.trim().is_empty() { None } else { Some(filter::compile_filter(&expression)?) };
    // Signals are latched before the interface is opened: from then on a signal must end the capture in order
    // and restore the interface.
    signal::record_end_signals()?;
    let summary = match arguments.back_end {
        CaptureBackEndArg::Packet => {
            let tap = PacketTap::open_interface(&arguments.port, packet_tap_options(arguments, program))?;
            let open = OpenReceiver { offset: tap.offset(), is_up: tap.is_up(), receiver: tap };
            capture_until_end(arguments, &expression, open, output)?
        }
        CaptureBackEndArg::Xdp => {
            let options = XdpTapOptions { filter: program, snap_len: arguments.snap, pass: arguments.pass };
            let tap = XdpTap::open_interface(&arguments.port, &options)?;
            let open = OpenReceiver { offset: tap.offset(), is_up: tap.is_up(), receiver: tap };
            capture_until_end(arguments, &expression, open, output)?
        }
    };
    let text = if arguments.json { build_summary_json(&summary) } else { format_result(arguments, &summary) };
    // The frames go to standard output; any other text there would damage the capture.
    if is_standard_output {
        print_remark(text.trim_end());
    } else {
        output.write_text(text);
    }
    Ok(choose_capture_exit_code(summary.recorded.as_ref()))
}

/// Captures until a limit or a signal.
fn capture_until_end<R: FrameRx>(
    arguments: &Arguments,
    expression: &str,
    open: OpenReceiver<R>,
    output: &mut CommandOutput,
) -> Result<RecordSummary, Error> {
    let OpenReceiver { mut receiver, offset, is_up } = open;
    let clock = RealClock::new();
    if !is_up {
        print_remark(format_args!(
            "capture: warning: {} is down; nothing arrives until it is up",
            arguments.port
        ));
    }
    let recorder = match record_spec(arguments, expression) {
        Some(spec) => Some(CaptureRecorder::start(spec, offset, clock.now())?),
        None => None,
    };
    if !arguments.quiet {
        print_remark(format_args!("capture: listening on {}", arguments.port));
    }
    // If a line is printed for each second, there is no live line, because it would overwrite these lines.
    let by_second = arguments.count_only && !arguments.json && !arguments.quiet;
    let live = CaptureProgress::new(!arguments.quiet && !by_second);
    let names = ("capture", "packetrig_capture_");
    let mut live = live.with_metrics(names, arguments.metrics, &arguments.port)?;
    let mut seconds = SecondCountPrinter::default();
    let limits = RecordLimits { frames: arguments.count, time: arguments.time };
    let summary = record::record_frames(
        &mut receiver,
        &clock,
        recorder,
        (limits, &is_interrupted),
        &mut |counts: &RecordCounts, series: &RateSeries| {
            live.show_counts(counts);
            if by_second {
                // A second is printed once: only when no frame can be added to it any more.
                let complete =
                    counts.elapsed.as_u64().saturating_sub(CAPTURE_DELIVERY_DELAY.as_u64()) / 1_000_000_000;
                seconds.print_seconds_until(clamp_to_usize(complete), series, output);
            }
        },
    );
    // The live line ends before `?` returns: an error must not be printed on that line.
    live.clear_line();
    let summary = summary?;
    if by_second {
        seconds.print_seconds_until(summary.series.seconds.len(), &summary.series, output);
    }
    Ok(summary)
}

/// Prints a line for each second, with the frames that arrived in that second.
#[derive(Default)]
struct SecondCountPrinter {
    printed: usize,
}

impl SecondCountPrinter {
    /// Prints the seconds that were not printed yet, up to this number of them.
    fn print_seconds_until(&mut self, seconds: usize, series: &RateSeries, output: &mut CommandOutput) {
        for second in self.printed..seconds {
            let (frames, bytes) = series.seconds.get(second).copied().unwrap_or_default();
            let bits = format_scaled(bytes as f64 * 8.0, "bit/s");
            output.write_text(format!(
                "{:>6} s  {:>14} frames  {bytes:>16} B  {bits}\n",
                second + 1,
                format_count(frames)
            ));
        }
        self.printed = seconds.max(self.printed);
    }
}

fn packet_tap_options(
    arguments: &Arguments,
    filter: Option<packetrig_wire::bpf::FilterProgram>,
) -> TapOptions {
    TapOptions {
        filter,
        snap_len: arguments.snap,
        promiscuous: !arguments.no_promiscuous,
        outgoing: arguments.direction != Some(DirectionArg::In),
        blocks: packet::TAP_RING_BLOCKS,
    }
}

/// Target and format of the recording; `None` if frames are only counted.
fn record_spec(arguments: &Arguments, expression: &str) -> Option<RecordSpec> {
    let file = arguments.write.as_deref()?;
    // `a.pcap.zst` is compressed and in the format of `a.pcap`.
    let is_compressed = file.extension().is_some_and(|extension| extension == "zst");
    let inner = if is_compressed { file.with_extension("") } else { file.to_owned() };
    let by_name = match inner.extension().and_then(|extension| extension.to_str()) {
        Some("pcap" | "cap") => CaptureFileFormat::PcapNanos,
        _ => CaptureFileFormat::Pcapng,
    };
    Some(RecordSpec {
        target: match file {
            file if file == Path::new("-") => RecordTarget::StandardOutput,
            file => RecordTarget::File(file.to_owned()),
        },
        format: arguments.format.map_or(by_name, Into::into),
        interface: arguments.port.to_string(),
        further: Vec::new(),
        comment: format!("packetrig capture {}", arguments.port),
        filter: expression.to_owned(),
        snap_len: arguments.snap,
        // Cards strip the FCS, so frames from the kernel have none.
        fcs: false,
        budget: None,
        rotation: FileRotation {
            bytes: arguments.ring_size.map(|size| size.0),
            every: arguments.rotate_every,
            keep: arguments.ring_files.and_then(|files| usize::try_from(files).ok()),
            before: 0,
        },
        zstd: arguments.zstd.or_else(|| is_compressed.then_some(ZSTD_LEVEL)),
        queue: clamp_to_usize(arguments.queue.0),
    })
}

fn choose_capture_exit_code(recorded: Option<&RecordingOutcome>) -> CommandExit {
    let failure = recorded.and_then(|recorded| recorded.failure.as_ref());
    // `packetrig capture -w - | head`: the reader has seen enough and closed the pipe.
    if failure.is_some_and(|(_, error)| error.kind() == std::io::ErrorKind::BrokenPipe) {
        return CommandExit::Ok;
    }
    recorded::report_failure(recorded)
}

/// A row for all frames that passed the filter, and one row for each outcome: a frame was written (or counted), or it
/// was dropped at one place. If the interface reports drops before the filter, the last row counts them.
fn format_result(arguments: &Arguments, summary: &RecordSummary) -> String {
    let counts = &summary.counts;
    // The kernel runs the filter before it looks for space (packet(7)), so frames that it drops have passed.
    let passed = counts.frames + counts.kernel_dropped;
    let mut rows = vec![build_account_row("passed the filter", passed, "")];
    if let Some(recorded) = &summary.recorded {
        rows.push(build_account_row("written", recorded.written, ""));
    } else {
        rows.push(build_account_row("counted", counts.frames, ""));
    }
    rows.push(build_account_row("dropped: kernel ring", counts.kernel_dropped, "packetrig was too slow"));
    if summary.recorded.is_some() {
        rows.push(build_account_row(
            "dropped: packetrig's queue",
            counts.queue_dropped,
            "the disk was too slow",
        ));
        rows.push(build_account_row("dropped: disk", counts.disk_lost, "writing failed"));
    }
    if let Some(dropped) = summary.port.dropped {
        rows.push(build_account_row("interface: dropped", dropped, "before the filter"));
    }
    let mut text = recorded::format_sums_line(&arguments.port, counts);
    text.push_str(&format_table(&["", "frames", "because"], rows));
    text.push_str(&recorded::format_merges_line(counts, record_spec(arguments, "").map(|spec| spec.format)));
    text.push_str(&format_files(summary));
    text
}

fn build_account_row(what: &str, frames: u64, why: &str) -> Vec<String> {
    // Without dropped frames the cause is not shown, because it would look like a fault.
    let why = if frames > 0 { why } else { "" };
    vec![what.to_owned(), format_count(frames), why.to_owned()]
}

fn format_files(summary: &RecordSummary) -> String {
    let Some(recorded) = &summary.recorded else { return String::new() };
    let removed = match recorded.removed {
        0 => String::new(),
        files => format!("older files removed, with the frames in them: {}\n", format_count(files)),
    };
    let way = if recorded.direct { "by direct I/O" } else { "through the page cache" };
    let wrote = recorded.files.iter().map(|file| format!("wrote {} ({way})\n", file.display()));
    std::iter::once(removed).chain(wrote).collect()
}

fn build_summary_json(summary: &RecordSummary) -> String {
    let recorded = summary.recorded.as_ref();
    let mut value = recorded::summary_json(summary);
    // If there is a file, it has the time of every frame, and for a long capture this list would be very long.
    value["seconds"] = serde_json::json!(recorded.is_none().then_some(&summary.series.seconds));
    value["files"] = serde_json::json!(recorded.map(|recorded| &recorded.files));
    value["files_removed"] = serde_json::json!(recorded.map(|recorded| recorded.removed));
    value["direct"] = serde_json::json!(recorded.map(|recorded| recorded.direct));
    format!("{value:#}\n")
}
