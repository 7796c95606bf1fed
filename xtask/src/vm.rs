//! A guest for a command: QEMU with Debian's kernel. It has features that the host's kernel may lack (VLAN
//! devices, netem, pktgen, fq, etf), and hardware that the host may lack (two memory nodes, and network cards
//! with clocks: an e1000e on each node, with a hub between them).
//!
//! The guest sees the host's files over 9p, read-only; its own writes go to memory and end with it. Its
//! timing has no meaning, because its processor is emulated: it only tests function. Nothing is built inside.
//!
//! ```text
//!   initramfs: busybox, modules, init, job --boot--> init mounts the host's root --> job --> exit code in a file
//! ```
//! With `--listen` or `--connect` it is a machine of a network: `eth0` leads to the host (10.0.2.2, which is
//! the host's 127.0.0.1), `eth1` is a cable to another guest, and its console reads our standard input.
//!
//! Invariant: the guest ends by itself within its limit, even if nobody waits for it any more.

mod fleet;
mod image;
mod kernel;
mod machine;

use anyhow::{Context, Result, bail, ensure};
use kernel::GuestKernel;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// How long a job may take unless `--limit` says otherwise. Seconds.
const DEFAULT_TIME_LIMIT_S: u64 = 600;
const USAGE: &str = "usage: cargo run -p xtask -- vm [--skip-if-missing] [--limit SECONDS] \
                     [--listen SOCKET | --connect SOCKET] [--] COMMAND…";

/// Part that a guest needs and this machine lacks: the only reason not to run.
#[derive(Debug)]
pub(crate) enum MissingGuestFile {
    /// Another processor: the emulated one is an x86-64, which cannot run this machine's programs.
    Processor,
    /// A program, and the package it comes in.
    Program(&'static str, &'static str),
    /// Debian's kernel, and why it could not be had.
    Kernel(String),
    /// The message server of a fleet, and why.
    Server(String),
}

impl std::fmt::Display for MissingGuestFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Processor => {
                write!(f, "the guest runs x86-64 programs; this machine is {}", std::env::consts::ARCH)
            }
            Self::Program(name, package) => {
                write!(f, "{name} is missing: `apt-get install {package}`, or `scripts/setup.sh vm`")
            }
            Self::Kernel(why) => write!(f, "no kernel for the guest: {why}"),
            Self::Server(why) => write!(f, "no message server for the fleet: {why}"),
        }
    }
}

/// Request on the command line.
#[derive(Debug, PartialEq, Eq)]
struct GuestRequest<'a> {
    skip_if_missing: bool,
    limit: u64,
    cable: Option<CableSocket>,
    command: &'a [&'a str],
}

/// One end of a wire between two guests: a socket of the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CableSocket {
    /// The first guest's end.
    Listens(PathBuf),
    /// The end of the second guest, which starts when the socket exists.
    Connects(PathBuf),
}

/// Files that a guest needs before it can start.
pub(crate) struct GuestFiles {
    qemu: PathBuf,
    busybox: PathBuf,
    kernel: GuestKernel,
}

/// Runs a command in a guest and returns its exit code.
pub(crate) fn run(words: &[&str]) -> Result<ExitCode> {
    let request = parse(words)?;
    let target = target_directory()?.join("vm");
    match parts()? {
        Ok(parts) => machine::run(&parts, &target, &request),
        Err(missing) if request.skip_if_missing => {
            crate::report(&format!("not run: {missing}"));
            Ok(ExitCode::SUCCESS)
        }
        Err(missing) => bail!("{missing}"),
    }
}

