//! Giving what is complete its name, so that a power cut does not take it back.
//!
//! A name is an entry of a directory, and that is written to the disk apart from what it names.
//!
//! Invariant: when these return without an error, names are as durable as what was synced before them.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Gives a file or directory that was synced its name.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    to.parent().map_or(Ok(()), sync_directory)
}

/// Writes the entries of a directory to the disk.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Makes a directory below `base`, which is there, with all between.
pub(crate) fn make_directory(base: &Path, path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path)?;
    let mut above = path.ancestors().skip(1).take_while(|directory| directory.starts_with(base));
    above.try_for_each(sync_directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gets_its_name_is_there_and_what_cannot_get_it_stays() {
        let base = tempfile::tempdir().unwrap();
        let deep = base.path().join("a/b");
        make_directory(base.path(), &deep).unwrap();
        make_directory(base.path(), &deep).unwrap();
        let draft = base.path().join("draft");
        fs::write(&draft, "whole").unwrap();
        rename(&draft, &base.path().join("nowhere/name")).unwrap_err();
        rename(&draft, &deep.join("name")).unwrap();
        assert_eq!(fs::read_to_string(deep.join("name")).unwrap(), "whole");
        assert!(!draft.exists());
    }

    #[test]
    fn a_directory_that_cannot_be_opened_is_no_directory_that_was_synced() {
        let base = tempfile::tempdir().unwrap();
        sync_directory(base.path()).unwrap();
        sync_directory(&base.path().join("nowhere")).unwrap_err();
    }
}
