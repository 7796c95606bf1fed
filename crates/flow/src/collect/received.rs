//! Options of a session, and the items that a session passes to its caller.

use super::options::ReportedLosses;
use crate::record::FlowRecord;
use crate::sim::SimEvent;
use packetrig_units::Nanos;

/// Limits and timeouts of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Maximum number of templates that are kept.
    pub templates: usize,
    /// Maximum number of fields of all kept templates together.
    pub template_fields: usize,
    /// Lifetime of a template that is not repeated; `None` for connections and files, where a template is valid
    /// until it is withdrawn.
    pub template_life: Option<Nanos>,
    /// Maximum memory for data that came before its template, in bytes, overhead included.
    pub hold_bytes: usize,
    /// Time for which data waits for its template before it is discarded.
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
            // Enough for the data of an exporter with 10 000 records a second, until it sends its templates again.
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
    /// A packet or a new flow that SIM reported.
    Sim(SimEvent),
    /// Losses and totals that the exporter reported about itself.
    Statistics(Box<ReportedLosses>),
    /// Units that are missing according to the exporter's sequence numbers; some may still come.
    Gap {
        units: u32,
    },
    /// The exporter restarted, so its sequence numbers begin again.
    Restart,
}

impl ReceivedMessage {
    /// Returns whether the exporter sent the item itself. Other items are observations about its messages.
    pub const fn is_delivery(&self) -> bool {
        matches!(self, Self::Record(_) | Self::Sim(_) | Self::Statistics(_))
    }
}
