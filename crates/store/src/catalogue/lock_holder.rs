//! Names the process that holds the catalogue when a writer times out: the kernel lists the owner of each lock.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Readings of the kernel's list of locks.
const MAX_LOCK_LIST_READINGS: usize = 3;

/// Describes the process that holds the write lock; `another process` if it cannot be found.
pub(crate) fn describe_lock_holder(catalogue: &Path) -> String {
    find_lock_holder(catalogue).map_or_else(|| "another process".to_owned(), describe_process)
}

fn find_lock_holder(catalogue: &Path) -> Option<u32> {
    // With a write-ahead log, SQLite locks the index file (`-shm`). Only its inode is read: opening and
    // closing the file would drop this process's own locks on it.
    let index = catalogue.with_extension("sqlite-shm");
    let inode = fs::metadata(index).ok()?.ino();
    // A line may be missing in one reading, while another process locks or unlocks something.
    (0..MAX_LOCK_LIST_READINGS).find_map(|_| {
        let locks = fs::read_to_string("/proc/locks").ok()?;
        locks.lines().find_map(|line| parse_exclusive_lock_owner(line, inode))
    })
}

/// Returns the process that holds an exclusive lock on the file with this inode, from a line of `/proc/locks`:
/// `1: POSIX ADVISORY WRITE 812 fe:00:1306 120 120`. A process that waits for a lock has `->` before the kind.
fn parse_exclusive_lock_owner(line: &str, inode: u64) -> Option<u32> {
    let mut fields = line.split_whitespace();
    let (Some("POSIX"), Some("WRITE"), Some(owner), Some(file)) =
        (fields.nth(1), fields.nth(1), fields.next(), fields.next())
    else {
        return None;
    };
    (file.rsplit(':').next()?.parse() == Ok(inode)).then(|| owner.parse().ok())?
}

fn describe_process(process: u32) -> String {
    let is_stopped = fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| is_stopped(&stat));
    format!("process {process}{}", if is_stopped { ", which is stopped," } else { "" })
}

fn is_stopped(stat: &str) -> bool {
    // The process name before the state may contain any characters, but it ends at the last closing
    // parenthesis.
    stat.rsplit(')')
        .next()
        .is_some_and(|after| matches!(after.trim_start().as_bytes().first(), Some(b'T' | b't')))
}

#[cfg(test)]
mod tests {
    use super::{is_stopped, parse_exclusive_lock_owner};

    #[test]
    fn owner_is_read_from_an_exclusive_lock_of_this_file() {
        let line = "3: POSIX  ADVISORY  WRITE 812 fe:00:1306 120 120";
        assert_eq!(parse_exclusive_lock_owner(line, 1306), Some(812));
        assert_eq!(parse_exclusive_lock_owner(line, 1307), None);
        assert_eq!(parse_exclusive_lock_owner("3: POSIX  ADVISORY  READ 812 fe:00:1306 124 124", 1306), None);
        let waiting = "3: -> POSIX  ADVISORY  WRITE 812 fe:00:1306 120 120";
        assert_eq!(parse_exclusive_lock_owner(waiting, 1306), None);
        assert_eq!(parse_exclusive_lock_owner("5: FLOCK  ADVISORY  WRITE 812 fe:00:1306 0 EOF", 1306), None);
    }

    #[test]
    fn stopped_process_is_recognised_whatever_its_name() {
        assert!(is_stopped("812 (a) T (b) T 1 812"));
        assert!(!is_stopped("812 (a T b) S 1 812"));
    }
}
