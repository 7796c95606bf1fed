//! TCP connections to peers by `host:port`.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Connects to `host`, `host:port` or `[address]:port`. `timeout` limits each
/// attempt to connect, and each later read and write.
pub(super) fn connect_tcp(address: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    // An IPv6 address without brackets ends in a colon and digits, too, but that is not a port.
    let has_port = address.rsplit_once(':').is_some_and(|(host, port)| {
        port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
    });
    let address = if has_port { address.to_owned() } else { format!("{address}:{port}") };
    // A name may have addresses of both families, of which only one is reachable: all are tried.
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                // Each request is written at once and answered: Nagle's algorithm would
                // only delay its last packet.
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
