//! Child processes that end with the thread that started them, and signals to them.
//!
//! After [`terminate_with_thread`], the end of the *thread* that started the child ends the child, so that thread must
//! live as long as the child is needed. Send signals only to a child that was not waited for yet: afterwards another
//! process may have its number.

use crate::Error;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{
    Pid, Signal, getppid, kill_process, kill_process_group, set_parent_process_death_signal,
    test_kill_process_group,
};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Makes the kernel ask the child to end (SIGTERM) when the thread that starts the child has
/// ended, for whatever reason.
pub fn terminate_with_thread(command: &mut Command) {
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec the closure makes two system calls; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(move || set_death_signal(parent)) };
}

fn set_death_signal(parent: Pid) -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // The parent may have died before the signal was set: then the signal would never come.
    if getppid() == Some(parent) { Ok(()) } else { Err(std::io::Error::from_raw_os_error(libc::ESRCH)) }
}

/// Asks a child to end (SIGTERM).
pub fn terminate_child(child: &Child) -> Result<(), Error> {
    send_signal(child, Signal::TERM)
}

/// Makes a child read its configuration again (SIGHUP).
pub fn reload_child_configuration(child: &Child) -> Result<(), Error> {
    send_signal(child, Signal::HUP)
}

/// Makes the child the leader of a new process group, so that [`kill_group`] also ends the child's own children.
pub fn start_in_own_group(command: &mut Command) {
    command.process_group(0);
}

/// Ends a child that leads its own group, and all processes of that group, at once. Call this before waiting
/// for the child: until then its number, and so the group's number, cannot be used again.
pub fn kill_group(child: &Child) -> Result<(), Error> {
    let object = format!("process group {}", child.id());
    kill_process_group(child_pid(child, &object)?, Signal::KILL)
        .map_err(|error| Error::from_call("kill", object, error))
}

/// Returns true if the process group that `child` leads or led still has a process. A process that has ended and was
/// not waited for (a zombie) counts.
pub fn has_process_in_group(child: &Child) -> bool {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    group.is_some_and(|group| test_kill_process_group(group).is_ok())
}

/// Switches this process's end of a pipe to non-blocking: reads and writes return `WouldBlock` at once if they
/// would have to wait.
pub fn set_nonblocking_pipe(pipe: impl AsFd) -> Result<(), Error> {
    let flags = fcntl_getfl(&pipe).map_err(|error| Error::from_call("fcntl", "a pipe", error))?;
    fcntl_setfl(&pipe, flags | OFlags::NONBLOCK).map_err(|error| Error::from_call("fcntl", "a pipe", error))
}

fn send_signal(child: &Child, signal: Signal) -> Result<(), Error> {
    let object = format!("process {}", child.id());
    kill_process(child_pid(child, &object)?, signal).map_err(|error| Error::from_call("kill", object, error))
}

fn child_pid(child: &Child, object: &str) -> Result<Pid, Error> {
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    id.ok_or_else(|| Error::from_call("kill", object, std::io::ErrorKind::InvalidInput))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn guarded_child_ends_with_its_starting_thread() {
        let start = || {
            let mut command = Command::new("sleep");
            command.arg("1000");
            terminate_with_thread(&mut command);
            command.spawn().expect("there is a sleep")
        };
        let mut child = std::thread::spawn(start).join().expect("it starts");
        assert_eq!(child.wait().expect("it ends").signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn killing_group_ends_grandchildren() {
        let mut command = Command::new("sh");
        // The shell's own child holds the pipe open: only when both are gone does reading come to an end.
        command.args(["-c", "sleep 1000 & echo started; wait"]).stdout(std::process::Stdio::piped());
        start_in_own_group(&mut command);
        let mut child = command.spawn().expect("there is a shell");
        let mut output = std::io::BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        std::io::BufRead::read_line(&mut output, &mut line).expect("it says so");
        assert_eq!(line, "started\n");
        kill_group(&child).expect("it is there");
        assert_eq!(std::io::Read::read(&mut output, &mut [0]).expect("both have ended"), 0);
        assert!(has_process_in_group(&child), "it was not waited for");
        assert_eq!(child.wait().expect("it ends").signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn an_empty_pipe_is_not_waited_for() {
        let mut child =
            Command::new("sleep").arg("1000").stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().expect("it is piped");
        set_nonblocking_pipe(&output).expect("a pipe has flags");
        let error = std::io::Read::read(&mut output, &mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_child_is_asked_to_end() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("there is a sleep");
        terminate_child(&child).expect("it is there");
        assert_eq!(child.wait().expect("it ends").signal(), Some(libc::SIGTERM));
    }
}
