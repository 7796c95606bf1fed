//! Seccomp filters: which system calls a thread may make.
//!
//! A filter is a program of classic BPF that the kernel runs before each call. It allows what the
//! [class](super::syscalls::ThreadClass) lists. A listed call with forbidden arguments fails (EPERM), and a call that
//! only an intruder makes [ends the process](super::trap). All other calls get the answer "no such call" (ENOSYS): a C
//! library that tries a newer call first then uses an older one.

use super::report::MissingProtection;
use super::syscalls::{FILE_CREATION_FLAGS, SET_ID_BITS, SyscallRule, ThreadClass};
use super::trap;
use crate::Error;
use rustix::io::Errno;

/// Threads that get the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilteredThreads {
    ThisThread,
    /// All threads of the process.
    EveryThread,
}

/// Architecture as the kernel reports it to filters (`linux/audit.h`).
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const AUDIT_ARCHITECTURE: Option<u32> = None;

/// Offsets in `struct seccomp_data`.
const CALL_NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const ARGUMENTS_OFFSET: u32 = 16;
/// Numbers of system calls from here on belong to the x32 interface.
const X32_CALL_BIT: u32 = 0x4000_0000;

const ALLOW_CALL: u32 = libc::SECCOMP_RET_ALLOW;
const KILL_PROCESS: u32 = libc::SECCOMP_RET_KILL_PROCESS;

const LOAD_WORD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_GREATER_OR_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;

/// No call has this number.
const NO_CALL: u32 = u32::MAX;

type SeccompInstruction = libc::sock_filter;

const fn statement(code: u16, k: u32) -> SeccompInstruction {
    SeccompInstruction { code, jt: 0, jf: 0, k }
}

/// Skips the next `skip` instructions unless the condition holds.
const fn skip_unless(code: u16, k: u32, skip: u8) -> SeccompInstruction {
    SeccompInstruction { code, jt: 0, jf: skip, k }
}

const fn refusal_action(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()
}

/// Decision that makes the kernel run the [handler](trap), which ends the process. The handler receives the
/// number of the class.
const fn trap_action_of(class: ThreadClass) -> u32 {
    libc::SECCOMP_RET_TRAP | class.filter_number() as u32
}

/// Returns the reason why seccomp filters cannot be used here; `None` if they can.
pub(super) fn find_missing_protection() -> Option<MissingProtection> {
    let found = if AUDIT_ARCHITECTURE.is_none() {
        format!("packetrig has no list of system calls for {}", std::env::consts::ARCH)
    } else if let Err(error) = check_seccomp_action() {
        format!("this kernel has no seccomp filters (CONFIG_SECCOMP_FILTER): {error}")
    } else {
        return None;
    };
    Some(MissingProtection { wall: "seccomp", found })
}

fn check_seccomp_action() -> std::io::Result<()> {
    let action = KILL_PROCESS;
    // SAFETY: the kernel reads one action, which is live.
    let known =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0_u32, &raw const action) };
    if known == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Installs the filter of a class, on top of earlier ones: the strictest decides.
pub(super) fn install_filter(
    class: ThreadClass,
    reach: FilteredThreads,
) -> Result<Result<(), MissingProtection>, Error> {
    if let Some(missing) = find_missing_protection() {
        return Ok(Err(missing));
    }
    // The handler comes before the filter, because the filter lets no thread change the action of the signal.
    trap::handle_traps()?;
    match AssembledFilter::for_class(class)?.install(reach) {
        0 => Ok(Ok(())),
        // TSYNC applies to all threads or to none: the answer is the number of a thread with other filters.
        thread @ 1.. => Err(Error::from_call("seccomp", format!("thread {thread}"), Errno::SRCH)),
        _ => Err(Error::last_os_error("seccomp", "this process")),
    }
}

/// A filter that is ready to be installed.
#[derive(Debug)]
pub(super) struct AssembledFilter {
    instructions: Vec<SeccompInstruction>,
    length: u16,
}

impl AssembledFilter {
    pub(super) fn for_class(class: ThreadClass) -> Result<Self, Error> {
        let instructions = assemble_filter(class).map_err(filter_failure)?;
        let length = u16::try_from(instructions.len()).map_err(|_| filter_failure(Errno::TOOBIG))?;
        Ok(Self { instructions, length })
    }

