//! Logs as their indexes describe them. No capture file is read.

use super::{SCHEMA_VERSION, ms};
use packetrig_link_io::log::{self, FileEntry, LogSummary};
use packetrig_server::{FactSource, ViewRefusal};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Files of a log that are shown one by one.
const NEWEST: usize = 20;

pub(super) struct LogDirectories(pub(super) Vec<PathBuf>);

impl FactSource for LogDirectories {
    fn facts(&self) -> Result<Value, ViewRefusal> {
        let logs: Vec<Value> = self.0.iter().map(|directory| log_json(directory)).collect();
        Ok(json!({ "schema_version": SCHEMA_VERSION, "logs": logs }))
    }
}

/// A log that cannot be read says why; the others are shown all the same.
fn log_json(directory: &Path) -> Value {
    match log::summarise(directory) {
        Ok(summary) => summary_json(directory, &summary),
        Err(error) => json!({
            "directory": directory,
            "error": packetrig_units::message_with_causes(&error),
        }),
    }
}

fn summary_json(directory: &Path, log: &LogSummary) -> Value {
    let sum = |count: fn(&FileEntry) -> u64| log.files.values().map(count).sum::<u64>();
    let arrivals = || log.files.values().filter_map(|file| file.arrivals_ns);
    json!({
        "directory": directory,
        "error": null,
        "interface": log.interface,
        "began_ms": log.began_ns.map(ms),
        "ended_ms": log.ended_ns.map(ms),
        "is_growing": log.is_growing,
        "files": log.files.len(),
        "frames": sum(|file| file.frames),
        "bytes": sum(|file| file.size),
        "removed_files": log.removed_files,
        "removed_frames": log.removed_frames,
        "dropped_kernel": sum(|file| file.dropped_kernel),
        "dropped_queue": sum(|file| file.dropped_queue),
        "dropped_disk": sum(|file| file.dropped_disk),
        "mended_files": log.files.values().filter(|file| file.mended).count(),
        "first_ms": arrivals().map(|(first, _)| ms(first)).min(),
        "last_ms": arrivals().map(|(_, last)| ms(last)).max(),
        "newest": log.files.values().rev().take(NEWEST).map(file_json).collect::<Vec<_>>(),
    })
}

fn file_json(file: &FileEntry) -> Value {
    let (begun, ended) = file.span_ns;
    json!({
        "name": file.name,
        "frames": file.frames,
        "bytes": file.size,
        "begun_ms": ms(begun),
        "ended_ms": ms(ended),
        "dropped": file.dropped_kernel + file.dropped_queue + file.dropped_disk,
        "mended": file.mended,
    })
}
