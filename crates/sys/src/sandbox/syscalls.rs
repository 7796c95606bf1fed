//! System calls that each class of threads may make. The lists are in [`lists`], for x86_64 and aarch64.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lists;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use lists::name_of_fatal_call;

use libc::c_long;

/// Threads that need the same system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadClass {
    /// Reads untrusted bytes from sockets, rings and files; opens ordinary sockets, and files that Landlock allows.
    Parser,
    /// Also uses BPF programs that are loaded already, and their maps.
    MapReader,
    /// Also opens rings, changes interfaces, loads BPF programs and enters network namespaces.
    Rig,
    /// A program of another project that reads untrusted bytes, such as the message server. It starts with the
    /// filter in place. Calls outside its list are refused but do not end it: a new version may try a call that
    /// it does not need.
    ForeignServer,
}

impl ThreadClass {
    /// Number of the class, for the 16 bits of data in a filter's decision.
    pub(super) const fn filter_number(self) -> u16 {
        match self {
            Self::Parser => 1,
            Self::MapReader => 2,
            Self::Rig => 3,
            Self::ForeignServer => 4,
        }
    }

    /// Name of the class with this number, as in the documentation. Async-signal-safe.
    pub(super) const fn name_of_number(number: i32) -> &'static str {
        match number {
            1 => "parser",
            2 => "map reader",
            3 => "rig",
            4 => "foreign server",
            _ => "unknown",
        }
    }
}

/// Condition under which a call is allowed. Arguments are counted from 0; their lower 32 bits are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    expect(dead_code, reason = "only the lists make rules")
)]
pub(super) enum SyscallRule {
    Always,
    /// The argument is one of these values.
    ArgumentIn(u32, &'static [u32]),
    /// The argument's bits under the mask are these.
    BitsAre {
        argument: u32,
        mask: u32,
        bits: u32,
    },
    BitsAreNot {
        argument: u32,
        mask: u32,
        bits: u32,
    },
    /// The call makes no file (its flags say so), or one without setuid and setgid bits. The mode is the
    /// argument after the flags.
    NoRightsInMode {
        flags: u32,
    },
}

/// The system calls of a class.
#[derive(Debug)]
pub(super) struct SyscallList {
    /// Allowed calls in the order of lookup: the frequent ones come first.
    pub(super) allowed: Vec<(c_long, SyscallRule)>,
    /// Calls that no code of packetrig makes, but an intruder would. They end the process.
    pub(super) deadly: Vec<c_long>,
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) const fn name_of_fatal_call(_number: c_long) -> Option<&'static str> {
    None
}

/// Other architectures have no lists, so no filter is installed; `seccomp::find_missing_protection` reports that.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl ThreadClass {
    pub(super) const fn syscalls(self) -> SyscallList {
        SyscallList { allowed: Vec::new(), deadly: Vec::new() }
    }
}

pub(super) const SET_ID_BITS: u32 = libc::S_ISUID | libc::S_ISGID;
/// Flags of calls that may make a file. Calls without these flags only open a file, so their mode has no meaning.
pub(super) const FILE_CREATION_FLAGS: u32 =
    (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY).cast_unsigned();