/// Runs a plan across two guests and checks its statements about their clocks.
pub(crate) fn run_fleet(words: &[&str]) -> Result<ExitCode> {
    let skip_if_missing = match words {
        [] => false,
        ["--skip-if-missing"] => true,
        _ => bail!("usage: cargo run -p xtask -- vm-fleet [--skip-if-missing]"),
    };
    let target = target_directory()?.join("vm");
    // The guests look for their parts themselves, but in a network that leads nowhere.
    let found = match parts()? {
        Ok(_) => fleet::programs()?,
        Err(missing) => Err(missing),
    };
    match found {
        Ok(programs) => fleet::run(&programs, &target).map(|()| ExitCode::SUCCESS),
        Err(missing) if skip_if_missing => {
            crate::report(&format!("not run: {missing}"));
            Ok(ExitCode::SUCCESS)
        }
        Err(missing) => bail!("{missing}"),
    }
}

fn parse<'a>(words: &'a [&'a str]) -> Result<GuestRequest<'a>> {
    let (mut skip_if_missing, mut limit, mut cable, mut rest) = (false, DEFAULT_TIME_LIMIT_S, None, words);
    let command = loop {
        rest = match rest {
            ["--skip-if-missing", more @ ..] => {
                skip_if_missing = true;
                more
            }
            ["--limit", seconds, more @ ..] => {
                limit = seconds.parse().context("--limit takes seconds")?;
                more
            }
            ["--listen", socket, more @ ..] => {
                cable = Some(CableSocket::Listens(socket.into()));
                more
            }
            ["--connect", socket, more @ ..] => {
                cable = Some(CableSocket::Connects(socket.into()));
                more
            }
            ["--", command @ ..] => break command,
            [first, ..] if !first.starts_with('-') => break rest,
            _ => bail!(USAGE),
        };
    };
    ensure!(!command.is_empty(), USAGE);
    Ok(GuestRequest { skip_if_missing, limit, cable, command })
}

fn parts() -> Result<Result<GuestFiles, MissingGuestFile>> {
    if std::env::consts::ARCH != "x86_64" {
        return Ok(Err(MissingGuestFile::Processor));
    }
    let Some(qemu) = find_program("qemu-system-x86_64") else {
        return Ok(Err(MissingGuestFile::Program("qemu-system-x86_64", "qemu-system-x86")));
    };
    let Some(busybox) = find_program("busybox") else {
        return Ok(Err(MissingGuestFile::Program("busybox", "busybox-static")));
    };
    Ok(kernel::find_guest_kernel(&cache_directory()?)?.map(|kernel| GuestFiles { qemu, busybox, kernel }))
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let places = path.split(':').chain(["/usr/bin", "/bin", "/usr/sbin", "/sbin"]);
    places.map(|place| Path::new(place).join(name)).find(|file| file.is_file())
}

/// Directory for downloads, shared by all clones of the repository.
fn cache_directory() -> Result<PathBuf> {
    let home = || Some(Path::new(&std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    Ok(cache.context("neither XDG_CACHE_HOME nor HOME is set")?.join("packetrig/vm"))
}

/// Where cargo builds.
fn target_directory() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask is in the workspace")?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    std::path::absolute(target).context("the target directory has no path")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_keeps_its_own_options() {
        let request =
            |skip_if_missing, limit, command| GuestRequest { skip_if_missing, limit, cable: None, command };
        let words = ["--skip-if-missing", "--limit", "5", "--", "prog", "--limit", "7"];
        assert_eq!(parse(&words).expect("it is right"), request(true, 5, &["prog", "--limit", "7"][..]));
        assert_eq!(
            parse(&["prog", "--", "x"]).expect("it is right"),
            request(false, DEFAULT_TIME_LIMIT_S, &["prog", "--", "x"][..])
        );
    }

    #[test]
    fn a_node_has_an_end_of_a_cable() {
        let cable = |words: &[&str]| parse(words).expect("it is right").cable;
        assert_eq!(cable(&["--listen", "a", "prog"]), Some(CableSocket::Listens("a".into())));
        assert_eq!(cable(&["--connect", "a", "prog"]), Some(CableSocket::Connects("a".into())));
        assert_eq!(cable(&["prog"]), None);
    }

    #[test]
    fn missing_command_and_unknown_option_are_refused() {
        for words in [&[][..], &["--"], &["--limit", "x", "prog"], &["--quick", "prog"], &["--listen"]] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
