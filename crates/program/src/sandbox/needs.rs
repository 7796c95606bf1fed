//! What a program needs in its sandbox: capabilities at its start and after it, files, TCP ports, and a class of system
//! calls. `docs/book/sandbox.md` has the table of all programs.

use packetrig_sys::netns;
use packetrig_sys::sandbox::{self, FileRules, ProcessCapabilities, TcpRules, ThreadClass};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

#[derive(Debug)]
pub struct ProgramNeeds {
    pub program: &'static str,
    pub opening: ProcessCapabilities,
    pub kept: ProcessCapabilities,
    /// The capabilities in `kept` that threads which read requests also keep.
    pub network_thread_capabilities: ProcessCapabilities,
    pub files: FileRules,
    pub tcp: TcpRules,
    pub class: ThreadClass,
    pub user: UserToBecome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserToBecome {
    Named(String),
    /// The user `nobody`, who owns no files.
    Nobody,
    /// The owner of the directory that the program writes to, so that the owner can use the written files.
    OwnerOf(PathBuf),
    /// Root stays root, for this reason.
    Stay(&'static str),
}

/// Capabilities of every program at its start: to read root's files, such as keys, to change the user, and to bind low ports.
pub const START_CAPABILITIES: ProcessCapabilities = ProcessCapabilities::FILES
    .union_with(ProcessCapabilities::SWITCH_USER)
    .union_with(ProcessCapabilities::NET_BIND_SERVICE);
/// Capabilities to open rings and interfaces and to load BPF programs.
pub const RING_CAPABILITIES: ProcessCapabilities = ProcessCapabilities::NET_RAW
    .union_with(ProcessCapabilities::NET_ADMIN)
    .union_with(ProcessCapabilities::BPF)
    .union_with(ProcessCapabilities::PERFMON)
    .union_with(ProcessCapabilities::IPC_LOCK)
    .union_with(ProcessCapabilities::SYS_NICE);

pub fn capabilities_for_ports(ports: &[u16]) -> ProcessCapabilities {
    // 1024 is the usual `net.ipv4.ip_unprivileged_port_start`. Port 0 means a port of the kernel's choice, which the
    // kernel takes from `ip_local_port_range`; the two ranges must not overlap.
    if ports.iter().any(|port| (1..1024).contains(port)) {
        ProcessCapabilities::NET_BIND_SERVICE
    } else {
        ProcessCapabilities::NONE
    }
}

/// Returns the file rules of a rig: the given files, and the files that every rig reads and writes. Of /proc/sys, only
/// the network part is writable, because a process that can write all of /proc/sys can become root again.
pub fn rig_file_rules(read: Vec<PathBuf>, write: Vec<PathBuf>) -> FileRules {
    let read = read.into_iter().chain([PathBuf::from(netns::NETNS_DIRECTORY)]);
    let settings = ["/proc/sys/net", "/proc/self"].map(PathBuf::from);
    file_rules(read, write.into_iter().chain(settings))
}

/// Returns the capabilities to use files of other users, if this process is root and one of the files belongs to
/// another user: root without capabilities could not use that file. Landlock still limits the process to its files.
pub fn capabilities_for_files<'a>(mut paths: impl Iterator<Item = &'a PathBuf>) -> ProcessCapabilities {
    if sandbox::is_root() && paths.any(|path| std::fs::metadata(path).is_ok_and(|found| found.uid() != 0)) {
        ProcessCapabilities::OTHERS_FILES
    } else {
        ProcessCapabilities::NONE
    }
}

pub fn file_rules(
    read: impl IntoIterator<Item = PathBuf>,
    write: impl IntoIterator<Item = PathBuf>,
) -> FileRules {
    let mut files = FileRules::system_files();
    files.read.extend(read);
    files.write.extend(write);
    files
}
