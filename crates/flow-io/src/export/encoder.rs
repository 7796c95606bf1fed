//! A common interface to the encoders of records and of SIM.

use super::accounts::BatchContent;
use crate::batch::WorkerBatch;
use packetrig_flow::CarriedRecords;
use packetrig_flow::GroupMembership;
use packetrig_flow::MeterLedger;
use packetrig_flow::export::{MessageExporter, MessageSink};
use packetrig_flow::sim::SimEncoder;
use packetrig_units::Nanos;

/// Encodes the messages of one target.
#[derive(Debug)]
pub(super) enum TargetEncoder {
    Records(Box<MessageExporter>),
    Sim { encoder: Box<SimEncoder>, ledger_every: Nanos, ledger_ns: Option<u64> },
}

impl TargetEncoder {
    pub(super) const fn content(&self) -> BatchContent {
        match self {
            Self::Records(_) => BatchContent::Records,
            Self::Sim { .. } => BatchContent::Sim,
        }
    }

    /// Encodes a batch. The dispatcher gives each encoder only batches of its content.
    pub(super) fn encode_batch(&mut self, batch: &WorkerBatch, now_ns: u64, sink: &mut impl MessageSink) {
        match (self, batch) {
            (Self::Records(exporter), WorkerBatch::Records(records)) => {
                for record in records {
                    exporter.add_record(record, now_ns, sink);
                }
            }
            (Self::Sim { encoder, .. }, WorkerBatch::Sim(events)) => {
                for event in events {
                    encoder.add_event(event, now_ns, sink);
                }
            }
            // Not reached: the accounts give each target only batches of its content.
            _ => {}
        }
    }

    pub(super) fn is_ledger_due(&self, now_ns: u64) -> bool {
        match self {
            Self::Records(exporter) => exporter.is_statistics_due(now_ns),
            Self::Sim { ledger_every, ledger_ns, .. } => {
                ledger_ns.is_none_or(|sent_ns| now_ns.saturating_sub(sent_ns) >= ledger_every.as_u64())
            }
        }
    }

    pub(super) fn encode_ledger(&mut self, ledger: &MeterLedger, now_ns: u64, sink: &mut impl MessageSink) {
        match self {
            Self::Records(exporter) => exporter.add_statistics(ledger, now_ns, sink),
            Self::Sim { encoder, ledger_ns, .. } => {
                *ledger_ns = Some(now_ns);
                encoder.add_ledger(ledger, now_ns, sink);
            }
        }
    }

    /// Encodes the group membership. Only IPFIX can carry it; SIM has no item for it.
    pub(super) fn encode_membership(
        &mut self,
        membership: &GroupMembership,
        now_ns: u64,
        sink: &mut impl MessageSink,
    ) {
        if let Self::Records(exporter) = self {
            exporter.add_membership(membership, now_ns, sink);
        }
    }

    pub(super) fn send_due_messages(&mut self, now_ns: u64, sink: &mut impl MessageSink) {
        match self {
            Self::Records(exporter) => exporter.send_due_messages(now_ns, sink),
            Self::Sim { encoder, .. } => encoder.flush_if_due(now_ns, sink),
        }
    }

    pub(super) fn flush_messages(&mut self, now_ns: u64, sink: &mut impl MessageSink) {
        match self {
            Self::Records(exporter) => exporter.flush_message(now_ns, sink),
            Self::Sim { encoder, .. } => encoder.flush_datagram(sink),
        }
    }

    /// Announces the templates, because the target can be reached. `anew` is true for a new connection, and false
    /// for a file or socket that works again.
    pub(super) fn announce_templates(&mut self, anew: bool, now_ns: u64, sink: &mut impl MessageSink) {
        match self {
            // Templates and sequence numbers belong to one connection (RFC 7011, sections 8 and 3.1), so a
            // new connection starts from the beginning.
            Self::Records(exporter) if anew => exporter.on_reconnect(now_ns, sink),
            Self::Records(exporter) => exporter.announce_templates_first(now_ns, sink),
            Self::Sim { .. } => {}
        }
    }

    pub(super) fn renumber_message(&mut self, message: &mut [u8], step: u32) {
        if let Self::Records(exporter) = self {
            exporter.renumber_message(message, step);
        }
    }

    pub(super) fn unfit_records(&self) -> CarriedRecords {
        match self {
            Self::Records(exporter) => exporter.unfit_records(),
            Self::Sim { .. } => CarriedRecords::default(),
        }
    }
}