    /// Returns the answer of the kernel: 0 on success. Async-signal-safe.
    pub(super) fn install(&self, reach: FilteredThreads) -> libc::c_long {
        let program = libc::sock_fprog { len: self.length, filter: self.instructions.as_ptr().cast_mut() };
        let flags = if reach == FilteredThreads::EveryThread { libc::SECCOMP_FILTER_FLAG_TSYNC } else { 0 };
        // SAFETY: the program points to as many live instructions as it states; the kernel only reads, checks and copies them.
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) }
    }
}

fn assemble_filter(class: ThreadClass) -> Result<Vec<SeccompInstruction>, Errno> {
    let list = class.syscalls();
    let mut program = vec![
        statement(LOAD_WORD, ARCHITECTURE_OFFSET),
        // On another architecture, the numbers in the lists would mean other calls.
        SeccompInstruction { code: JUMP_IF_EQUAL, jt: 1, jf: 0, k: AUDIT_ARCHITECTURE.unwrap_or(0) },
        statement(RETURN, KILL_PROCESS),
        statement(LOAD_WORD, CALL_NUMBER_OFFSET),
    ];
    // On x86, the x32 calls belong to the same architecture, but have their own numbers.
    if cfg!(target_arch = "x86_64") {
        program.push(skip_unless(JUMP_IF_GREATER_OR_EQUAL, X32_CALL_BIT, 1));
        program.push(statement(RETURN, KILL_PROCESS));
    }
    for (call, rule) in &list.allowed {
        let body = rule_body(*rule);
        // A jump has eight bits for its distance.
        let length = u8::try_from(body.len()).map_err(|_| Errno::TOOBIG)?;
        program.push(skip_unless(JUMP_IF_EQUAL, syscall_number(*call), length));
        program.extend(body);
    }
    for call in &list.deadly {
        program.push(skip_unless(JUMP_IF_EQUAL, syscall_number(*call), 1));
        program.push(statement(RETURN, trap_action_of(class)));
    }
    program.push(statement(RETURN, refusal_action(libc::ENOSYS)));
    Ok(program)
}

/// Loads the lower half of an argument. It comes first on little-endian processors, and packetrig has no list
/// of calls for other processors.
const fn load_argument(argument: u32) -> SeccompInstruction {
    statement(LOAD_WORD, ARGUMENTS_OFFSET + 8 * argument)
}

/// Instructions that follow once the call is known; they always end in a decision.
fn rule_body(rule: SyscallRule) -> Vec<SeccompInstruction> {
    match rule {
        SyscallRule::Always => vec![statement(RETURN, ALLOW_CALL)],
        SyscallRule::ArgumentIn(argument, values) => {
            let mut body = vec![load_argument(argument)];
            for value in values {
                body.push(skip_unless(JUMP_IF_EQUAL, *value, 1));
                body.push(statement(RETURN, ALLOW_CALL));
            }
            body.push(statement(RETURN, refusal_action(libc::EPERM)));
            body
        }
        SyscallRule::BitsAre { argument, mask, bits } => vec![
            load_argument(argument),
            statement(AND, mask),
            skip_unless(JUMP_IF_EQUAL, bits, 1),
            statement(RETURN, ALLOW_CALL),
            statement(RETURN, refusal_action(libc::EPERM)),
        ],
        SyscallRule::BitsAreNot { argument, mask, bits } => vec![
            load_argument(argument),
            statement(AND, mask),
            skip_unless(JUMP_IF_EQUAL, bits, 1),
            statement(RETURN, refusal_action(libc::EPERM)),
            statement(RETURN, ALLOW_CALL),
        ],
        SyscallRule::NoRightsInMode { flags } => vec![
            load_argument(flags),
            statement(AND, FILE_CREATION_FLAGS),
            skip_unless(JUMP_IF_EQUAL, 0, 1),
            statement(RETURN, ALLOW_CALL),
            load_argument(flags + 1),
            statement(AND, SET_ID_BITS),
            skip_unless(JUMP_IF_EQUAL, 0, 1),
            statement(RETURN, ALLOW_CALL),
            statement(RETURN, refusal_action(libc::EPERM)),
        ],
    }
}

/// Converts the number of a call to the type that filters compare. All numbers fit.
fn syscall_number(call: libc::c_long) -> u32 {
    u32::try_from(call).unwrap_or(NO_CALL)
}

