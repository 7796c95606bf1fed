//! BPF programs and maps: loading, attaching to an interface, running on live frames, sharing memory.
//!
//! Programs are compiled from C ([`object`]) or given as instructions. A [`BpfMap`], [`BpfProgram`] or
//! [`BpfAttachment`] owns one descriptor. A program keeps its maps alive, and an attachment keeps its program alive.
//! Unless they are [`pin`]ned, the kernel removes all of them at the latest when the process ends or is killed.

mod btf;
mod call;
pub mod object;
pub mod pin;

pub use btf::KernelTypes;

use crate::area::SharedArea;
use crate::{Error, netns::NetNs, sched};
use call::{BpfCommand, attr};
use packetrig_units::clamp_to_u32;
use std::os::fd::{AsFd, OwnedFd};

pub use object::{BpfInstruction, BpfObject};

const MISSING_RIGHTS_TEXT: &str = "needs CAP_BPF, CAP_NET_ADMIN and, for some programs, CAP_PERFMON \
    outside of user namespaces: run as root, or avoid BPF, for instance with back end `packet`";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Values by index, to be written with [`BpfMap::set_value`].
    Array,
    /// Values by index in memory that user space shares (`BpfMap::share_memory`).
    SharedArray,
    /// Programs by index, for tail calls.
    Programs,
    /// Values by index, one for each processor; [`BpfMap::sum_over_cpus`] adds them up.
    Counters,
    /// Interfaces by index: the targets of XDP redirects ([`BpfMap::set_redirect_target`]).
    Exits,
}

/// A BPF map: its keys are the indices 0, 1, 2 …, and all its values have one size.
#[derive(Debug)]
pub struct BpfMap {
    fd: OwnedFd,
    name: &'static str,
    value: usize,
    entries: u32,
}

impl BpfMap {
    /// Creates a map of `entries` zeroed values of `value` bytes.
    pub fn create_zeroed(
        name: &'static str,
        kind: MapKind,
        value: usize,
        entries: u32,
    ) -> Result<Self, Error> {
        let map_type = match kind {
            MapKind::Array | MapKind::SharedArray => call::ARRAY,
            MapKind::Programs => call::PROGRAM_ARRAY,
            MapKind::Counters => call::PER_PROCESSOR_ARRAY,
            MapKind::Exits => call::DEVICE_MAP,
        };
        let mut attr = attr::MapCreateAttributes {
            map_type,
            key_size: 4,
            value_size: clamp_to_u32(value),
            // The kernel refuses a map without entries.
            max_entries: entries.max(1),
            map_flags: if kind == MapKind::SharedArray { call::MMAPABLE } else { 0 },
            name: call::short_name(name),
            ..attr::MapCreateAttributes::default()
        };
        let fd = call::invoke_for_descriptor(BpfCommand::MapCreate, &mut attr).map_err(|error| {
            Error::from_call("bpf(MAP_CREATE)", name, error).with_rights(MISSING_RIGHTS_TEXT)
        })?;
        Ok(Self { fd, name, value, entries: entries.max(1) })
    }

    /// Writes the value at `index`. Panics if `value` does not have the size of the map's values.
    pub fn set_value(&self, index: u32, value: &[u8]) -> Result<(), Error> {
        assert_eq!(value.len(), self.value, "a value of map {}", self.name);
        let mut attr = attr::MapElementAttributes {
            map: call::raw_descriptor(self.fd.as_fd()),
            key: call::address_of(&index),
            value: value.as_ptr().addr() as u64,
            ..attr::MapElementAttributes::default()
        };
        call::invoke_bpf(BpfCommand::MapUpdate, &mut attr)
            .map(drop)
            .map_err(|error| Error::from_call("bpf(MAP_UPDATE)", self.name, error))
    }

    /// Writes a program at `index` of a [`MapKind::Programs`] map, as the target of a tail call.
    pub fn set_program(&self, index: u32, program: &BpfProgram) -> Result<(), Error> {
        self.set_value(index, &call::raw_descriptor(program.fd.as_fd()).to_ne_bytes())
    }

    /// Writes the entry at `index` of a [`MapKind::Exits`] map: frames are redirected to interface number `interface`
    /// of `netns`. If `program` is given, the kernel runs it on each frame first.
    pub fn set_redirect_target(
        &self,
        netns: &NetNs,
        index: u32,
        interface: u32,
        program: Option<&BpfProgram>,
    ) -> Result<(), Error> {
        let program = program.map_or(0, |program| call::raw_descriptor(program.fd.as_fd()));
        let value = [interface.to_ne_bytes(), program.to_ne_bytes()].concat();
        // The kernel looks the interface up in the caller's namespace.
        netns.run_in_namespace(|| self.set_value(index, &value))?
    }

