//! The sandbox of programs that run for a long time and read data from other machines or users. Each program states its
//! [`ProgramNeeds`]; this module enters the sandbox and prints the rules that the kernel enforces. See
//! `docs/book/sandbox.md` for all of them.

mod flags;
mod needs;

pub use flags::{SandboxFlags, SandboxMode, UserFlags};
pub use needs::{
    ProgramNeeds, RING_CAPABILITIES, START_CAPABILITIES, UserToBecome, capabilities_for_files,
    capabilities_for_ports, file_rules, rig_file_rules,
};

use crate::Error;
use crate::output::{TextStyle, print_remark};
use packetrig_sys::netns;
use packetrig_sys::resident::ResidentThread;
use packetrig_sys::sandbox::{
    self, ActiveProtections, ProcessCapabilities, ProcessUser, Sandbox, SandboxPolicy, ThreadClass,
};

/// A program during its start: it has one thread, and opens its files and sockets before it gives up rights.
#[derive(Debug)]
#[must_use = "`drop_rights` gives up the rights that only the start of the program needs"]
pub struct ProgramOpening {
    program: &'static str,
    class: ThreadClass,
    user: Option<ProcessUser>,
    /// Reason why the program stays root; `None` if it does not, or needs no reason.
    reason: Option<String>,
    /// The capabilities of threads that read requests.
    network_thread_capabilities: ProcessCapabilities,
    /// `None` with `--sandbox off`.
    sandbox: Option<Sandbox>,
    is_quiet: bool,
}

/// Begins the sandbox: limits the process to the rights that its start needs. Must be called before a second thread
/// starts. With `--sandbox off`, nothing is limited.
pub fn begin_sandbox(flags: &SandboxFlags, needs: ProgramNeeds) -> Result<ProgramOpening, Error> {
    let ProgramNeeds { program, opening, kept, network_thread_capabilities, files, tcp, class, user } = needs;
    // Rigs find out through abstract sockets whether another packetrig process uses a port; Landlock would forbid this.
    let asks_processes = class == ThreadClass::Rig;
    if flags.sandbox == SandboxMode::Off {
        return Ok(ProgramOpening {
            program,
            class,
            user: None,
            reason: None,
            network_thread_capabilities,
            sandbox: None,
            is_quiet: false,
        });
    }
    let becoming = if sandbox::is_root() { choose_user(user)? } else { SandboxUserChoice::default() };
    let policy = SandboxPolicy { opening, kept, files, tcp, asks_processes };
    let sandbox = Some(Sandbox::enter_opening_stage(&policy)?);
    let SandboxUserChoice { user, reason } = becoming;
    Ok(ProgramOpening { program, class, user, reason, network_thread_capabilities, sandbox, is_quiet: false })
}

impl ProgramOpening {
    /// If `is_quiet`, [`Self::drop_rights`] does not print the active rules. It still prints which protections the
    /// kernel lacks, and that the sandbox is off.
    pub const fn suppress_report_if(mut self, is_quiet: bool) -> Self {
        self.is_quiet = is_quiet;
        self
    }

    /// Gives up rights that are not needed any more, and prints the rules that the kernel enforces.
    pub fn drop_rights(self) -> Result<(), Error> {
        let Some(sandbox) = self.sandbox else {
            let style = TextStyle::for_remarks();
            let warning = style.bad("sandbox off:");
            print_remark(format_args!(
                "{}: {warning} untrusted input is read with all rights of this user",
                self.program
            ));
            return Ok(());
        };
        let walls = sandbox.confine_process(self.class, self.user)?;
        // In programs of other classes, the threads that read the network have the rights of the whole process, which
        // `walls` already lists.
        let network_thread_capabilities =
            (self.class == ThreadClass::Rig).then_some(self.network_thread_capabilities);
        if !self.is_quiet {
            print_protections(self.program, &walls, network_thread_capabilities, self.reason.as_deref());
        }
        for missing in &walls.missing {
            print_remark(format_args!("{}: sandbox: missing: {missing}", self.program));
        }
        Ok(())
    }
}

impl ProgramOpening {
    /// Gives up rights like `drop_rights`, for a program whose runs need more rights than its threads that read
    /// requests. Returns a thread that can start runs with these rights. The calling thread, and all threads that
    /// it starts, lose these rights. Work in the given network namespaces stays possible.
    pub fn drop_rights_outside_rig_namespaces(self, namespaces: &[String]) -> Result<ResidentThread, Error> {
        let is_on = self.sandbox.is_some();
        // setns(2) needs CAP_SYS_ADMIN, which no thread keeps: a thread stays in each namespace.
        if is_on {
            netns::start_resident_threads(namespaces);
        }
        // The thread is started before the rights are given up: a thread inherits rights from the one that starts it.
        let rigs = ResidentThread::start_thread_here("rigs")?;
        let network_thread_capabilities = self.network_thread_capabilities;
        // The process is confined before this thread: TSYNC of seccomp gives all threads the filters of the
        // caller, so a narrower filter of this thread would also apply to the thread of the rigs.
        self.drop_rights()?;
        if is_on {
            sandbox::confine_thread(ThreadClass::Parser, network_thread_capabilities)?;
        }
        Ok(rigs)
    }
}

