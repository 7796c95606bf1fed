//! What an export is told, and what of it cannot be.

use super::target::ExportTarget;
use packetrig_flow::export::{AnnouncedInterface, ExportFormat, ExportOptions, TemplateRefresh};
use packetrig_flow::sim::{PAYLOAD_V4, PAYLOAD_V6, SimOptions};
use packetrig_units::Nanos;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportContent {
    Records(ExportFormat),
    /// A line for every packet.
    Sim,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of authorities, or the collector's own.
    pub authorities: PathBuf,
    /// Our own certificate and its key, if the collector asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the collector's certificate, if it is not the host of the target.
    pub server_name: Option<String>,
}

/// A target and what it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportDestination {
    pub target: ExportTarget,
    pub content: ExportContent,
}

#[derive(Clone, Debug)]
pub struct MeterExport {
    /// Where to, and what. Each gets everything.
    pub destinations: Vec<ExportDestination>,
    /// Observation domain, and exporter of SIM.
    pub domain: u32,
    /// Both directions in one record, where the format can (RFC 5103).
    pub biflow: bool,
    /// Every how many packets one is metered.
    pub sampling: u32,
    pub interfaces: Vec<AnnouncedInterface>,
    /// Greatest length of a message; what fits the transport if it is not said.
    pub message_bytes: Option<usize>,
    /// When templates are sent again over UDP.
    pub refresh: TemplateRefresh,
    /// How often the ledger is sent.
    pub statistics_every: Nanos,
    /// How long a record waits for others to fill its message.
    pub flush_after: Nanos,
    /// What may wait for one slow or dead target, bytes of memory.
    pub backlog_bytes: usize,
    /// How long the end waits for a target that does not take what is left.
    pub linger: Nanos,
    /// For `tls://`.
    pub tls: Option<TlsFiles>,
}

impl Default for MeterExport {
    fn default() -> Self {
        Self {
            destinations: Vec::new(),
            domain: 1,
            biflow: false,
            sampling: 1,
            interfaces: Vec::new(),
            message_bytes: None,
            refresh: ExportOptions::OFTEN,
            statistics_every: Nanos::from_secs(10),
            flush_after: Nanos::from_millis(200),
            backlog_bytes: 64 << 20,
            linger: Nanos::from_secs(5),
            tls: None,
        }
    }
}

impl MeterExport {
    /// How the messages of one destination are made.
    pub(super) fn of_records(&self, format: ExportFormat, target: &ExportTarget, v6: bool) -> ExportOptions {
        ExportOptions {
            format,
            domain: self.domain,
            message_bytes: self.bytes(target, v6),
            biflow: self.biflow,
            refresh: if target.is_stream() { TemplateRefresh::OnConnection } else { self.refresh },
            statistics_every: self.statistics_every,
            flush_after: self.flush_after,
            sampling: self.sampling,
            interfaces: self.interfaces.clone(),
        }
    }

    /// The same of SIM.
    pub(super) fn of_sim(&self, target: &ExportTarget, v6: bool) -> SimOptions {
        let datagram_bytes = self.bytes(target, v6);
        SimOptions { exporter: self.domain, datagram_bytes, flush_after: self.flush_after }
    }

    fn bytes(&self, target: &ExportTarget, v6: bool) -> usize {
        let usual = match target {
            ExportTarget::Udp(_) if v6 => PAYLOAD_V6,
            ExportTarget::Udp(_) => PAYLOAD_V4,
            _ => ExportOptions::STREAM_BYTES,
        };
        self.message_bytes.unwrap_or(usual)
    }
}
