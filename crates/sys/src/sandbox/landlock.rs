//! Landlock: which files and TCP ports a process may use (`linux/landlock.h`).
//!
//! The kernel allows access that has a rule and refuses all other access. A path is resolved when the rule is
//! made. Files that are already open stay usable.

use super::SandboxPolicy;
use super::report::MissingProtection;
use crate::Error;
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Files that a process may use. It can neither open, make, rename, remove nor execute other files.
#[derive(Clone, Debug, Default)]
pub struct FileRules {
    /// Files that may be read, and directories that may be read with all that is below them.
    pub read: Vec<PathBuf>,
    /// Files that may be read and written, and directories in which files may also be made and removed.
    pub write: Vec<PathBuf>,
    /// Programs that may be read and started, and directories with such programs.
    pub execute: Vec<PathBuf>,
}

/// TCP ports a process may use; `None`: all. Kernels before 6.7 restrict none.
#[derive(Clone, Debug, Default)]
pub struct TcpRules {
    /// Ports to listen at.
    pub listen: Option<Vec<u16>>,
    /// Ports to connect to.
    pub connect: Option<Vec<u16>>,
}

/// Files that name resolution, the C library and this program read on every machine.
const SYSTEM_PATHS: [&str; 31] = [
    // Only parts of /proc are allowed: this program has no reason to read about other processes.
    "/proc/self",
    "/proc/sys",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/uptime",
    "/sys",
    "/dev/null",
    "/dev/urandom",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/resolv.conf",
    "/etc/services",
    // Certificates of public authorities, which libraries read even if no caller needs them.
    "/etc/ca-certificates",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/share/zoneinfo",
];

impl FileRules {
    /// Files that name resolution, the C library and this program read on every machine; no secret is among them.
    #[must_use]
    pub fn system_files() -> Self {
        Self { read: SYSTEM_PATHS.iter().map(PathBuf::from).collect(), ..Self::default() }
    }
}

/// Open descriptors of all paths that have rules, for the life of the process.
static PINNED_PATHS: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

const ACCESS_EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIRECTORY: u64 = 1 << 3;
const MAKE_CHARACTER_DEVICE: u64 = 1 << 6;
const MAKE_BLOCK_DEVICE: u64 = 1 << 11;
const ACCESS_REFER: u64 = 1 << 13;
const ACCESS_TRUNCATE: u64 = 1 << 14;
const DEVICE_IOCTL: u64 = 1 << 15;
/// Rights that a rule can have if its path is not a directory.
const NON_DIRECTORY_RIGHTS: u64 = ACCESS_EXECUTE | WRITE_FILE | READ_FILE | ACCESS_TRUNCATE | DEVICE_IOCTL;
const ACCESS_READ: u64 = READ_FILE | READ_DIRECTORY;
const ACCESS_LISTEN: u64 = 1;
const ACCESS_CONNECT: u64 = 1 << 1;
/// Forbids connections to abstract Unix sockets of processes outside of the sandbox.
const SCOPE_SOCKETS: u64 = 1;
/// Forbids signals to processes outside of the sandbox.
const SCOPE_SIGNALS: u64 = 1 << 1;

const RULE_PATH: libc::c_int = 1;
const RULE_PORT: libc::c_int = 2;

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct RulesetAttribute {
    files: u64,
    ports: u64,
    scopes: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathAttribute {
    allowed: u64,
    parent: i32,
}

/// `struct landlock_net_port_attr`.
#[repr(C)]
struct PortAttribute {
    allowed: u64,
    port: u64,
}

/// Version of Landlock's interface in this kernel, or the reason why the kernel has none.
pub(super) fn landlock_abi_version() -> Result<u32, MissingProtection> {
    let attribute: *const RulesetAttribute = std::ptr::null();
    // SAFETY: with this flag the kernel reads no attribute; the pointer is null and the size is zero.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, attribute, 0_usize, 1_u32) };
    if let Ok(version) = u32::try_from(version) {
        return Ok(version);
    }
    let found = match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOSYS) => {
            "this kernel has no Landlock (it needs Linux 5.13 with CONFIG_SECURITY_LANDLOCK)".to_owned()
        }
        Some(libc::EOPNOTSUPP) => {
            "it was disabled at boot (add `landlock` to the boot parameter `lsm=`)".to_owned()
        }
        other => format!("the kernel answered with error {}", other.unwrap_or(0)),
    };
    Err(MissingProtection { wall: "Landlock", found })
}

/// All rights for files and directories that this version of Landlock's interface knows.
const fn supported_filesystem_rights(version: u32) -> u64 {
    // Version 2 (Linux 5.19) adds REFER, version 3 (6.2) TRUNCATE, and version 5 (6.10) ioctl of devices.
    let bits = match version {
        0 | 1 => 13,
        2 => 14,
        3 | 4 => 15,
        _ => 16,
    };
    (1 << bits) - 1
}

