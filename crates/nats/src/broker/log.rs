//! Reads the server's log.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Returns the text of the log after its first `before` bytes; the whole log if the server has started a new one
/// meanwhile. Empty if the log cannot be read.
pub(super) fn read_log_since(log: &Path, before: u64) -> String {
    read_from(log, before).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn read_from(log: &Path, before: u64) -> std::io::Result<Vec<u8>> {
    let mut file = fs::File::open(log)?;
    // The server starts a new log when the old one is full, so a shorter file is a new log.
    let from = if file.metadata()?.len() < before { 0 } else { before };
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}
