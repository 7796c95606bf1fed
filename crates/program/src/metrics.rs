//! An HTTP server for Prometheus that serves `/metrics` and nothing else.
//!
//! One thread serves a bounded number of connections. Each may send one request of bounded length within a bounded
//! time; every request except `GET /metrics` gets an error. When all connections are in use, the oldest is closed. The
//! server uses plain HTTP without authentication, so it listens on the loopback interface unless the user names another
//! address. Web pages could reach the loopback interface by DNS rebinding, so requests from web pages are refused.
//!
//! Invariant: the thread ends with the [`MetricsResponder`] and never waits for a peer, and its memory stays bounded.

use crate::Error;
use packetrig_sys::clock;
use packetrig_units::exposition::MEDIA_TYPE;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum number of bytes of a request.
const MAX_REQUEST_BYTES: usize = 4096;
/// Time limit of a request and its answer, in nanoseconds.
const REQUEST_TIMEOUT_NS: u64 = 2_000_000_000;
/// Maximum number of connections at a time.
const MAX_CONNECTIONS: usize = 32;
/// Interval at which the thread checks for new connections and for the order to stop, if no connection is open.
const CONNECTION_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The same interval while connections are open.
const OPEN_CONNECTION_CHECK_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct MetricsResponder {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsResponder {
    /// Binds the address and starts the thread that answers. `render` makes the text of each answer.
    pub fn start_serving(
        address: SocketAddr,
        render: impl Fn() -> String + Send + 'static,
    ) -> Result<Self, Error> {
        let listener = bind_nonblocking(address).map_err(|source| Error::Metrics { address, source })?;
        let bound = listener.local_addr().map_err(|source| Error::Metrics { address, source })?;
        let stop = Arc::<AtomicBool>::default();
        let connections = MetricsConnections { listener, render, open: VecDeque::new() };
        let stop_seen = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || connections.serve_until(&stop_seen))
            .map_err(Error::Thread)?;
        Ok(Self { address: bound, stop, thread: Some(thread) })
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsResponder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic of this thread loses nothing: it only reads counters.
            drop(thread.join());
        }
    }
}

fn bind_nonblocking(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    // The thread must also notice the request to stop, so it must not wait in `accept`.
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// All connections that are being served.
struct MetricsConnections<R> {
    listener: TcpListener,
    render: R,
    open: VecDeque<MetricsConnection>,
}

impl<R: Fn() -> String> MetricsConnections<R> {
    fn serve_until(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            self.advance_connections();
            std::thread::sleep(if self.open.is_empty() {
                CONNECTION_CHECK_INTERVAL
            } else {
                OPEN_CONNECTION_CHECK_INTERVAL
            });
        }
    }

    /// Accepts new connections, and advances each as far as possible without waiting.
    fn advance_connections(&mut self) {
        // At most as many connections are accepted as can be open, so that a flood cannot keep the loop busy.
        for _ in 0..MAX_CONNECTIONS {
            let Ok((stream, _)) = self.listener.accept() else { break };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            // The oldest connection is closed: connections that send nothing must not lock out a scraper.
            if self.open.len() == MAX_CONNECTIONS {
                self.open.pop_front();
            }
            self.open.push_back(MetricsConnection::new(stream));
        }
        let now_ns = clock::monotonic_ns();
        let render = &self.render;
        // An error means that the peer has closed the connection, which is then dropped like an answered one.
        self.open.retain_mut(|scrape| now_ns < scrape.until_ns && !scrape.advance_io(render).unwrap_or(true));
    }
}

/// One connection: the part of the request that was read, then the response and how much of it was written.
struct MetricsConnection {
    stream: TcpStream,
    head: Vec<u8>,
    answer: Vec<u8>,
    written: usize,
    until_ns: u64,
}

impl MetricsConnection {
    fn new(stream: TcpStream) -> Self {
        let until_ns = clock::monotonic_ns() + REQUEST_TIMEOUT_NS;
        Self { stream, head: Vec::new(), answer: Vec::new(), written: 0, until_ns }
    }

