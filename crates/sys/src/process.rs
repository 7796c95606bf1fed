//! Processes that depend on each other: whether one exists, and how to end it.

use crate::Error;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

/// Has the kernel end this process when its parent dies. Nothing happens for a parent that is dead already: compare
/// [`parent`] with what it should be afterwards.
pub fn end_with_parent() -> Result<(), Error> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| Error::call("prctl PR_SET_PDEATHSIG", "this process", errno))
}

pub fn parent() -> Option<u32> {
    rustix::process::getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok())
}

pub fn own() -> u32 {
    std::process::id()
}

/// Whether there is a process of that number.
pub fn exists(number: u32) -> bool {
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
    // EPERM: it is another user's process.
    pid.is_some_and(|pid| !matches!(rustix::process::test_kill_process(pid), Err(rustix::io::Errno::SRCH)))
}

/// Whether `/proc` lists a process of that number. For programs in a sandbox that ends them if they send signals.
pub fn is_listed(number: u32) -> bool {
    std::path::Path::new("/proc").join(number.to_string()).exists()
}

/// Asks a process to end in good order.
pub fn ask_to_end(number: u32) -> Result<(), Error> {
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
    let Some(pid) = pid else { return Ok(()) };
    kill_process(pid, Signal::TERM).map_err(|errno| Error::call("kill", format!("process {number}"), errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_there_or_not() {
        assert!(exists(own()));
        assert!(exists(1), "somebody else's");
        assert!(parent().is_some_and(exists));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let number = child.id();
        child.wait().unwrap();
        assert!(!exists(number));
    }

    #[test]
    fn a_process_can_be_asked_to_end() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        ask_to_end(child.id()).unwrap();
        assert!(!child.wait().unwrap().success());
    }
}
