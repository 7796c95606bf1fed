//! Protections that are in force, and protections that this kernel offers.

use super::capabilities::ProcessCapabilities;
use super::status::read_thread_statuses;
use super::{landlock, seccomp, user};
use std::fmt;

/// A protection that this machine does not have.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MissingProtection {
    pub wall: &'static str,
    /// What was found instead of the protection.
    pub found: String,
}

impl fmt::Display for MissingProtection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.wall, self.found)
    }
}

/// Protections in force in this process, as the kernel reports them.
#[derive(Clone, Debug)]
pub struct ActiveProtections {
    /// Effective user of the process.
    pub user: u32,
    /// Union of the effective capabilities of all threads.
    pub capabilities: ProcessCapabilities,
    /// No thread can gain a privilege by starting a program.
    pub no_new_privs: bool,
    /// Version of Landlock's interface, where it is in force.
    pub landlock: Option<u32>,
    /// Every thread has a filter.
    pub seccomp: bool,
    /// Protections that this kernel lacks.
    pub missing: Vec<MissingProtection>,
}

impl ActiveProtections {
    pub(super) fn read_process(
        landlock: Result<u32, MissingProtection>,
        filter: Result<(), MissingProtection>,
    ) -> Self {
        let threads = read_thread_statuses(std::process::id()).unwrap_or_default();
        let effective = threads.iter().fold(0, |all, thread| all | thread.effective);
        let is_everywhere = !threads.is_empty();
        let partial = landlock.as_ref().ok().and_then(|version| missing_landlock_part(*version));
        let missing = landlock.clone().err().into_iter().chain(partial).chain(filter.err()).collect();
        Self {
            user: rustix::process::geteuid().as_raw(),
            capabilities: ProcessCapabilities::from_bits(effective),
            no_new_privs: is_everywhere && threads.iter().all(|thread| thread.no_new_privs),
            landlock: landlock.ok(),
            seccomp: is_everywhere && threads.iter().all(|thread| thread.is_filtered),
            missing,
        }
    }
}

impl fmt::Display for ActiveProtections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {} ({}), {}", self.user, user::name_of_user(self.user), self.capabilities)?;
        if self.no_new_privs {
            f.write_str(", no_new_privs")?;
        }
        if let Some(version) = self.landlock {
            write!(f, ", Landlock ABI {version}")?;
        }
        if self.seccomp {
            f.write_str(", seccomp")?;
        }
        Ok(())
    }
}

/// The protections that this kernel offers.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct OfferedProtections {
    /// Version of Landlock's interface.
    pub landlock: Option<u32>,
    /// Filters of system calls are available.
    pub seccomp: bool,
    /// Protections that this kernel lacks, wholly or in part.
    pub missing: Vec<MissingProtection>,
}

impl OfferedProtections {
    pub fn read_offered_protections() -> Self {
        let version = landlock::landlock_abi_version();
        let filter = seccomp::find_missing_protection();
        let partial = version.as_ref().ok().and_then(|version| missing_landlock_part(*version));
        Self {
            landlock: version.as_ref().ok().copied(),
            seccomp: filter.is_none(),
            missing: version.err().into_iter().chain(partial).chain(filter).collect(),
        }
    }
}

/// The accesses that a version of Landlock does not restrict.
fn missing_landlock_part(version: u32) -> Option<MissingProtection> {
    let found = match version {
        0..=3 => {
            "TCP ports, ioctls of devices, signals and abstract sockets are not restricted (Linux 6.12 restricts them)"
        }
        4 => "ioctls of devices, signals and abstract sockets are not restricted (Linux 6.12 restricts them)",
        5 => "signals and abstract sockets are not restricted (Linux 6.12 restricts them)",
        _ => return None,
    };
    Some(MissingProtection { wall: "Landlock, in part", found: found.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_in_force() {
        let walls = ActiveProtections {
            user: 0,
            capabilities: ProcessCapabilities::NET_RAW,
            no_new_privs: true,
            landlock: Some(7),
            seccomp: false,
            missing: vec![],
        };
        assert_eq!(walls.to_string(), "uid 0 (root), CAP_NET_RAW, no_new_privs, Landlock ABI 7");
    }

    #[test]
    fn old_landlock_names_missing_part_new_has_none() {
        assert!(missing_landlock_part(1).is_some_and(|missing| missing.to_string().contains("TCP ports")));
        assert_eq!(missing_landlock_part(7), None);
    }
}
