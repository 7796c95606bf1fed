//! Options of an export, and their conversion to the options of the encoders.

use super::target::ExportTarget;
use crate::group::GroupOptions;
use packetrig_flow::export::{AnnouncedInterface, ExportFormat, ExportOptions, TemplateRefresh};
use packetrig_flow::sim::{MAX_PAYLOAD_V4, MAX_PAYLOAD_V6, SimOptions};
use packetrig_units::Nanos;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportContent {
    Records(ExportFormat),
    /// An event for each packet, in packetrig's own format SIM.
    Sim,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// File with the certificates of trusted authorities, or with the collector's own certificate.
    pub authorities: PathBuf,
    /// Files of the exporter's certificate and key, if the collector asks for a certificate.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the collector's certificate, if it is not the host of the target.
    pub server_name: Option<String>,
}

/// An export target, and what is sent to it: flow records or SIM events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportDestination {
    pub target: ExportTarget,
    pub content: ExportContent,
}

/// Options of a meter in a group in which one meter exports for all.
#[derive(Clone, Debug)]
pub struct GroupExport {
    pub member: GroupOptions,
    /// Memory for the batches that a standby keeps, in bytes.
    pub keep_bytes: usize,
    /// Time until the meter recognises which flows began before it started.
    pub ready_after: Nanos,
}

#[derive(Clone, Debug)]
pub struct MeterExport {
    /// The targets. Each target gets all flows.
    pub destinations: Vec<ExportDestination>,
    /// Observation domain ID (RFC 7011); in SIM, the number of the exporter.
    pub domain: u32,
    /// True if one record contains both directions of a flow, where the format can do that (RFC 5103).
    pub biflow: bool,
    /// True if records contain the totals of their flows since the flows began, as a group of meters needs them. A
    /// record then contains both directions.
    pub has_history: bool,
    /// One packet in this many is metered.
    pub sampling: u32,
    pub interfaces: Vec<AnnouncedInterface>,
    /// Greatest length of a message; by default the largest that fits the transport.
    pub message_bytes: Option<usize>,
    /// Rule for sending templates again over UDP.
    pub refresh: TemplateRefresh,
    /// Interval at which the ledger is sent.
    pub statistics_every: Nanos,
    /// Time that a record waits for further records to fill its message.
    pub flush_after: Nanos,
    /// Memory for batches that wait for one slow or dead target, in bytes.
    pub backlog_bytes: usize,
    /// Time that the export waits at the end for a target that accepts no data.
    pub linger: Nanos,
    /// Certificates for `tls://` targets.
    pub tls: Option<TlsFiles>,
    /// Group in which one meter exports for all; `None` if this meter exports all the time.
    pub group: Option<GroupExport>,
}

impl Default for MeterExport {
    fn default() -> Self {
        Self {
            destinations: Vec::new(),
            domain: 1,
            biflow: false,
            has_history: false,
            sampling: 1,
            interfaces: Vec::new(),
            message_bytes: None,
            refresh: ExportOptions::DEFAULT_UDP_REFRESH,
            statistics_every: Nanos::from_secs(10),
            flush_after: Nanos::from_millis(200),
            backlog_bytes: 64 << 20,
            linger: Nanos::from_secs(5),
            tls: None,
            group: None,
        }
    }
}

impl MeterExport {
    /// Returns the options of the record encoder for one target.
    pub(super) fn record_options(
        &self,
        format: ExportFormat,
        target: &ExportTarget,
        v6: bool,
    ) -> ExportOptions {
        ExportOptions {
            format,
            domain: self.domain,
            message_bytes: self.message_limit(target, v6),
            // A history counts both directions, so they must be in one record.
            biflow: self.biflow || self.has_history,
            has_routes: false,
            has_history: self.has_history,
            // RFC 7011, section 8: over TCP templates are sent once per connection. Only UDP needs refreshes.
            refresh: if target.is_stream() { TemplateRefresh::OnConnection } else { self.refresh },
            statistics_every: self.statistics_every,
            flush_after: self.flush_after,
            sampling: self.sampling,
            interfaces: self.interfaces.clone(),
        }
    }

    /// Returns the options of the SIM encoder for one target.
    pub(super) fn sim_options(&self, target: &ExportTarget, v6: bool) -> SimOptions {
        let datagram_bytes = self.message_limit(target, v6);
        // SIM distinguishes exporters by a number; the observation domain serves as this number.
        SimOptions { exporter: self.domain, datagram_bytes, flush_after: self.flush_after }
    }

    fn message_limit(&self, target: &ExportTarget, v6: bool) -> usize {
        // A datagram must fit the MTU of Ethernet: one lost fragment would lose all of its records.
        let usual = match target {
            ExportTarget::Udp(_) if v6 => MAX_PAYLOAD_V6,
            ExportTarget::Udp(_) => MAX_PAYLOAD_V4,
            _ => ExportOptions::STREAM_BYTES,
        };
        self.message_bytes.unwrap_or(usual)
    }
}