    /// Sums the 64-bit numbers of the value at `index` over all processors.
    pub fn sum_over_cpus(&self, index: u32) -> Result<Vec<u64>, Error> {
        // The kernel returns one value for each possible processor, not only for each processor that is online.
        let mut values = vec![0u64; self.value / 8 * sched::read_possible_cpu_count() as usize];
        let mut attr = attr::MapElementAttributes {
            map: call::raw_descriptor(self.fd.as_fd()),
            key: call::address_of(&index),
            value: values.as_mut_ptr().addr() as u64,
            ..attr::MapElementAttributes::default()
        };
        call::invoke_bpf(BpfCommand::MapLookup, &mut attr)
            .map_err(|error| Error::from_call("bpf(MAP_LOOKUP)", self.name, error))?;
        let mut sums = vec![0u64; self.value / 8];
        for of_processor in values.chunks_exact(sums.len().max(1)) {
            for (sum, value) in sums.iter_mut().zip(of_processor) {
                *sum = sum.wrapping_add(*value);
            }
        }
        Ok(sums)
    }

    /// Maps the values of a [`MapKind::SharedArray`] map into this process. Their total size must be a
    /// whole number of pages.
    pub(crate) fn share_memory(&self) -> Result<SharedArea, Error> {
        SharedArea::map_shared(self.fd.as_fd(), self.value * self.entries as usize, self.name)
    }
}

/// Kind of place in the kernel where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachPoint {
    /// Packets that arrive at an interface.
    Interface,
    /// Packets that are redirected through an entry of a map ([`MapKind::Exits`]).
    Exit,
    /// A tracepoint: a place in the kernel code that reports an event, such as a frame that a driver refused.
    Tracepoint,
    /// Packets that the stack sends through an interface, before they enter its queueing discipline.
    Egress,
}

impl AttachPoint {
    const fn program_kind(self) -> u32 {
        match self {
            Self::Interface | Self::Exit => call::XDP,
            Self::Tracepoint => call::RAW_TRACEPOINT,
            Self::Egress => call::CLASSIFIER,
        }
    }

    const fn attach_type(self) -> u32 {
        match self {
            Self::Interface => call::ATTACH_XDP,
            Self::Exit => call::ATTACH_XDP_DEVICE_MAP,
            Self::Tracepoint => 0,
            Self::Egress => call::ATTACH_EGRESS,
        }
    }
}

#[derive(Debug)]
pub struct BpfProgram {
    fd: OwnedFd,
    name: &'static str,
}

/// Outcome of [`BpfProgram::run_on_live_frames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveRunOutcome {
    Interrupted,
    /// The program ran as many times as requested.
    Repeated,
}

/// Maximum number of further attempts after a signal has interrupted the loading of a program.
const MAX_LOAD_ATTEMPTS: u32 = 20;

impl BpfProgram {
    /// Loads an XDP program for arriving packets. `frags` declares that the program handles frames that the driver
    /// delivers in several buffers.
    pub fn load_xdp(name: &'static str, code: &[BpfInstruction], frags: bool) -> Result<Self, Error> {
        Self::load_program_for(AttachPoint::Interface, name, code, frags)
    }

