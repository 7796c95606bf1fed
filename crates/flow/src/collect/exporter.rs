//! Identifies the exporter and the protocol of a message.

use super::sflow::{self, DatagramHeader};
use super::{MalformedMessage, ipfix, netflow5, netflow9};
use crate::sim;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageTransport {
    Udp,
    Tcp,
    Tls,
    File,
}

/// Address, port and transport that messages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MessageSource {
    pub address: IpAddr,
    /// Port of the sender; for a file, the number of the file.
    pub port: u16,
    pub transport: MessageTransport,
}

/// Returns the address that stands for a sender when memory and exporters are counted for each address. An IPv6 address
/// counts as its /64, because one host can have all addresses of a /64.
pub fn sender_network(address: IpAddr) -> IpAddr {
    // A socket for both versions reports an IPv4 sender as a mapped address, which is the same sender.
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address @ IpAddr::V4(_) => address,
    }
}

/// Protocol of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExportProtocol {
    Ipfix,
    NetFlow9,
    NetFlow5,
    Sim,
    #[serde(rename = "sflow")]
    SFlow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExporterIdentity {
    /// Address, port and transport of the exporter's messages.
    #[serde(flatten)]
    pub source: MessageSource,
    /// Protocol of the exporter's messages.
    pub protocol: ExportProtocol,
    /// Observation domain (IPFIX), source id (NetFlow v9), engine type and number (NetFlow v5), sub-agent (sFlow)
    /// or exporter number (SIM).
    pub domain: u32,
    /// The agent that a datagram of sFlow names, if it is not the sender: a proxy sends for several agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<IpAddr>,
}

/// Sequence numbers of an exporter, in the unit of its protocol. They wrap at 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceNumbers {
    /// Number of the first message received.
    pub first: u32,
    /// Number that is expected next.
    pub next: u32,
}

impl ExporterIdentity {
    /// An identity that sorts before all others, for searches of a range.
    pub(super) const SMALLEST_IDENTITY: Self = Self {
        source: MessageSource {
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port: 0,
            transport: MessageTransport::Udp,
        },
        protocol: ExportProtocol::Ipfix,
        domain: 0,
        agent: None,
    };

    /// Returns the address of the machine that metered: of the sFlow agent if a proxy sent the message,
    /// otherwise of the sender.
    pub fn address(&self) -> IpAddr {
        self.agent.unwrap_or(self.source.address)
    }
}

impl ExportProtocol {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipfix => "ipfix",
            Self::NetFlow9 => "netflow9",
            Self::NetFlow5 => "netflow5",
            Self::Sim => "sim",
            Self::SFlow => "sflow",
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

/// Protocol, observation domain and sFlow agent of a message.
pub(super) struct MessageHead {
    pub(super) protocol: ExportProtocol,
    pub(super) domain: u32,
    pub(super) agent: Option<IpAddr>,
}

impl MessageHead {
    const fn new(protocol: ExportProtocol, domain: u32) -> Self {
        Self { protocol, domain, agent: None }
    }
}

pub(super) fn read_head(message: &[u8]) -> Result<MessageHead, MalformedMessage> {
    // The check for `SIM` comes first: read as a version, its first two bytes are far above any real version.
    if message.starts_with(&sim::SIM_DATAGRAM_MAGIC) {
        return Ok(MessageHead::new(ExportProtocol::Sim, read_word(message, 8, sim::HEADER)?));
    }
    // The version of sFlow has 32 bits: its first half, zero, is no version of the other protocols.
    if message.starts_with(&sflow::VERSION) {
        let DatagramHeader { agent, sub_agent, .. } = sflow::read_header(message)?;
        return Ok(MessageHead { protocol: ExportProtocol::SFlow, domain: sub_agent, agent });
    }
    let short = MalformedMessage::Short { found: message.len(), needed: 2 };
    let version = u16::from_be_bytes(*message.first_chunk::<2>().ok_or(short)?);
    Ok(match version {
        // NetFlow 5 distinguishes the exporters of one source by engine type and engine number, a byte each.
        5 => {
            let domain = read_word(message, 20, netflow5::HEADER)? >> 16;
            MessageHead::new(ExportProtocol::NetFlow5, domain)
        }
        9 => MessageHead::new(ExportProtocol::NetFlow9, read_word(message, 16, netflow9::HEADER)?),
        10 => MessageHead::new(ExportProtocol::Ipfix, read_word(message, 12, ipfix::HEADER)?),
        version => return Err(MalformedMessage::Version(version)),
    })
}

/// Reads a word of 32 bits at position `at` of a header that should have `needed` bytes. Fails if the message ends
/// before the word does.
fn read_word(message: &[u8], at: usize, needed: usize) -> Result<u32, MalformedMessage> {
    let bytes = message.get(at..).and_then(|bytes| bytes.first_chunk());
    bytes
        .map(|bytes| u32::from_be_bytes(*bytes))
        .ok_or(MalformedMessage::Short { found: message.len(), needed })
}

/// Returns the length of the message at the front of a stream, in bytes; `None` until its first six bytes have arrived.
/// Fails for protocols other than IPFIX and SIM, which do not state the length of a message.
pub fn message_length(stream: &[u8]) -> Result<Option<usize>, MalformedMessage> {
    // IPFIX has its length at byte 2, SIM at byte 4: six bytes are enough for both.
    let Some(start @ &[v0, v1, i0, i1, s0, s1]) = stream.first_chunk::<6>() else { return Ok(None) };
    let version = u16::from_be_bytes([v0, v1]);
    if start.starts_with(&sim::SIM_DATAGRAM_MAGIC) {
        check_length(u16::from_be_bytes([s0, s1]), sim::HEADER)
    } else if version == 10 {
        check_length(u16::from_be_bytes([i0, i1]), ipfix::HEADER)
    } else {
        Err(MalformedMessage::Version(version))
    }
}

/// Checks that a stated message length covers at least the header. With a length of 0, the reader would stay at
/// this message for ever.
fn check_length(stated: u16, needed: usize) -> Result<Option<usize>, MalformedMessage> {
    let found = usize::from(stated);
    if found < needed { Err(MalformedMessage::Short { found, needed }) } else { Ok(Some(found)) }
}