    /// Reads and writes as much as possible now; `true` when the whole answer is written.
    fn advance_io(&mut self, render: &impl Fn() -> String) -> std::io::Result<bool> {
        if self.answer.is_empty() {
            if !self.read_head()? {
                return Ok(false);
            }
            // This is the local address of the connection: a listener on all addresses also serves loopback.
            let is_loopback = self.stream.local_addr()?.ip().to_canonical().is_loopback();
            self.answer = answer_request(&self.head, is_loopback, render);
        }
        while self.written < self.answer.len() {
            match self.stream.write(&self.answer[self.written..]) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads the available bytes; `true` at the empty line, at the end of the stream, or when the head is too long.
    fn read_head(&mut self) -> std::io::Result<bool> {
        let mut chunk = [0; 512];
        loop {
            // If the head is too long, only its first bytes are used: they contain the method and the path.
            if self.head.len() >= MAX_REQUEST_BYTES || self.head.windows(4).any(|end| end == b"\r\n\r\n") {
                return Ok(true);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(true),
                Ok(read) => self.head.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }
}

fn answer_request(head: &[u8], is_loopback: bool, render: &impl Fn() -> String) -> Vec<u8> {
    // A request may contain any bytes; damaged text matches no route.
    let text = String::from_utf8_lossy(head);
    let mut words = text.split(' ');
    let method = words.next().unwrap_or_default();
    let path = words.next().unwrap_or_default().split('?').next().unwrap_or_default();
    match (method, path) {
        _ if is_from_web_page(&text, is_loopback) => format_response(
            "403 Forbidden",
            "requests from web pages are refused; use this machine's address or `localhost` in the URL\n",
        ),
        ("GET", "/metrics") => format_response("200 OK", &render()),
        ("GET", _) => format_response("404 Not Found", "not found; the metrics are at /metrics\n"),
        _ => format_response("405 Method Not Allowed", "only GET is allowed\n"),
    }
}

fn format_response(status: &str, body: &str) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {MEDIA_TYPE}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body.as_bytes()].concat()
}

/// Returns whether a browser sent the request for a page of another origin. On the loopback interface, a
/// request for another host name than `localhost` counts, too (DNS rebinding).
fn is_from_web_page(head: &str, is_loopback: bool) -> bool {
    let headers = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    headers.into_iter().any(|(name, value)| {
        let value = value.trim();
        match name.trim().to_ascii_lowercase().as_str() {
            // Scrapers send no such header; browsers send it with requests of scripts.
            "origin" => true,
            "sec-fetch-site" => !matches!(value, "none" | "same-origin"),
            // On other interfaces any host name is accepted: the user may have given the machine any name.
            "host" => is_loopback && !is_address_or_localhost(value),
            _ => false,
        }
    })
}

/// Returns whether a host is an address or `localhost`, with or without a port.
fn is_address_or_localhost(host: &str) -> bool {
    let without_port = host.rsplit_once(':').map_or(host, |(name, _)| name);
    // Both forms are tried, because the last group of a bare IPv6 address looks like a port.
    is_address_text(host) || is_address_text(without_port) || without_port.eq_ignore_ascii_case("localhost")
}

fn is_address_text(text: &str) -> bool {
    text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok()
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
    fn metrics_responder_serves_text_and_refuses_others() {
        let local = "127.0.0.1:0".parse().unwrap();
        let responder = MetricsResponder::start_serving(local, || "a_total 1\n".into()).unwrap();
        let address = responder.address();
        let text = ask(address, b"GET /metrics HTTP/1.1\r\nHost: localhost:9100\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\na_total 1\n"), "{text}");
        assert!(ask(address, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask(address, b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(
            ask(address, &[b'x'; 2 * MAX_REQUEST_BYTES][..MAX_REQUEST_BYTES]).starts_with("HTTP/1.1 405 ")
        );
        assert!(ask(address, b"GET /metrics?a=b HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
        let twice = MetricsResponder::start_serving(address, String::new);
        assert!(matches!(twice, Err(Error::Metrics { .. })));
    }

    #[test]
    fn connections_that_say_nothing_keep_no_scraper_waiting() {
        let responder =
            MetricsResponder::start_serving("127.0.0.1:0".parse().unwrap(), || "a_total 1\n".into()).unwrap();
        let idle: Vec<_> =
            (0..4 * MAX_CONNECTIONS).map(|_| TcpStream::connect(responder.address()).unwrap()).collect();
        for _ in 0..10 {
            assert!(ask(responder.address(), b"GET /metrics HTTP/1.1\r\n\r\n").contains("a_total 1"));
        }
        drop(idle);
    }

    #[test]
    fn metrics_wildcard_listener_refuses_foreign_host_header() {
        let responder =
            MetricsResponder::start_serving("0.0.0.0:0".parse().unwrap(), || "a_total 1\n".into()).unwrap();
        let local = SocketAddr::from(([127, 0, 0, 1], responder.address().port()));
        let found = ask(local, b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n");
        assert!(found.starts_with("HTTP/1.1 403"), "{found}");
        let found = ask(local, b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        assert!(found.contains(" 200 OK"), "{found}");
    }

    #[test]
    fn web_pages_are_kept_out() {
        let responder =
            MetricsResponder::start_serving("127.0.0.1:0".parse().unwrap(), || "a_total 1\n".into()).unwrap();
        let with = |header: &str| {
            ask(responder.address(), format!("GET /metrics HTTP/1.1\r\n{header}\r\n\r\n").as_bytes())
        };
        for ours in [
            "Host: 127.0.0.1:9100",
            "host: [::1]:9100",
            "Host: ::1",
            "Host: LOCALHOST",
            "Sec-Fetch-Site: none",
        ] {
            assert!(with(ours).starts_with("HTTP/1.1 200 "), "{ours}");
        }
        for foreign in
            ["Host: evil.example", "Host: evil.example:9100", "Origin: null", "Sec-Fetch-Site: cross-site"]
        {
            assert!(with(foreign).starts_with("HTTP/1.1 403 "), "{foreign}");
        }
        // On other interfaces host names are accepted.
        assert!(!is_from_web_page("GET / HTTP/1.1\r\nHost: meter.example\r\n\r\n", false));
    }
}