    /// Loads a program for an attachment point. If the kernel's verifier rejects it, the error has the last lines
    /// of the verifier's log.
    pub fn load_program_for(
        place: AttachPoint,
        name: &'static str,
        code: &[BpfInstruction],
        frags: bool,
    ) -> Result<Self, Error> {
        // The verifier allows some helper functions only in programs with a licence that is compatible with the GPL.
        let licence = c"Dual BSD/GPL";
        let mut attr = attr::ProgramLoadAttributes {
            kind: place.program_kind(),
            instructions: clamp_to_u32(code.len()),
            code: code.as_ptr().addr() as u64,
            licence: licence.as_ptr().addr() as u64,
            flags: if frags { call::HAS_FRAGS } else { 0 },
            name: call::short_name(name),
            attach_type: place.attach_type(),
            ..attr::ProgramLoadAttributes::default()
        };
        let mut loaded = call::invoke_for_descriptor(BpfCommand::ProgramLoad, &mut attr);
        // EAGAIN: a signal has interrupted the kernel's verifier, for example because the process
        // was stopped and continued.
        for _ in 0..MAX_LOAD_ATTEMPTS {
            match &loaded {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    loaded = call::invoke_for_descriptor(BpfCommand::ProgramLoad, &mut attr);
                }
                _ => break,
            }
        }
        match loaded {
            Ok(fd) => Ok(Self { fd, name }),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                Err(Error::from_call("bpf(PROG_LOAD)", format!("packetrig's program {name}"), error)
                    .with_rights(MISSING_RIGHTS_TEXT))
            }
            Err(error) => Err(Self::rejection_error_with_log(name, &mut attr, error)),
        }
    }

    /// Loads the program again with the verifier's log, whose last lines name the fault. Returns an
    /// error with these lines.
    fn rejection_error_with_log(
        name: &'static str,
        attr: &mut attr::ProgramLoadAttributes,
        error: std::io::Error,
    ) -> Error {
        let mut log = vec![0u8; 1 << 20];
        attr.log_level = 1;
        attr.log_size = 1 << 20;
        attr.log = log.as_mut_ptr().addr() as u64;
        drop(call::invoke_for_descriptor(BpfCommand::ProgramLoad, attr));
        let text = String::from_utf8_lossy(&log);
        let text = text.trim_end_matches(['\0', '\n']);
        let last: Vec<&str> = text.lines().rev().take(6).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        Error::from_call("bpf(PROG_LOAD)", format!("{name} [{}]", last.join(" | ")), error)
    }

    /// Attaches the program to an interface, in the driver if `native`, otherwise in the kernel's generic path. The
    /// program is detached when the attachment is dropped.
    pub fn attach_xdp(
        &self,
        netns: &NetNs,
        index: u32,
        native: bool,
        object: &str,
    ) -> Result<BpfAttachment, Error> {
        let mut attr = attr::LinkCreateAttributes {
            program: call::raw_descriptor(self.fd.as_fd()),
            target: index,
            attach_type: call::ATTACH_XDP,
            flags: if native { call::DRIVER_MODE } else { call::GENERIC_MODE },
            ..attr::LinkCreateAttributes::default()
        };
        // The kernel looks the interface up in the caller's namespace.
        let linked =
            netns.run_in_namespace(|| call::invoke_for_descriptor(BpfCommand::LinkCreate, &mut attr))?;
        let fd = linked.map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => {
                Error::Busy { object: format!("the XDP hook of {object}"), holder: None }
            }
            _ => Error::from_call("bpf(LINK_CREATE)", object, error).with_rights(MISSING_RIGHTS_TEXT),
        })?;
        Ok(BpfAttachment { fd })
    }

    /// Runs the program on packets that the stack sends through an interface, in addition to other programs there,
    /// until the attachment is dropped.
    pub fn attach_egress(&self, netns: &NetNs, index: u32, object: &str) -> Result<BpfAttachment, Error> {
        let mut attr = attr::LinkCreateAttributes {
            program: call::raw_descriptor(self.fd.as_fd()),
            target: index,
            attach_type: call::ATTACH_EGRESS,
            ..attr::LinkCreateAttributes::default()
        };
        let linked =
            netns.run_in_namespace(|| call::invoke_for_descriptor(BpfCommand::LinkCreate, &mut attr))?;
        let fd = linked.map_err(|error| {
            Error::from_call("bpf(LINK_CREATE)", object, error).with_rights(MISSING_RIGHTS_TEXT)
        })?;
        Ok(BpfAttachment { fd })
    }

    /// Runs the program at a tracepoint of the kernel, until the attachment is dropped.
    pub fn attach_tracepoint(&self, tracepoint: &std::ffi::CStr) -> Result<BpfAttachment, Error> {
        let mut attr = attr::TracepointOpenAttributes {
            name: tracepoint.as_ptr().addr() as u64,
            program: call::raw_descriptor(self.fd.as_fd()),
            pad: 0,
        };
        let fd = call::invoke_for_descriptor(BpfCommand::TracepointOpen, &mut attr).map_err(|error| {
            Error::from_call("bpf(RAW_TRACEPOINT_OPEN)", tracepoint.to_string_lossy(), error)
                .with_rights(MISSING_RIGHTS_TEXT)
        })?;
        Ok(BpfAttachment { fd })
    }

    /// Runs the program once on a copy of `frame`. Returns the program's result, and the frame as the program left it.
    pub fn run_program_once(&self, frame: &[u8]) -> Result<(u32, Vec<u8>), Error> {
        // A program may make the frame longer.
        let mut out = vec![0u8; frame.len() + 256];
        let mut attr = attr::TestRunAttributes {
            program: call::raw_descriptor(self.fd.as_fd()),
            size_in: clamp_to_u32(frame.len()),
            size_out: clamp_to_u32(out.len()),
            data_in: frame.as_ptr().addr() as u64,
            data_out: out.as_mut_ptr().addr() as u64,
            repeat: 1,
            ..attr::TestRunAttributes::default()
        };
        call::invoke_bpf(BpfCommand::TestRun, &mut attr)
            .map_err(|error| Error::from_call("bpf(PROG_TEST_RUN)", self.name, error))?;
        out.truncate(attr.size_out as usize);
        Ok((attr.answer, out))
    }

    /// Runs the program `repeat` times on a copy of `frame`. Returns the mean time of one run as measured by
    /// the kernel, in ns.
    pub fn measure_run_time_ns(&self, frame: &[u8], repeat: u32) -> Result<u32, Error> {
        let mut attr = attr::TestRunAttributes {
            program: call::raw_descriptor(self.fd.as_fd()),
            size_in: clamp_to_u32(frame.len()),
            data_in: frame.as_ptr().addr() as u64,
            repeat,
            ..attr::TestRunAttributes::default()
        };
        call::invoke_bpf(BpfCommand::TestRun, &mut attr)
            .map_err(|error| Error::from_call("bpf(PROG_TEST_RUN)", self.name, error))?;
        Ok(attr.duration)
    }

    /// Runs the program `repeat` times on frames that the kernel makes, in batches of `batch`. A frame has the
    /// length of `frame` at first, and the kernel passes, redirects or drops it according to the program's
    /// result. Blocks until all runs are over or a signal arrives for this thread. Frames are redirected in
    /// the thread's network namespace.
    pub fn run_on_live_frames(&self, frame: &[u8], batch: u32, repeat: u32) -> Result<LiveRunOutcome, Error> {
        let mut attr = attr::TestRunAttributes {
            program: call::raw_descriptor(self.fd.as_fd()),
            size_in: clamp_to_u32(frame.len()),
            data_in: frame.as_ptr().addr() as u64,
            repeat,
            flags: call::LIVE_FRAMES,
            batch,
            ..attr::TestRunAttributes::default()
        };
        match call::invoke_bpf(BpfCommand::TestRun, &mut attr) {
            Ok(_) => Ok(LiveRunOutcome::Repeated),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(LiveRunOutcome::Interrupted),
            Err(error) => {
                Err(Error::from_call("bpf(PROG_TEST_RUN)", self.name, error).with_rights(MISSING_RIGHTS_TEXT))
            }
        }
    }
}

