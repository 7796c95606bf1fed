//! Replaces several files by one: the notes that make this safe if the process is killed in between.
//!
//! ```text
//! .flows-000007.parquet.merging     the new file, until it has its name
//! .flows-000007.parquet.replaces    which files it replaces: written before the new file gets its name
//! ```
//! Step 1: the new file is written and synced. Step 2: its note is written and synced. Step 3: the file gets its name.
//! Step 4: the old files are removed. Step 5: the note is removed. During steps 2 to 5, this process alone has
//! the lock of the table, so no reader is active. A reader that finds a note leaves out the files in it, if the
//! new file is there; the next recovery completes steps 4 and 5.
//!
//! Invariant: at each step, the files that a reader uses have every record once.

use super::Error;
use super::encode::WritableTable;
use super::files::{UNFINISHED_FILE_EXTENSION, is_finished_name};
use super::table_lock::try_lock_table_exclusively;
use super::walk::files_below;
use packetrig_sys::{disk, private_files};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const MERGING_FILE_SUFFIX: &str = ".merging";
const REPLACES_FILE_SUFFIX: &str = ".replaces";

/// Content of the note of a new file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReplacementNote {
    /// Names of the files in the same directory that the new file replaces.
    pub(super) files: Vec<String>,
    /// Time of the newest old file, nanoseconds since 1970. It becomes the time of the new file: restarted
    /// collectors use this time to find out which records were stored.
    pub(super) modified_ns: u64,
}

/// Hidden name of a new file that replaces old ones, until it is complete.
pub(super) fn merging_file_path(path: &Path) -> PathBuf {
    hidden_file_name(path, MERGING_FILE_SUFFIX)
}

fn hidden_file_name(path: &Path, extension: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}{extension}"))
}

/// Returns the path of the new file to which a hidden file with this extension belongs; `None` for other names.
fn new_file_of_hidden_name(hidden: &Path, extension: &str) -> Option<PathBuf> {
    let name = hidden.file_name()?.to_str()?.strip_prefix('.')?.strip_suffix(extension)?;
    let path = hidden.with_file_name(name);
    WritableTable::ALL.into_iter().any(|table| is_finished_name(&path, table)).then_some(path)
}

pub(super) fn is_replacement_note(path: &Path) -> bool {
    new_file_of_hidden_name(path, REPLACES_FILE_SUFFIX).is_some()
}

/// Removes from `files` the files that a newer file has replaced, according to `notes`.
pub(super) fn remove_replaced_files_from_list(files: &mut Vec<PathBuf>, notes: &[PathBuf]) {
    let mut replaced = BTreeSet::new();
    for note in notes {
        let Some(path) = new_file_of_hidden_name(note, REPLACES_FILE_SUFFIX).filter(|path| path.exists())
        else {
            continue;
        };
        if let Ok(Some(content)) = read_note(note) {
            replaced.extend(content.files.iter().map(|name| path.with_file_name(name)));
        }
    }
    if !replaced.is_empty() {
        files.retain(|file| !replaced.contains(file));
    }
}

/// Reads a note. `None` if the note is not complete: then the process was killed before the new file got its name.
fn read_note(note: &Path) -> io::Result<Option<ReplacementNote>> {
    let content: Option<ReplacementNote> = serde_json::from_str(&fs::read_to_string(note)?).ok();
    // Only names in the same directory are valid: a note must never lead to another place.
    let is_plain = |name: &String| !name.contains('/') && name.ends_with(".parquet");
    Ok(content.filter(|content| content.files.iter().all(is_plain)))
}

/// Writes the note of a new file.
pub(super) fn write_replacement_note(path: &Path, content: &ReplacementNote) -> Result<(), Error> {
    let note = hidden_file_name(path, REPLACES_FILE_SUFFIX);
    let text = serde_json::to_string(content).unwrap_or_default();
    private_files::create_file(&note)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| disk::sync_directory(path.parent().unwrap_or(path)))
        .map_err(Error::file("write", note))
}

/// Deletes the files that a new file replaces, then its note. The call may be repeated.
pub(super) fn delete_replaced_files(path: &Path, content: &ReplacementNote) -> Result<(), Error> {
    let directory = path.parent().unwrap_or(path);
    let modified = SystemTime::UNIX_EPOCH + Duration::from_nanos(content.modified_ns);
    // The time is set before any old file is removed: only the note has the time.
    File::options()
        .write(true)
        .open(path)
        .and_then(|file| file.set_modified(modified))
        .map_err(Error::file("set the time of", path))?;
    for name in &content.files {
        remove_if_exists(&path.with_file_name(name))?;
    }
    disk::sync_directory(directory).map_err(Error::file("sync", directory))?;
    remove_if_exists(&hidden_file_name(path, REPLACES_FILE_SUFFIX))
}

fn remove_if_exists(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Finishes the work of a killed compaction in a table, unless the table is being read or compacted.
pub(super) fn finish_replacements(table: &Path) -> Result<(), Error> {
    let is_left = |path: &Path| {
        is_replacement_note(path) || new_file_of_hidden_name(path, MERGING_FILE_SUFFIX).is_some()
    };
    let left = files_below(table, &is_left)?;
    if left.is_empty() {
        return Ok(());
    }
    // If another process has the lock, the next recovery tries again. Readers do not need that: they follow the notes.
    let Some(_lock) = try_lock_table_exclusively(table) else { return Ok(()) };
    for hidden in left {
        match new_file_of_hidden_name(&hidden, REPLACES_FILE_SUFFIX) {
            Some(path) if path.exists() => match read_note(&hidden).map_err(Error::file("read", &hidden))? {
                Some(content) => {
                    delete_replaced_files(&path, &content)?;
                    // The empty file that reserved the number. A recovery ignores it if the finished file exists.
                    remove_unless_growing(&hidden_file_name(&path, UNFINISHED_FILE_EXTENSION))?;
                }
                None => remove_if_exists(&hidden)?,
            },
            // The new file has never got its name, so the old files still count.
            Some(_) => remove_if_exists(&hidden)?,
            None => remove_unless_growing(&hidden)?,
        }
    }
    Ok(())
}

/// Removes a new file that was never finished, unless a running compaction still writes it.
fn remove_unless_growing(hidden: &Path) -> Result<(), Error> {
    let Ok(file) = File::open(hidden) else { return Ok(()) };
    if file.try_lock().is_ok() { remove_if_exists(hidden) } else { Ok(()) }
}
