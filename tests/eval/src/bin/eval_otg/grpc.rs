//! As much of a gRPC client as asking for the metrics of all flows takes: HTTP/2 on one connection, headers uncompressed.
//! It judges an answer by its rows, and reads no headers that come back.

use anyhow::{bail, ensure};
use std::io::{Read, Write};
use std::net::TcpStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// What the server may send in all before it is told of more: enough for an evaluation.
const ROOM: u32 = (1 << 31) - 1 - 65_535;
/// `GetMetricsRequest { metrics_request: { choice: flow } }` in its five bytes of gRPC.
const REQUEST: [u8; 9] = [0, 0, 0, 0, 4, 0x0a, 2, 0x08, 2];

pub(crate) struct Grpc {
    stream: TcpStream,
    next: u32,
    head: Vec<u8>,
}

impl Grpc {
    pub(crate) fn connect(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/otg.Openapi/GetMetrics"),
            (":authority", address),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        let mut client = Self { stream, next: 1, head: fields.iter().flat_map(literal).collect() };
        client.stream.write_all(PREFACE)?;
        // Initial window of streams: the largest.
        client.send(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff])?;
        client.send(WINDOW, 0, 0, &ROOM.to_be_bytes())?;
        Ok(client)
    }

    /// Metrics of all flows, as they came.
    pub(crate) fn flow_metrics(&mut self) -> anyhow::Result<Vec<u8>> {
        let stream = self.next;
        self.next += 2;
        let head = self.head.clone();
        self.send(HEADERS, END_HEADERS, stream, &head)?;
        self.send(DATA, END_STREAM, stream, &REQUEST)?;
        let mut answer = Vec::new();
        loop {
            let (kind, flags, of, payload) = self.receive()?;
            match kind {
                SETTINGS if flags & ACK == 0 => self.send(SETTINGS, ACK, 0, &[])?,
                PING if flags & ACK == 0 => self.send(PING, ACK, 0, &payload)?,
                RESET | GO_AWAY => bail!("the server gave up: {payload:?}"),
                DATA if of == stream => answer.extend(payload),
                _ => {}
            }
            if of == stream && matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
                return Ok(answer);
            }
        }
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> anyhow::Result<()> {
        let length = u32::try_from(payload.len())?.to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        Ok(self.stream.write_all(&frame)?)
    }

    fn receive(&mut self) -> anyhow::Result<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        ensure!(length <= 1 << 20, "a frame of {length} B");
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload)?;
        Ok((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
    }
}

/// A field that is not to be remembered, name and value as they are (RFC 7541, 6.2.2); both shorter than 127 B.
fn literal((name, value): &(&str, &str)) -> Vec<u8> {
    let text = |text: &str| {
        let length = u8::try_from(text.len()).unwrap_or(126);
        [&[length], text.as_bytes()].concat()
    };
    [vec![0], text(name), text(value)].concat()
}