/// An attached program. Dropping this value detaches the program, unless the attachment is pinned.
#[derive(Debug)]
pub struct BpfAttachment {
    fd: OwnedFd,
}

impl BpfAttachment {
    /// Replaces the attached program. The kernel runs either the old or the new program on every frame, without a gap.
    pub fn replace_program(&self, program: &BpfProgram) -> Result<(), Error> {
        let mut attr = attr::LinkUpdateAttributes {
            link: call::raw_descriptor(self.fd.as_fd()),
            program: call::raw_descriptor(program.fd.as_fd()),
            ..attr::LinkUpdateAttributes::default()
        };
        let updated = call::invoke_bpf(BpfCommand::LinkUpdate, &mut attr).map(drop);
        updated.map_err(|error| {
            Error::from_call("bpf(LINK_UPDATE)", program.name, error).with_rights(MISSING_RIGHTS_TEXT)
        })
    }

    /// Detaches the program from its interface now, even if the attachment is also pinned or open in another process.
    /// If the interface no longer exists, the program is detached already.
    pub fn detach_program(&self, object: &str) -> Result<(), Error> {
        let mut attr = attr::LinkDetachAttributes { link: call::raw_descriptor(self.fd.as_fd()) };
        let detached = call::invoke_bpf(BpfCommand::LinkDetach, &mut attr).map(drop);
        detached.map_err(|error| {
            Error::from_call("bpf(LINK_DETACH)", object, error).with_rights(MISSING_RIGHTS_TEXT)
        })
    }
}

impl BpfMap {
    /// Name of the map in ELF objects.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The two instructions that load this map into a register.
    pub(crate) fn load_map_instructions(&self, register: u8) -> [BpfInstruction; 2] {
        let descriptor = u64::from(self.descriptor());
        // BPF_LD | BPF_IMM | BPF_DW with BPF_PSEUDO_MAP_FD; the second instruction holds the upper half of the number.
        [0x18 | u64::from(register) << 8 | object::MAP_DESCRIPTOR | descriptor << 32, 0]
    }

    fn descriptor(&self) -> u32 {
        call::raw_descriptor(self.fd.as_fd())
    }
}
