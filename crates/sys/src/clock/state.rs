//! State of this machine's clocks, as the kernel reports it: which clocks they are, and how accurate.
//!
//! Nothing is owned or changed. The kernel reports whether a program synchronises the clock, and how wrong the clock
//! may be. It does not report which program.

use crate::Error;
use std::fs;

/// State of the system clock, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ClockState {
    /// A program (chrony, ntpd, linuxptp, the hypervisor) synchronises the clock with true time.
    pub synchronised: bool,
    /// Maximum distance of the clock from true time, in nanoseconds; absent if no program synchronises the clock.
    pub max_error_ns: Option<u64>,
    /// Names of the PTP clocks of this machine, in network cards or of the hypervisor. A listed clock need
    /// not be in use.
    pub ptp_clocks: Vec<String>,
}

impl ClockState {
    /// Reads the present state.
    pub fn read_current() -> Result<Self, Error> {
        // SAFETY: all fields are numbers, for which zero is valid; zero in `modes` means that nothing is changed.
        let mut state: libc::timex = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a live value that may be written.
        let answer = unsafe { libc::adjtimex(&raw mut state) };
        if answer < 0 {
            return Err(Error::last_os_error("adjtimex", "the system clock"));
        }
        let synchronised = answer != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0;
        // The kernel's number is in microseconds, and never negative.
        let max_error: u64 = state.maxerror.max(0).cast_unsigned() as _;
        let max_error = max_error.saturating_mul(1_000);
        Ok(Self { synchronised, max_error_ns: synchronised.then_some(max_error), ptp_clocks: ptp_clocks() })
    }
}

/// Reads the names of the PTP clocks from sysfs; none if the kernel has no PTP support.
fn ptp_clocks() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/ptp").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| fs::read_to_string(entry.path().join("clock_name")).ok());
    let mut names: Vec<String> = names.map(|name| name.trim().to_owned()).collect();
    names.sort();
    names
}

/// Returns an identifier of the `CLOCK_MONOTONIC` and `CLOCK_BOOTTIME` that this process reads. Processes
/// with the same identifier read the same clocks, even in different containers. Each boot and each time
/// namespace has another identifier.
pub fn read_clock_identity() -> Result<String, Error> {
    let time = "/proc/self/ns/time";
    let namespace = match fs::read_link(time) {
        Ok(link) => link.to_string_lossy().into_owned(),
        // On a kernel without time namespaces, all processes read the same clocks.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "time".to_owned(),
        Err(error) => return Err(Error::from_call("readlink", time, error)),
    };
    Ok(format!("{} {namespace}", boot_id()?))
}

/// Reads the kernel's random identifier of this boot; after a reboot it is another one.
pub fn boot_id() -> Result<String, Error> {
    let path = "/proc/sys/kernel/random/boot_id";
    let id = fs::read_to_string(path).map_err(|error| Error::from_call("read", path, error))?;
    Ok(id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_state_is_consistent_with_kernel() {
        let state = ClockState::read_current().unwrap();
        assert_eq!(state.synchronised, state.max_error_ns.is_some());
        let devices = fs::read_dir("/sys/class/ptp").map_or(0, Iterator::count);
        assert!(state.ptp_clocks.len() <= devices);
    }

    #[test]
    fn the_identity_names_boot_and_namespace_and_stays() {
        let identity = read_clock_identity().unwrap();
        assert!(identity.starts_with(&boot_id().unwrap()) && identity.contains("time"), "{identity}");
        assert_eq!(read_clock_identity().unwrap(), identity);
    }
}
