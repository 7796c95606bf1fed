//! Actions that a process in a sandbox cannot take, tried one by one, each in a process of its own. Runs without the test
//! harness, which has threads.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::exit,
    unsafe_code,
    reason = "a test, although the harness does not know it; what an intruder would call has no safe wrapper"
)]

use packetrig_sys::caps::ThreadRights;
use packetrig_sys::sandbox::{
    ActiveProtections, FileRules, OfferedProtections, ProcessCapabilities, ProcessUser, Sandbox,
    SandboxPolicy, TcpRules, ThreadClass, apply_seccomp_to_command, read_thread_statuses,
};
use std::fs;
use std::io::{Error, ErrorKind, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

/// Says in the child what to try.
const ATTEMPT: &str = "PACKETRIG_TEST_ATTEMPT";
/// Set if the child has the filter of a foreign server, which was installed before it started, and no other wall.
const FOREIGN: &str = "PACKETRIG_TEST_FOREIGN";
/// The directory that the child may use.
const OWN: &str = "PACKETRIG_TEST_OWN";
/// Answer to a test runner that asks for the tests of this program.
const LIST: &str = "a_sandbox_holds: test";

/// Required outcome of an attempt.
#[derive(Clone, Copy, PartialEq)]
enum Outcome {
    Works,
    /// With an error of one of these numbers.
    Fails(&'static [i32]),
    /// The process is killed for this call, and says so.
    Killed(&'static str),
    /// The process is killed and cannot say so.
    Dies,
}

use Outcome::{Dies, Fails, Killed, Works};

type Attempt = fn(&Path) -> Result<(), Error>;

/// Attempts in a sandbox, whether Landlock is needed for each, and the outcome.
const ATTEMPTS: [(&str, bool, Attempt, Outcome); 37] = [
    ("write into its own directory", false, write_own, Works),
    ("start a thread", false, start_thread, Works),
    ("open a UDP socket", false, |_| UdpSocket::bind("127.0.0.1:0").map(drop), Works),
    ("listen at the TCP port it was given", false, |_| TcpListener::bind("127.0.0.1:0").map(drop), Works),
    ("name the walls of a kernel that has none", false, name_missing, Works),
    ("read its own status", false, |_| fs::read("/proc/self/status").map(drop), Works),
    ("read /etc/shadow", true, |_| fs::read("/etc/shadow").map(drop), Fails(&[libc::EACCES])),
    ("read the memory of others", true, |_| fs::read("/proc/1/environ").map(drop), Fails(&[libc::EACCES])),
    ("write to /etc", true, |_| fs::write("/etc/packetrig-test", "x"), Fails(&[libc::EACCES])),
    ("leave its directory by a link", true, leave_by_link, Fails(&[libc::EACCES])),
    (
        "listen at another TCP port",
        true,
        |_| TcpListener::bind("127.0.0.1:18999").map(drop),
        Fails(&[libc::EACCES]),
    ),
    ("connect to a TCP port", true, |_| TcpStream::connect("127.0.0.1:22").map(drop), Fails(&[libc::EACCES])),
    ("start a program", false, |_| Err(Command::new("/bin/true").exec()), Killed("execve")),
    ("fork", false, |_| call(libc::SYS_clone, [17, 0, 0]), Fails(&[libc::EPERM])),
    (
        "trace its parent",
        false,
        |_| call(libc::SYS_ptrace, [16, i64::from(std::os::unix::process::parent_id()), 0]),
        Killed("ptrace"),
    ),
    (
        "signal its parent",
        false,
        |_| call(libc::SYS_kill, [i64::from(std::os::unix::process::parent_id()), 0, 0]),
        Killed("kill"),
    ),
    ("become root", false, |_| call(libc::SYS_setuid, [0, 0, 0]), Killed("setuid")),
    ("enter a namespace", false, |_| call(libc::SYS_setns, [0, 0, 0]), Killed("setns")),
    ("load a BPF program", false, |_| call(libc::SYS_bpf, [5, 0, 0]), Killed("bpf")),
    ("load a kernel module", false, |_| call(libc::SYS_init_module, [0, 0, 0]), Killed("init_module")),
    ("handle its own end", false, |_| ignore_signal(libc::SIGSYS), Fails(&[libc::EPERM])),
    ("handle another signal", false, |_| ignore_signal(libc::SIGUSR1), Works),
    ("make a deadly call with its signal blocked", false, kill_while_blocked, Dies),
    ("make a deadly call where nobody reads", false, kill_while_unread, Dies),
    ("open a packet socket", false, |_| call(libc::SYS_socket, [17, 3, 0]), Fails(&[libc::EPERM])),
    ("make a file private", false, |own| set_mode(own, 0o600), Works),
    ("make a file a setuid program", false, |own| set_mode(own, 0o4755), Fails(&[libc::EPERM])),
    ("make a setuid program", false, make_setuid, Fails(&[libc::EPERM])),
    ("make a setgid directory", false, |own| make_directory(own, 0o2700), Fails(&[libc::EPERM])),
    ("make a directory", false, |own| make_directory(own, 0o700), Works),
    ("make a file of others setuid by its path", false, change_by_path, Fails(&[libc::ENOSYS])),
    ("give a file away", false, give_away, Fails(&[libc::ENOSYS])),
    ("set the times of a file", false, set_times, Fails(&[libc::ENOSYS])),
    (
        "open a socket that can have a path",
        false,
        |_| UnixDatagram::unbound().map(drop),
        Fails(&[libc::EPERM]),
    ),
    ("speak to a service of this machine", false, speak_to_service, Fails(&[libc::EPERM])),
    ("make a pair of sockets", false, |_| UnixStream::pair().map(drop), Works),
    ("map memory that is written and executed", false, map_code, Fails(&[libc::EPERM])),
];

/// Attempts of a foreign server, and the outcome.
const FOREIGN_ATTEMPTS: [(&str, Outcome); 18] = [
    ("write into its own directory", Works),
    ("start a thread", Works),
    ("listen at the TCP port it was given", Works),
    ("handle its own end", Works),
    ("handle another signal", Works),
    ("make a directory", Works),
    ("start a program", Works),
    ("fork", Fails(&[libc::EPERM])),
    ("trace its parent", Fails(&[libc::ENOSYS])),
    ("signal its parent", Fails(&[libc::ENOSYS])),
    ("become root", Fails(&[libc::ENOSYS])),
    ("enter a namespace", Fails(&[libc::ENOSYS])),
    ("load a BPF program", Fails(&[libc::ENOSYS])),
    ("load a kernel module", Fails(&[libc::ENOSYS])),
    ("open a packet socket", Fails(&[libc::EPERM])),
    ("make a setuid program", Fails(&[libc::EPERM])),
    ("make a file of others setuid by its path", Fails(&[libc::ENOSYS])),
    ("speak to a service of this machine", Fails(&[libc::EPERM])),
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "--list") {
        if !arguments.iter().any(|argument| argument == "--ignored") {
            println!("{LIST}");
        }
        return;
    }
    if let Some(attempt) = std::env::var_os(ATTEMPT) {
        return inside(attempt.to_str().unwrap());
    }
    let offer = OfferedProtections::read_offered_protections();
    if !offer.seccomp {
        return println!("skipped: {}", offer.missing[0]);
    }
    for (what, needs_landlock, _, outcome) in ATTEMPTS {
        if needs_landlock && offer.landlock.is_none_or(|version| version < 4) {
            println!("skipped: {what}: {:?}", offer.missing);
        } else {
            try_it(what, outcome, Command::new("/proc/self/exe"));
        }
    }
    for (what, outcome) in FOREIGN_ATTEMPTS {
        let mut command = Command::new("/proc/self/exe");
        apply_seccomp_to_command(command.env(FOREIGN, "1"), ThreadClass::ForeignServer).unwrap().unwrap();
        try_it(what, outcome, command);
    }
    println!("test result: ok. a sandbox holds");
}

/// Makes one attempt in a child.
fn try_it(what: &str, outcome: Outcome, mut command: Command) {
    let own = tempfile::tempdir().unwrap();
    if let Ok(user) = ProcessUser::find_by_name("nobody") {
        // Best effort: this process may lack the right.
        drop(std::os::unix::fs::chown(own.path(), Some(user.uid), Some(user.gid)));
    }
    let output = command.env(ATTEMPT, what).env(OWN, own.path()).output().unwrap();
    let (ended, said) = (output.status, String::from_utf8_lossy(&output.stderr).into_owned());
    let found = match (ended.code(), ended.signal()) {
        (Some(0), _) => "works".to_owned(),
        (Some(code), _) => format!("error {code}"),
        (_, signal) => format!("signal {signal:?}"),
    };
    let is_right = match outcome {
        Works => ended.success(),
        Fails(errors) => ended.code().is_some_and(|code| errors.contains(&code)),
        Dies => ended.signal() == Some(libc::SIGSYS),
        Killed(call) => {
            // One line, with what a report of it needs.
            let is_named = said.contains(&format!(" system call {call} ("));
            let parts = ["thread exe", "(class parser)", "bug", "intruder"];
            let is_whole = said.ends_with('\n') && said.lines().count() == 1;
            ended.signal() == Some(libc::SIGSYS)
                && is_named
                && is_whole
                && parts.iter().all(|part| said.contains(part))
        }
    };
    assert!(is_right, "{what}: {found}: {said}");
    println!("{what}: {found}");
}

fn inside(what: &str) {
    let own = PathBuf::from(std::env::var_os(OWN).unwrap());
    let attempt = ATTEMPTS.iter().find(|(name, ..)| *name == what).unwrap().2;
    if std::env::var_os(FOREIGN).is_none() {
        assert_protections(&enter(&own));
    }
    let Err(error) = attempt(&own) else { return };
    std::process::exit(error.raw_os_error().unwrap_or(255));
}

/// Enters the sandbox with a thread from before, which has to give up its rights, too.
fn enter(own: &Path) -> ActiveProtections {
    let policy = SandboxPolicy {
        opening: ProcessCapabilities::NET_RAW.union_with(ProcessCapabilities::SWITCH_USER),
        kept: ProcessCapabilities::NONE,
        files: FileRules { write: vec![own.to_owned()], ..FileRules::system_files() },
        tcp: TcpRules { listen: Some(vec![0]), connect: Some(vec![]) },
        ..SandboxPolicy::default()
    };
    let sandbox = Sandbox::enter_opening_stage(&policy).unwrap();
    let (end, ending) = mpsc::channel::<()>();
    let earlier = std::thread::spawn(move || {
        // It waits in the kernel when the signal comes.
        ending.recv().unwrap_or(());
        ThreadRights::current()
    });
    let user =
        if ThreadRights::current().user == 0 { ProcessUser::find_by_name("nobody").ok() } else { None };
    let walls = sandbox.confine_process(ThreadClass::Parser, user).unwrap();
    drop(end);
    let rights = earlier.join().unwrap();
    assert_eq!(rights.user, walls.user);
    assert!(rights.capabilities.is_empty(), "{rights:?}");
    walls
}

fn assert_protections(walls: &ActiveProtections) {
    assert!(walls.capabilities.is_empty() && walls.no_new_privs && walls.seccomp, "{walls}");
    if ProcessUser::find_by_name("nobody").is_ok() {
        assert_ne!(walls.user, 0, "{walls}");
        let group = ProcessUser::find_by_name("nobody").unwrap().gid;
        for thread in read_thread_statuses(std::process::id()).unwrap() {
            let mut all = thread.own_groups.iter().chain(&thread.groups);
            assert!(all.all(|of| *of == group), "{thread:?}");
        }
    }
    for thread in read_thread_statuses(std::process::id()).unwrap() {
        assert_eq!((thread.effective, thread.permitted, thread.ambient), (0, 0, 0), "{thread:?}");
        assert!(thread.no_new_privs && thread.is_filtered, "{thread:?}");
    }
}

fn write_own(own: &Path) -> Result<(), Error> {
    fs::create_dir(own.join("a"))?;
    fs::write(own.join("a/b"), "x")?;
    fs::rename(own.join("a/b"), own.join("c"))?;
    fs::remove_file(own.join("c"))
}

/// In here the system calls are answered as a kernel without them does.
fn name_missing(_own: &Path) -> Result<(), Error> {
    let offer = OfferedProtections::read_offered_protections();
    let missing = offer.missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let is_named =
        missing.contains("Landlock: this kernel has no Landlock") && missing.contains("seccomp: this kernel");
    if is_named && offer.landlock.is_none() && !offer.seccomp { Ok(()) } else { Err(ErrorKind::Other.into()) }
}

fn start_thread(_own: &Path) -> Result<(), Error> {
    let thread = std::thread::Builder::new().spawn(|| std::thread::sleep(Duration::from_millis(1)))?;
    thread.join().map_err(|_| ErrorKind::Other.into())
}

fn leave_by_link(own: &Path) -> Result<(), Error> {
    std::os::unix::fs::symlink("/etc/shadow", own.join("link")).ok();
    // Without `symlinkat` in the list there is no link; the way over `..` is there always.
    let up: PathBuf = own.components().map(|_| "..").collect();
    fs::read(own.join(up).join("etc/shadow")).map(drop)
}

fn set_mode(own: &Path, mode: u32) -> Result<(), Error> {
    fs::File::create(own.join("f"))?.set_permissions(fs::Permissions::from_mode(mode))
}

fn make_setuid(own: &Path) -> Result<(), Error> {
    fs::OpenOptions::new().write(true).create_new(true).mode(0o4755).open(own.join("f")).map(drop)
}

fn make_directory(own: &Path, mode: u32) -> Result<(), Error> {
    fs::DirBuilder::new().mode(mode).create(own.join("d"))
}

fn change_by_path(own: &Path) -> Result<(), Error> {
    fs::write(own.join("f"), "x")?;
    fs::set_permissions(own.join("f"), fs::Permissions::from_mode(0o4755))
}

fn give_away(own: &Path) -> Result<(), Error> {
    let file = fs::File::create(own.join("f"))?;
    std::os::unix::fs::fchown(&file, None, None)
}

fn set_times(own: &Path) -> Result<(), Error> {
    fs::File::create(own.join("f"))?.set_modified(std::time::UNIX_EPOCH)
}

fn speak_to_service(own: &Path) -> Result<(), Error> {
    UnixStream::connect(own.join("no-service")).map(drop)
}

fn map_code(_own: &Path) -> Result<(), Error> {
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory that is in use.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED { Err(Error::last_os_error()) } else { Ok(()) }
}

fn ignore_signal(signal: i32) -> Result<(), Error> {
    // SAFETY: an ignored signal runs no code of this process.
    let before = unsafe { libc::signal(signal, libc::SIG_IGN) };
    if before == libc::SIG_ERR { Err(Error::last_os_error()) } else { Ok(()) }
}

fn kill_while_blocked(_own: &Path) -> Result<(), Error> {
    // SAFETY: zeroes are a set of signals.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: it writes into a live set.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: it reads a live set, and writes nothing.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut()) };
    call(libc::SYS_kill, [1, 0, 0])
}

/// Standard error is a full pipe.
fn kill_while_unread(_own: &Path) -> Result<(), Error> {
    let (unread, full) = std::io::pipe()?;
    rustix::io::ioctl_fionbio(&full, true)?;
    while (&full).write(&[0; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&full, false)?;
    // SAFETY: both descriptors are open.
    unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&full), libc::STDERR_FILENO) };
    let ended = call(libc::SYS_kill, [1, 0, 0]);
    drop(unread);
    ended
}

fn call(number: libc::c_long, arguments: [i64; 3]) -> Result<(), Error> {
    let [first, second, third] = arguments;
    // SAFETY: the calls above are refused by the filter before they begin; with these numbers as arguments none of them would write to
    // memory of this process.
    let answer = unsafe { libc::syscall(number, first, second, third) };
    if answer < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}
