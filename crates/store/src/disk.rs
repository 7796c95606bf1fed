//! Writes files that exist whole or not at all, even after a power cut.

use packetrig_sys::{disk, private_files};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// Extension of files that are being written.
pub(crate) const UNFINISHED_FILE_EXTENSION: &str = "tmp";

/// Writes or replaces the file `name`. Once this returns, the complete file survives a power cut. Before that,
/// the name has no file, the old file or the complete new one, but never a part of a file.
pub(crate) fn write_whole_file(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    write_file_from_parts(directory, name, &[bytes])
}

/// Like [`write_whole_file`], with all `parts` one after the other.
pub(crate) fn write_file_from_parts(directory: &Path, name: &str, parts: &[&[u8]]) -> io::Result<()> {
    let temporary = directory.join(format!(".{name}.{UNFINISHED_FILE_EXTENSION}"));
    if let Err(error) = write_and_rename(&temporary, &directory.join(name), parts) {
        // Removing the temporary file frees space that other writers may need. If it cannot be removed, the
        // next attempt overwrites it.
        drop(fs::remove_file(&temporary));
        return Err(error);
    }
    // The rename is an entry of the directory: without this sync, a power cut could undo it.
    sync_directory(directory)
}

fn write_and_rename(temporary: &Path, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = private_files::create_file(temporary)?;
    for part in parts {
        file.write_all(part)?;
    }
    // The sync comes before the rename. Otherwise a file system may write the new name before the data, and a
    // power cut would leave an empty file.
    file.sync_all()?;
    #[cfg(test)]
    tests::record_sync(temporary);
    fs::rename(temporary, path)
}

/// Renames a file or directory that was synced, and syncs the new name.
pub(crate) fn rename_synced(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    to.parent().map_or(Ok(()), sync_directory)
}

/// Syncs the content of a file and its name.
pub(crate) fn sync_file(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    #[cfg(test)]
    tests::record_sync(path);
    path.parent().map_or(Ok(()), sync_directory)
}

/// Syncs created, renamed or removed entries of `directory`.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    disk::sync_directory(directory)?;
    #[cfg(test)]
    tests::record_sync(directory);
    Ok(())
}

/// Creates `directory` below `top`, which exists, and syncs every directory that got a new entry.
pub(crate) fn create_directories_below(top: &Path, directory: &Path) -> io::Result<()> {
    disk::create_directories_below(top, directory, sync_directory)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::path::PathBuf;

    thread_local! {
        static SYNCED_PATHS: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
    }

    pub(crate) fn record_sync(path: &Path) {
        SYNCED_PATHS.with_borrow_mut(|synced| synced.push(path.to_owned()));
    }

    /// Returns the paths that this thread has synced since the last call, in order.
    pub(crate) fn synced() -> Vec<PathBuf> {
        SYNCED_PATHS.take()
    }

    #[test]
    fn synced_rename_moves_file_or_leaves_it() {
        let base = tempfile::tempdir().unwrap();
        let deep = base.path().join("a/b");
        create_directories_below(base.path(), &deep).unwrap();
        create_directories_below(base.path(), &deep).unwrap();
        let draft = base.path().join("draft");
        fs::write(&draft, "whole").unwrap();
        rename_synced(&draft, &base.path().join("nowhere/name")).unwrap_err();
        rename_synced(&draft, &deep.join("name")).unwrap();
        assert_eq!(fs::read_to_string(deep.join("name")).unwrap(), "whole");
        assert!(!draft.exists());
    }

    #[test]
    fn sync_of_missing_directory_fails() {
        let base = tempfile::tempdir().unwrap();
        sync_directory(base.path()).unwrap();
        sync_directory(&base.path().join("nowhere")).unwrap_err();
    }
}
