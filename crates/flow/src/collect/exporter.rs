//! Who exports, and what a message is written in.

use super::{MalformedMessage, ipfix, netflow5, netflow9};
use crate::sim;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageTransport {
    Udp,
    Tcp,
    Tls,
    File,
}

/// Where messages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MessageSource {
    pub address: IpAddr,
    /// Its port; of a file, the number of the file.
    pub port: u16,
    pub transport: MessageTransport,
}

/// What messages are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExportProtocol {
    Ipfix,
    /// NetFlow version 9.
    NetFlow9,
    /// NetFlow version 5.
    NetFlow5,
    Sim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExporterIdentity {
    /// Where its messages come from.
    #[serde(flatten)]
    pub source: MessageSource,
    /// What they are written in.
    pub protocol: ExportProtocol,
    /// Observation domain, source id, or engine type and number.
    pub domain: u32,
}

impl ExporterIdentity {
    /// No exporter is less in order.
    pub(super) const LEAST: Self = Self {
        source: MessageSource {
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port: 0,
            transport: MessageTransport::Udp,
        },
        protocol: ExportProtocol::Ipfix,
        domain: 0,
    };
}

impl ExportProtocol {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipfix => "ipfix",
            Self::NetFlow9 => "netflow9",
            Self::NetFlow5 => "netflow5",
            Self::Sim => "sim",
        }
    }
}

impl MessageTransport {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::File => "file",
        }
    }
}

/// What a message is written in, and its domain.
pub(super) fn head(message: &[u8]) -> Result<(ExportProtocol, u32), MalformedMessage> {
    let found = message.len();
    let short = |needed| MalformedMessage::Short { found, needed };
    let word = |at: usize, needed: usize| {
        let bytes = message.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>());
        bytes.map(|bytes| u32::from_be_bytes(*bytes)).ok_or_else(|| short(needed))
    };
    if message.starts_with(&sim::MAGIC) {
        return Ok((ExportProtocol::Sim, word(8, sim::HEADER)?));
    }
    let version = message.first_chunk::<2>().ok_or_else(|| short(2))?;
    match u16::from_be_bytes(*version) {
        5 => Ok((ExportProtocol::NetFlow5, word(20, netflow5::HEADER)? >> 16)),
        9 => Ok((ExportProtocol::NetFlow9, word(16, netflow9::HEADER)?)),
        10 => Ok((ExportProtocol::Ipfix, word(12, ipfix::HEADER)?)),
        version => Err(MalformedMessage::Version(version)),
    }
}

/// How long the message is that a stream goes on with; `None` until its first bytes are there. Only IPFIX and SIM say so.
pub fn message_length(stream: &[u8]) -> Result<Option<usize>, MalformedMessage> {
    let Some(start) = stream.first_chunk::<6>() else { return Ok(None) };
    let word = |at: usize| u16::from_be_bytes([start[at], start[at + 1]]);
    let (found, needed) = if start.starts_with(&sim::MAGIC) {
        (word(4), sim::HEADER)
    } else if word(0) == 10 {
        (word(2), ipfix::HEADER)
    } else {
        return Err(MalformedMessage::Version(word(0)));
    };
    let found = usize::from(found);
    if found < needed { Err(MalformedMessage::Short { found, needed }) } else { Ok(Some(found)) }
}
