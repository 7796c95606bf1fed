//! Functions that `capture`, `log` and `tap` share about frames in files: the live line, sums, failures.

use super::metrics::{self, ServedMetrics};
use crate::args::ListenArg;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::numbers::{format_count, format_scaled, per_second};
use crate::output::print_deciding_error;
use crate::progress::LiveProgressLine;
use packetrig_engine::capture::record::{CaptureFileFormat, RecordCounts, RecordSummary, RecordingOutcome};
use packetrig_plan::PortLocation;
use packetrig_sys::clock::RealtimeOffset;
use packetrig_units::Nanos;
use serde_json::{Value, json};
use std::fmt::Display;

/// An open receiver, and facts that were read when it was opened.
pub(super) struct OpenReceiver<R> {
    pub(super) receiver: R,
    /// The receiver's clock offset for arrival times; the file must use the same offset.
    pub(super) offset: RealtimeOffset,
    pub(super) is_up: bool,
}

/// The live line of a capture, and its metrics.
pub(super) struct CaptureProgress {
    live: LiveProgressLine,
    last: RecordCounts,
    metrics: Option<CaptureMetrics>,
}

/// Metrics of a capture or a log.
struct CaptureMetrics {
    served: ServedMetrics,
    prefix: &'static str,
    interface: String,
    /// Time since the start of the recording at which the metrics were last updated.
    looked: Nanos,
}

/// Interval between two updates of the metrics.
const COUNT_READ_INTERVAL: Nanos = Nanos::from_millis(500);

impl CaptureProgress {
    pub(super) fn new(is_wanted: bool) -> Self {
        Self { live: LiveProgressLine::new(is_wanted), last: RecordCounts::default(), metrics: None }
    }

    /// Serves the counts to Prometheus, too, if the user wants that. `prefix` begins the name of each metric.
    pub(super) fn with_metrics(
        mut self,
        (command, prefix): (&str, &'static str),
        listen: Option<ListenArg>,
        interface: &PortLocation,
    ) -> Result<Self, Error> {
        let interface = interface.to_string();
        let first = metrics::format_recording_metrics(prefix, &interface, &RecordCounts::default());
        let served = ServedMetrics::start_if_requested(command, listen, first)?;
        self.metrics = served.map(|served| CaptureMetrics { served, prefix, interface, looked: Nanos::ZERO });
        Ok(self)
    }

    pub(super) fn show_counts(&mut self, counts: &RecordCounts) {
        if let Some(metrics) = &mut self.metrics
            && counts.elapsed.as_u64() >= metrics.looked.as_u64() + COUNT_READ_INTERVAL.as_u64()
        {
            metrics.looked = counts.elapsed;
            let text = metrics::format_recording_metrics(metrics.prefix, &metrics.interface, counts);
            metrics.served.set_metrics_text(text);
        }
        if self.live.is_due(counts.elapsed) {
            self.live.show_progress_line(counts.elapsed, format_progress_line(counts, &self.last));
            self.last = *counts;
        }
    }

    pub(super) fn clear_line(self) {
        self.live.clear_line();
    }
}

fn format_progress_line(counts: &RecordCounts, last: &RecordCounts) -> String {
    // The length is measured and not assumed: a line that comes late covers more than a second.
    let length = Nanos::new(counts.elapsed.as_u64().saturating_sub(last.elapsed.as_u64()));
    let frames_per_second = per_second(counts.frames - last.frames, length);
    let bytes_per_second = per_second(counts.bytes - last.bytes, length);
    let seen = format!(
        "{} frames ({}), {} ({})",
        format_count(counts.frames),
        format_scaled(frames_per_second, "frames/s"),
        format_scaled(counts.bytes as f64, "B"),
        format_scaled(bytes_per_second * 8.0, "bit/s"),
    );
    let dropped = [
        (counts.kernel_dropped, "kernel ring"),
        (counts.queue_dropped, "packetrig's queue"),
        (counts.disk_lost, "disk"),
    ];
    let dropped = dropped.into_iter().filter(|(frames, _)| *frames > 0);
    let dropped = dropped.map(|(frames, who)| format!(", dropped by {who}: {}", format_count(frames)));
    std::iter::once(seen).chain(dropped).collect()
}

/// Sums of a recording, as a line of text.
pub(super) fn format_sums_line(at: impl Display, counts: &RecordCounts) -> String {
    let frames = format_count(counts.frames);
    let bytes = format_scaled(counts.bytes as f64, "B");
    format!("{at}: {frames} frames, {bytes} in {:.3} s\n", counts.elapsed.as_secs_f64())
}

/// Describes merged frames and their mark in the file; empty if there were none.
pub(super) fn format_merges_line(counts: &RecordCounts, format: Option<CaptureFileFormat>) -> String {
    let marked = match format {
        None => "",
        Some(CaptureFileFormat::Pcapng) => "; in the file, each has a comment about the merge",
        Some(CaptureFileFormat::Pcap | CaptureFileFormat::PcapNanos) => {
            "; the file does not say which frames: write pcapng to mark them"
        }
    };
    match counts.merged {
        0 => String::new(),
        merged => format!(
            "frames that this machine or its card had merged from several packets: {}{marked}\n",
            format_count(merged)
        ),
    }
}

/// Sums of a recording, as JSON.
pub(super) fn summary_json(summary: &RecordSummary) -> Value {
    let counts = &summary.counts;
    json!({
        "elapsed_ns": counts.elapsed.as_u64(),
        "frames": counts.frames,
        "bytes": counts.bytes,
        "merged": counts.merged,
        "written": summary.recorded.as_ref().map(|recorded| recorded.written),
        "dropped": {
            "kernel_ring": counts.kernel_dropped,
            "our_queue": counts.queue_dropped,
            "disk": counts.disk_lost,
        },
        // These drops are listed separately, because they happened before the filter.
        "interface": { "received": summary.port.arrived, "dropped": summary.port.dropped },
    })
}

/// Reports a file that could not be written, and returns the exit code.
pub(super) fn report_failure(recorded: Option<&RecordingOutcome>) -> CommandExit {
    let Some((path, error)) = recorded.and_then(|recorded| recorded.failure.as_ref()) else {
        return CommandExit::Ok;
    };
    // The error is printed and not returned: the counts of written frames are still worth printing.
    print_deciding_error(format_args!("cannot write {}: {error}", path.display()));
    CommandExit::World
}
