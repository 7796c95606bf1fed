//! Lets one thread, and the programs that it starts, act as another user. The other threads of the
//! process keep their user.
//!
//! The kernel keeps users and capabilities for each thread. The effective numbers of the thread become the user's;
//! its real and saved numbers stay root's. So a program of the user can neither signal nor trace the thread, but
//! the thread can signal that program, and the kernel ends the program with the thread. Starting another program
//! later needs no capability.

use super::capabilities::{self, ProcessCapabilities};
use super::user::ProcessUser;
use crate::Error;
use rustix::process::{Gid, Uid, getegid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the calling thread, which is root's, and threads that it starts act as the user: without capabilities, which
/// they cannot regain, and without other groups. Files that they make belong to the user.
pub fn act_as_user(user: &ProcessUser) -> Result<(), Error> {
    let failed = |call| move |errno| Error::from_call(call, format!("user {user}"), errno);
    // The bounding set comes first: changing it needs CAP_SETPCAP, which is given up below.
    capabilities::block_privilege_gain(ProcessCapabilities::NONE, true)?;
    set_thread_groups(&[]).map_err(failed("setgroups"))?;
    set_thread_res_gid(Gid::ROOT, Gid::from_raw(user.gid), Gid::ROOT).map_err(failed("setresgid"))?;
    set_thread_res_uid(Uid::ROOT, Uid::from_raw(user.uid), Uid::ROOT).map_err(failed("setresuid"))?;
    // The change of the effective user has cleared the effective capabilities. The permitted ones, which a
    // thread could make effective again, are still set.
    capabilities::reduce_capabilities_to(ProcessCapabilities::NONE)
}

/// Makes the program that `command` starts run only as the user as which the starting thread [acts](act_as_user).
/// Without this, the real and saved user of the program would be root. Must come before
/// [`crate::child::terminate_with_thread`]: a change of users cancels that signal.
pub fn set_command_user(command: &mut Command) {
    let become_acting = || {
        let (user, group) = (geteuid(), getegid());
        set_thread_res_gid(group, group, group)?;
        Ok(set_thread_res_uid(user, user, user)?)
    };
    // SAFETY: between fork and exec the closure makes four system calls; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(become_acting) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child;
    use crate::sandbox::{ThreadStatus, read_thread_statuses};
    use rustix::thread::CapabilitySet;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;
    use std::sync::mpsc::channel;

    const UID: u32 = 61_300;

    /// Runs `work` on a thread that acts as a user without a name. `None` without the rights for that.
    fn acting<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let effective = rustix::thread::capabilities(None).unwrap().effective;
        let user = ProcessUser::find_by_name(&UID.to_string());
        let is_root = geteuid() == Uid::ROOT && effective.contains(CapabilitySet::SETUID);
        let (Ok(user), true) = (user, is_root) else {
            println!("skipped: only root can act as another user");
            return None;
        };
        let thread = std::thread::spawn(move || {
            act_as_user(&user).unwrap();
            work()
        });
        Some(thread.join().unwrap())
    }

    fn status_of(process: u32, thread: u32) -> ThreadStatus {
        read_thread_statuses(process).unwrap().into_iter().find(|found| found.thread == thread).unwrap()
    }

    #[test]
    fn acting_thread_has_no_capability_and_no_group() {
        let own = || std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let Some(text) = acting(move || std::thread::spawn(own).join().unwrap()) else { return };
        for line in ["Uid:\t0\t61300\t0\t61300", "Gid:\t0\t61300\t0\t61300", "CapBnd:\t0000000000000000"] {
            assert!(text.contains(line), "{line}: {text}");
        }
        for line in ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let groups = text.lines().find(|line| line.starts_with("Groups:")).unwrap();
        assert_eq!(groups.trim(), "Groups:");
        assert_eq!(geteuid(), Uid::ROOT, "the other threads stay root's");
    }

    #[test]
    fn program_of_acting_thread_is_the_users_alone_and_ends_with_it() {
        let start = || {
            let mut command = Command::new("sleep");
            command.arg("1000").stdin(Stdio::null());
            set_command_user(&mut command);
            child::terminate_with_thread(&mut command);
            command.spawn().unwrap()
        };
        let told = acting(move || {
            let mut asked = start();
            let found = std::fs::read_to_string(format!("/proc/{}/status", asked.id())).unwrap();
            child::reload_child_configuration(&asked).unwrap();
            (found, asked.wait().unwrap().signal(), start())
        });
        let Some((found, signal, mut orphan)) = told else { return };
        assert!(found.contains("Uid:\t61300\t61300\t61300\t61300"), "{found}");
        assert!(found.contains("Gid:\t61300\t61300\t61300\t61300"), "{found}");
        assert!(found.contains("CapBnd:\t0000000000000000"), "{found}");
        assert_eq!(signal, Some(libc::SIGHUP), "the thread can signal it");
        assert_eq!(orphan.wait().unwrap().signal(), Some(libc::SIGTERM), "it ends with its thread");
    }

    #[test]
    fn program_of_the_user_cannot_signal_the_acting_thread() {
        let (tell, thread) = channel();
        let tried = acting(move || {
            let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            tell.send(own).unwrap();
            let mut command = Command::new("sh");
            command.args(["-c", &format!("kill -0 {own} || kill -0 {}", std::process::id())]);
            set_command_user(&mut command);
            (status_of(std::process::id(), own).user, command.output().unwrap().status.success())
        });
        let Some((user, is_signalled)) = tried else { return };
        assert_eq!((user, is_signalled, thread.recv().is_ok()), (UID, false, true));
    }
}
