//! Facts about logs of `packetrig log`, from their indexes. No capture file is read.

use super::{SCHEMA_VERSION, to_ms};
use packetrig_link_io::log::{LogFileEntry, LogFollower, LogSummary};
use packetrig_server::{RigPartSource, ViewRefusal, write_large_counts_as_text};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Largest number of files of a log that are shown one by one.
const MAX_SHOWN_LOG_FILES: usize = 20;

/// Readers of log indexes. The lock makes viewers share them, so that an index is read once for all viewers.
pub(super) struct LogIndexReaders(Mutex<Vec<LogFollower>>);

impl LogIndexReaders {
    pub(super) fn new(directories: &[PathBuf]) -> Self {
        Self(Mutex::new(directories.iter().map(|directory| LogFollower::new(directory)).collect()))
    }
}

impl RigPartSource for LogIndexReaders {
    fn read_facts(&self) -> Result<Value, ViewRefusal> {
        let mut logs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let logs: Vec<Value> = logs.iter_mut().map(build_log_json).collect();
        Ok(write_large_counts_as_text(json!({ "schema_version": SCHEMA_VERSION, "logs": logs })))
    }
}

/// Describes a log. A log that cannot be read shows an error; the other logs are still shown.
fn build_log_json(log: &mut LogFollower) -> Value {
    let directory = log.directory().display().to_string();
    match log.read_summary() {
        Ok(summary) => build_summary_json(&directory, summary),
        Err(error) => json!({
            "directory": directory,
            "error": packetrig_units::message_with_causes(&error),
        }),
    }
}

fn build_summary_json(directory: &str, log: &LogSummary) -> Value {
    json!({
        "directory": directory,
        "error": null,
        "interface": log.interface,
        "began_ms": log.began_ns.map(to_ms),
        "ended_ms": log.ended_ns.map(to_ms),
        "is_growing": log.is_growing,
        "files": log.files.len(),
        "frames": sum_file_counts(log, |file| file.frames),
        "bytes": sum_file_counts(log, |file| file.size),
        "removed_files": log.removed_files,
        "removed_frames": log.removed_frames,
        "dropped_kernel": sum_file_counts(log, |file| file.dropped_kernel),
        "dropped_queue": sum_file_counts(log, |file| file.dropped_queue),
        "dropped_disk": sum_file_counts(log, |file| file.dropped_disk),
        "mended_files": log.files.values().filter(|file| file.mended).count(),
        "first_ms": log.files.values().filter_map(|file| Some(to_ms(file.arrivals_ns?.0))).min(),
        "last_ms": log.files.values().filter_map(|file| Some(to_ms(file.arrivals_ns?.1))).max(),
        // Only the newest files are listed: a log of several days has thousands. The sums above include all files.
        "newest": log.files.values().rev().take(MAX_SHOWN_LOG_FILES).map(build_file_json).collect::<Vec<_>>(),
    })
}

/// Converts a time to milliseconds. 0 stands for an unknown time: a mended file without frames has none.
fn time_ms_if_known(at_ns: u64) -> Option<u64> {
    (at_ns > 0).then(|| to_ms(at_ns))
}

fn sum_file_counts(log: &LogSummary, count: fn(&LogFileEntry) -> u64) -> u64 {
    log.files.values().map(count).sum()
}

fn build_file_json(file: &LogFileEntry) -> Value {
    json!({
        "name": file.name,
        "frames": file.frames,
        "bytes": file.size,
        "begun_ms": time_ms_if_known(file.span_ns.0),
        "ended_ms": time_ms_if_known(file.span_ns.1),
        // A mended file was repaired after its recorder was killed, so its losses are not known.
        "dropped": (!file.mended).then(|| file.dropped_kernel + file.dropped_queue + file.dropped_disk),
        "mended": file.mended,
    })
}
