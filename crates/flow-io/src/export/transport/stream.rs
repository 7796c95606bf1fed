//! A connection, plain or with TLS, that is made again after it broke: at once, then after increasing pauses.
//!
//! Collectors send nothing. The connection is read only to detect that the collector has closed it: a write alone would
//! detect that one message too late.

use super::super::deadline::SendDeadline;
use super::super::target::HostPort;
use super::super::{Error, TlsFiles};
use super::UnsentMessageReason;
use super::tls::CollectorEncryption;
use packetrig_sys::{clock, tcp};
use rustls::{ClientConnection, StreamOwned};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const HANDSHAKE_TIMEOUT_NS: u64 = 2_000_000_000;
/// Time that a collector may take to reject the exporter's certificate.
const ACCEPTANCE_TIME_NS: u64 = 500_000_000;
/// Writes and handshakes return at least this often, to check the deadline.
const DEADLINE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
const FIRST_RETRY_PAUSE_NS: u64 = 100_000_000;
const MAX_RETRY_PAUSE_NS: u64 = 1_000_000_000;

/// A TCP or TLS target, connected or not.
#[derive(Debug)]
pub(crate) struct CollectorStream {
    place: HostPort,
    encryption: Option<CollectorEncryption>,
    connection: Option<StreamConnection>,
    pause_ns: u64,
    next_ns: u64,
    /// Reason why the last attempt to connect failed.
    failure: Option<String>,
}

#[derive(Debug)]
enum StreamConnection {
    Plain(CountedSocket),
    Encrypted(Box<StreamOwned<ClientConnection, CountedSocket>>),
}

/// A socket that counts the bytes written to it.
#[derive(Debug)]
struct CountedSocket {
    socket: TcpStream,
    written: u64,
}

impl Read for CountedSocket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.read(bytes)
    }
}

impl Write for CountedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.socket.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

impl CollectorStream {
    pub(super) const fn new_plain(place: HostPort) -> Self {
        Self { place, encryption: None, connection: None, pause_ns: 0, next_ns: 0, failure: None }
    }

    pub(super) fn new_encrypted(place: HostPort, files: &TlsFiles) -> Result<Self, Error> {
        let encryption = Some(CollectorEncryption::new(&place, files)?);
        Ok(Self { encryption, ..Self::new_plain(place) })
    }

    /// Connects if there is no connection and the pause is over; returns whether there is one.
    pub(super) fn ensure_connected(&mut self, end_ns: u64) -> bool {
        if self.connection.is_some() {
            return true;
        }
        let now_ns = clock::monotonic_ns();
        // An attempt takes seconds, so none begins after the deadline.
        if now_ns < self.next_ns || now_ns >= end_ns {
            return false;
        }
        self.connection = match self.try_connect(end_ns) {
            Ok(connection) => Some(connection),
            Err(error) => {
                self.failure = Some(self.describe_connect_failure(&error));
                None
            }
        };
        self.pause_ns = match self.connection {
            // A connection that broke after a success is tried again at once.
            Some(_) => 0,
            None => (self.pause_ns * 2).clamp(FIRST_RETRY_PAUSE_NS, MAX_RETRY_PAUSE_NS),
        };
        // The time counts from the end of the attempt, which may have taken seconds itself.
        self.next_ns = clock::monotonic_ns() + self.pause_ns;
        self.connection.is_some()
    }

    pub(super) fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Describes the error of an attempt to connect, with the certificate if that was refused.
    fn describe_connect_failure(&self, error: &io::Error) -> String {
        let of_certificate = self.encryption.as_ref().and_then(CollectorEncryption::take_refusal);
        format!("cannot connect: {}", of_certificate.unwrap_or_else(|| error.to_string()))
    }

