//! The `bpf` system call, and its argument structures (`union bpf_attr` in linux/bpf.h).
//!
//! If a structure is shorter than the kernel's, the kernel takes the missing fields as zero. So each structure ends
//! with the last field that packetrig uses.

use std::io::Error;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub(super) const ARRAY: u32 = 2;
pub(super) const PROGRAM_ARRAY: u32 = 3;
pub(super) const PER_PROCESSOR_ARRAY: u32 = 6;
pub(super) const DEVICE_MAP: u32 = 14;
pub(super) const MMAPABLE: u32 = 1 << 10;
pub(super) const CLASSIFIER: u32 = 3;
pub(super) const XDP: u32 = 6;
pub(super) const RAW_TRACEPOINT: u32 = 17;
pub(super) const ATTACH_XDP_DEVICE_MAP: u32 = 33;
pub(super) const ATTACH_XDP: u32 = 37;
pub(super) const ATTACH_EGRESS: u32 = 47;
pub(super) const HAS_FRAGS: u32 = 1 << 5;
pub(super) const LIVE_FRAMES: u32 = 1 << 1;
pub(super) const GENERIC_MODE: u32 = 1 << 1;
pub(super) const DRIVER_MODE: u32 = 1 << 2;

/// Command of the system call (`enum bpf_cmd`).
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(super) enum BpfCommand {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    ProgramLoad = 5,
    Pin = 6,
    OpenPinned = 7,
    TestRun = 10,
    TracepointOpen = 17,
    LinkCreate = 28,
    LinkUpdate = 29,
    LinkDetach = 34,
}

pub(super) mod attr {
    #[derive(Debug, Default)]
    #[repr(C)]
    pub(in crate::bpf) struct MapCreateAttributes {
        pub(in crate::bpf) map_type: u32,
        pub(in crate::bpf) key_size: u32,
        pub(in crate::bpf) value_size: u32,
        pub(in crate::bpf) max_entries: u32,
        pub(in crate::bpf) map_flags: u32,
        pub(in crate::bpf) inner: u32,
        pub(in crate::bpf) numa: u32,
        pub(in crate::bpf) name: [u8; 16],
    }

    #[derive(Debug, Default)]
    #[repr(C)]
    pub(in crate::bpf) struct MapElementAttributes {
        pub(in crate::bpf) map: u32,
        pub(in crate::bpf) pad: u32,
        pub(in crate::bpf) key: u64,
        pub(in crate::bpf) value: u64,
        pub(in crate::bpf) flags: u64,
    }

    #[derive(Debug, Default)]
    #[repr(C)]
    pub(in crate::bpf) struct ProgramLoadAttributes {
        pub(in crate::bpf) kind: u32,
        pub(in crate::bpf) instructions: u32,
        pub(in crate::bpf) code: u64,
        pub(in crate::bpf) licence: u64,
        pub(in crate::bpf) log_level: u32,
        pub(in crate::bpf) log_size: u32,
        pub(in crate::bpf) log: u64,
        pub(in crate::bpf) version: u32,
        pub(in crate::bpf) flags: u32,
        pub(in crate::bpf) name: [u8; 16],
        pub(in crate::bpf) interface: u32,
        pub(in crate::bpf) attach_type: u32,
    }

    #[derive(Debug, Default)]
    #[repr(C)]
    pub(in crate::bpf) struct LinkCreateAttributes {
        pub(in crate::bpf) program: u32,
        pub(in crate::bpf) target: u32,
        pub(in crate::bpf) attach_type: u32,
        pub(in crate::bpf) flags: u32,
        pub(in crate::bpf) rest: [u64; 4],
    }

    #[derive(Debug, Default)]
    #[repr(C)]
    pub(in crate::bpf) struct PinAttributes {
        pub(in crate::bpf) path: u64,
        pub(in crate::bpf) object: u32,
        pub(in crate::bpf) flags: u32,
    }

    #[derive(Debug, Default)]
    #[repr(C)]
    pub(in crate::bpf) struct TracepointOpenAttributes {
        pub(in crate::bpf) name: u64,
        pub(in crate::bpf) program: u32,
        pub(in crate::bpf) pad: u32,
    }

    #[derive(Debug, Default)]
    #[repr(C)]
    pub(in crate::bpf) struct LinkDetachAttributes {
        pub(in crate::bpf) link: u32,
    }

    #[derive(Debug, Default)]
    #[repr(C)]
    pub(in crate::bpf) struct LinkUpdateAttributes {
        pub(in crate::bpf) link: u32,
        pub(in crate::bpf) program: u32,
        pub(in crate::bpf) flags: u32,
        pub(in crate::bpf) old_program: u32,
    }

    #[derive(Debug, Default)]
    #[repr(C)]
    pub(in crate::bpf) struct TestRunAttributes {
        pub(in crate::bpf) program: u32,
        pub(in crate::bpf) answer: u32,
        pub(in crate::bpf) size_in: u32,
        pub(in crate::bpf) size_out: u32,
        pub(in crate::bpf) data_in: u64,
        pub(in crate::bpf) data_out: u64,
        pub(in crate::bpf) repeat: u32,
        pub(in crate::bpf) duration: u32,
        pub(in crate::bpf) context_size_in: u32,
        pub(in crate::bpf) context_size_out: u32,
        pub(in crate::bpf) context_in: u64,
        pub(in crate::bpf) context_out: u64,
        pub(in crate::bpf) flags: u32,
        pub(in crate::bpf) processor: u32,
        pub(in crate::bpf) batch: u32,
        pub(in crate::bpf) pad: u32,
    }
}

/// Makes the system call and returns its result, a number.
pub(super) fn invoke_bpf<A>(command: BpfCommand, attr: &mut A) -> Result<i64, Error> {
    // SAFETY: the argument is a live structure of the given size. During the call, the caller keeps alive all memory
    // whose address is in the structure, with the length that the structure states.
    let answer = unsafe {
        libc::syscall(libc::SYS_bpf, command as libc::c_long, std::ptr::from_mut(attr), size_of::<A>())
    };
    if answer < 0 { Err(Error::last_os_error()) } else { Ok(answer as _) }
}

/// Makes a system call that creates a descriptor, and returns the descriptor.
pub(super) fn invoke_for_descriptor<A>(command: BpfCommand, attr: &mut A) -> Result<OwnedFd, Error> {
    let fd = i32::try_from(invoke_bpf(command, attr)?).map_err(Error::other)?;
    // SAFETY: the kernel has just made this descriptor for this call, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Converts a descriptor to the unsigned number that the argument structures have.
pub(super) fn raw_descriptor(fd: BorrowedFd<'_>) -> u32 {
    // A descriptor that is open is not negative.
    fd.as_raw_fd().cast_unsigned()
}

/// The address of a value. The value must outlive the system call that gets the address.
pub(super) fn address_of<T>(value: &T) -> u64 {
    std::ptr::from_ref(value).addr() as u64
}

/// Converts a name to one that the kernel accepts: at most 15 letters, digits, `_` and `.`. Other
/// characters are left out.
pub(super) fn short_name(name: &str) -> [u8; 16] {
    let mut short = [0; 16];
    let fitting = name.bytes().filter(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.'));
    for (to, from) in short[..15].iter_mut().zip(fitting) {
        *to = from;
    }
    short
}
