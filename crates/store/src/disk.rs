//! Files that are whole or not there.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// Ends the names of files that are being written.
pub(crate) const UNFINISHED: &str = "tmp";

/// Writes `bytes` as `name`. When this returns, a power cut leaves the file there and whole; before, it is not there.
pub(crate) fn write_whole(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = directory.join(format!(".{name}.{UNFINISHED}"));
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, directory.join(name))
    };
    if let Err(error) = write() {
        // Room for others; what cannot be removed is overwritten by the next attempt.
        fs::remove_file(&temporary).unwrap_or(());
        return Err(error);
    }
    sync(directory)
}

/// What was made, renamed or removed in `directory` outlasts a power cut.
pub(crate) fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Makes `directory` below `top`, which exists, and syncs every directory that got a new entry.
pub(crate) fn make_below(top: &Path, directory: &Path) -> io::Result<()> {
    if directory == top || directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().unwrap_or(top);
    make_below(top, parent)?;
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => sync(parent),
    }
}
