//! A client of the HTTP API of `packetrig serve` or `packetrig page` on this machine.

use packetrig_sys::clock;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;

const PATIENCE_NS: u64 = 60_000_000_000;
const LOOK_NS: u64 = 20_000_000;

/// Calls the server at this port, without encryption.
#[derive(Debug)]
pub struct PageClient {
    pub port: u16,
}

impl PageClient {
    pub fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn get(&self, path: &str) -> Value {
        let answer = self.request("GET", path, "");
        serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{path} is not JSON: {answer}"))
    }

    /// The first answer for which `condition` holds: a result is stored after the end of its run was answered.
    pub fn await_get(&self, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let deadline = clock::monotonic_ns() + PATIENCE_NS;
        loop {
            let answer = self.get(path);
            if condition(&answer) {
                return answer;
            }
            assert!(clock::monotonic_ns() < deadline, "{path} never fits: {answer}");
            clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
        }
    }

    pub fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.request("POST", path, &body.to_string());
        serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{path} is not JSON: {answer}"))
    }

    /// The body of an answer that must be a success.
    pub fn request(&self, method: &str, path: &str, body: &str) -> String {
        let (status, answer) = self.answer(method, path, body);
        assert_eq!(status, 200, "{method} {path}: {answer}");
        answer
    }

    /// Status and body of an answer.
    pub fn answer(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = self.send(method, path, body);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the server answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, body.to_owned())
    }

    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server listens");
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n",
            self.port
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("it reads");
        stream
    }
}
