//! Runs an XDP program on frames without an interface: a test bench for translated filters.
//!
//! [`Loaded`] owns the descriptor of its program; dropping it unloads the program. To be merged into the module that
//! loads programs for good.

use crate::{Error, Unsupported};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const PROG_LOAD: i32 = 5;
const PROG_TEST_RUN: i32 = 10;
const TYPE_XDP: u32 = 6;
const LICENCE: &std::ffi::CStr = c"Dual MIT/GPL";
/// The verifier's explanation, when it refuses.
const LOG_BYTES: usize = 1 << 20;

/// The part of `union bpf_attr` for loading that is used; the kernel takes what is missing for zero.
#[repr(C)]
#[derive(Default)]
struct LoadRequest {
    kind: u32,
    count: u32,
    insns: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

/// The part of `union bpf_attr` for running.
#[repr(C)]
#[derive(Default)]
struct RunRequest {
    program: u32,
    result: u32,
    size_in: u32,
    size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
}

/// A program in the kernel, attached to nothing.
#[derive(Debug)]
pub struct Loaded {
    program: OwnedFd,
}

impl Loaded {
    /// Loads an XDP program. Without the right to do so, or where the kernel has no BPF, the error is `Unsupported`; when
    /// the verifier refuses, it carries the end of its log.
    pub fn xdp(insns: &[[u8; 8]]) -> Result<Self, Error> {
        let mut log = Vec::new();
        match load(insns, &mut log) {
            Ok(program) => Ok(Self { program }),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                Err(Error::Unsupported(Unsupported {
                    feature: "running an XDP program on a frame",
                    needs: "CAP_BPF and CAP_NET_ADMIN on the machine".into(),
                    found: error.to_string(),
                }))
            }
            Err(_) => {
                log.resize(LOG_BYTES, 0);
                match load(insns, &mut log) {
                    Ok(program) => Ok(Self { program }),
                    Err(error) => Err(refusal(&error, &log)),
                }
            }
        }
    }

    /// What the program returns for `frame`, which has at least 14 bytes and fits into a page.
    pub fn run(&self, frame: &[u8]) -> Result<u32, Error> {
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let mut request = RunRequest {
            program: u32::try_from(self.program.as_raw_fd()).unwrap_or(u32::MAX),
            size_in: number(frame.len()),
            data_in: frame.as_ptr().addr() as u64,
            repeat: 1,
            ..RunRequest::default()
        };
        bpf(PROG_TEST_RUN, &mut request).map_err(|e| Error::call("bpf(PROG_TEST_RUN)", "a filter", e))?;
        Ok(request.result)
    }
}

fn load(insns: &[[u8; 8]], log: &mut [u8]) -> std::io::Result<OwnedFd> {
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let mut request = LoadRequest {
        kind: TYPE_XDP,
        count: number(insns.len()),
        insns: insns.as_ptr().addr() as u64,
        licence: LICENCE.as_ptr().addr() as u64,
        ..LoadRequest::default()
    };
    if !log.is_empty() {
        request.log_level = 1;
        request.log_size = number(log.len());
        request.log = log.as_mut_ptr().expose_provenance() as u64;
    }
    let descriptor = bpf(PROG_LOAD, &mut request)?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn bpf<T>(command: i32, request: &mut T) -> std::io::Result<i32> {
    // SAFETY: the request is live and of the size given; the buffers it points to are live slices of the caller, of the
    // lengths in it, and only its log is written to.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(request), size_of::<T>()) };
    if result < 0 {
        return Err(std::io::Error::last_os_error());
    }
    i32::try_from(result).map_err(std::io::Error::other)
}

fn refusal(error: &std::io::Error, log: &[u8]) -> Error {
    let length = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..length]);
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(30)..].join("\n");
    Error::call("bpf(PROG_LOAD)", "a filter", std::io::Error::other(format!("{error}\n{tail}")))
}
