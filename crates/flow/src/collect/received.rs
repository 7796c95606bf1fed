//! The options of a session, and what it hands out.

use super::options::ReportedLosses;
use crate::record::FlowRecord;
use crate::sim::SimEvent;
use packetrig_units::Nanos;

/// Bounds of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Templates that are kept, at most.
    pub templates: usize,
    /// Fields of all of them, at most.
    pub template_fields: usize,
    /// How long a template is good that is not repeated; `None` on connections, where it is good until it is withdrawn.
    pub template_life: Option<Nanos>,
    /// Memory for data that came before its template, at most, in bytes; what is around it counts.
    pub hold_bytes: usize,
    /// How long they are kept.
    pub hold: Nanos,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            templates: 1024,
            template_fields: 16 * 1024,
            template_life: Some(Nanos::from_secs(3600)),
            // What an exporter of 10 000 records a second sends until its templates are due again.
            hold_bytes: 16 << 20,
            hold: Nanos::from_secs(600),
        }
    }
}

/// What a message held.
#[derive(Clone, Debug, PartialEq)]
pub enum ReceivedMessage {
    Record(FlowRecord),
    /// A packet or a new flow, of SIM.
    Sim(SimEvent),
    /// The exporter's numbers about itself.
    Statistics(Box<ReportedLosses>),
    /// Units missing by the exporter's numbers; some may still come.
    Gap {
        units: u32,
    },
    /// The exporter restarted.
    Restart,
}

impl ReceivedMessage {
    /// Whether it is something that the exporter had to say, and not an observation about its messages.
    pub const fn is_delivery(&self) -> bool {
        matches!(self, Self::Record(_) | Self::Sim(_) | Self::Statistics(_))
    }
}
