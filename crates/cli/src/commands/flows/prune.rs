//! `packetrig flows prune`, and the same limits in the commands that write into a directory.

use super::utc_time_text;
use crate::args::{FileRetentionArgs, PruneFlows as Arguments};
use crate::error::Error;
use crate::numbers::{format_count, format_scaled};
use crate::output::CommandOutput;
use crate::table::format_table;
use packetrig_flow_store::ParquetOptions;
use packetrig_flow_store::retention::{FileToRemove, list_files_to_remove, remove_old_files};
use packetrig_units::{RemovedFiles, RetentionLimits};
use std::path::Path;

pub(super) fn prune_directory(arguments: &Arguments, output: &mut CommandOutput) -> Result<(), Error> {
    let limits = arguments.keep.to_limits();
    if !limits.has_any_limit() {
        return Err(Error::Usage("prune needs --keep, --keep-for or --keep-free".into()));
    }
    let directory = &arguments.directory;
    if arguments.dry_run {
        let files = list_files_to_remove(directory, limits)?;
        if arguments.json {
            return Ok(output.write_json(&serde_json::json!({ "would_remove": files }))?);
        }
        output.write_text(files_to_remove_text(directory, &files));
        return Ok(());
    }
    let removed = remove_old_files(directory, limits)?;
    if arguments.json {
        return Ok(output.write_json(&serde_json::json!({ "removed": removed }))?);
    }
    output.write_line(removed_line(&removed));
    Ok(())
}

/// Returns the retention limits of a command that writes into a directory. Fails if there are limits and no directory,
/// or if `--keep` is less than the size of two files.
pub(in crate::commands) fn directory_limits(
    keep: &FileRetentionArgs,
    directory: Option<&Path>,
) -> Result<RetentionLimits, Error> {
    let limits = keep.to_limits();
    if limits.has_any_limit() && directory.is_none() {
        return Err(Error::Usage("--keep, --keep-for and --keep-free need --directory".into()));
    }
    // The same rule holds for logs: with room for one file only, the finished file would be removed while the
    // next one is still small.
    let file_bytes = ParquetOptions::new("").file_bytes as u64;
    if limits.bytes.is_some_and(|most| most < 2 * file_bytes) {
        let least = format_scaled((2 * file_bytes) as f64, "B");
        return Err(Error::Usage(format!(
            "--keep must have room for two files, one complete and one being written: at least {least}"
        )));
    }
    Ok(limits)
}

fn files_to_remove_text(directory: &Path, files: &[FileToRemove]) -> String {
    let sum = |value: fn(&FileToRemove) -> u64| format_count(files.iter().map(value).sum());
    let rows = files.iter().map(|file| {
        let name = file.file.strip_prefix(directory).unwrap_or(&file.file);
        vec![
            name.display().to_string(),
            utc_time_text(file.latest_ns),
            format_count(file.records),
            format_count(file.bytes),
            file.why.to_owned(),
        ]
    });
    let table = format_table(&["file", "latest record (UTC)", "records", "bytes", "limit"], rows);
    let count = format_count(files.len() as u64);
    let summary = format!(
        "would remove {count} files with {} records and {} bytes\n",
        sum(|file| file.records),
        sum(|file| file.bytes)
    );
    if files.is_empty() { summary } else { table + &summary }
}

fn removed_line(removed: &RemovedFiles) -> String {
    let RemovedFiles { files, bytes, records, for_size, for_age, for_free } = *removed;
    format!(
        "removed {} files with {} records and {} bytes: {} by --keep, {} by --keep-for, {} by --keep-free",
        format_count(files),
        format_count(records),
        format_count(bytes),
        format_count(for_size),
        format_count(for_age),
        format_count(for_free)
    )
}