    fn try_connect(&self, end_ns: u64) -> io::Result<StreamConnection> {
        let addresses = (self.place.host.as_str(), self.place.port).to_socket_addrs()?;
        let mut last = io::Error::other("the name has no address");
        // Every address is tried, because a name often has an IPv6 address that this machine cannot reach.
        for address in addresses {
            match self.try_connect_to_address(&address, end_ns) {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn try_connect_to_address(&self, address: &SocketAddr, end_ns: u64) -> io::Result<StreamConnection> {
        let socket = TcpStream::connect_timeout(address, CONNECT_TIMEOUT)?;
        // Messages are whole when they are written; holding back the last segment would only delay them.
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(DEADLINE_CHECK_INTERVAL))?;
        socket.set_read_timeout(Some(DEADLINE_CHECK_INTERVAL))?;
        let Some(encryption) = &self.encryption else {
            return Ok(StreamConnection::Plain(CountedSocket { socket, written: 0 }));
        };
        let client = ClientConnection::new(Arc::clone(&encryption.config), encryption.name.clone());
        let client = client.map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(client, CountedSocket { socket, written: 0 });
        let limit_ns = end_ns.min(clock::monotonic_ns() + HANDSHAKE_TIMEOUT_NS);
        while stream.conn.is_handshaking() {
            match stream.conn.complete_io(&mut stream.sock) {
                // The socket has a read timeout of `DEADLINE_CHECK_INTERVAL`, so the limit is checked that often.
                Err(error) if is_temporary_error(&error) && clock::monotonic_ns() < limit_ns => {}
                // The number of bytes is not needed; an error of the handshake ends the attempt.
                other => drop(other?),
            }
        }
        if let Some(own) = &encryption.own {
            await_certificate_acceptance(&mut stream, limit_ns).map_err(|error| {
                io::Error::other(format!(
                    "the connection ended while the collector checked the certificate {own}: {error}"
                ))
            })?;
        }
        Ok(StreamConnection::Encrypted(Box::new(stream)))
    }

    pub(super) fn send_message(
        &mut self,
        message: &[u8],
        deadline: &SendDeadline,
    ) -> Result<(), UnsentMessageReason> {
        let sent = match &mut self.connection {
            None => return Err(UnsentMessageReason::Gone(ErrorKind::NotConnected.into())),
            Some(connection) => {
                // The connection is checked before the write, because the kernel would accept a message even after
                // the collector has closed it.
                connection.check_connection().and_then(|()| connection.write_message(message, deadline))
            }
        };
        // After any error the connection is given up: the collector may have received a part of the message,
        // and the stream does not mark the start of the next one.
        sent.map_err(|error| {
            self.connection = None;
            UnsentMessageReason::Gone(error)
        })
    }

    /// If the connection has ended, gives it up and returns the reason.
    pub(super) fn take_end_reason(&mut self) -> Option<io::Error> {
        let ended = self.connection.as_mut()?.check_connection().err()?;
        self.connection = None;
        Some(ended)
    }

    /// Bytes that were written to this connection.
    pub(super) fn written_bytes(&self) -> u64 {
        self.connection.as_ref().map_or(0, |connection| connection.counted_socket().written)
    }

    /// Written bytes that the collector's machine has acknowledged.
    pub(super) fn acknowledged_bytes(&self) -> u64 {
        let Some(connection) = &self.connection else { return 0 };
        let CountedSocket { socket, written } = connection.counted_socket();
        // If the kernel cannot tell, no message counts as acknowledged: a repeated record costs bytes, but a
        // missing one is a wrong result.
        tcp::unacknowledged_bytes(socket).map_or(0, |waiting| written.saturating_sub(waiting))
    }

    pub(super) fn close_connection(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            connection.close_gracefully();
        }
    }
}

impl StreamConnection {
    fn counted_socket(&self) -> &CountedSocket {
        match self {
            Self::Plain(socket) => socket,
            Self::Encrypted(stream) => &stream.sock,
        }
    }

    /// Reads and discards data from the collector. A closed connection is an error.
    fn check_connection(&mut self) -> io::Result<()> {
        // Non-blocking only for this read: a read timeout would delay each message.
        self.counted_socket().socket.set_nonblocking(true)?;
        let received = self.read_available_bytes();
        self.counted_socket().socket.set_nonblocking(false)?;
        match received {
            Ok(0) => Err(ErrorKind::ConnectionAborted.into()),
            Ok(_) => Ok(()),
            // An empty read is the usual case: collectors send nothing.
            Err(error) if is_temporary_error(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn read_available_bytes(&mut self) -> io::Result<usize> {
        let mut discarded = [0; 1024];
        match self {
            Self::Plain(socket) => socket.read(&mut discarded),
            Self::Encrypted(stream) => stream.read(&mut discarded),
        }
    }

    /// Writes the whole message. Gives up at the deadline, which moves while the collector accepts data.
    fn write_message(&mut self, message: &[u8], deadline: &SendDeadline) -> io::Result<()> {
        let mut rest = message;
        while !rest.is_empty() {
            match self.writer().write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    deadline.record_accepted_send();
                    rest = &rest[written..];
                }
                Err(error) if is_temporary_error(&error) && deadline.may_wait_else_give_up() => {}
                Err(error) => return Err(error),
            }
        }
        loop {
            // A TLS record may still be in the buffer of rustls, and only whole messages count as written.
            match self.writer().flush() {
                Err(error) if is_temporary_error(&error) && deadline.may_wait_else_give_up() => {}
                other => return other,
            }
        }
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Plain(socket) => socket,
            Self::Encrypted(stream) => &mut **stream,
        }
    }

    /// Closes the sending direction, so that the collector reads everything that was sent and then the
    /// end of the stream.
    fn close_gracefully(&mut self) {
        if let Self::Encrypted(stream) = self {
            stream.conn.send_close_notify();
            // The flush and the shutdown below fail only if the collector has closed already.
            drop(stream.flush());
        }
        drop(self.counted_socket().socket.shutdown(Shutdown::Write));
    }
}

/// Waits until the collector has accepted or rejected the exporter's certificate. In TLS 1.3 the handshake ends before
/// the collector has checked the certificate; after the check it sends session tickets, or an alert. If a collector
/// sends neither, the wait ends after `ACCEPTANCE_TIME_NS`.
fn await_certificate_acceptance(
    stream: &mut StreamOwned<ClientConnection, CountedSocket>,
    limit_ns: u64,
) -> io::Result<()> {
    let limit_ns = limit_ns.min(clock::monotonic_ns() + ACCEPTANCE_TIME_NS);
    while clock::monotonic_ns() < limit_ns {
        match stream.conn.read_tls(&mut stream.sock) {
            Ok(0) => return Err(ErrorKind::ConnectionAborted.into()),
            Ok(_) => {
                stream.conn.process_new_packets().map_err(io::Error::other)?;
                return Ok(());
            }
            Err(error) if is_temporary_error(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_temporary_error(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
