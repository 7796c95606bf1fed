//! `packetrig flows compact`: joins small files of records.

use crate::args::CompactFlows as Arguments;
use crate::commands::is_interrupted;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::numbers::format_count;
use crate::output::CommandOutput;
use packetrig_flow_store::compact::{CompactedFiles, compact_files};
use packetrig_sys::signal;

pub(super) fn compact_directory(
    arguments: &Arguments,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    // After a signal, the set of files that is being joined is still completed.
    signal::record_end_signals()?;
    let compacted = compact_files(&arguments.directory, arguments.file_size.0, &is_interrupted)?;
    if arguments.json {
        output.write_json(&serde_json::json!(compacted))?;
    } else {
        for line in compaction_lines(&compacted) {
            output.write_line(line);
        }
    }
    Ok(if !compacted.failures.is_empty() {
        CommandExit::World
    } else if is_interrupted() {
        CommandExit::Interrupted
    } else {
        CommandExit::Ok
    })
}

fn compaction_lines(compacted: &CompactedFiles) -> Vec<String> {
    let CompactedFiles { joined_files, joined_bytes, new_files, new_bytes, records, failures, .. } =
        compacted;
    let mut lines = vec![format!(
        "joined {} files ({} bytes) with {} records into {} files ({} bytes)",
        format_count(*joined_files),
        format_count(*joined_bytes),
        format_count(*records),
        format_count(*new_files),
        format_count(*new_bytes)
    )];
    let left = [
        (
            compacted.recent_files,
            "small files left as they are: too recent, a collector of the directory may still need them",
        ),
        (compacted.other_files, "small files left as they are: they have the columns of another version"),
        (compacted.abandoned, "sets of files left as they are: files changed in the meantime"),
    ];
    for (count, what) in left.into_iter().filter(|(count, _)| *count > 0) {
        lines.push(format!("{} {what}", format_count(count)));
    }
    // These lines come last, because only they need an action.
    lines.extend(failures.iter().map(|failure| format!("not joined: {failure}")));
    lines
}
