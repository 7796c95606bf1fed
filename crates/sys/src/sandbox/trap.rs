//! Ends a process that makes a deadly system call: the process reports which call it was, and dies by SIGSYS.
//!
//! The filter does not kill the process itself, because a killed process reports nothing. It refuses the call
//! and makes the kernel run a handler. The process cannot avoid its end:
//!
//! * the kernel kills a process whose thread has blocked the signal, or ignores it, or is in the handler already (`SA_RESETHAND`);
//! * the filter lets no thread change the action of the signal;
//! * the handler does not wait: if standard error accepts nothing, the process dies without a message.

use super::syscalls::{ThreadClass, name_of_fatal_call};
use crate::Error;
use libc::{c_int, c_long, c_void};
use std::sync::OnceLock;

/// One result for the whole process, because handlers belong to the process. Under a filter, a second attempt would be
/// refused.
static TRAP_HANDLER_RESULT: OnceLock<Result<(), i32>> = OnceLock::new();

/// Kernel's information on a trap: `siginfo_t` with `_sigsys`, on machines of 64 bits.
#[repr(C)]
struct TrapInfo {
    signal: c_int,
    /// The data of the filter's decision: the number of the [`ThreadClass`].
    data: c_int,
    code: c_int,
    address: *const c_void,
    call: c_int,
    architecture: u32,
}

/// Installs the handler that ends this process if it makes a deadly call. Must be called before the first filter.
pub(super) fn handle_traps() -> Result<(), Error> {
    let handled = TRAP_HANDLER_RESULT.get_or_init(install_handler);
    handled.map_err(|number| {
        Error::from_call("sigaction", "SIGSYS", rustix::io::Errno::from_raw_os_error(number))
    })
}

fn install_handler() -> Result<(), i32> {
    // SAFETY: sigaction is plain data for which all zeros is a valid value: an empty mask and no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = report_and_exit as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND | libc::SA_NODEFER | libc::SA_ONSTACK;
    // SAFETY: the action is fully initialised, its handler is async-signal-safe and lives as long as the program.
    let done = unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) }
}

/// Async-signal-safe: no allocation, no lock, only calls that every class of threads may make.
extern "C" fn report_and_exit(_signal: c_int, info: *const TrapInfo, _context: *const c_void) {
    // SAFETY: the kernel passes a whole structure of this layout with a trap; a signal of another sender has
    // the same length.
    let info = unsafe { &*info };
    let mut line = TrapMessageLine::default();
    describe_trap(&mut line, info);
    line.write_to_stderr();
    // SAFETY: the call touches no memory of this process. The handler is reset, so the signal ends the process.
    unsafe { libc::raise(libc::SIGSYS) };
    // SAFETY: as above; if the signal has failed, this call ends the process.
    unsafe { libc::_exit(128 + libc::SIGSYS) };
}

fn describe_trap(line: &mut TrapMessageLine, info: &TrapInfo) {
    line.push_bytes(b"packetrig: the sandbox ends this process: thread ");
    line.push_thread_name();
    line.push_bytes(b" (class ");
    line.push_bytes(ThreadClass::name_of_number(info.data).as_bytes());
    line.push_bytes(b") made the system call ");
    line.push_bytes(name_of_fatal_call(c_long::from(info.call)).unwrap_or("without a name").as_bytes());
    line.push_bytes(b" (");
    line.push_number(info.call.unsigned_abs());
    line.push_bytes(
        b"), which this class never makes: a bug in packetrig, or an intruder; please report this line\n",
    );
}

/// A line in memory on the stack, because a handler must not allocate. Text that does not fit is cut.
struct TrapMessageLine {
    bytes: [u8; Self::MAX_LINE_BYTES],
    length: usize,
}

impl Default for TrapMessageLine {
    fn default() -> Self {
        Self { bytes: [0; Self::MAX_LINE_BYTES], length: 0 }
    }
}

impl TrapMessageLine {
    const MAX_LINE_BYTES: usize = 320;

    fn push_bytes(&mut self, text: &[u8]) {
        for (place, byte) in self.bytes.iter_mut().skip(self.length).zip(text) {
            *place = *byte;
            self.length += 1;
        }
    }

    fn push_number(&mut self, number: u32) {
        let mut digits = [0; 10];
        let mut rest = number;
        let mut first = digits.len();
        for digit in digits.iter_mut().rev() {
            *digit = b"0123456789"[(rest % 10) as usize];
            rest /= 10;
            first -= 1;
            if rest == 0 {
                break;
            }
        }
        self.push_bytes(digits.get(first..).unwrap_or_default());
    }

    fn push_thread_name(&mut self) {
        let mut name = [0_u8; 16];
        // SAFETY: the kernel writes 16 bytes at most, the last of them a zero, into a live buffer of that length.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        for byte in &mut name {
            if !byte.is_ascii_graphic() {
                *byte = b'?';
            }
        }
        self.push_bytes(name.get(..length).unwrap_or_default());
    }

    /// Writes the line, unless that would have to wait.
    fn write_to_stderr(&self) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let (bytes, length) = (self.bytes.as_ptr().cast(), self.length);
        let mut waiting = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
        // SAFETY: the buffer is live and has the stated length, and the kernel only reads it.
        if unsafe { libc::send(libc::STDERR_FILENO, bytes, length, flags) } >= 0 {
            return;
        }
        // Standard error is no socket. SAFETY: the kernel writes only into the descriptor's state.
        let ready = unsafe { libc::poll(&raw mut waiting, 1, 0) };
        if ready == 1 && waiting.revents & libc::POLLOUT != 0 {
            // SAFETY: as with `send`. A pipe that is ready for writing has space for a line of
            // this length (pipe(7): PIPE_BUF).
            unsafe { libc::write(libc::STDERR_FILENO, bytes, length) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_whole() {
        for number in [0, 7, 62, 437, u32::MAX] {
            let mut line = TrapMessageLine::default();
            line.push_number(number);
            assert_eq!(line.bytes[..line.length], *number.to_string().as_bytes());
        }
    }

    #[test]
    fn a_line_has_an_end() {
        let mut line = TrapMessageLine::default();
        for _ in 0..3 {
            line.push_bytes(&[b'x'; 200]);
        }
        assert_eq!(line.length, TrapMessageLine::MAX_LINE_BYTES);
    }
}
