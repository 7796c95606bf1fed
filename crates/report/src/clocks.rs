//! Compares the clocks at the two ends of a stream, and adds a caveat if the latency is unknown because the
//! clocks were not compared.

use super::lookup::{StreamReceiver, StreamSender};
use super::streams::StreamFindings;
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_stats::result::NodeResult;
use packetrig_units::Nanos;
use std::collections::BTreeSet;

/// Relation of the clocks of a stream's sender and receivers: one clock, two compared clocks, or unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamClocks {
    One,
    /// Two compared clocks, with the largest error of the comparison.
    Apart(Nanos),
    Unknown,
}

/// Largest error of a node's estimate of the controller's time during the run; `None` if it is unknown.
pub(super) fn largest_clock_error(node: &NodeResult) -> Option<Nanos> {
    let clock = node.clock.as_ref()?;
    let from = clock.before.to_controller(node.started);
    // The error grows with the time since the comparison, so its maximum over the whole run is taken.
    let to = clock.before.to_controller(node.ended.max(node.started));
    clock.largest_error_between(from, to)
}

impl StreamFindings<'_> {
    pub(super) fn compare_clocks(self, stream: usize, rows: &[StreamReceiver<'_>]) -> StreamClocks {
        let Some(StreamSender { node: sender, .. }) = self.sender_of(stream) else {
            return StreamClocks::Unknown;
        };
        // Receivers on the sender's node read the sender's clock.
        let apart = rows.iter().filter(|receiver| receiver.node.node != sender.node);
        let errors: Option<Vec<Nanos>> = apart
            .map(|receiver| Some(largest_clock_error(sender)? + largest_clock_error(receiver.node)?))
            .collect();
        errors.map_or(StreamClocks::Unknown, |errors| {
            // The largest error counts, because one latency figure covers all receivers.
            errors.into_iter().max().map_or(StreamClocks::One, StreamClocks::Apart)
        })
    }

    /// Returns a caveat for each stream whose latency is unknown because the clocks of their nodes were not compared.
    pub(super) fn list_clock_caveats(self) -> Vec<Caveat> {
        let streams = self.plan.streams.iter().enumerate().filter(|(_, stream)| stream.metrics.latency);
        streams.filter_map(|(index, stream)| self.find_clock_caveat(index, &stream.name)).collect()
    }

    fn find_clock_caveat(self, index: usize, name: &str) -> Option<Caveat> {
        let rows = self.receivers_of(index);
        let sender = self.sender_of(index)?.node.node.as_str();
        if self.compare_clocks(index, &rows) != StreamClocks::Unknown {
            return None;
        }
        let others: BTreeSet<&str> = rows.iter().map(|receiver| receiver.node.node.as_str()).collect();
        let others: Vec<&str> = others.into_iter().filter(|node| *node != sender).collect();
        Some(Caveat {
            doubt: CaveatKind::Clock,
            subject: name.to_owned(),
            text: format!(
                "no latency: the offset between the clocks of its sender ({sender}) and receiver ({}) is not known",
                others.join(", ")
            ),
            matters: false,
        })
    }
}
