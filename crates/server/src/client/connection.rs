//! A connection to a server, with or without TLS.

use super::{ApiAddress, ClientError};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

/// Timeout for connecting to one address of a host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes of one read.
const MAX_READ_BYTES: usize = 64 << 10;

pub(super) struct ApiConnection {
    stream: ClientStream,
    address: ApiAddress,
}

enum ClientStream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl ApiConnection {
    /// Opens a TCP connection, for TLS if `tls` is given. Reading and writing fail after `silence` without progress.
    pub(super) fn open_connection(
        address: &ApiAddress,
        tls: Option<&Arc<ClientConfig>>,
        silence: Duration,
    ) -> Result<Self, ClientError> {
        let no_server = |source| ClientError::NoServer { address: address.to_string(), source };
        let socket = connect_to_first_reachable(address).map_err(no_server)?;
        let limited =
            socket.set_read_timeout(Some(silence)).and_then(|()| socket.set_write_timeout(Some(silence)));
        // A request is short, and Nagle's algorithm must not hold its last part back.
        limited.and_then(|()| socket.set_nodelay(true)).map_err(no_server)?;
        let stream = match tls {
            None => ClientStream::Plain(socket),
            Some(config) => {
                let name = ServerName::try_from(address.host.clone()).map_err(|_| {
                    ClientError::Options(format!(
                        "`{}` is not a host name that a certificate can have",
                        address.host
                    ))
                })?;
                let connection = ClientConnection::new(Arc::clone(config), name)
                    .map_err(|error| ClientError::Options(error.to_string()))?;
                ClientStream::Tls(Box::new(StreamOwned::new(connection, socket)))
            }
        };
        Ok(Self { stream, address: address.clone() })
    }

    pub(super) fn address(&self) -> &ApiAddress {
        &self.address
    }

    pub(super) fn write_request(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        let written = match &mut self.stream {
            ClientStream::Plain(stream) => stream.write_all(bytes),
            // rustls buffers the bytes that the socket did not accept, so only a flush sends all of them.
            ClientStream::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        };
        written.map_err(|error| self.to_client_error(error))
    }

    /// Waits for the next bytes, appends them and returns their number; 0 at the end of the connection.
    pub(super) fn read_next_bytes(&mut self, bytes: &mut Vec<u8>) -> Result<usize, ClientError> {
        let mut piece = vec![0; MAX_READ_BYTES];
        loop {
            let read = match &mut self.stream {
                ClientStream::Plain(stream) => stream.read(&mut piece),
                ClientStream::Tls(stream) => stream.read(&mut piece),
            };
            return match read {
                Ok(length) => {
                    bytes.extend_from_slice(&piece[..length]);
                    Ok(length)
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // The server has closed the TCP connection without ending TLS. The parser detects if
                // the answer is incomplete.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof && !bytes.is_empty() => Ok(0),
                Err(error) => Err(self.to_client_error(error)),
            };
        }
    }

    /// Appends all bytes up to the end of the connection. An answer of more than `most` bytes is an error.
    pub(super) fn read_to_end(&mut self, bytes: &mut Vec<u8>, most: usize) -> Result<(), ClientError> {
        while self.read_next_bytes(bytes)? > 0 {
            if bytes.len() > most {
                return Err(ClientError::TooLong {
                    address: self.address.to_string(),
                    limit_mib: most >> 20,
                });
            }
        }
        Ok(())
    }

    fn to_client_error(&self, error: io::Error) -> ClientError {
        let (address, authority) = (self.address.to_string(), self.address.authority());
        let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match of_tls {
            Some(rustls::Error::InvalidCertificate(reason)) => {
                ClientError::Untrusted { address, reason: format!("{reason:?}") }
            }
            // A plain HTTP answer is not a valid TLS record.
            Some(rustls::Error::InvalidMessage(_)) => ClientError::NotTls { address, authority },
            // Linux reports an expired read timeout (SO_RCVTIMEO) as EAGAIN.
            _ if error.kind() == ErrorKind::WouldBlock => {
                let source = io::Error::new(ErrorKind::TimedOut, "the server sent nothing in time");
                ClientError::Lost { address, source }
            }
            _ => ClientError::Lost { address, source: error },
        }
    }

    /// Sets the time without data after which reading fails.
    pub(super) fn set_silence_limit(&self, silence: Duration) -> io::Result<()> {
        match &self.stream {
            ClientStream::Plain(stream) => stream.set_read_timeout(Some(silence)),
            ClientStream::Tls(stream) => stream.get_ref().set_read_timeout(Some(silence)),
        }
    }
}

/// Connects to the first address of the host that accepts a connection.
fn connect_to_first_reachable(address: &ApiAddress) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the host name has no address");
    // The first address of a name may have no listener: `localhost` can be ::1 first.
    for socket in (address.host.as_str(), address.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&socket, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
