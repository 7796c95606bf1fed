//! Terminals. Nothing is owned or changed.

use std::os::fd::{AsFd, AsRawFd};

/// Characters in a line of the terminal; `None` for what is no terminal or does not know.
pub fn columns(terminal: impl AsFd) -> Option<u16> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is borrowed for the call, and the kernel writes one `winsize` to a live value of ours.
    let got = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (got == 0 && size.ws_col > 0).then_some(size.ws_col)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_terminal_has_no_columns() {
        assert_eq!(columns(std::fs::File::open("/dev/null").unwrap()), None);
    }
}
