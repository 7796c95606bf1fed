//! The only ways not to run a test.
//!
//! A test that does not run, or leaves a part out, prints a line `skipped: CAUSE`. `make test` collects these lines and
//! lists them by cause; CI fails on one that it does not expect.

mod turn;

use packetrig_sys::caps::ThreadRights;
use packetrig_testkit::Lab;
use packetrig_testkit::device::Error;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use turn::Turn;

/// Names of tools, separated by commas, whose absence is accepted. Empty in CI.
const MAY_LACK: &str = "PACKETRIG_MAY_LACK";

/// A lab, and the promise that no test which wants the machine for itself runs beside it.
#[derive(Debug)]
pub struct OwnLab {
    lab: Lab,
    _turn: Turn,
}

impl Deref for OwnLab {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

impl DerefMut for OwnLab {
    fn deref_mut(&mut self) -> &mut Lab {
        &mut self.lab
    }
}

/// The lab that `make` makes, or `None` for a caller without rights. With rights a lab that cannot be made is a failure.
/// Other labs may stand beside it.
pub fn lab(make: impl FnOnce() -> Result<Lab, Error>) -> Option<OwnLab> {
    lab_at(Turn::shared(), make)
}

/// A [`lab`] that has the machine for itself, for tests of exactness: a second test on the same processors would make
/// senders late, and a late sender is a doubt that the program rightly reports.
pub fn quiet_lab(make: impl FnOnce() -> Result<Lab, Error>) -> Option<OwnLab> {
    lab_at(Turn::alone(), make)
}

fn lab_at(turn: Turn, make: impl FnOnce() -> Result<Lab, Error>) -> Option<OwnLab> {
    match make() {
        Ok(lab) => Some(OwnLab { lab, _turn: turn }),
        Err(error) if !ThreadRights::current().has_capability("CAP_NET_ADMIN") => {
            say(&format!("no rights for a lab ({error}); `target/debug/xtask lab -- cargo test` gives them"));
            None
        }
        Err(error) => panic!("a lab cannot be made: {error}"),
    }
}

/// Whether BPF programs can be loaded: not by an ordinary user, who is told. Any other failure is one.
pub fn may_use_bpf(tried: Result<(), packetrig_sys::Error>) -> bool {
    match tried {
        Ok(()) => true,
        Err(error) if error.is_permission_error() => {
            say(&format!("no rights for back end xdp ({error})"));
            false
        }
        Err(error) => panic!("a BPF program cannot be used: {error}"),
    }
}

/// Whether a file system could be mounted: not by an ordinary user, who is told. Any other failure is one.
pub fn may_mount(tried: rustix::io::Result<()>) -> bool {
    match tried {
        Ok(()) => true,
        Err(error @ (rustix::io::Errno::PERM | rustix::io::Errno::ACCESS)) => {
            say(&format!("no rights to mount ({error}); `target/debug/xtask lab -- cargo test` gives them"));
            false
        }
        Err(error) => panic!("a file system cannot be mounted: {error}"),
    }
}

/// Whether processes here can act as other users: not in a user namespace that has one user only.
pub fn has_other_users() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let count = map.split_ascii_whitespace().nth(2).and_then(|count| count.parse::<u32>().ok());
    let has_others = count.is_some_and(|count| count > 65_534);
    if !has_others {
        say("no other users in this user namespace");
    }
    has_others
}

/// What could be opened if its caller has the right to: an ordinary user has not, and is told. Any other failure is one.
pub fn with_raw_packets<T>(tried: rustix::io::Result<T>) -> Option<T> {
    match tried {
        Ok(opened) => Some(opened),
        Err(error @ (rustix::io::Errno::PERM | rustix::io::Errno::ACCESS)) => {
            say(&format!(
                "no rights to send raw packets ({error}); `target/debug/xtask lab -- cargo test` gives them"
            ));
            None
        }
        Err(error) => panic!("raw packets cannot be sent: {error}"),
    }
}

/// Says that this user or kernel lacks what a part of a test needs.
pub fn lacking(what: &str) {
    say(what);
}

/// Whether `tool` is there. Panics if it is not and nobody said that it may be missing.
pub fn has_tool(tool: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    if path.split(':').chain(["/usr/sbin", "/sbin"]).any(|dir| Path::new(dir).join(tool).is_file()) {
        return true;
    }
    let accepted = std::env::var(MAY_LACK).unwrap_or_default();
    assert!(
        accepted.split(',').any(|name| name == tool),
        "{tool} is missing: `scripts/setup.sh test` installs it, {MAY_LACK}={tool} accepts that"
    );
    say(&format!("{tool} is missing, as {MAY_LACK} allows"));
    false
}

/// A program of others, as `scripts/clients.sh` calls it: of those in Python the interpreter that has them. It is installed once,
/// which takes a package index; without one the caller is told.
pub fn client(name: &'static str) -> Option<PathBuf> {
    // Tests run side by side, an installation must not.
    static CLIENTS: Mutex<BTreeMap<&str, Option<PathBuf>>> = Mutex::new(BTreeMap::new());
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    clients.entry(name).or_insert_with(|| install_client(name)).clone()
}

fn install_client(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a folder of the project");
    let mut installation = Command::new("sh");
    installation.args(["scripts/clients.sh", name]).current_dir(root);
    let output = installation.output().expect("there is a shell");
    if output.status.success() {
        return Some(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    let why = String::from_utf8_lossy(&output.stderr);
    say(&format!("no client `{name}` ({})", why.lines().last().unwrap_or("no reason given")));
    None
}

#[expect(clippy::print_stderr, reason = "a skipped test has to be seen")]
fn say(why: &str) {
    eprintln!("skipped: {why}");
}
