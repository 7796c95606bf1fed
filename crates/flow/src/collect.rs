//! Decodes messages of flow exporters, of packetrig's own and of others, into flow records.
//!
//! ```text
//!  datagram or framed message -> Collector -> Session (one per exporter, domain and protocol)
//!                                               |- sequence   lost, late, duplicated, restarted
//!                                               |- templates  kept, replaced, withdrawn, expired
//!                                               |- waiting    data before its template
//!                                               '- draft      fields -> FlowRecord
//! ```
//! It reads IPFIX (RFC 7011, reverse fields of RFC 5103), NetFlow v9 (RFC 3954), NetFlow v5, sFlow v5 and SIM;
//! [`FlowGatherer`] makes records of SIM's packets. It opens no socket: the crate `flow-io` receives the messages. It
//! neither scales sampled counts up nor joins the several records of one flow.
//!
//! Invariant: any bytes are accepted as input. The memory kept for all exporters together is bounded, whatever
//! they send. The work is proportional to the bytes of the input. [`SessionCounts`] counts every unit that an
//! exporter numbers (records, packets, flows, datagrams or events, by protocol): as decoded, skipped
//! (`over_budget`), `lost` or `untold`.

mod addresses;
mod allowed;
mod collector;
mod counts;
mod draft;
mod exporter;
mod gather;
mod group;
mod ipfix;
mod malformed;
mod meaning;
mod memory;
mod netflow5;
mod netflow9;
mod options;
mod place;
mod reader;
mod received;
mod sampling;
mod sequence;
mod session;
mod sets;
mod sflow;
mod sim;
mod table;
mod template;
#[cfg(test)]
mod tests;
mod waiting;

pub use allowed::{ExporterList, ExporterNetwork, ExporterNetworkError};
pub use collector::{CollectorOptions, FlowCollector, ForgottenExporters, RefusedMessages};
pub use counts::{SESSION_COUNTS, SessionCount, SessionCounts};
pub use exporter::{
    ExportProtocol, ExporterIdentity, MessageSource, MessageTransport, SequenceNumbers, message_length,
    sender_network,
};
pub use gather::{FlowGatherer, GatherOptions};
pub use group::{GroupCounts, GroupOptions, GroupRecordJoiner, GroupSwitch, MeterCounts};
pub use malformed::MalformedMessage;
pub use options::ReportedLosses;
pub use place::{FieldPlace, field_place};
pub use received::{ReceivedMessage, SessionOptions};
pub use session::ExportSession;
pub use sflow::InterfaceCounters;
