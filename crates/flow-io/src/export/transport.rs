//! Transports for messages: datagrams, connections, files. Calls block, with short limits; each target
//! has a separate thread.

mod file;
mod stream;
mod tls;
mod udp;

use super::deadline::SendDeadline;
use super::target::ExportTarget;
use super::{Error, TlsFiles};
use crate::backpressure::OutputReachability;
use file::FileSink;
use std::io;
use stream::CollectorStream;
use udp::UdpSender;

/// Reasons why a message was not sent.
#[derive(Debug)]
pub(super) enum UnsentMessageReason {
    /// This message is lost, and templates that were in it or before it have to be sent again.
    Refused(io::Error),
    /// The connection is gone; the message may be sent again on a new connection.
    Gone(io::Error),
}

/// The transport to one target.
#[derive(Debug)]
pub(super) enum TargetTransport {
    Udp(UdpSender),
    Stream(Box<CollectorStream>),
    File(FileSink),
}

impl TargetTransport {
    /// Opens the local part (socket or file) and reports its errors. The connection to a collector is made later, and
    /// again if it breaks.
    pub(super) fn new(target: &ExportTarget, tls: Option<&TlsFiles>) -> Result<Self, Error> {
        Ok(match target {
            ExportTarget::Udp(place) => Self::Udp(UdpSender::open_socket(place)?),
            ExportTarget::Tcp(place) => Self::Stream(Box::new(CollectorStream::new_plain(place.clone()))),
            ExportTarget::Tls(place) => {
                let tls = tls.ok_or_else(|| Error::NoAuthorities { target: target.to_string() })?;
                Self::Stream(Box::new(CollectorStream::new_encrypted(place.clone(), tls)?))
            }
            ExportTarget::File(path) => Self::File(FileSink::create_file(path)?),
        })
    }

    /// Reports whether the transport sends over IPv6, as far as that is known before a connection.
    pub(super) fn is_v6(&self) -> bool {
        matches!(self, Self::Udp(udp) if udp.is_v6())
    }

    /// State of the target before the first connection.
    pub(super) const fn initial_reach(&self) -> OutputReachability {
        match self {
            Self::Stream(_) => OutputReachability::Unreachable,
            // A datagram socket or a file has no connection that could be missing.
            Self::Udp(_) | Self::File(_) => OutputReachability::Local,
        }
    }

    /// Returns the reason why the last attempt to connect failed, and forgets it.
    pub(super) fn take_failure(&mut self) -> Option<String> {
        if let Self::Stream(stream) = self { stream.take_failure() } else { None }
    }

    /// Returns the ICMP error with which the receiver refused the last datagram, and forgets it. `None`
    /// for connections and files.
    pub(super) fn take_refusal(&self) -> Option<io::Error> {
        if let Self::Udp(udp) = self { udp.take_refusal() } else { None }
    }

    /// Connects if there is no connection; returns whether there is one now. Blocks for up to some seconds for each
    /// address of the target's name.
    pub(super) fn ensure_connected(&mut self, end_ns: u64) -> bool {
        match self {
            Self::Stream(stream) => stream.ensure_connected(end_ns),
            Self::Udp(_) | Self::File(_) => true,
        }
    }

    /// Sends a whole message. Gives up at the deadline if the collector accepts no data.
    pub(super) fn send_message(
        &mut self,
        message: &[u8],
        deadline: &SendDeadline,
    ) -> Result<(), UnsentMessageReason> {
        match self {
            Self::Udp(udp) => udp.send_datagram(message),
            Self::Stream(stream) => stream.send_message(message, deadline),
            Self::File(file) => file.append_message(message),
        }
    }

    /// If the connection has ended, gives it up and returns the reason. `None` for datagrams and files.
    pub(super) fn take_end_reason(&mut self) -> Option<io::Error> {
        if let Self::Stream(stream) = self { stream.take_end_reason() } else { None }
    }

    /// Bytes that were written to this connection; zero for datagrams and files.
    pub(super) fn written_bytes(&self) -> u64 {
        if let Self::Stream(stream) = self { stream.written_bytes() } else { 0 }
    }

    /// Written bytes that the collector's machine has acknowledged.
    pub(super) fn acknowledged_bytes(&self) -> u64 {
        if let Self::Stream(stream) = self { stream.acknowledged_bytes() } else { 0 }
    }

    pub(super) fn close_connection(&mut self) {
        if let Self::Stream(stream) = self {
            // Datagrams and files have nothing to close: each message is whole when it is written.
            stream.close_connection();
        }
    }
}
