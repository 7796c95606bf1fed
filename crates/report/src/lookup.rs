//! Finds the rows of all nodes' results by their subject: stream, port or node.
//!
//! A report looks up each stream and port many times. A search of all results each time would take quadratic time in
//! the size of the fleet. If several rows have one subject, the first row in the order of the results counts. Only rows
//! of misdelivered frames are all kept.

use packetrig_stats::result::{MisdeliveredFrames, NodeResult, PortResult, ReceiveResult, SendResult};
use std::collections::HashMap;

/// The sending end of a stream: its row, and the node result that contains the row.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamSender<'a> {
    pub(super) node: &'a NodeResult,
    pub(super) row: &'a SendResult,
}

/// A receiving end of a stream: its row, and the node result that contains the row.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamReceiver<'a> {
    pub(super) node: &'a NodeResult,
    pub(super) row: &'a ReceiveResult,
}

#[derive(Debug, Default)]
pub(super) struct ResultLookup<'a> {
    senders: HashMap<usize, StreamSender<'a>>,
    /// Receivers by stream and port.
    receivers: HashMap<(usize, usize), StreamReceiver<'a>>,
    ports: HashMap<usize, &'a PortResult>,
    misdelivered: HashMap<usize, Vec<&'a MisdeliveredFrames>>,
    nodes: HashMap<&'a str, &'a NodeResult>,
}

impl<'a> ResultLookup<'a> {
    pub(super) fn from_results(results: &'a [NodeResult]) -> Self {
        let mut lookup = Self::default();
        for node in results {
            lookup.nodes.entry(&node.node).or_insert(node);
            for row in &node.send {
                lookup.senders.entry(row.stream).or_insert(StreamSender { node, row });
            }
            for row in &node.receive {
                lookup.receivers.entry((row.stream, row.port)).or_insert(StreamReceiver { node, row });
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

    pub(super) fn sender_of(&self, stream: usize) -> Option<StreamSender<'a>> {
        self.senders.get(&stream).copied()
    }

    pub(super) fn receiver_at(&self, stream: usize, port: usize) -> Option<StreamReceiver<'a>> {
        self.receivers.get(&(stream, port)).copied()
    }

    pub(super) fn port_result(&self, port: usize) -> Option<&'a PortResult> {
        self.ports.get(&port).copied()
    }

    /// Frames of a stream at ports that did not expect them.
    pub(super) fn misdelivered_frames(&self, stream: usize) -> &[&'a MisdeliveredFrames] {
        self.misdelivered.get(&stream).map_or(&[], Vec::as_slice)
    }

    pub(super) fn node_result(&self, name: &str) -> Option<&'a NodeResult> {
        self.nodes.get(name).copied()
    }
}
