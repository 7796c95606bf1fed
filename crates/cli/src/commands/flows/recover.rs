//! `packetrig flows recover`, and the recovery that a collector or meter does before it writes into a directory.

use crate::args::RecoverFlows as Arguments;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::numbers::format_count;
use crate::output::{CommandOutput, print_remark};
use packetrig_flow_store::recover::{RecoveredFiles, recover_before_writing, recover_files};
use std::path::Path;

pub(super) fn recover_directory(
    arguments: &Arguments,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let recovered = recover_files(&arguments.directory)?;
    if arguments.json {
        output.write_json(&serde_json::json!(recovered))?;
    } else if recovered.is_empty() {
        output.write_line("nothing to recover: every file is complete, or its process is still running");
    } else {
        for line in recovery_lines(&recovered) {
            output.write_line(line);
        }
    }
    // Lost records are reported, but are no failure of the recovery; a file that cannot be rewritten is one.
    Ok(if recovered.failures.is_empty() { CommandExit::Ok } else { CommandExit::World })
}

/// Completes the files that a killed process left incomplete, and prints how many records were saved and lost. A file
/// that cannot be completed is reported, too, but is no error.
pub(in crate::commands) fn recover_killed_files(
    command: &str,
    directory: &Path,
) -> Result<RecoveredFiles, Error> {
    let recovered = recover_before_writing(directory)?;
    if !recovered.is_empty() {
        print_remark(format_args!(
            "{command}: {}: an earlier process was killed and left incomplete files",
            directory.display()
        ));
        for line in recovery_lines(&recovered) {
            print_remark(format_args!("{command}: {line}"));
        }
    }
    Ok(recovered)
}

fn recovery_lines(recovered: &RecoveredFiles) -> Vec<String> {
    let RecoveredFiles { files, records, cut_files, cut_bytes, damaged_groups, damaged_files, failures } =
        recovered;
    let mut lines = vec![format!(
        "recovered {} records in {} files; records that the killed process still had in memory are lost",
        format_count(*records),
        format_count(*files)
    )];
    if *cut_files > 0 {
        lines.push(format!(
            "files that ended in an incomplete row group: {} ({} bytes); the records in these row groups are lost",
            format_count(*cut_files),
            format_count(*cut_bytes)
        ));
    }
    if *damaged_groups > 0 {
        lines.push(format!("damaged row groups: {}; their records are lost", format_count(*damaged_groups)));
    }
    if *damaged_files > 0 {
        lines.push(format!(
            "files without a readable record: {}; packetrig renamed them to names that end in `.damaged`",
            format_count(*damaged_files)
        ));
    }
    // These lines come last, because only they need an action.
    lines.extend(failures.iter().map(|failure| format!("not recovered: {failure}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_lines_report_losses() {
        let whole = RecoveredFiles { files: 2, records: 81_920, ..RecoveredFiles::default() };
        assert_eq!(recovery_lines(&whole).len(), 1);
        let failures = vec!["cannot write x: No space left on device".to_owned()];
        let damaged = RecoveredFiles {
            cut_files: 1,
            cut_bytes: 1234,
            damaged_groups: 1,
            damaged_files: 1,
            failures,
            ..whole
        };
        let text = recovery_lines(&damaged).join("\n");
        for part in
            ["row group: 1 (1", "damaged row groups: 1", "`.damaged`", "not recovered: cannot write x"]
        {
            assert!(text.contains(part), "{text}");
        }
    }
}
