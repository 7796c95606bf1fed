//! Options of an export.

use super::announce::AnnouncedInterface;
use packetrig_units::Nanos;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExportFormat {
    /// IPFIX, RFC 7011.
    #[default]
    Ipfix,
    /// NetFlow 9, RFC 3954.
    NetFlow9,
    NetFlow5,
}

impl ExportFormat {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipfix => "ipfix",
            Self::NetFlow9 => "netflow9",
            Self::NetFlow5 => "netflow5",
        }
    }

    /// Returns whether messages of the format state their length, so that they can follow each other in a
    /// stream or a file.
    pub const fn states_message_length(self) -> bool {
        matches!(self, Self::Ipfix)
    }

    /// Returns whether one record of the format can hold both directions (RFC 5103).
    pub(crate) const fn has_biflow(self) -> bool {
        matches!(self, Self::Ipfix)
    }
}

/// When templates are sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateRefresh {
    /// Templates are repeated, because datagrams get lost and collectors restart.
    Every {
        /// Longest time between repetitions.
        time: Nanos,
        /// Largest number of messages between repetitions.
        messages: u32,
    },
    /// Templates are sent once on a connection, and once in a file.
    OnConnection,
}

/// Options of an exporter.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    pub format: ExportFormat,
    /// Observation domain; for NetFlow 9 the source ID, for NetFlow 5 the type and number of the engine.
    pub domain: u32,
    /// Maximum length of a message, in bytes.
    pub message_bytes: usize,
    /// True to write both directions into one record, if the format can. Otherwise each direction is a
    /// record of its own.
    pub biflow: bool,
    /// Interval at which templates, names and sampling are repeated.
    pub refresh: TemplateRefresh,
    /// Interval at which the ledger is sent.
    pub statistics_every: Nanos,
    /// Maximum time for which a record waits for further records to fill its message.
    pub flush_after: Nanos,
    /// Sampling interval: one of this many packets is metered; 1: all.
    pub sampling: u32,
    /// True if records contain the history of their flows, as a group of meters needs it. Only
    /// [IPFIX](ExportFormat::Ipfix) with both directions in one record can carry it.
    pub has_history: bool,
    /// True if records may have fields of other exporters. Records with such fields have templates of their own.
    pub has_routes: bool,
    /// Names of the interfaces that records refer to.
    pub interfaces: Vec<AnnouncedInterface>,
}

impl ExportOptions {
    /// Message length with which an IP packet has at most 1500 bytes, over IPv4 or IPv6.
    pub const DATAGRAM_BYTES: usize = 1500 - 40 - 8;
    /// Message length for streams and files.
    pub const STREAM_BYTES: usize = 16_384;
    /// Minimum of the message length: a message must have room for any template and the longest record.
    pub(crate) const LEAST_BYTES: usize = 512;

    /// Returns whether a message that was opened at `opened_ns` has waited for `flush_after`.
    pub(crate) const fn is_flush_due(&self, opened_ns: u64, now_ns: u64) -> bool {
        now_ns.saturating_sub(opened_ns) >= self.flush_after.as_u64()
    }

    /// Default interval at which templates are repeated over UDP.
    pub const DEFAULT_UDP_REFRESH: TemplateRefresh =
        TemplateRefresh::Every { time: Nanos::from_secs(10), messages: 4096 };
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self {
            format: ExportFormat::default(),
            domain: 1,
            message_bytes: Self::DATAGRAM_BYTES,
            biflow: false,
            refresh: Self::DEFAULT_UDP_REFRESH,
            statistics_every: Nanos::from_secs(10),
            flush_after: Nanos::from_secs(1),
            sampling: 1,
            has_history: false,
            has_routes: false,
            interfaces: Vec::new(),
        }
    }
}
