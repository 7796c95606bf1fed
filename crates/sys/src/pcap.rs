//! The filter language of tcpdump, compiled by libpcap.
//!
//! libpcap is loaded when the first expression is compiled and stays loaded; a machine without it can do everything
//! else. Only its compiler is used (and, for tests, its interpreter): it never opens an interface here.
//!
//! Invariant: memory that libpcap allocates during a call of this module is freed by libpcap before the call returns.

use crate::UnsupportedFeature;
use packetrig_units::clamp_to_u32;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

const LIBPCAP_NAMES: [&CStr; 2] = [c"libpcap.so.0.8", c"libpcap.so"];
const LINK_TYPE_ETHERNET: c_int = 1;
const SNAP_LENGTH: c_int = 65_535;
/// With this netmask libpcap refuses expressions about broadcast addresses, instead of compiling them for some network.
const NETMASK_UNKNOWN: u32 = u32::MAX;

/// An instruction of classic BPF, as the kernel and libpcap have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ClassicInsn {
    pub code: u16,
    /// Instructions to skip if a condition holds.
    pub jt: u8,
    /// Instructions to skip if the condition does not hold.
    pub jf: u8,
    pub k: u32,
}

pub type ClassicProgram = Vec<ClassicInsn>;

/// Error of compiling an expression.
#[derive(Debug, thiserror::Error)]
pub enum PcapError {
    /// Libpcap is not installed, or lacks a function.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedFeature),
    /// Libpcap cannot compile the expression.
    #[error("filter `{expression}`: {reason}; see pcap-filter(7) for the language")]
    Expression {
        /// Expression as it was given.
        expression: String,
        reason: String,
    },
}

#[repr(C)]
struct RawProgram {
    length: c_uint,
    insns: *mut ClassicInsn,
}

type PcapHandle = c_void;

type PcapOpenDeadFunction = unsafe extern "C" fn(c_int, c_int) -> *mut PcapHandle;
type PcapCloseFunction = unsafe extern "C" fn(*mut PcapHandle);
type PcapCompileFunction =
    unsafe extern "C" fn(*mut PcapHandle, *mut RawProgram, *const c_char, c_int, u32) -> c_int;
type PcapFreeFunction = unsafe extern "C" fn(*mut RawProgram);
type PcapErrorFunction = unsafe extern "C" fn(*mut PcapHandle) -> *mut c_char;
type PcapFilterFunction = unsafe extern "C" fn(*const ClassicInsn, *const u8, c_uint, c_uint) -> c_uint;

/// The functions of libpcap that packetrig uses.
struct PcapLibrary {
    open_dead: PcapOpenDeadFunction,
    close: PcapCloseFunction,
    compile: PcapCompileFunction,
    free_code: PcapFreeFunction,
    error_of: PcapErrorFunction,
    filter: PcapFilterFunction,
}

/// Compiles an expression for Ethernet frames, with optimisation. An empty expression accepts every frame.
pub fn compile_filter_expression(expression: &str) -> Result<ClassicProgram, PcapError> {
    // Releases before 1.8 compile with global state.
    static COMPILE_LOCK: Mutex<()> = Mutex::new(());
    let library = load_library_once()?;
    let text = CString::new(expression)
        .map_err(|_| expression_error(expression, "the expression contains a zero byte"))?;
    let _one = COMPILE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let dead = PcapCompilerHandle::open_in_library(library)
        .ok_or_else(|| expression_error(expression, "libpcap could not allocate memory"))?;
    let mut raw = RawProgram { length: 0, insns: std::ptr::null_mut() };
    // SAFETY: handle and program are live and ours, the text ends with a zero byte and is only read.
    let done =
        unsafe { (library.compile)(dead.handle.as_ptr(), &raw mut raw, text.as_ptr(), 1, NETMASK_UNKNOWN) };
    if done != 0 {
        return Err(expression_error(expression, &dead.last_error()));
    }
    let program = copy_program(&raw);
    // SAFETY: the program was filled in by `pcap_compile` of this library and is freed once.
    unsafe { (library.free_code)(&raw mut raw) };
    Ok(program)
}

