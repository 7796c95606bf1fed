//! Options of a session, and the items that it hands out.

use super::options::ReportedLosses;
use crate::record::FlowRecord;
use crate::sim::SimEvent;
use packetrig_units::Nanos;

/// Bounds of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Maximum number of templates that are kept.
    pub templates: usize,
    /// Maximum number of fields of all kept templates together.
    pub template_fields: usize,
    /// Lifetime of a template that is not repeated; `None` on connections, where a template is valid until it is withdrawn.
    pub template_life: Option<Nanos>,
    /// Maximum memory for data that came before its template, in bytes, overhead included.
    pub hold_bytes: usize,
    /// Time for which waiting data is kept.
    pub hold: Nanos,
    /// Time at which the clock of `now_ns` was zero, nanoseconds since 1970. sFlow has no clock of its own, so its
    /// records get the time of arrival.
    pub epoch_ns: u64,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            templates: 1024,
            template_fields: 16 * 1024,
            template_life: Some(Nanos::from_secs(3600)),
            // Enough for an exporter with 10 000 records a second until its templates are due again.
            hold_bytes: 16 << 20,
            hold: Nanos::from_secs(600),
            epoch_ns: 0,
        }
    }
}

/// An item that a message contained, or an observation about the message.
#[derive(Clone, Debug, PartialEq)]
pub enum ReceivedMessage {
    Record(FlowRecord),
    /// A packet or a new flow, of SIM.
    Sim(SimEvent),
    /// The exporter's numbers about itself.
    Statistics(Box<ReportedLosses>),
    /// Units that are missing according to the exporter's sequence numbers; some may still come.
    Gap {
        units: u32,
    },
    /// The exporter restarted, so its numbers begin again.
    Restart,
}

impl ReceivedMessage {
    /// Returns whether the exporter sent the item itself. The others are observations about its messages.
    pub const fn is_delivery(&self) -> bool {
        matches!(self, Self::Record(_) | Self::Sim(_) | Self::Statistics(_))
    }
}
