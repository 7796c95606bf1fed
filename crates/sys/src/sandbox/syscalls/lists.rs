//! The lists of system calls, for all classes of threads.

use super::{SET_ID_BITS, SyscallList, SyscallRule, ThreadClass};
use crate::private_files;
use libc::c_long;

impl ThreadClass {
    pub(in crate::sandbox) fn syscalls(self) -> SyscallList {
        let mut allowed = always_allowed_calls(&[
            FREQUENT_CALLS,
            MEMORY_CALLS,
            THREAD_CALLS,
            FILE_CALLS,
            SOCKET_CALLS,
            SELF_INFORMATION_CALLS,
            OLD_NAMES,
        ]);
        let mut deadly = vec![DEADLY_CALLS];
        if self == Self::ForeignServer {
            // The server's calls come before the stricter rules for the same calls.
            allowed.extend(always_allowed_calls(&[NATS_SERVER_CALLS]));
        }
        allowed.extend(BOUNDED_CALLS);
        allowed.extend(OLD_BOUNDED);
        match self {
            Self::Parser => {
                allowed.extend(PARSER_BOUNDED_CALLS);
                deadly.extend([DEADLY_PARSER_CALLS, DEADLY_PLAIN_PARSER_CALLS]);
            }
            Self::MapReader => {
                allowed.extend(PARSER_BOUNDED_CALLS);
                allowed.push((libc::SYS_bpf, SyscallRule::ArgumentIn(0, BPF_MAP_COMMANDS)));
                deadly.push(DEADLY_PARSER_CALLS);
            }
            Self::Rig => allowed.extend(always_allowed_calls(&[RIG_CALLS])),
            Self::ForeignServer => {
                allowed.extend(PARSER_BOUNDED_CALLS);
                deadly.clear();
            }
        }
        let deadly = deadly.concat().into_iter().map(|call| call.number).collect();
        SyscallList { allowed, deadly }
    }
}

/// The name of a deadly call. Async-signal-safe.
pub(in crate::sandbox) fn name_of_fatal_call(number: c_long) -> Option<&'static str> {
    let mut all = DEADLY_CALLS.iter().chain(DEADLY_PARSER_CALLS).chain(DEADLY_PLAIN_PARSER_CALLS);
    all.find(|call| call.number == number).and_then(|call| call.constant.strip_prefix("SYS_"))
}

/// A call with the name of its number's constant.
#[derive(Clone, Copy, Debug)]
struct NamedCall {
    number: c_long,
    constant: &'static str,
}

macro_rules! named_calls {
    ($($constant:ident),* $(,)?) => {
        [$(NamedCall { number: libc::$constant, constant: stringify!($constant) }),*]
    };
}

fn always_allowed_calls(lists: &[&[c_long]]) -> Vec<(c_long, SyscallRule)> {
    lists.concat().into_iter().map(|call| (call, SyscallRule::Always)).collect()
}

const FREQUENT_CALLS: &[c_long] = &[
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_ppoll,
    libc::SYS_futex,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_pwait,
    libc::SYS_getsockopt,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_clock_gettime,
];

const MEMORY_CALLS: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_msync,
    libc::SYS_mincore,
    libc::SYS_membarrier,
];

const THREAD_CALLS: &[c_long] = &[
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_nanosleep,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getpriority,
    libc::SYS_getcpu,
];

/// Calls on files. Landlock decides which files can be used.
const FILE_CALLS: &[c_long] = &[
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_umask,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
];

const SOCKET_CALLS: &[c_long] = &[
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_signalfd4,
];

const SELF_INFORMATION_CALLS: &[c_long] = &[
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_capget,
    libc::SYS_prlimit64,
];

/// Calls that newer architectures do not have, or that have no constant in some C libraries.
#[cfg(target_arch = "x86_64")]
const OLD_NAMES: &[c_long] = &[
    libc::SYS_renameat,
    libc::SYS_sync_file_range,
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_select,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_time,
    libc::SYS_getrlimit,
    libc::SYS_arch_prctl,
];
/// `renameat` and `sync_file_range`.
#[cfg(target_arch = "aarch64")]
const OLD_NAMES: &[c_long] = &[38, 84];

/// Protection of memory that can be written and executed.
const WRITE_AND_EXECUTE: u32 = (libc::PROT_WRITE | libc::PROT_EXEC).cast_unsigned();
const CLONE_THREAD_FLAG: u32 = libc::CLONE_THREAD.cast_unsigned();
const CLONE_NAMESPACE_FLAGS: u32 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP)
    .cast_unsigned();

