//! Records with which one controller tells the next about nodes: the ports of each node, and the time
//! of its last hello.
//!
//! A node that is switched off sends no hello. With its record, a plan for the whole fleet can still report
//! that it is missing.

use crate::hello::{NodeHello, OfferedPort, ProtocolVersion};
use serde::{Deserialize, Serialize};

/// A record of this age is written again even if only the time of the hello has changed.
const RECORD_REWRITE_AGE_NS: u64 = 60_000_000_000;

/// State of a node, from its last hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownNode {
    pub labels: Vec<String>,
    pub ports: Vec<OfferedPort>,
    /// Version of packetrig on the node.
    pub version: String,
    /// Version of the node's messages.
    pub protocol: ProtocolVersion,
    /// Time of the node's last hello, nanoseconds since 1970 (UTC).
    pub heard_at: u64,
}

impl KnownNode {
    /// Builds the record of a node from its current hello.
    pub fn from_hello(hello: &NodeHello, wall_clock_ns: u64) -> Self {
        Self {
            labels: hello.labels.clone(),
            ports: hello.ports.clone(),
            version: hello.version.clone(),
            protocol: hello.protocol,
            heard_at: wall_clock_ns,
        }
    }

    /// True if this record should replace the stored record `before`: it differs, or `before` is old.
    pub fn should_replace(&self, before: &Self) -> bool {
        let same = Self { heard_at: before.heard_at, ..self.clone() };
        // If every change of the time were written, each node of the fleet would cause a write every second.
        same != *before || self.heard_at > before.heard_at.saturating_add(RECORD_REWRITE_AGE_NS)
    }

    /// Converts the record to a hello. Facts that the record does not contain are empty, also the incarnation.
    pub(crate) fn to_hello(&self) -> NodeHello {
        NodeHello {
            labels: self.labels.clone(),
            ports: self.ports.clone(),
            version: self.version.clone(),
            protocol: self.protocol,
            ..NodeHello::default()
        }
    }
}
