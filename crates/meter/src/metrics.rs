//! `/metrics`: answers scrapers over HTTP, and does nothing else.
//!
//! One connection at a time, one request on it, a bounded one, for a bounded time; `GET /metrics` and nothing more. It is
//! plain HTTP without any authentication, so it is for the loopback interface unless the user says otherwise.
//!
//! Invariant: the thread ends with the [`Responder`], and holds nothing that a peer can make grow.

use crate::Error;
use packetrig_sys::clock;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of a request that are read.
const MOST: usize = 4096;
/// How long a peer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often to look whether it is over.
const LOOK: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Debug)]
pub struct Responder {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Responder {
    /// Listens from now on; `render` makes the text.
    pub fn start(address: SocketAddr, render: impl Fn() -> String + Send + 'static) -> Result<Self, Error> {
        let failed = |source| Error::Metrics { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let stop = Arc::<AtomicBool>::default();
        let seen = Arc::clone(&stop);
        let serve = move || {
            while !seen.load(Ordering::Acquire) {
                match listener.accept() {
                    // A peer that goes away in between is its own affair.
                    Ok((stream, _)) => answer(stream, &render).unwrap_or(()),
                    Err(_) => std::thread::sleep(LOOK),
                }
            }
        };
        let thread =
            std::thread::Builder::new().name("metrics".into()).spawn(serve).map_err(Error::Thread)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It holds nothing whose loss in a panic would matter.
            thread.join().unwrap_or(());
        }
    }
}

fn answer(mut stream: TcpStream, render: &impl Fn() -> String) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = read_head(&mut stream)?;
    let mut words = request.split(|byte| *byte == b' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        (b"GET", b"/metrics") => ("200 OK", render()),
        (b"GET", _) => ("404 Not Found", "there is /metrics here\n".to_owned()),
        _ => ("405 Method Not Allowed", "GET is what can be asked here\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// The request line and what follows until the empty line; less if the peer is slow or long-winded.
fn read_head(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let until_ns = clock::monotonic_ns() + 2_000_000_000;
    let mut head = Vec::with_capacity(MOST);
    let mut chunk = [0; 512];
    while head.len() < MOST && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = Duration::from_nanos(until_ns.saturating_sub(clock::monotonic_ns()));
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk)? {
            0 => break,
            read => head.extend_from_slice(&chunk[..read]),
        }
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_scraper_gets_the_text_and_anybody_else_a_refusal() {
        let local = "127.0.0.1:0".parse().unwrap();
        let responder = Responder::start(local, || "a_total 1\n".into()).unwrap();
        let address = responder.address();
        let text = ask(address, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\na_total 1\n"), "{text}");
        assert!(ask(address, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask(address, b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(ask(address, &[b'x'; 2 * MOST][..MOST]).starts_with("HTTP/1.1 405 "));
        assert!(ask(address, b"GET /metrics?a=b HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
        let twice = Responder::start(address, String::new);
        assert!(matches!(twice, Err(Error::Metrics { .. })));
    }
}
