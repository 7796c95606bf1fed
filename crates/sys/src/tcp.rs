//! State of a TCP connection.

use crate::Error;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Returns the number of bytes that were written to a connection and that the other end's kernel has not acknowledged yet.
pub fn unacknowledged_bytes(socket: &TcpStream) -> Result<u64, Error> {
    // SIOCOUTQ has the number of TIOCOUTQ (linux/sockios.h).
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is borrowed for the call, and the kernel writes one `int` to a live value of ours.
    let got = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if got != 0 {
        return Err(Error::from_call("ioctl SIOCOUTQ", "a TCP connection", std::io::Error::last_os_error()));
    }
    Ok(u64::try_from(bytes).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn bytes_beyond_peer_window_stay_unacknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        let mut written = 0;
        while let Ok(length) = near.write(&[7; 4096]) {
            written += length as u64;
        }
        assert!((1..written).contains(&unacknowledged_bytes(&near).unwrap()));
        let mut taken = vec![0; usize::try_from(written).unwrap()];
        far.read_exact(&mut taken).unwrap();
        while unacknowledged_bytes(&near).unwrap() > 0 {
            std::thread::yield_now();
        }
    }
}
