//! Names the process that holds the catalogue when a writer times out: the kernel lists the owner of each lock.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The process that may write at the moment, in words; `another process` if it cannot be found.
pub(crate) fn describe_holder(catalogue: &Path) -> String {
    find_holder(catalogue).map_or_else(|| "another process".to_owned(), describe_process)
}

fn find_holder(catalogue: &Path) -> Option<u32> {
    // With a write-ahead log, SQLite's locks are on its index. Only the file's number is read: opening and
    // closing the file would drop this process's own locks on it.
    let index = catalogue.with_extension("sqlite-shm");
    let inode = fs::metadata(index).ok()?.ino();
    fs::read_to_string("/proc/locks").ok()?.lines().find_map(|line| exclusive_owner(line, inode))
}

/// The owner of an exclusive lock on this file. `1: POSIX  ADVISORY  WRITE 812 fe:00:1306 120 120`; one that
/// waits has `->` before its kind.
fn exclusive_owner(line: &str, inode: u64) -> Option<u32> {
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
    format!("process {process}{}", if is_stopped { ", which is stopped" } else { "" })
}

fn is_stopped(stat: &str) -> bool {
    // The name before the state may contain anything but ends with the last parenthesis.
    stat.rsplit(')')
        .next()
        .is_some_and(|after| matches!(after.trim_start().as_bytes().first(), Some(b'T' | b't')))
}

#[cfg(test)]
mod tests {
    use super::{exclusive_owner, is_stopped};

    #[test]
    fn owner_is_read_from_an_exclusive_lock_of_this_file() {
        let line = "3: POSIX  ADVISORY  WRITE 812 fe:00:1306 120 120";
        assert_eq!(exclusive_owner(line, 1306), Some(812));
        assert_eq!(exclusive_owner(line, 1307), None);
        assert_eq!(exclusive_owner("3: POSIX  ADVISORY  READ 812 fe:00:1306 124 124", 1306), None);
        assert_eq!(exclusive_owner("3: -> POSIX  ADVISORY  WRITE 812 fe:00:1306 120 120", 1306), None);
        assert_eq!(exclusive_owner("5: FLOCK  ADVISORY  WRITE 812 fe:00:1306 0 EOF", 1306), None);
    }

    #[test]
    fn stopped_process_is_recognised_whatever_its_name() {
        assert!(is_stopped("812 (a) T (b) T 1 812"));
        assert!(!is_stopped("812 (a T b) S 1 812"));
    }
}
