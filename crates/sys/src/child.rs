//! Child processes that end with us, and signals to them.
//!
//! The kernel's guard belongs to the *thread* that starts the child: start children from a thread that outlives them.
//! Signals go to a process that was started here and not waited for yet, so its number is still its own.

use crate::Error;
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Has the kernel ask the child to end (SIGTERM) when the thread that starts it is gone, however that happens.
pub fn end_with_us(command: &mut Command) {
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec the closure makes two system calls; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(move || set_death_signal(parent)) };
}

fn set_death_signal(parent: Pid) -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // The parent may have died before the signal was set: then it would never come.
    if getppid() == Some(parent) { Ok(()) } else { Err(std::io::Error::from_raw_os_error(libc::ESRCH)) }
}

/// Asks a child to end.
pub fn terminate(child: &Child) -> Result<(), Error> {
    signal(child, Signal::TERM)
}

/// Has a child read its configuration again (SIGHUP).
pub fn reload(child: &Child) -> Result<(), Error> {
    signal(child, Signal::HUP)
}

fn signal(child: &Child, signal: Signal) -> Result<(), Error> {
    let object = format!("process {}", child.id());
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let id = id.ok_or_else(|| Error::call("kill", object.as_str(), std::io::ErrorKind::InvalidInput))?;
    kill_process(id, signal).map_err(|error| Error::call("kill", object, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_guarded_child_ends_with_the_thread_that_started_it() {
        let start = || {
            let mut command = Command::new("sleep");
            command.arg("1000");
            end_with_us(&mut command);
            command.spawn().expect("there is a sleep")
        };
        let mut child = std::thread::spawn(start).join().expect("it starts");
        assert_eq!(child.wait().expect("it ends").signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn a_child_is_asked_to_end() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("there is a sleep");
        terminate(&child).expect("it is there");
        assert_eq!(child.wait().expect("it ends").signal(), Some(libc::SIGTERM));
    }
}
