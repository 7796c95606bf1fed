//! Lists the files in a directory of records.
//!
//! The directory of a table may be a symbolic link, for example to another disk. Other links are not followed, because
//! the same files might be found twice. Directories with names that begin with `.` or `_`, and files that disappear
//! during the walk, are left out.

use super::Error;
use super::encode::WritableTable;
use std::fs::{self, DirEntry};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Deepest nesting of directories: more than any partition has. Deeper directories are left out.
const MAX_DIRECTORY_DEPTH: usize = 16;

/// All wanted files below a directory, sorted.
pub(super) fn files_below(
    directory: &Path,
    is_wanted: &dyn Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    // The directory that the caller named must exist; directories below it may disappear during the walk.
    fs::read_dir(directory).map_err(Error::file("read", directory))?;
    walk_directory(directory, MAX_DIRECTORY_DEPTH, is_wanted, &mut files)?;
    // The order of `read_dir` is arbitrary; results must not depend on it.
    files.sort();
    Ok(files)
}

fn walk_directory(
    directory: &Path,
    depth: usize,
    is_wanted: &dyn Fn(&Path) -> bool,
    files: &mut Vec<PathBuf>,
) -> Result<(), Error> {
    let entries = none_if_not_found(fs::read_dir(directory)).map_err(Error::file("read", directory))?;
    for entry in entries.into_iter().flatten() {
        let entry = entry.map_err(Error::file("read", directory))?;
        let path = entry.path();
        match none_if_not_found(entry_kind(&entry)).map_err(Error::file("read", &path))? {
            Some(EntryKind::Directory) if depth > 0 => walk_directory(&path, depth - 1, is_wanted, files)?,
            Some(EntryKind::File) if is_wanted(&path) => files.push(path),
            _ => {}
        }
    }
    Ok(())
}

/// Targets of the links to tables in a directory of records.
pub fn find_linked_tables(directory: &Path) -> Vec<PathBuf> {
    let places = WritableTable::ALL.iter().map(|table| directory.join(table.name()));
    places.filter(|place| place.is_symlink()).filter_map(|place| place.canonicalize().ok()).collect()
}

enum EntryKind {
    Directory,
    File,
    Other,
}

fn entry_kind(entry: &DirEntry) -> io::Result<EntryKind> {
    let name = entry.file_name();
    // The check does not follow links: here a link is neither a directory nor a file.
    let mut kind = entry.file_type()?;
    if kind.is_symlink() && WritableTable::ALL.iter().any(|table| name == table.name()) {
        kind = fs::metadata(entry.path())?.file_type();
    }
    Ok(if kind.is_dir() && !name.to_string_lossy().starts_with(['.', '_']) {
        EntryKind::Directory
    } else if kind.is_file() {
        EntryKind::File
    } else {
        EntryKind::Other
    })
}

/// `None` if the file or directory does not exist: other processes may remove it at any time.
fn none_if_not_found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn table_walk_follows_links_without_duplicates() {
        let directory = tempfile::tempdir().unwrap();
        let at = |path: &str| directory.path().join(path);
        fs::create_dir_all(at("disk/date=a/hour=1")).unwrap();
        fs::create_dir_all(at("records/_tmp")).unwrap();
        for file in ["disk/date=a/hour=1/x", "disk/date=a/hour=1/y", "records/_tmp/z"] {
            fs::write(at(file), "").unwrap();
        }
        symlink(at("disk"), at("records/flows")).unwrap();
        symlink(at("disk/date=a"), at("records/latest")).unwrap();
        symlink(at("nowhere"), at("records/meter_stats")).unwrap();
        let found = files_below(&at("records"), &|path| !path.ends_with("y")).unwrap();
        assert_eq!(found, [at("records/flows/date=a/hour=1/x")]);
        files_below(&at("nowhere"), &|_| true).unwrap_err();
    }

    #[test]
    fn directory_removed_during_walk_is_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let partition = |name: &str| directory.path().join(name);
        for name in ["a", "b"] {
            fs::create_dir(partition(name)).unwrap();
            fs::write(partition(name).join("x"), "").unwrap();
        }
        // The first file that is found removes the other directory before that is read.
        let remove_other = |path: &Path| {
            let other = if path.starts_with(partition("a")) { "b" } else { "a" };
            fs::remove_dir_all(partition(other)).unwrap();
            true
        };
        assert_eq!(files_below(directory.path(), &remove_other).unwrap().len(), 1);
    }
}
