//! Terminals. Nothing is owned or changed.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, AsRawFd};

/// Returns the number of characters in a line of the terminal; `None` if it is not a terminal, or does
/// not report its size.
pub fn terminal_column_count(terminal: impl AsFd) -> Option<u16> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is borrowed for the call, and the kernel writes one `winsize` to a live value of ours.
    let got = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (got == 0 && size.ws_col > 0).then_some(size.ws_col)
}

/// Returns true if the terminal was closed (hung up). From then on, reads return at once and without data.
pub fn is_terminal_hung_up(terminal: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&terminal, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().intersects(gone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{FromRawFd, OwnedFd};

    #[test]
    fn terminal_hangs_up_when_master_closes() {
        let (mut master, mut terminal) = (-1, -1);
        let none = std::ptr::null_mut();
        // SAFETY: the kernel's wrapper writes two descriptors to live values; the other arguments may be null.
        let opened = unsafe {
            libc::openpty(&raw mut master, &raw mut terminal, none, std::ptr::null(), std::ptr::null())
        };
        assert_eq!(opened, 0);
        // SAFETY: both are open and ours alone.
        let [master, terminal] = [master, terminal].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        assert!(!is_terminal_hung_up(&terminal));
        rustix::io::write(&master, b"q").unwrap();
        assert!(!is_terminal_hung_up(&terminal));
        drop(master);
        assert!(is_terminal_hung_up(&terminal));
    }

    #[test]
    fn non_terminal_has_no_columns() {
        assert_eq!(terminal_column_count(std::fs::File::open("/dev/null").unwrap()), None);
    }
}
