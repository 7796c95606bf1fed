//! The rows of all nodes' results, by what they are about.
//!
//! A report looks up each stream and port many times. Searching all results each time would take quadratic time in the size of
//! the fleet. If several rows are about one thing, the first counts, in the order of the results.

use packetrig_stats::result::{MisdeliveredFrames, NodeResult, PortResult, ReceiveResult, SendResult};
use std::collections::HashMap;

#[derive(Debug, Default)]
pub(super) struct ResultLookup<'a> {
    senders: HashMap<usize, (&'a NodeResult, &'a SendResult)>,
    /// By stream and port.
    receivers: HashMap<(usize, usize), (&'a NodeResult, &'a ReceiveResult)>,
    ports: HashMap<usize, &'a PortResult>,
    misdelivered: HashMap<usize, Vec<&'a MisdeliveredFrames>>,
    nodes: HashMap<&'a str, &'a NodeResult>,
}

impl<'a> ResultLookup<'a> {
    pub(super) fn of(results: &'a [NodeResult]) -> Self {
        let mut lookup = Self::default();
        for node in results {
            lookup.nodes.entry(&node.node).or_insert(node);
            for row in &node.send {
                lookup.senders.entry(row.stream).or_insert((node, row));
            }
            for row in &node.receive {
                lookup.receivers.entry((row.stream, row.port)).or_insert((node, row));
            }
            for row in &node.ports {
                lookup.ports.entry(row.port).or_insert(row);
            }
            for row in &node.misdelivered {
                lookup.misdelivered.entry(row.stream).or_default().push(row);
            }
        }
        lookup
    }

    pub(super) fn sender(&self, stream: usize) -> Option<(&'a NodeResult, &'a SendResult)> {
        self.senders.get(&stream).copied()
    }

    pub(super) fn receiver(&self, stream: usize, port: usize) -> Option<(&'a NodeResult, &'a ReceiveResult)> {
        self.receivers.get(&(stream, port)).copied()
    }

    pub(super) fn port(&self, port: usize) -> Option<&'a PortResult> {
        self.ports.get(&port).copied()
    }

    /// Frames of a stream at ports that did not expect them.
    pub(super) fn misdelivered(&self, stream: usize) -> &[&'a MisdeliveredFrames] {
        self.misdelivered.get(&stream).map_or(&[], Vec::as_slice)
    }

    pub(super) fn node(&self, name: &str) -> Option<&'a NodeResult> {
        self.nodes.get(name).copied()
    }
}
