//! Writes records as messages of IPFIX (RFC 7011), NetFlow 9 (RFC 3954) and NetFlow 5, and the exporter's own records:
//! templates, names, sampling, the ledger.
//!
//! ```text
//!  FlowRecord -> Exporter: shape -> template -> open message ==full, old, or asked==> MessageSink
//!                           templates and options, when due -^
//! ```
//! The module sends nothing: it passes messages to a [`MessageSink`] and gets times as arguments. The encoders allocate
//! nothing per record: a template is a list of sections, each with its fields and the code that writes them.
//!
//! Invariant: every record is in the open message, or in messages passed to the sink, or it was counted as
//! [unfit](MessageExporter::unfit_records), because the format cannot carry it.

mod announce;
mod exporter;
mod netflow5;
mod open;
mod options;
pub(crate) mod section;
pub mod template;
pub(crate) mod write;

pub use announce::AnnouncedInterface;
pub use exporter::MessageExporter;
pub use options::{ExportFormat, ExportOptions, TemplateRefresh};

use crate::ledger::CarriedRecords;

#[derive(Clone, Copy, Debug)]
pub struct ExportMessage<'a> {
    pub bytes: &'a [u8],
    /// Flow records in the message, with their packets and bytes.
    pub carried: CarriedRecords,
    /// Number of templates and options records in the message.
    pub own_records: u64,
    /// Number by which the message advances the sequence number.
    pub step: u32,
}

pub trait MessageSink {
    fn on_message(&mut self, message: ExportMessage<'_>);
}

#[cfg(test)]
mod tests;