fn expression_error(expression: &str, reason: &str) -> PcapError {
    PcapError::Expression { expression: expression.to_owned(), reason: reason.to_owned() }
}

/// Runs libpcap's own interpreter: returns the result of `program` for a frame; 0 is "no match". Tests compare other
/// filters with this result.
///
/// Panics if the program could run off its end or use memory cells that do not exist.
pub fn run_filter(program: &[ClassicInsn], frame: &[u8]) -> Result<u32, PcapError> {
    let library = load_library_once()?;
    // The interpreter itself checks nothing.
    assert!(is_program_bounded(program), "a program that runs off its end");
    let length: c_uint = clamp_to_u32(frame.len());
    // SAFETY: the program ends on every path, by the assertion; the frame is live and has the length given.
    Ok(unsafe { (library.filter)(program.as_ptr(), frame.as_ptr(), length, length) })
}

/// Returns true if no jump leaves the program, no path runs off its end, and all memory cells exist.
fn is_program_bounded(program: &[ClassicInsn]) -> bool {
    !program.is_empty() && (0..program.len()).all(|at| is_instruction_bounded(program, at))
}

fn is_instruction_bounded(program: &[ClassicInsn], at: usize) -> bool {
    let insn = program[at];
    // The class of the instruction (linux/filter.h): 5 jumps, 6 returns, 2 and 3 store to one of 16 cells. A load (0, 1) reads a cell if
    // its mode is BPF_MEM (0x60). A jump without a condition (JA) has its distance in `k`.
    let skips = match insn.code & 7 {
        5 if insn.code & 0xf0 == 0 => insn.k as usize,
        5 => usize::from(insn.jt.max(insn.jf)),
        6 => return true,
        2 | 3 => return insn.k < 16 && at + 1 < program.len(),
        0 | 1 if insn.code & 0xe0 == 0x60 => return insn.k < 16 && at + 1 < program.len(),
        _ => 0,
    };
    skips < program.len() - at - 1
}

fn copy_program(raw: &RawProgram) -> ClassicProgram {
    if raw.insns.is_null() {
        return Vec::new();
    }
    // SAFETY: libpcap allocated that many instructions there, of this layout; they are only read, before they are freed.
    unsafe { std::slice::from_raw_parts(raw.insns, raw.length as usize) }.to_vec()
}

/// A handle that compiles and captures nothing; closed on drop.
struct PcapCompilerHandle {
    library: &'static PcapLibrary,
    handle: NonNull<PcapHandle>,
}

impl PcapCompilerHandle {
    fn open_in_library(library: &'static PcapLibrary) -> Option<Self> {
        // SAFETY: takes two numbers and returns a handle or null.
        let handle = unsafe { (library.open_dead)(LINK_TYPE_ETHERNET, SNAP_LENGTH) };
        NonNull::new(handle).map(|handle| Self { library, handle })
    }

    fn last_error(&self) -> String {
        // SAFETY: the handle is live.
        let text = unsafe { (self.library.error_of)(self.handle.as_ptr()) };
        if text.is_null() {
            return "libpcap does not understand the expression".into();
        }
        // SAFETY: the text is inside the live handle and ends with a zero byte.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

impl Drop for PcapCompilerHandle {
    fn drop(&mut self) {
        // SAFETY: the handle is live, ours, and closed once.
        unsafe { (self.library.close)(self.handle.as_ptr()) };
    }
}

fn load_library_once() -> Result<&'static PcapLibrary, UnsupportedFeature> {
    static LIBPCAP: OnceLock<Result<PcapLibrary, UnsupportedFeature>> = OnceLock::new();
    LIBPCAP.get_or_init(|| load_library(&LIBPCAP_NAMES)).as_ref().map_err(Clone::clone)
}

fn missing_library(found: String) -> UnsupportedFeature {
    UnsupportedFeature {
        feature: "a filter expression",
        needs: "libpcap (Debian package libpcap0.8)".into(),
        found,
    }
}

/// Opens a library, which stays loaded as long as the process lives.
fn open_library(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name ends with a zero byte. libpcap runs no relevant code when it is loaded.
    NonNull::new(unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) })
}