/// Restricts the calling thread and the threads that it starts; returns the version of Landlock's interface.
pub(super) fn restrict_with_landlock(
    policy: &SandboxPolicy,
) -> Result<Result<u32, MissingProtection>, Error> {
    let SandboxPolicy { files, tcp, asks_processes, .. } = policy;
    let version = match landlock_abi_version() {
        Ok(version) => version,
        Err(missing) => return Ok(Err(missing)),
    };
    let known = supported_filesystem_rights(version);
    let scopes = SCOPE_SIGNALS | if *asks_processes { 0 } else { SCOPE_SOCKETS };
    let ruleset =
        create_ruleset(version, RulesetAttribute { files: known, ports: restricted_ports(tcp), scopes })?;
    for path in &files.read {
        allow_path(&ruleset, path, ACCESS_READ & known)?;
    }
    // A device node that a program makes could lead to any disk.
    let devices = MAKE_CHARACTER_DEVICE | MAKE_BLOCK_DEVICE;
    for path in &files.write {
        // A rule for writing never allows executing.
        allow_path(&ruleset, path, known & !(ACCESS_EXECUTE | devices))?;
    }
    for path in &files.execute {
        allow_path(&ruleset, path, (ACCESS_EXECUTE | ACCESS_READ) & known)?;
    }
    // Port rules exist since version 4 (Linux 6.7).
    if version >= 4 {
        allow_ports(&ruleset, tcp.listen.as_deref(), ACCESS_LISTEN)?;
        allow_ports(&ruleset, tcp.connect.as_deref(), ACCESS_CONNECT)?;
    }
    // SAFETY: the descriptor is a ruleset that is open during the call.
    let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) };
    if done == 0 {
        Ok(Ok(version))
    } else {
        Err(Error::last_os_error("landlock_restrict_self", "this thread"))
    }
}

fn restricted_ports(tcp: &TcpRules) -> u64 {
    let listen = if tcp.listen.is_some() { ACCESS_LISTEN } else { 0 };
    let connect = if tcp.connect.is_some() { ACCESS_CONNECT } else { 0 };
    listen | connect
}

fn create_ruleset(version: u32, attribute: RulesetAttribute) -> Result<OwnedFd, Error> {
    // Older kernels refuse a longer structure unless all additional bytes are zero.
    let size = match version {
        0..=3 => 8_usize,
        4 | 5 => 16,
        _ => 24,
    };
    // SAFETY: the attribute is live, at least as long as the size, and only read.
    let made = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attribute, size, 0_u32) };
    let Some(descriptor) = i32::try_from(made).ok().filter(|descriptor| *descriptor >= 0) else {
        return Err(Error::last_os_error("landlock_create_ruleset", "this thread"));
    };
    // SAFETY: the call has just made this descriptor, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Allows a path. A path that does not exist, or that this process cannot reach, needs no rule.
fn allow_path(ruleset: &OwnedFd, path: &Path, rights: u64) -> Result<(), Error> {
    let object = path.display().to_string();
    let parent = match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(parent) => parent,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::ACCESS | rustix::io::Errno::NOTDIR) => {
            return Ok(());
        }
        Err(errno) => return Err(Error::from_call("open", object, errno)),
    };
    let kind =
        rustix::fs::fstat(&parent).map_err(|errno| Error::from_call("stat", object.as_str(), errno))?;
    let is_directory = rustix::fs::FileType::from_raw_mode(kind.st_mode).is_dir();
    // The kernel refuses rights of directories in a rule for a file.
    let allowed = if is_directory { rights } else { rights & NON_DIRECTORY_RIGHTS & !ACCESS_REFER };
    let attribute = PathAttribute { allowed, parent: parent.as_raw_fd() };
    add_rule(ruleset, RULE_PATH, (&raw const attribute).cast())
        .map_err(|error| Error::from_call("landlock_add_rule", object, error))?;
    // A rule applies to an inode. /proc makes a new inode when no process holds the old one, and the rule
    // would have no effect.
    PINNED_PATHS.lock().unwrap_or_else(PoisonError::into_inner).push(parent);
    Ok(())
}

fn allow_ports(ruleset: &OwnedFd, ports: Option<&[u16]>, right: u64) -> Result<(), Error> {
    for port in ports.unwrap_or_default() {
        let attribute = PortAttribute { allowed: right, port: (*port).into() };
        add_rule(ruleset, RULE_PORT, (&raw const attribute).cast())
            .map_err(|error| Error::from_call("landlock_add_rule", format!("TCP port {port}"), error))?;
    }
    Ok(())
}

/// Adds a rule. `attribute` must point to the structure for rules of this kind.
fn add_rule(ruleset: &OwnedFd, kind: libc::c_int, attribute: *const libc::c_void) -> std::io::Result<()> {
    // SAFETY: both callers pass a live attribute of the kind they name; the kernel only reads it.
    let done =
        unsafe { libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), kind, attribute, 0_u32) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn landlock_versions_extend_known_file_rights() {
        assert_eq!(supported_filesystem_rights(1), (1 << 13) - 1);
        assert_eq!(supported_filesystem_rights(2) & ACCESS_REFER, ACCESS_REFER);
        assert_eq!(supported_filesystem_rights(3) & ACCESS_TRUNCATE, ACCESS_TRUNCATE);
        assert_eq!(supported_filesystem_rights(4) & DEVICE_IOCTL, 0);
        assert_eq!(supported_filesystem_rights(5) & DEVICE_IOCTL, DEVICE_IOCTL);
    }

    #[test]
    fn structures_are_as_long_as_the_kernels() {
        assert_eq!(size_of::<PathAttribute>(), 12);
        assert_eq!(size_of::<PortAttribute>(), 16);
        assert_eq!(size_of::<RulesetAttribute>(), 24);
    }
}