const BOUNDED_CALLS: [(c_long, SyscallRule); 8] = [
    // `openat2` has its mode in memory, where no filter can see it.
    (libc::SYS_openat, SyscallRule::NoRightsInMode { flags: 2 }),
    (libc::SYS_mkdirat, SyscallRule::BitsAre { argument: 2, mask: SET_ID_BITS, bits: 0 }),
    (
        libc::SYS_mmap,
        SyscallRule::BitsAreNot { argument: 2, mask: WRITE_AND_EXECUTE, bits: WRITE_AND_EXECUTE },
    ),
    (
        libc::SYS_mprotect,
        SyscallRule::BitsAreNot { argument: 2, mask: WRITE_AND_EXECUTE, bits: WRITE_AND_EXECUTE },
    ),
    // Only threads may be made, no processes. `clone3` has its flags in memory, where no filter can see them: libraries
    // fall back to this one.
    (
        libc::SYS_clone,
        SyscallRule::BitsAre {
            argument: 0,
            mask: CLONE_THREAD_FLAG | CLONE_NAMESPACE_FLAGS,
            bits: CLONE_THREAD_FLAG,
        },
    ),
    (libc::SYS_prctl, SyscallRule::ArgumentIn(0, PROCESS_OPTIONS)),
    // Landlock does not restrict changes of mode, owner or time. So root without capabilities could turn any file of
    // root into a setuid program.
    (libc::SYS_fchmod, SyscallRule::ArgumentIn(1, PRIVATE_FILE_MODES)),
    // The reaction to a deadly call cannot be changed: see `trap`.
    (
        libc::SYS_rt_sigaction,
        SyscallRule::BitsAreNot { argument: 0, mask: u32::MAX, bits: libc::SIGSYS.cast_unsigned() },
    ),
];

/// The same calls by older names.
#[cfg(target_arch = "x86_64")]
const OLD_BOUNDED: [(c_long, SyscallRule); 2] = [
    (libc::SYS_open, SyscallRule::NoRightsInMode { flags: 1 }),
    (libc::SYS_mkdir, SyscallRule::BitsAre { argument: 1, mask: SET_ID_BITS, bits: 0 }),
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_BOUNDED: [(c_long, SyscallRule); 0] = [];

const PRIVATE_FILE_MODES: &[u32] = &[private_files::FILE_MODE, private_files::DIRECTORY_MODE];

const PROCESS_OPTIONS: &[u32] = &[
    libc::PR_SET_NAME.cast_unsigned(),
    libc::PR_GET_NAME.cast_unsigned(),
    libc::PR_SET_PDEATHSIG.cast_unsigned(),
    libc::PR_SET_NO_NEW_PRIVS.cast_unsigned(),
    libc::PR_GET_SECCOMP.cast_unsigned(),
    libc::PR_SET_TIMERSLACK.cast_unsigned(),
    // The names of heaps in /proc/PID/maps.
    libc::PR_SET_VMA.cast_unsigned(),
];

const PARSER_BOUNDED_CALLS: [(c_long, SyscallRule); 2] = [
    (libc::SYS_socket, SyscallRule::ArgumentIn(0, ORDINARY_SOCKET_FAMILIES)),
    (libc::SYS_ioctl, SyscallRule::ArgumentIn(1, ALLOWED_IOCTL_REQUESTS)),
];

/// Families without AF_UNIX: sockets with a path may lead to services that trust root.
const ORDINARY_SOCKET_FAMILIES: &[u32] = &[
    libc::AF_INET.cast_unsigned(),
    libc::AF_INET6.cast_unsigned(),
    // Reads names of interfaces and counters; changes need CAP_NET_ADMIN.
    libc::AF_NETLINK.cast_unsigned(),
];

/// Terminals, blocking, closing on exec, bytes that wait in sockets, names and numbers of interfaces, and requests to
/// their drivers (SIOCETHTOOL; changes need CAP_NET_ADMIN). Typing into a terminal (TIOCSTI) is not among them.
const ALLOWED_IOCTL_REQUESTS: &[u32] =
    &[0x5401, 0x5411, 0x5413, 0x541b, 0x5421, 0x5450, 0x5451, 0x8910, 0x8933, 0x8946];

const RIG_CALLS: &[c_long] = &[
    libc::SYS_socket,
    libc::SYS_ioctl,
    libc::SYS_bpf,
    libc::SYS_setns,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_mlockall,
    libc::SYS_mbind,
    libc::SYS_set_mempolicy,
    libc::SYS_get_mempolicy,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_setpriority,
    libc::SYS_memfd_create,
    libc::SYS_kill,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_capset,
    // A thread may install a stricter filter for itself.
    libc::SYS_seccomp,
];

/// The runtime of Go handles every signal, SIGSYS too. Landlock decides which program may be started.
const NATS_SERVER_CALLS: &[c_long] = &[libc::SYS_execve, libc::SYS_rt_sigaction];

const DEADLY_CALLS: &[NamedCall] = &named_calls![
    SYS_execve,
    SYS_execveat,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_pidfd_getfd,
    SYS_kcmp,
    SYS_kexec_load,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_mount,
    SYS_umount2,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsmount,
    SYS_mount_setattr,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_swapon,
    SYS_swapoff,
    SYS_reboot,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_acct,
    SYS_quotactl,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_open_by_handle_at,
    SYS_personality,
    SYS_mknodat,
    SYS_setuid,
    SYS_setgid,
    SYS_setreuid,
    SYS_setregid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setgroups,
];

const DEADLY_PARSER_CALLS: &[NamedCall] = &named_calls![SYS_setns, SYS_kill];
/// Deadly for parsers that read no BPF maps. A map reader may make this call with [`BPF_MAP_COMMANDS`].
const DEADLY_PLAIN_PARSER_CALLS: &[NamedCall] = &named_calls![SYS_bpf];

/// BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM, BPF_MAP_DELETE_ELEM, BPF_MAP_GET_NEXT_KEY, BPF_LINK_UPDATE: each needs
/// a descriptor that the process has already.
const BPF_MAP_COMMANDS: &[u32] = &[1, 2, 3, 4, 29];
