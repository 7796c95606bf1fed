//! A client of the API over HTTP/1.1 on one connection that stays open: what a script's session is.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

pub(crate) struct Http {
    stream: BufReader<TcpStream>,
    address: String,
}

impl Http {
    pub(crate) fn connect(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| address.to_owned())?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), address: address.to_owned() })
    }

    /// A call; anything but 200 is an error with what was said.
    pub(crate) fn call(&mut self, path: &str, body: &str) -> anyhow::Result<Vec<u8>> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        self.stream.get_mut().write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
        let (status, answer) = self.answer()?;
        ensure!(status.contains(" 200 "), "{path}: {status}: {}", String::from_utf8_lossy(&answer));
        Ok(answer)
    }

    fn answer(&mut self) -> anyhow::Result<(String, Vec<u8>)> {
        let status = self.line()?;
        let mut length = 0;
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(text) = line.strip_prefix("content-length:") {
                length = text.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok((status, body))
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        ensure!(self.stream.read_line(&mut line)? > 0, "the server closed the connection");
        Ok(line.trim_end().to_owned())
    }

    pub(crate) fn set_config(&mut self, config: &str) -> anyhow::Result<()> {
        self.call("/config", config).map(drop)
    }

    /// `start`, `stop`: of all flows.
    pub(crate) fn transmit(&mut self, state: &str) -> anyhow::Result<()> {
        let state = json!({"choice": "traffic", "traffic": {
            "choice": "flow_transmit", "flow_transmit": {"state": state}}});
        self.call("/control/state", &state.to_string()).map(drop)
    }

    /// Metrics of all flows, as they came.
    pub(crate) fn flow_metrics(&mut self) -> anyhow::Result<Vec<u8>> {
        self.call("/monitor/metrics", r#"{"choice":"flow","flow":{}}"#)
    }

    /// Rows of all flows.
    pub(crate) fn flows(&mut self) -> anyhow::Result<Vec<Value>> {
        let answer: Value = serde_json::from_slice(&self.flow_metrics()?)?;
        answer["flow_metrics"].as_array().cloned().context("no flow metrics")
    }
}
