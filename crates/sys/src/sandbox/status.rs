//! Status of the threads of a process, as the kernel reports it: `/proc/PID/task/TID/status`.

use std::io;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStatus {
    pub thread: u32,
    pub name: String,
    pub user: u32,
    /// Real, effective, saved and file-system group.
    pub own_groups: Vec<u32>,
    pub groups: Vec<u32>,
    /// Capabilities that the thread can use now.
    pub effective: u64,
    /// Capabilities that the thread can make effective.
    pub permitted: u64,
    /// Capabilities that a program keeps when the thread starts it.
    pub ambient: u64,
    /// Upper limit for capabilities that the thread can gain by starting a program.
    pub bounding: u64,
    /// The thread can gain no privilege by starting a program.
    pub no_new_privs: bool,
    /// A seccomp filter is in force.
    pub is_filtered: bool,
    /// Number of filters in force; `None` before Linux 5.9.
    pub filters: Option<u32>,
}

/// Reads the status of every thread of a process, in order of the thread numbers.
pub fn read_thread_statuses(process: u32) -> io::Result<Vec<ThreadStatus>> {
    let directory = format!("/proc/{process}/task");
    let mut threads = Vec::new();
    for entry in std::fs::read_dir(&directory)? {
        // A thread that ends in the meantime is left out.
        let Ok(text) = std::fs::read_to_string(entry?.path().join("status")) else { continue };
        threads.extend(parse_thread_status(&text));
    }
    threads.sort_by_key(|thread| thread.thread);
    Ok(threads)
}

fn value_of<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value.map(str::trim)
}

fn status_numbers(text: &str, key: &str) -> Option<Vec<u32>> {
    let value = value_of(text, key)?;
    Some(value.split_whitespace().flat_map(str::parse).collect())
}

fn status_mask(text: &str, key: &str) -> Option<u64> {
    u64::from_str_radix(value_of(text, key)?, 16).ok()
}

fn parse_thread_status(text: &str) -> Option<ThreadStatus> {
    Some(ThreadStatus {
        thread: value_of(text, "Pid")?.parse().ok()?,
        name: value_of(text, "Name")?.to_owned(),
        // Real, effective, saved, of the file system.
        user: value_of(text, "Uid")?.split_whitespace().nth(1)?.parse().ok()?,
        own_groups: status_numbers(text, "Gid")?,
        groups: status_numbers(text, "Groups")?,
        effective: status_mask(text, "CapEff")?,
        permitted: status_mask(text, "CapPrm")?,
        ambient: status_mask(text, "CapAmb").unwrap_or(0),
        bounding: status_mask(text, "CapBnd")?,
        no_new_privs: value_of(text, "NoNewPrivs") == Some("1"),
        is_filtered: value_of(text, "Seccomp") == Some("2"),
        filters: value_of(text, "Seccomp_filters").and_then(|count| count.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read() {
        let threads = read_thread_statuses(std::process::id()).unwrap();
        assert_eq!(threads[0].thread, std::process::id());
        assert_eq!(threads[0].user, rustix::process::geteuid().as_raw());
        assert!(threads.len() > 1, "a test runs in a thread of its own");
    }

    #[test]
    fn missing_kernel_status_fields_are_unknown() {
        let text = "Name:\tx\nPid:\t7\nUid:\t0\t5\t0\t0\nGid:\t7\t8\t7\t7\nGroups:\t4 20 \nCapPrm:\t0\nCapEff:\t2000\nCapBnd:\tff\nSeccomp:\t2\n";
        let thread = parse_thread_status(text).unwrap();
        assert_eq!((thread.thread, thread.user, thread.effective), (7, 5, 0x2000));
        assert_eq!((thread.own_groups, thread.groups), (vec![7, 8, 7, 7], vec![4, 20]));
        assert_eq!((thread.no_new_privs, thread.is_filtered, thread.filters), (false, true, None));
        assert!(parse_thread_status("Name:\tx\n").is_none());
    }
}