/// Starts threads that have fewer rights than the process.
#[derive(Debug)]
#[must_use = "only the threads that this value starts are confined"]
pub struct ThreadConfinement {
    kept: Option<ProcessCapabilities>,
}

impl ThreadConfinement {
    /// Does `work` on a confined thread. Threads that `work` starts are confined, too.
    pub fn run_confined_work<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let Some(kept) = self.kept else { return Ok(work()) };
        Ok(sandbox::run_confined(ThreadClass::Parser, kept, work)?)
    }

    /// Does `work` like `run_confined_work`, but keeps no right except the one to listen on `port`.
    pub fn run_confined_listener<T: Send>(
        &self,
        port: u16,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, Error> {
        let Some(kept) = self.kept else { return Ok(work()) };
        let kept = kept.intersect_with(capabilities_for_ports(&[port]));
        Ok(sandbox::run_confined(ThreadClass::Parser, kept, work)?)
    }
}

impl ProgramOpening {
    /// Gives up rights like `drop_rights`, for a program in which most threads need rights. Only the threads that
    /// the returned value starts have fewer. Work in the given network namespaces stays possible.
    pub fn drop_rights_except_confined(self, namespaces: &[String]) -> Result<ThreadConfinement, Error> {
        let kept = self.sandbox.is_some().then_some(self.network_thread_capabilities);
        // The namespaces are entered now: setns(2) needs CAP_SYS_ADMIN, which `drop_rights` gives up.
        if kept.is_some() {
            netns::start_resident_threads(namespaces);
        }
        self.drop_rights()?;
        Ok(ThreadConfinement { kept })
    }
}

/// Removes all capabilities of this process except `kept`, if the sandbox is on.
pub fn limit_rights(flags: &SandboxFlags, kept: ProcessCapabilities) -> Result<(), Error> {
    if flags.sandbox == SandboxMode::On {
        sandbox::limit_rights(kept)?;
    }
    Ok(())
}

/// Does work that reads data from other machines or users, before the sandbox is entered. The work runs on a
/// confined thread, which has no capabilities except those for files of other users.
pub fn run_confined<T: Send>(flags: &SandboxFlags, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let kept = (flags.sandbox == SandboxMode::On).then_some(ProcessCapabilities::OTHERS_FILES);
    ThreadConfinement { kept }.run_confined_work(work)
}

fn print_protections(
    program: &str,
    walls: &ActiveProtections,
    network_thread_capabilities: Option<ProcessCapabilities>,
    reason: Option<&str>,
) {
    let reason = reason.filter(|_| walls.user == 0);
    let reason = reason.map_or_else(String::new, |reason| format!("; root because {reason}"));
    let network_thread_capabilities = network_thread_capabilities
        .map_or_else(String::new, |kept| format!("; threads that read the network: {kept}"));
    print_remark(format_args!("{program}: sandbox: {walls}{network_thread_capabilities}{reason}"));
}

/// The user to become, or the reason why root stays root.
#[derive(Default)]
struct SandboxUserChoice {
    user: Option<ProcessUser>,
    reason: Option<String>,
}

const CANNOT_SWITCH_USER_TEXT: &str =
    "changing the user needs CAP_SETUID and CAP_SETGID, which this process lacks";

fn choose_user(request: UserToBecome) -> Result<SandboxUserChoice, Error> {
    let switching = ProcessCapabilities::SWITCH_USER;
    // Root of a container may lack these capabilities, so the number 0 of the user proves nothing.
    let may_switch = ProcessCapabilities::read_permitted()?.intersect_with(switching) == switching;
    let wanted = match request {
        UserToBecome::Stay(reason) => {
            return Ok(SandboxUserChoice { user: None, reason: Some(reason.to_owned()) });
        }
        // The user has named this account, so a failure is an error. With the default accounts below, a failure only
        // means that the program stays root.
        UserToBecome::Named(name) => {
            let user = ProcessUser::find_by_name(&name)
                .map_err(|error| Error::Usage(format!("--user {name}: {error}")))?;
            if !may_switch && user.uid != 0 {
                return Err(Error::Usage(format!("--user {name}: {CANNOT_SWITCH_USER_TEXT}")));
            }
            return Ok(SandboxUserChoice { user: Some(user), reason: None });
        }
        // As this user, the program writes files that the owner of the directory can read.
        UserToBecome::OwnerOf(path) => {
            let owner = std::fs::metadata(&path).map(|found| std::os::unix::fs::MetadataExt::uid(&found));
            let owner = owner.map_err(|source| Error::Write { what: path.display().to_string(), source })?;
            if owner == 0 {
                let reason = format!(
                    "{} belongs to root; give it to another user (chown), or name a user with --user",
                    path.display()
                );
                return Ok(SandboxUserChoice { user: None, reason: Some(reason) });
            }
            owner.to_string()
        }
        UserToBecome::Nobody => "nobody".to_owned(),
    };
    if !may_switch {
        return Ok(SandboxUserChoice { user: None, reason: Some(CANNOT_SWITCH_USER_TEXT.to_owned()) });
    }
    Ok(match ProcessUser::find_by_name(&wanted) {
        Ok(user) => SandboxUserChoice { user: Some(user), reason: None },
        Err(error) => SandboxUserChoice { user: None, reason: Some(error.to_string()) },
    })
}