fn filter_failure(errno: Errno) -> Error {
    Error::from_call("seccomp", "a filter", errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decision of the kernel about a call.
    fn decide(program: &[SeccompInstruction], call: libc::c_long, arguments: &[u32]) -> u32 {
        let mut at = 0;
        let mut accumulator = 0;
        for _ in 0..program.len() {
            let SeccompInstruction { code, jt, jf, k } = program[at];
            at += 1;
            let jump = |holds: bool| usize::from(if holds { jt } else { jf });
            match code {
                LOAD_WORD if k == CALL_NUMBER_OFFSET => accumulator = syscall_number(call),
                LOAD_WORD if k == ARCHITECTURE_OFFSET => accumulator = AUDIT_ARCHITECTURE.unwrap(),
                LOAD_WORD => accumulator = arguments[(k as usize - 16) / 8],
                AND => accumulator &= k,
                JUMP_IF_EQUAL => at += jump(accumulator == k),
                JUMP_IF_GREATER_OR_EQUAL => at += jump(accumulator >= k),
                RETURN => return k,
                _ => panic!("no such instruction: {code}"),
            }
        }
        panic!("the filter does not end");
    }

    const THREAD: u32 = 0x003d_0f00;

    #[test]
    fn calls_are_allowed_refused_or_deadly() {
        let program = assemble_filter(ThreadClass::Parser).unwrap();
        assert_eq!(decide(&program, libc::SYS_read, &[]), ALLOW_CALL);
        assert_eq!(decide(&program, libc::SYS_exit_group, &[]), ALLOW_CALL, "the last one of many");
        assert_eq!(
            decide(&program, libc::SYS_clone3, &[]),
            refusal_action(libc::ENOSYS),
            "older calls do it"
        );
        for call in [libc::SYS_execve, libc::SYS_ptrace, libc::SYS_bpf, libc::SYS_setns] {
            assert_eq!(decide(&program, call, &[]), trap_action_of(ThreadClass::Parser), "{call}");
        }
        assert_eq!(decide(&program, 100_000, &[]), refusal_action(libc::ENOSYS));
        assert_eq!(decide(&program, libc::SYS_clone, &[THREAD]), ALLOW_CALL);
        assert_eq!(decide(&program, libc::SYS_clone, &[17]), refusal_action(libc::EPERM), "a fork");
        let socket = |family: i32| decide(&program, libc::SYS_socket, &[family.cast_unsigned(), 2, 0]);
        assert_eq!(socket(libc::AF_INET6), ALLOW_CALL);
        assert_eq!(socket(libc::AF_PACKET), refusal_action(libc::EPERM));
        let protect = |bits: i32| decide(&program, libc::SYS_mprotect, &[0, 0, bits.cast_unsigned()]);
        assert_eq!(protect(libc::PROT_READ | libc::PROT_EXEC), ALLOW_CALL);
        assert_eq!(protect(libc::PROT_WRITE | libc::PROT_EXEC), refusal_action(libc::EPERM));
    }

    #[test]
    fn seccomp_refuses_creating_setuid_and_setgid_files() {
        let make = (libc::O_CREAT | libc::O_WRONLY).cast_unsigned();
        let unnamed = libc::O_TMPFILE.cast_unsigned();
        let refused = refusal_action(libc::EPERM);
        for class in [ThreadClass::Parser, ThreadClass::MapReader, ThreadClass::Rig] {
            let program = assemble_filter(class).unwrap();
            let open = |flags: u32, mode: u32| decide(&program, libc::SYS_openat, &[0, 0, flags, mode]);
            for flags in [make, unnamed] {
                assert_eq!(
                    [0o600, 0o666, 0o4755, 0o2755, 0o6000].map(|mode| open(flags, mode)),
                    [ALLOW_CALL, ALLOW_CALL, refused, refused, refused]
                );
            }
            assert_eq!(open(0, 0o6777), ALLOW_CALL, "what only opens has no mode");
            assert_eq!(open(libc::O_DIRECTORY.cast_unsigned(), 0o6777), ALLOW_CALL);
            assert_eq!(decide(&program, libc::SYS_mkdirat, &[0, 0, 0o700]), ALLOW_CALL);
            assert_eq!(decide(&program, libc::SYS_mkdirat, &[0, 0, 0o2700]), refused);
            assert_eq!(decide(&program, libc::SYS_openat2, &[0, 0, 0, 24]), refusal_action(libc::ENOSYS));
            assert_eq!(decide(&program, libc::SYS_fchmod, &[0, 0o4600]), refused);
        }
        #[cfg(target_arch = "x86_64")]
        {
            let program = assemble_filter(ThreadClass::Rig).unwrap();
            assert_eq!(decide(&program, libc::SYS_open, &[0, make, 0o4755]), refused);
            assert_eq!(decide(&program, libc::SYS_mkdir, &[0, 0o4755]), refused);
            for call in [libc::SYS_creat, libc::SYS_chmod, libc::SYS_mknod] {
                assert_eq!(decide(&program, call, &[0, 0o4755, 0o4755]), refusal_action(libc::ENOSYS));
            }
        }
    }

    #[test]
    fn rig_class_permits_calls_denied_to_parser() {
        let program = assemble_filter(ThreadClass::Rig).unwrap();
        for call in [libc::SYS_bpf, libc::SYS_setns, libc::SYS_mlock, libc::SYS_ioctl] {
            assert_eq!(decide(&program, call, &[]), ALLOW_CALL, "{call}");
        }
        assert_eq!(decide(&program, libc::SYS_socket, &[libc::AF_PACKET.cast_unsigned()]), ALLOW_CALL);
        assert_eq!(decide(&program, libc::SYS_execve, &[]), trap_action_of(ThreadClass::Rig));
    }

    #[test]
    fn maps_are_read_and_programs_are_not_loaded() {
        let program = assemble_filter(ThreadClass::MapReader).unwrap();
        assert_eq!(decide(&program, libc::SYS_bpf, &[1]), ALLOW_CALL);
        assert_eq!(decide(&program, libc::SYS_bpf, &[5]), refusal_action(libc::EPERM));
        assert_eq!(decide(&program, libc::SYS_setns, &[]), trap_action_of(ThreadClass::MapReader));
    }

    #[test]
    fn foreign_server_is_refused_calls_of_intruders() {
        let program = assemble_filter(ThreadClass::ForeignServer).unwrap();
        for call in [libc::SYS_execve, libc::SYS_rt_sigaction, libc::SYS_fsync, libc::SYS_accept4] {
            assert_eq!(decide(&program, call, &[libc::SIGSYS.cast_unsigned()]), ALLOW_CALL, "{call}");
        }
        assert_eq!(decide(&program, libc::SYS_clone, &[THREAD]), ALLOW_CALL);
        let absent = refusal_action(libc::ENOSYS);
        for call in [
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_kill,
            libc::SYS_mount,
            libc::SYS_bpf,
            libc::SYS_kexec_load,
            libc::SYS_keyctl,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_perf_event_open,
            libc::SYS_userfaultfd,
            libc::SYS_io_uring_setup,
            libc::SYS_setuid,
            libc::SYS_fchmodat,
            libc::SYS_fchownat,
            libc::SYS_memfd_create,
        ] {
            assert_eq!(decide(&program, call, &[]), absent, "{call}");
        }
        let refused = refusal_action(libc::EPERM);
        assert_eq!(decide(&program, libc::SYS_clone, &[17]), refused, "a fork");
        for family in [libc::AF_UNIX, libc::AF_PACKET] {
            assert_eq!(decide(&program, libc::SYS_socket, &[family.cast_unsigned()]), refused);
        }
    }

    #[test]
    fn no_call_is_both_allowed_and_deadly() {
        for class in
            [ThreadClass::Parser, ThreadClass::MapReader, ThreadClass::Rig, ThreadClass::ForeignServer]
        {
            let list = class.syscalls();
            let both = list.allowed.iter().find(|(call, _)| list.deadly.contains(call));
            assert_eq!(both.map(|(call, _)| call), None, "{class:?}");
        }
    }

    #[test]
    fn another_interface_of_the_same_kernel_is_deadly() {
        if cfg!(target_arch = "x86_64") {
            let program = assemble_filter(ThreadClass::Rig).unwrap();
            assert_eq!(
                decide(&program, libc::c_long::from(X32_CALL_BIT) + libc::SYS_read, &[]),
                KILL_PROCESS
            );
        }
    }
}
