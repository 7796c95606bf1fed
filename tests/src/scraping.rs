//! Reads the metrics of a program, as Prometheus does.

use crate::program::Running;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Looks at the metrics until a line is there: the program must say so by itself, and how soon is not a matter of a test.
const LOOKS: u32 = 3_000;
const LOOK: Duration = Duration::from_millis(10);

/// Address at which a program that was started with `--metrics` serves them. Waits until it says so.
pub fn await_metrics(program: &mut Running) -> String {
    program.await_remark("/metrics");
    metrics_address(program)
}

/// The same, of a program that has said so.
pub fn metrics_address(program: &Running) -> String {
    let said = program.remarks();
    let address = said.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    address.unwrap_or_else(|| panic!("no address in {said}")).to_owned()
}

/// The answer to one request.
pub fn scrape(address: &str) -> String {
    let mut text = String::new();
    let asked = TcpStream::connect(address).and_then(|mut stream| {
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
        stream.read_to_string(&mut text)
    });
    asked.unwrap_or_else(|error| panic!("{address}: {error}"));
    text
}

/// Scrapes until the text has this line; returns the text.
pub fn await_line(address: &str, line: &str) -> String {
    let mut text = String::new();
    for _ in 0..LOOKS {
        text = scrape(address);
        if text.lines().any(|found| found == line) {
            return text;
        }
        std::thread::sleep(LOOK);
    }
    panic!("no line `{line}` in {text}")
}
