//! A sandbox for a process that reads foreign input. Everything that needs rights is opened first, then the rights are dropped for good.
//!
//! Entering has two stages, because opening sockets and rings needs rights, and Landlock must be in force before the
//! process starts a second thread:
//!
//! 1. [`Sandbox::enter_opening_stage`], while the process has one thread: `no_new_privs`, an empty ambient
//!    set, a small bounding set, locked securebits, the capabilities that opening needs, and Landlock. Every
//!    later thread inherits all of it.
//! 2. [`Sandbox::confine_process`], after opening: another user, the capabilities that stay, and a seccomp filter, in *every* thread.
//!
//! [`confine_thread`] gives a class of threads fewer rights than the process has. Threads share their memory:
//! this stops a thread that an attacker tricks into a call, but not one whose code an attacker has replaced.
//!
//! This module owns nothing. Rights that were given up never come back. [`ActiveProtections::missing`] lists
//! the protections that this kernel lacks.

mod acting_user;
mod capabilities;
mod every_thread;
mod landlock;
mod report;
mod request;
mod seccomp;
mod status;
mod syscalls;
mod trap;
mod user;

pub use acting_user::{act_as_user, set_command_user};
pub use capabilities::{ProcessCapabilities, capability_names};
pub use landlock::{FileRules, TcpRules};
pub use report::{ActiveProtections, MissingProtection, OfferedProtections};
pub use status::{ThreadStatus, read_thread_statuses};
pub use syscalls::ThreadClass;
pub use user::{ProcessUser, UserError, find_home_directory, own_user_name};

use crate::{Error, caps::ThreadRights};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Rights that a process keeps in the sandbox.
#[derive(Clone, Debug, Default)]
pub struct SandboxPolicy {
    /// Capabilities while the program opens its files and sockets.
    pub opening: ProcessCapabilities,
    /// Capabilities that stay after the second stage; one that is not in `opening` is ignored.
    pub kept: ProcessCapabilities,
    /// Files that the process may use.
    pub files: FileRules,
    /// TCP ports that the process may use.
    pub tcp: TcpRules,
    /// The process may connect to abstract sockets of other processes: for locks that the processes of a machine share.
    pub asks_processes: bool,
}

/// A process that is in the first stage of the sandbox.
#[derive(Debug)]
#[must_use = "only `confine_process` drops the capabilities that opening needs"]
pub struct Sandbox {
    kept: ProcessCapabilities,
    landlock: Result<u32, MissingProtection>,
}

impl Sandbox {
    /// Enters the first stage. Must be called while the process has one thread.
    pub fn enter_opening_stage(policy: &SandboxPolicy) -> Result<Self, Error> {
        // The rights that opening needs; `confine_process` gives up all but `kept`.
        let opening = policy.opening.intersect_with(ProcessCapabilities::read_permitted()?);
        let kept = policy.kept.intersect_with(opening);
        // The bounding set comes first: changing it needs CAP_SETPCAP, which may be given up below.
        capabilities::block_privilege_gain(kept, false)?;
        capabilities::reduce_capabilities_to(opening)?;
        let landlock = landlock::restrict_with_landlock(policy)?;
        Ok(Self { kept, landlock })
    }

    /// Enters the second stage: every thread, and every later one, becomes `user` if one is given, keeps only the
    /// capabilities that stay, and gets the filter of `class`.
    pub fn confine_process(
        self,
        class: ThreadClass,
        user: Option<ProcessUser>,
    ) -> Result<ActiveProtections, Error> {
        // Rights are dropped first: the filter does not allow the calls for that.
        every_thread::drop_rights(self.kept, user)?;
        let filter = seccomp::install_filter(class, seccomp::FilteredThreads::EveryThread)?;
        Ok(ActiveProtections::read_process(self.landlock, filter))
    }
}

/// Reduces the capabilities of the calling thread to `kept`, and gives it the filter of a class. Threads that
/// it starts inherit both.
pub fn confine_thread(class: ThreadClass, kept: ProcessCapabilities) -> Result<(), Error> {
    capabilities::reduce_capabilities_to(kept.intersect_with(ProcessCapabilities::read_permitted()?))?;
    seccomp::install_filter(class, seccomp::FilteredThreads::ThisThread).map(drop)
}

/// Runs `work` on a new thread that is [confined](confine_thread): the threads that it starts are confined,
/// too. A panic of `work` continues in the caller.
pub fn run_confined<T: Send>(
    class: ThreadClass,
    kept: ProcessCapabilities,
    work: impl FnOnce() -> T + Send,
) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let confined = scope.spawn(move || confine_thread(class, kept).map(|()| work()));
        confined.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Limits the calling thread, and programs that it starts, to these capabilities.
pub fn limit_rights(most: ProcessCapabilities) -> Result<(), Error> {
    let most = most.intersect_with(ProcessCapabilities::read_permitted()?);
    capabilities::block_privilege_gain(most, true)?;
    capabilities::reduce_capabilities_to(most)
}

/// Restricts the calling thread, and programs that it starts, to the files and TCP ports of the policy. Returns the
/// version of Landlock that is in force.
pub fn restrict_thread_with_landlock(
    policy: &SandboxPolicy,
) -> Result<Result<u32, MissingProtection>, Error> {
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| Error::from_call("prctl PR_SET_NO_NEW_PRIVS", "this thread", errno))?;
    landlock::restrict_with_landlock(policy)
}

/// Gives the program that `command` starts the filter of a class. If this kernel has no seccomp filters, the inner
/// error is the reason.
pub fn apply_seccomp_to_command(
    command: &mut Command,
    class: ThreadClass,
) -> Result<Result<(), MissingProtection>, Error> {
    if let Some(missing) = seccomp::find_missing_protection() {
        return Ok(Err(missing));
    }
    let filter = seccomp::AssembledFilter::for_class(class)?;
    let install = move || {
        rustix::thread::set_no_new_privs(true)?;
        match filter.install(seccomp::FilteredThreads::ThisThread) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec the closure makes two system calls; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(install) };
    Ok(Ok(()))
}

/// Returns true if the calling thread is root in its user namespace, which need not be that of the machine.
pub fn is_root() -> bool {
    ThreadRights::current().user == 0
}
