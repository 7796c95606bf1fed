//! `packetrig log check`: checks that a log is complete and unchanged.

use crate::args::CheckLog as Arguments;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::numbers::{format_count, format_count_with_unit};
use crate::output::CommandOutput;
use crate::table::format_table;
use packetrig_link::DIRECTION_NAMES;
use packetrig_link_io::log::{self, LogCheck, LogChecksums, LogDoubt, LogFinding, LoggedFiles};
use std::path::Path;

/// Text of a cell with an unknown number.
const UNKNOWN_CELL: &str = "unknown";

pub(super) fn check_log(arguments: &Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let text = arguments.tap.as_deref().map(read_counters).transpose()?;
    let tap = arguments.tap.as_deref().zip(text.as_deref());
    let checked = log::check_log(&arguments.directory, tap)?;
    if arguments.json {
        output.write_json(&serde_json::json!({
            "complete": is_complete(&checked),
            "lost": checked.lost_copies(),
            "lost_in_all": checked.total_lost_copies(),
            "doubt": checked.find_doubt(),
            "log": checked,
        }))?;
    } else {
        output.write_text(log_check_text(&checked));
    }
    Ok(match is_complete(&checked) {
        Some(true) => CommandExit::Ok,
        Some(false) => CommandExit::Fail,
        // An unknown result is neither success nor failure: it must not pass a gate.
        None => CommandExit::Inconclusive,
    })
}

fn read_counters(file: &Path) -> Result<String, Error> {
    std::fs::read_to_string(file).map_err(|source| Error::unreadable_file(file, source))
}

/// Returns true if the log has every frame that it should have; `None` if that is unknown.
fn is_complete(checked: &LogCheck) -> Option<bool> {
    // If a frame is certainly missing, this decides the result, regardless of other doubts.
    if checked.is_incomplete() {
        return Some(false);
    }
    checked.find_doubt().is_none().then_some(true)
}

fn log_check_text(checked: &LogCheck) -> String {
    let mut text = format_table(
        &["", "frames"],
        [
            super::build_account_row("written since the beginning", checked.written),
            super::build_account_row("in files that exist", checked.frames),
            super::build_account_row("in files removed by retention", checked.removed_frames),
            super::build_account_row("dropped: kernel ring", checked.dropped_kernel),
            super::build_account_row("dropped: packetrig's queue", checked.dropped_queue),
            super::build_account_row("dropped: disk", checked.dropped_disk),
        ],
    );
    text.push_str(&super::format_trailers_table(checked.numbers));
    text.push_str(&describe_tap_comparison(checked));
    let mut lines: Vec<String> = checked.findings.iter().map(describe_finding).collect();
    if checked.open_files > 0 {
        lines.push(format!(
            "files that are still being written, or that a killed `packetrig log` left behind: {}",
            format_count(checked.open_files)
        ));
    }
    lines.extend(checked.find_doubt().map(describe_doubt));
    lines.push(describe_checksums(checked.checksums));
    lines.extend(describe_directions(checked.directions));
    let verdict = match is_complete(checked) {
        // All frames may still be in the log, but their contents may have changed.
        Some(false) if is_only_changed(checked) => "no frame is known to be missing, but the log was changed",
        Some(true) => "the log is complete",
        Some(false) => "the log is not complete",
        None => "no frame is known to be missing, but the log may be incomplete",
    };
    lines.push(format!("{}: {verdict}", format_count_with_unit(checked.files, "file")));
    text + &lines.join("\n") + "\n"
}

/// Returns true if changed bytes are the only fault of the log.
fn is_only_changed(checked: &LogCheck) -> bool {
    // If the counters show a loss, frames are missing, too, so the log is not only changed.
    let without = LogCheck { findings: Vec::new(), ..checked.clone() };
    checked.findings.iter().all(is_log_change) && !without.is_incomplete()
}

const fn is_log_change(finding: &LogFinding) -> bool {
    matches!(finding, LogFinding::Changed { .. } | LogFinding::IndexDamaged { .. } | LogFinding::IndexCut)
}

