//! `/metrics`: answers scrapers over HTTP, and does nothing else.
//!
//! One thread and a bounded number of connections, one request on each, a bounded one, for a bounded time; `GET /metrics` and
//! nothing more. When all are taken, the oldest is closed. It is plain HTTP without any authentication, so it is for the
//! loopback interface unless the user says otherwise; there, pages of a browser are kept out, which could reach it by a name of
//! their own.
//!
//! Invariant: the thread ends with the [`MetricsResponder`], waits for no peer, and holds nothing that a peer can make grow.

use crate::Error;
use packetrig_sys::clock;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of a request that are read.
const MOST: usize = 4096;
/// How long a peer may take, in nanoseconds.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Connections at a time.
const MOST_CONNECTIONS: usize = 32;
/// How often to look whether it is over, and whether somebody has come.
const LOOK: Duration = Duration::from_millis(50);
/// The same while connections are open.
const LOOK_CLOSELY: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct MetricsResponder {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsResponder {
    /// Listens from now on; `render` makes the text.
    pub fn start(address: SocketAddr, render: impl Fn() -> String + Send + 'static) -> Result<Self, Error> {
        let failed = |source| Error::Metrics { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let stop = Arc::<AtomicBool>::default();
        let seen = Arc::clone(&stop);
        let serve = move || {
            let mut connections = MetricsConnections { listener, render, open: VecDeque::new() };
            while !seen.load(Ordering::Acquire) {
                connections.serve_once();
                std::thread::sleep(if connections.open.is_empty() { LOOK } else { LOOK_CLOSELY });
            }
        };
        let thread =
            std::thread::Builder::new().name("metrics".into()).spawn(serve).map_err(Error::Thread)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsResponder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It holds nothing whose loss in a panic would matter.
            thread.join().unwrap_or(());
        }
    }
}

/// Everybody who is asking.
struct MetricsConnections<R> {
    listener: TcpListener,
    render: R,
    open: VecDeque<MetricsRequest>,
}

impl<R: Fn() -> String> MetricsConnections<R> {
    /// Takes new connections, and goes on with each as far as it goes without waiting.
    fn serve_once(&mut self) {
        // As many as there are places, so that the loop ends whoever floods it.
        for _ in 0..MOST_CONNECTIONS {
            let Ok((stream, _)) = self.listener.accept() else { break };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.open.len() == MOST_CONNECTIONS {
                self.open.pop_front();
            }
            self.open.push_back(MetricsRequest::new(stream));
        }
        let now_ns = clock::monotonic_ns();
        let render = &self.render;
        // A peer that goes away in between is its own affair.
        self.open.retain_mut(|scrape| now_ns < scrape.until_ns && !scrape.advance(render).unwrap_or(true));
    }
}

/// One connection: its request so far, then its answer so far.
struct MetricsRequest {
    stream: TcpStream,
    head: Vec<u8>,
    answer: Vec<u8>,
    written: usize,
    until_ns: u64,
}

impl MetricsRequest {
    fn new(stream: TcpStream) -> Self {
        let until_ns = clock::monotonic_ns() + PATIENCE_NS;
        Self { stream, head: Vec::new(), answer: Vec::new(), written: 0, until_ns }
    }

    /// Goes on; true when the answer is out.
    fn advance(&mut self, render: &impl Fn() -> String) -> std::io::Result<bool> {
        if self.answer.is_empty() {
            if !self.read_head()? {
                return Ok(false);
            }
            // Where this connection came in, also of a listener at all addresses.
            let is_loopback = self.stream.local_addr()?.ip().to_canonical().is_loopback();
            self.answer = answer(&self.head, is_loopback, render);
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

    /// Reads what is there; true at the empty line, at the end, or when it is too long.
    fn read_head(&mut self) -> std::io::Result<bool> {
        let mut chunk = [0; 512];
        loop {
            if self.head.len() >= MOST || self.head.windows(4).any(|end| end == b"\r\n\r\n") {
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

fn answer(head: &[u8], is_loopback: bool, render: &impl Fn() -> String) -> Vec<u8> {
    let text = String::from_utf8_lossy(head);
    let mut words = text.split(' ');
    let method = words.next().unwrap_or_default();
    let path = words.next().unwrap_or_default().split('?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        _ if is_from_a_page(&text, is_loopback) => {
            ("403 Forbidden", "web pages may not ask here; call it by its address\n".to_owned())
        }
        ("GET", "/metrics") => ("200 OK", render()),
        ("GET", _) => ("404 Not Found", "there is /metrics here\n".to_owned()),
        _ => ("405 Method Not Allowed", "GET is what can be asked here\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body.as_bytes()].concat()
}

/// Whether a browser asks for a page of another origin, or, on the loopback interface, for a name that somebody made point here.
fn is_from_a_page(head: &str, is_loopback: bool) -> bool {
    let headers = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    headers.into_iter().any(|(name, value)| {
        let value = value.trim();
        match name.trim().to_ascii_lowercase().as_str() {
            "origin" => true,
            "sec-fetch-site" => !matches!(value, "none" | "same-origin"),
            "host" => is_loopback && !is_own_name(value),
            _ => false,
        }
    })
}

/// An address or `localhost`, with or without a port.
fn is_own_name(host: &str) -> bool {
    let without_port = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let bare = |name: &str| name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    bare(host) || bare(without_port) || without_port.eq_ignore_ascii_case("localhost")
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
        let responder = MetricsResponder::start(local, || "a_total 1\n".into()).unwrap();
        let address = responder.address();
        let text = ask(address, b"GET /metrics HTTP/1.1\r\nHost: localhost:9100\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\na_total 1\n"), "{text}");
        assert!(ask(address, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask(address, b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(ask(address, &[b'x'; 2 * MOST][..MOST]).starts_with("HTTP/1.1 405 "));
        assert!(ask(address, b"GET /metrics?a=b HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
        let twice = MetricsResponder::start(address, String::new);
        assert!(matches!(twice, Err(Error::Metrics { .. })));
    }

    #[test]
    fn connections_that_say_nothing_keep_no_scraper_waiting() {
        let responder =
            MetricsResponder::start("127.0.0.1:0".parse().unwrap(), || "a_total 1\n".into()).unwrap();
        let idle: Vec<_> =
            (0..4 * MOST_CONNECTIONS).map(|_| TcpStream::connect(responder.address()).unwrap()).collect();
        for _ in 0..10 {
            assert!(ask(responder.address(), b"GET /metrics HTTP/1.1\r\n\r\n").contains("a_total 1"));
        }
        drop(idle);
    }

    #[test]
    fn a_name_that_leads_to_this_machine_is_refused_also_where_all_addresses_listen() {
        let responder =
            MetricsResponder::start("0.0.0.0:0".parse().unwrap(), || "a_total 1\n".into()).unwrap();
        let local = SocketAddr::from(([127, 0, 0, 1], responder.address().port()));
        let found = ask(local, b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n");
        assert!(found.starts_with("HTTP/1.1 403"), "{found}");
        let found = ask(local, b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        assert!(found.contains(" 200 OK"), "{found}");
    }

    #[test]
    fn web_pages_are_kept_out() {
        let responder =
            MetricsResponder::start("127.0.0.1:0".parse().unwrap(), || "a_total 1\n".into()).unwrap();
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
        // Elsewhere names are as good as addresses.
        assert!(!is_from_a_page("GET / HTTP/1.1\r\nHost: meter.example\r\n\r\n", false));
    }
}