fn find_symbol(library: NonNull<c_void>, name: &CStr) -> Result<NonNull<c_void>, UnsupportedFeature> {
    // SAFETY: `open_library` gave the handle, and the library is never unloaded; the name ends with a zero byte.
    let address = unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) };
    NonNull::new(address)
        .ok_or_else(|| missing_library(format!("a libpcap without the function {}", name.to_string_lossy())))
}

fn load_library(names: &[&CStr]) -> Result<PcapLibrary, UnsupportedFeature> {
    let library = names.iter().find_map(|name| open_library(name));
    let library = library.ok_or_else(|| missing_library("none on this machine".into()))?;
    let open_dead = find_symbol(library, c"pcap_open_dead")?;
    let close = find_symbol(library, c"pcap_close")?;
    let compile = find_symbol(library, c"pcap_compile")?;
    let free_code = find_symbol(library, c"pcap_freecode")?;
    let error_of = find_symbol(library, c"pcap_geterr")?;
    let filter = find_symbol(library, c"bpf_filter")?;
    Ok(PcapLibrary {
        // SAFETY: the symbol is the function of this signature in every release of libpcap; so with those below.
        open_dead: unsafe { std::mem::transmute::<NonNull<c_void>, PcapOpenDeadFunction>(open_dead) },
        // SAFETY: as above.
        close: unsafe { std::mem::transmute::<NonNull<c_void>, PcapCloseFunction>(close) },
        // SAFETY: as above.
        compile: unsafe { std::mem::transmute::<NonNull<c_void>, PcapCompileFunction>(compile) },
        // SAFETY: as above.
        free_code: unsafe { std::mem::transmute::<NonNull<c_void>, PcapFreeFunction>(free_code) },
        // SAFETY: as above.
        error_of: unsafe { std::mem::transmute::<NonNull<c_void>, PcapErrorFunction>(error_of) },
        // SAFETY: as above.
        filter: unsafe { std::mem::transmute::<NonNull<c_void>, PcapFilterFunction>(filter) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let error = load_library(&[c"libpacketrig-has-none.so"]).err().unwrap();
        assert!(error.to_string().contains("libpcap0.8"), "{error}");
    }

    #[test]
    fn pcap_expression_compiles_or_is_refused_with_reason() {
        if let Err(missing) = load_library_once() {
            return eprintln!("skipped: {missing}");
        }
        let program = compile_filter_expression("ip").unwrap();
        let mut frame = [0u8; 60];
        assert_eq!(run_filter(&program, &frame).unwrap(), 0);
        frame[12] = 8;
        assert!(run_filter(&program, &frame).unwrap() > 0);
        assert_eq!(compile_filter_expression("").unwrap().len(), 1);
        let refused = compile_filter_expression("ip and and").unwrap_err().to_string();
        assert!(refused.contains("`ip and and`") && refused.contains("syntax error"), "{refused}");
    }

    #[test]
    fn programs_that_leave_their_bounds_are_recognised() {
        let insn = |code, jt, k| ClassicInsn { code, jt, jf: 0, k };
        assert!(is_program_bounded(&[insn(6, 0, 0)]));
        assert!(!is_program_bounded(&[]));
        assert!(!is_program_bounded(&[insn(0x28, 0, 12)]));
        assert!(!is_program_bounded(&[insn(0x15, 1, 0), insn(6, 0, 0)]));
        assert!(!is_program_bounded(&[insn(2, 0, 16), insn(6, 0, 0)]));
        assert!(!is_program_bounded(&[insn(5, 0, u32::MAX), insn(6, 0, 0)]));
    }
}
