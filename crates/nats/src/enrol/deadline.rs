//! A connection that ends at a deadline, however slowly the other side sends.
//!
//! With only a timeout for each read, a client could hold a slot by sending a byte from time to time.

use crate::runtime::deadline_ns;
use packetrig_sys::clock::monotonic_ns;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct DeadlineStream {
    stream: TcpStream,
    until_ns: u64,
}

impl DeadlineStream {
    pub(super) fn new(stream: TcpStream, within: Duration) -> Self {
        let mut own = Self { stream, until_ns: 0 };
        own.restart_deadline(within);
        own
    }

    /// Sets a new deadline, `within` from now.
    pub(super) fn restart_deadline(&mut self, within: Duration) {
        self.until_ns = deadline_ns(within);
    }

    fn time_left(&self) -> io::Result<Option<Duration>> {
        match self.until_ns.saturating_sub(monotonic_ns()) {
            0 => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(Duration::from_nanos(left))),
        }
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // The remaining time shrinks with each read, so the timeout is set before each read.
        self.stream.set_read_timeout(self.time_left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.time_left()?)?;
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn deadline_stream_ends_despite_slow_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut slow = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (stream, _) = listener.accept().expect("it came");
        let mut stream = DeadlineStream::new(stream, Duration::from_millis(200));
        let dripping = std::thread::spawn(move || {
            while slow.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let mut byte = [0];
        let error = loop {
            if let Err(error) = stream.read(&mut byte) {
                break error;
            }
        };
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        drop(stream);
        dripping.join().expect("it ends when nobody reads any more");
    }
}
