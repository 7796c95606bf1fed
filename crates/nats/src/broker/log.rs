//! Reads what the server logs.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// What was added to a log since it had that many bytes; all of one that began anew meanwhile.
pub(super) fn tail(log: &Path, before: u64) -> String {
    read_from(log, before).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn read_from(log: &Path, before: u64) -> std::io::Result<Vec<u8>> {
    let mut file = fs::File::open(log)?;
    // The server begins a new log when the old one is full.
    let from = if file.metadata()?.len() < before { 0 } else { before };
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}
