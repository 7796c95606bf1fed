//! What is kept of a node from one controller to the next: which ports it had, and when it was heard.
//!
//! A node that is switched off says nothing, and a plan for the whole fleet has to miss it all the same.

use crate::hello::{NodeHello, OfferedPort, ProtocolVersion};
use serde::{Deserialize, Serialize};

/// Heard again later than this, it is written down anew although nothing else has changed.
const WORTH_WRITING_NS: u64 = 60_000_000_000;

/// A node as it last was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownNode {
    pub labels: Vec<String>,
    pub ports: Vec<OfferedPort>,
    /// Version of packetrig there.
    pub version: String,
    /// Form of its messages.
    pub protocol: ProtocolVersion,
    /// When it was heard, nanoseconds since 1970 (UTC).
    pub heard_at: u64,
}

impl KnownNode {
    /// What a node says of itself now.
    pub fn of(hello: &NodeHello, wall_clock_ns: u64) -> Self {
        Self {
            labels: hello.labels.clone(),
            ports: hello.ports.clone(),
            version: hello.version.clone(),
            protocol: hello.protocol,
            heard_at: wall_clock_ns,
        }
    }

    /// Whether this should replace the record kept `before`.
    pub fn is_news(&self, before: &Self) -> bool {
        let same = Self { heard_at: before.heard_at, ..self.clone() };
        same != *before || self.heard_at > before.heard_at.saturating_add(WORTH_WRITING_NS)
    }

    /// The same as a hello, without an incarnation.
    pub(crate) fn hello(&self) -> NodeHello {
        NodeHello {
            labels: self.labels.clone(),
            ports: self.ports.clone(),
            version: self.version.clone(),
            protocol: self.protocol,
            ..NodeHello::default()
        }
    }
}