/// Describes which frames the log should have: "complete" refers only to these frames.
fn describe_directions(files: LoggedFiles) -> Option<String> {
    let arriving = "logged: frames that arrived; frames that this machine sent are in no file (--direction both logs them)";
    Some(match files {
        LoggedFiles { arriving: 0, both: 0 } => return None,
        LoggedFiles { both: 0, .. } => arriving.to_owned(),
        LoggedFiles { arriving: 0, .. } => "logged: frames in both directions".to_owned(),
        LoggedFiles { arriving, both } => format!(
            "logged: frames in both directions in {} files, only frames that arrived in {} files",
            format_count(both),
            format_count(arriving)
        ),
    })
}

/// Describes the comparisons that were made, so that the reader knows which damage they can show.
fn describe_checksums(checksums: LogChecksums) -> String {
    let LogChecksums { files, files_without, lines, lines_without } = checksums;
    if files == 0 && lines == 0 {
        return "checked: the numbers of frames; an older version wrote this log without checksums, so a changed byte \
            may be overlooked"
            .to_owned();
    }
    let mut text = format!(
        "checked: the numbers of frames, and checksums of {} and {} of the index",
        format_count_with_unit(files, "file"),
        format_count_with_unit(lines, "line")
    );
    if files_without + lines_without > 0 {
        let (files, lines) = (format_count(files_without), format_count(lines_without));
        text.extend([
            format!(
                "; without checksums, from an older version: files: {files}, lines: {lines}; a changed byte"
            ),
            " in them may be overlooked".to_owned(),
        ]);
    }
    text
}

fn describe_tap_comparison(checked: &LogCheck) -> String {
    let Some(tap) = checked.tap else { return String::new() };
    let lost = checked.lost_copies();
    let rows = (0..2).map(|way| {
        // If the loss of a direction is known and the log has no trailer, then no frame was seen. The count
        // is known to be zero.
        let seen = checked.numbers[way]
            .map(|numbered| numbered.seen)
            .or_else(|| lost[way].map(|_| 0))
            .map(format_count);
        vec![
            DIRECTION_NAMES[way].to_owned(),
            format_count(tap[way].wanted),
            tap[way].mirrored.map_or_else(|| UNKNOWN_CELL.to_owned(), format_count),
            seen.unwrap_or_else(|| UNKNOWN_CELL.to_owned()),
            lost[way].map_or_else(|| UNKNOWN_CELL.to_owned(), format_count),
        ]
    });
    let text = format_table(&["by the tap", "to copy", "mirrored", "logged", "lost"], rows);
    match (checked.total_lost_copies(), lost) {
        (Some(lost), [None, None]) => {
            text + &format!("mirrored and not written, both directions: {}\n", format_count(lost))
        }
        _ => text,
    }
}

fn describe_doubt(doubt: LogDoubt) -> String {
    match doubt {
        // A doubt makes more counts unknown. It never makes a complete log incomplete.
        LogDoubt::Older { frames } => format!(
            "the log has {} frames more than the tap had counted: the counters were read before the log ended, \
                or the log holds other frames too; read the counters after the log has ended",
            format_count(frames)
        ),
        LogDoubt::Anew { times } => format!(
            "restarts of the tap during the log: {}; the tap's counters cover only the time since its last start, \
            so the losses are unknown",
            format_count(times)
        ),
    }
}

fn describe_finding(finding: &LogFinding) -> String {
    match finding {
        LogFinding::Gone { file } => format!("file {file} is in the index, but does not exist"),
        LogFinding::Differs { file, said, found } => {
            format!(
                "file {file} holds {} frames, but the index says {}",
                format_count(*found),
                format_count(*said)
            )
        }
        LogFinding::Changed { file } => {
            format!("file {file} was changed after it was written: its checksum is not the one in the index")
        }
        LogFinding::IndexDamaged { line, why } => format!("index.jsonl was changed: line {line}: {why}"),
        LogFinding::IndexCut => {
            "index.jsonl ends within a line: `packetrig log` was killed, or the index is damaged".to_owned()
        }
        LogFinding::Skipped { file } => format!("file {file} is missing from the index"),
        LogFinding::Damaged { file, why } => format!("file {file} cannot be read: {why}"),
        LogFinding::Mended { file } => {
            format!(
                "`packetrig log` was killed while it wrote file {file}: frames that were not written yet are lost"
            )
        }
    }
}
