//! `doctor --fix` and `--undo`: changes settings of the machine as advised, and takes the changes back.
//!
//! Invariant: the record says how to undo a change before the change is made, so a killed process never
//! leaves a change that cannot be undone.

use crate::error::Error;
use crate::output::{CommandOutput, print_error_and_continue};
use packetrig_sys::machine_setting::SettingChange;
use packetrig_sys::runtime_directory;
use std::fs::File;
use std::io;
use std::path::PathBuf;

/// Name of the record's directory in the runtime directory. A reboot empties that directory and undoes all changes.
const SETTINGS_RECORD_KIND: &str = "settings";
const CHANGES_FILE_NAME: &str = "changes.json";

/// The changes that undo the recorded changes, in the order in which the recorded changes were made.
struct ChangeRecord {
    path: PathBuf,
    reverses: Vec<SettingChange>,
    /// Held while the record is read, changed and written.
    _lock: File,
}

impl ChangeRecord {
    fn open() -> Result<Self, Error> {
        let path = runtime_directory::runtime_path_for(SETTINGS_RECORD_KIND).join(CHANGES_FILE_NAME);
        let lock = runtime_directory::lock_file_for_update(&path).ok_or_else(|| Error::Write {
            what: path.display().to_string(),
            source: io::Error::other(
                "the file cannot be locked: another `packetrig doctor` may be changing settings",
            ),
        })?;
        let reverses = match runtime_directory::read_file(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| Error::ReadFile {
                name: path.display().to_string(),
                source: error.into(),
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(Error::ReadFile { name: path.display().to_string(), source }),
        };
        Ok(Self { path, reverses, _lock: lock })
    }

    fn write_or_remove(&self) -> Result<(), Error> {
        // An empty record is removed, because every later `doctor` would read a file without content.
        let written = if self.reverses.is_empty() {
            runtime_directory::remove_file(&self.path)
        } else {
            serde_json::to_vec_pretty(&self.reverses)
                .map_err(io::Error::from)
                .and_then(|text| runtime_directory::write_file(&self.path, &text))
        };
        match written {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::Write { what: self.path.display().to_string(), source: error })
            }
            _ => Ok(()),
        }
    }

    /// Makes a change and records its reverse. Returns the reverse change; `None` if the setting already has the value.
    fn make_change(&mut self, change: &SettingChange) -> Result<Option<SettingChange>, Error> {
        // A setting that already has its value is not recorded: otherwise `--undo` would change a choice of the user.
        let Some(reverse) = change.find_reverse_change()? else { return Ok(None) };
        self.reverses.push(reverse.clone());
        self.write_or_remove()?;
        if let Err(error) = change.make_change() {
            // Nothing was changed, so there is nothing to undo.
            self.reverses.pop();
            self.write_or_remove()?;
            return Err(error.into());
        }
        Ok(Some(reverse))
    }
}

/// Makes all changes; goes on after a failure. Returns the first failure and prints the others.
pub(super) fn make_changes(
    changes: &[SettingChange],
    quiet: bool,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    let mut tell = make_line_printer(quiet, output);
    let mut record = ChangeRecord::open()?;
    // The changes are counted: if every change failed, "there is nothing to fix" would be wrong.
    let (mut changed, mut failure) = (0, None);
    for change in changes {
        match record.make_change(change) {
            Ok(Some(reverse)) => {
                changed += 1;
                tell(format!("{}: changed from {} to {}", change.setting, reverse.value, change.value));
            }
            Ok(None) => {}
            Err(error) => store_first_or_print_failure(error, &mut failure),
        }
    }
    if changed > 0 {
        tell("`packetrig doctor --undo` undoes these changes, and so does a reboot".to_owned());
    } else if failure.is_none() {
        tell("there is nothing to fix".to_owned());
    }
    failure.map_or(Ok(()), Err)
}

/// Undoes the changes that [`make_changes`] made, the latest first.
pub(super) fn revert_recorded_changes(quiet: bool, output: &mut CommandOutput) -> Result<(), Error> {
    let mut tell = make_line_printer(quiet, output);
    let mut record = ChangeRecord::open()?;
    if record.reverses.is_empty() {
        tell("there is nothing to undo".to_owned());
    }
    let (mut left, mut failure) = (Vec::new(), None);
    while let Some(reverse) = record.reverses.pop() {
        match revert_change(&reverse) {
            Ok(()) => tell(format!("{}: changed back to {}", reverse.setting, reverse.value)),
            Err(error) => {
                store_first_or_print_failure(error, &mut failure);
                left.push(reverse);
            }
        }
    }
    // The loop took changes from the end of the list; the record keeps them in the order in which they were made.
    left.reverse();
    record.reverses = left;
    record.write_or_remove()?;
    failure.map_or(Ok(()), Err)
}

fn revert_change(reverse: &SettingChange) -> Result<(), Error> {
    // Another program may have restored the value already. Writing the value again would be
    // harmless, but needs rights.
    if reverse.find_reverse_change()?.is_some() {
        reverse.make_change()?;
    }
    Ok(())
}

/// Prints lines, unless the output is JSON.
fn make_line_printer(quiet: bool, output: &mut CommandOutput) -> impl FnMut(String) {
    move |line| {
        if !quiet {
            output.write_line(line);
        }
    }
}

/// Keeps the first failure, which decides the exit code, and prints the later failures.
fn store_first_or_print_failure(error: Error, first: &mut Option<Error>) {
    if first.is_none() {
        *first = Some(error);
    } else {
        print_error_and_continue("doctor", error.full_message());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_with_unknown_setting_is_refused() {
        let record = r#"[{"setting":{"kind":"kernel","switch":"../shadow"},"value":"0"}]"#;
        assert!(serde_json::from_str::<Vec<SettingChange>>(record).is_err());
        let record = r#"[{"setting":{"kind":"kernel","switch":"bridge_filter"},"value":"1"}]"#;
        let known: Vec<SettingChange> = serde_json::from_str(record).unwrap();
        assert_eq!(known[0].setting.to_string(), "net.bridge.bridge-nf-call-iptables");
    }
}
