//! What others than its owner could read.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Files and directories below `directory` that anybody but their owner has any right to. Panics if there are none at all.
pub fn open_to_others(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut seen = 0;
    let mut waiting = entries(directory);
    while let Some(path) = waiting.pop() {
        let facts = std::fs::symlink_metadata(&path).expect("what is listed is there");
        seen += 1;
        if facts.is_dir() {
            waiting.extend(entries(&path));
        }
        if !facts.is_symlink() && facts.permissions().mode() & 0o077 != 0 {
            found.push(path);
        }
    }
    assert!(seen > 0, "{} is empty", directory.display());
    found
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory can be read by its owner");
    entries.map(|entry| entry.expect("a directory can be read by its owner").path()).collect()
}
