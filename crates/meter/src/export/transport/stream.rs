//! A connection, plain or encrypted, that is made again after it broke: at once, then after ever longer pauses.
//!
//! Collectors say nothing; they are listened to only to notice that they have gone, which TCP would tell one message too late.

use super::super::deadline::SendDeadline;
use super::super::target::HostPort;
use super::super::{Error, TlsFiles};
use super::UntakenMessage;
use super::tls::CollectorEncryption;
use packetrig_sys::clock;
use rustls::{ClientConnection, StreamOwned};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(2);
const HANDSHAKE_NS: u64 = 2_000_000_000;
/// A call that writes or shakes hands comes back at least so often, to see whether it is time to end.
const LOOK: Duration = Duration::from_millis(100);
const FIRST_PAUSE_NS: u64 = 100_000_000;
const LONGEST_PAUSE_NS: u64 = 5_000_000_000;

/// A way to a collector, with or without a connection.
#[derive(Debug)]
pub(crate) struct CollectorStream {
    place: HostPort,
    encryption: Option<CollectorEncryption>,
    connection: Option<StreamConnection>,
    pause_ns: u64,
    next_ns: u64,
}

#[derive(Debug)]
enum StreamConnection {
    Plain(TcpStream),
    Encrypted(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl CollectorStream {
    pub(super) const fn plain(place: HostPort) -> Self {
        Self { place, encryption: None, connection: None, pause_ns: 0, next_ns: 0 }
    }

    pub(super) fn encrypted(place: HostPort, files: &TlsFiles) -> Result<Self, Error> {
        let encryption = Some(CollectorEncryption::new(&place, files)?);
        Ok(Self { encryption, ..Self::plain(place) })
    }

    /// Makes the connection if there is none and a pause is not on: whether there is one.
    pub(super) fn connect(&mut self, end_ns: u64) -> bool {
        if self.connection.is_some() {
            return true;
        }
        let now_ns = clock::monotonic_ns();
        if now_ns < self.next_ns || now_ns >= end_ns {
            return false;
        }
        self.connection = self.try_connect(end_ns).ok();
        self.pause_ns = match self.connection {
            Some(_) => 0,
            None => (self.pause_ns * 2).clamp(FIRST_PAUSE_NS, LONGEST_PAUSE_NS),
        };
        self.next_ns = clock::monotonic_ns() + self.pause_ns;
        self.connection.is_some()
    }

    fn try_connect(&self, end_ns: u64) -> io::Result<StreamConnection> {
        let addresses = (self.place.host.as_str(), self.place.port).to_socket_addrs()?;
        let mut last = io::Error::other("the name has no address");
        for address in addresses {
            match self.try_address(&address, end_ns) {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn try_address(&self, address: &SocketAddr, end_ns: u64) -> io::Result<StreamConnection> {
        let socket = TcpStream::connect_timeout(address, CONNECT)?;
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(LOOK))?;
        socket.set_read_timeout(Some(LOOK))?;
        let Some(CollectorEncryption { config, name }) = self.encryption.clone() else {
            return Ok(StreamConnection::Plain(socket));
        };
        let client = ClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(client, socket);
        let limit_ns = end_ns.min(clock::monotonic_ns() + HANDSHAKE_NS);
        while stream.conn.is_handshaking() {
            match stream.conn.complete_io(&mut stream.sock) {
                Err(error) if is_pause(&error) && clock::monotonic_ns() < limit_ns => {}
                other => drop(other?),
            }
        }
        Ok(StreamConnection::Encrypted(Box::new(stream)))
    }

    pub(super) fn send(&mut self, message: &[u8], deadline: &SendDeadline) -> Result<(), UntakenMessage> {
        let sent = match &mut self.connection {
            None => return Err(UntakenMessage::Gone),
            Some(connection) => connection.listen().and_then(|()| connection.send(message, deadline)),
        };
        sent.map_err(|_| {
            self.connection = None;
            UntakenMessage::Gone
        })
    }

    pub(super) fn close(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            connection.close();
        }
    }
}

impl StreamConnection {
    /// Reads what the other end says and forgets it; its end is an error.
    fn listen(&mut self) -> io::Result<()> {
        let socket = match self {
            Self::Plain(socket) => socket,
            Self::Encrypted(stream) => &stream.sock,
        };
        socket.set_nonblocking(true)?;
        let heard = self.hear();
        let socket = match self {
            Self::Plain(socket) => socket,
            Self::Encrypted(stream) => &stream.sock,
        };
        socket.set_nonblocking(false)?;
        match heard {
            Ok(0) => Err(ErrorKind::ConnectionAborted.into()),
            Ok(_) => Ok(()),
            Err(error) if is_pause(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn hear(&mut self) -> io::Result<usize> {
        let mut unheard = [0; 1024];
        match self {
            Self::Plain(socket) => socket.read(&mut unheard),
            Self::Encrypted(stream) => stream.read(&mut unheard),
        }
    }

    /// Writes all of it, as long as it takes, but no longer than until the deadline, which moves while the collector takes something.
    fn send(&mut self, message: &[u8], deadline: &SendDeadline) -> io::Result<()> {
        let mut rest = message;
        while !rest.is_empty() {
            match self.writer().write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    deadline.note_taken();
                    rest = &rest[written..];
                }
                Err(error) if is_pause(&error) && !deadline.is_past() => {}
                Err(error) => return Err(error),
            }
        }
        loop {
            match self.writer().flush() {
                Err(error) if is_pause(&error) && !deadline.is_past() => {}
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

    /// The other end reads all that was sent and then the end; whether it does is no longer ours to know.
    fn close(&mut self) {
        let socket = match self {
            Self::Plain(socket) => socket,
            Self::Encrypted(stream) => {
                stream.conn.send_close_notify();
                drop(stream.flush());
                &stream.sock
            }
        };
        drop(socket.shutdown(Shutdown::Write));
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
