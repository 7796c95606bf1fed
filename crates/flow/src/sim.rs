//! SIM, summaries of information: a line for every packet, and one for every new flow.

use crate::key::FlowKey;

/// What is to be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimEvent {
    /// A flow was opened; reported before its first packet.
    Flow {
        /// Its number.
        flow_id: u64,
        /// Its key, as its first packet has it.
        key: FlowKey,
        /// When, nanoseconds since 1970.
        at_ns: u64,
    },
    /// A packet.
    Packet {
        /// Number of its flow.
        flow_id: u64,
        /// Length of the IP packet.
        bytes: u32,
        /// When, nanoseconds since 1970.
        at_ns: u64,
    },
}
