//! Ends processes, and makes a process end with the process that started it.
//!
//! A number does not identify a process permanently, because the kernel reuses numbers. A [lock](crate::lock)
//! that a process holds shows that the process is alive.

use crate::Error;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

/// Makes the kernel end this process when the thread that started it ends. If its parent is dead already, this has no
/// effect: compare [`parent_id`] with the expected number afterwards.
pub fn die_with_parent_process() -> Result<(), Error> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| Error::from_call("prctl PR_SET_PDEATHSIG", "this process", errno))
}

pub fn parent_id() -> Option<u32> {
    rustix::process::getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok())
}

pub fn current_process_id() -> u32 {
    std::process::id()
}

/// Asks a process to end (SIGTERM).
pub fn send_sigterm_to_process(number: u32) -> Result<(), Error> {
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
    // No process can have this number, so there is none to end.
    let Some(pid) = pid else { return Ok(()) };
    kill_process(pid, Signal::TERM)
        .map_err(|errno| Error::from_call("kill", format!("process {number}"), errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_can_be_asked_to_end() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        send_sigterm_to_process(child.id()).unwrap();
        assert!(!child.wait().unwrap().success());
    }
}
