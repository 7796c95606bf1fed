//! Sends stored records as IPFIX messages, at the pace at which the caller passes the records in.
//!
//! In contrast to a meter's export, this sender may wait: a connection that accepts data slowly slows the sender down.
//! Over UDP, datagrams that the kernel refuses are lost and counted.
//!
//! Invariant: each record is in a message that was sent or refused, once [`RecordSender::finish_sending`] has returned
//! without an error.

use crate::export::{ExportTarget, HostPort};
use packetrig_flow::export::{ExportMessage, ExportOptions, MessageExporter, MessageSink, TemplateRefresh};
use packetrig_flow::{CarriedRecords, FlowRecord};
use packetrig_sys::private_files;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};

/// Counts of a [`RecordSender`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ResentCounts {
    pub sent: CarriedRecords,
    /// Records in datagrams that the kernel refused.
    pub refused: CarriedRecords,
    pub messages: u64,
    pub message_bytes: u64,
}

/// Encodes records and sends the messages to one target.
#[derive(Debug)]
pub struct RecordSender {
    exporter: MessageExporter,
    outlet: ResendOutput,
}

/// Errors of a [`RecordSender`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResendError {
    #[error("cannot send to {target}")]
    Target { target: String, source: io::Error },
    #[error("cannot send stored records to {0} over TLS; use udp://HOST:PORT, tcp://HOST:PORT or file:PATH")]
    Tls(String),
}

#[derive(Debug)]
enum MessageTarget {
    Datagrams(UdpSocket),
    Stream(TcpStream),
    File(File),
}

#[derive(Debug)]
struct ResendOutput {
    target: MessageTarget,
    counts: ResentCounts,
    /// The first failure of a stream or file: nothing more can be written to it.
    failure: Option<io::Error>,
    /// The last refusal of a datagram.
    refusal: Option<io::Error>,
}

impl RecordSender {
    /// Opens the target. With `biflow`, a record contains both directions of a flow.
    pub fn open_target(target: &ExportTarget, domain: u32, biflow: bool) -> Result<Self, ResendError> {
        let opened = match target {
            ExportTarget::Udp(place) => open_socket(place).map(MessageTarget::Datagrams),
            ExportTarget::Tcp(place) => {
                TcpStream::connect((place.host.as_str(), place.port)).map(MessageTarget::Stream)
            }
            ExportTarget::File(path) => private_files::create_file(path).map(MessageTarget::File),
            ExportTarget::Tls(_) => return Err(ResendError::Tls(target.to_string())),
        };
        let opened = opened.map_err(|source| ResendError::Target { target: target.to_string(), source })?;
        let is_stream = target.is_stream();
        let options = ExportOptions {
            domain,
            biflow,
            has_routes: true,
            message_bytes: if is_stream {
                ExportOptions::STREAM_BYTES
            } else {
                ExportOptions::DATAGRAM_BYTES
            },
            refresh: if is_stream {
                TemplateRefresh::OnConnection
            } else {
                ExportOptions::DEFAULT_UDP_REFRESH
            },
            ..ExportOptions::default()
        };
        let counts = ResentCounts::default();
        let outlet = ResendOutput { target: opened, counts, failure: None, refusal: None };
        Ok(Self { exporter: MessageExporter::new(options), outlet })
    }

    /// Adds a record, and sends the message if it is full. `now_ns` is in nanoseconds since 1970.
    pub fn send_record(&mut self, record: &FlowRecord, now_ns: u64) -> io::Result<()> {
        self.exporter.add_record(record, now_ns, &mut self.outlet);
        self.outlet.take_failure()
    }

    /// Sends the incomplete message if it has waited long enough for further records.
    pub fn send_waiting_message(&mut self, now_ns: u64) -> io::Result<()> {
        self.exporter.send_due_messages(now_ns, &mut self.outlet);
        self.outlet.take_failure()
    }

    /// Sends the incomplete message and syncs a file to the disk. Returns the counts with the text of the last refusal.
    pub fn finish_sending(mut self, now_ns: u64) -> io::Result<(ResentCounts, Option<String>)> {
        self.exporter.flush_message(now_ns, &mut self.outlet);
        self.outlet.take_failure()?;
        if let MessageTarget::File(file) = &mut self.outlet.target {
            file.sync_all()?;
        }
        Ok((self.outlet.counts, self.outlet.refusal.map(|refusal| refusal.to_string())))
    }
}

fn open_socket(place: &HostPort) -> io::Result<UdpSocket> {
    let mut found = (place.host.as_str(), place.port).to_socket_addrs()?;
    let address = found.next().ok_or_else(|| io::Error::other("the name has no address"))?;
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    // Only a connected socket reports ICMP errors, such as that no program listens there.
    socket.connect(address)?;
    Ok(socket)
}

impl ResendOutput {
    fn take_failure(&mut self) -> io::Result<()> {
        self.failure.take().map_or(Ok(()), Err)
    }
}

impl MessageSink for ResendOutput {
    fn on_message(&mut self, message: ExportMessage<'_>) {
        if self.failure.is_some() {
            return;
        }
        let written = match &mut self.target {
            MessageTarget::Datagrams(socket) => socket.send(message.bytes).map(drop),
            MessageTarget::Stream(stream) => stream.write_all(message.bytes),
            MessageTarget::File(file) => file.write_all(message.bytes),
        };
        match written {
            Ok(()) => {
                self.counts.sent.add_records(message.carried);
                self.counts.messages += 1;
                self.counts.message_bytes += message.bytes.len() as u64;
            }
            // A refused datagram is lost; the kernel may accept the next one.
            Err(error) if matches!(self.target, MessageTarget::Datagrams(_)) => {
                self.counts.refused.add_records(message.carried);
                self.refusal = Some(error);
            }
            Err(error) => self.failure = Some(error),
        }
    }
}
