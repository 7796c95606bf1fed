//! Streams that come to this node from other nodes, and the differences between their senders' clocks
//! and this node's clock.
//!
//! This module only computes. A changed plan is used as soon as the change is final, so that the latency of an added
//! stream is measured from its first frame.

use packetrig_engine::stream::ClockShift;
use packetrig_plan::{Plan, Stream};
use packetrig_report::{NodeName, PortPlace};
use packetrig_stats::clock::ClockFit;
use packetrig_units::MonoTime;

#[derive(Debug)]
pub(crate) struct RemoteStreams {
    own: NodeName,
    places: Vec<PortPlace>,
    /// Indices of the streams, with the nodes that send them.
    streams: Vec<(usize, NodeName)>,
    /// Latest comparisons of the nodes' clocks with the controller's.
    fits: Vec<(NodeName, ClockFit)>,
}

impl Default for RemoteStreams {
    fn default() -> Self {
        Self::from_plan(&Plan::default(), Vec::new(), NodeName::local())
    }
}

impl RemoteStreams {
    /// Finds the streams that other nodes send to `own`.
    pub(crate) fn from_plan(plan: &Plan, places: Vec<PortPlace>, own: NodeName) -> Self {
        let streams = find_remote_streams(plan, &places, &own);
        Self { own, places, streams, fits: Vec::new() }
    }

    /// Replaces the comparisons of the nodes' clocks.
    pub(crate) fn update_clock_fits(&mut self, fits: Vec<(NodeName, ClockFit)>) {
        self.fits = fits;
    }

    /// Finds the remote streams of a plan that has grown.
    pub(crate) fn apply_grown_plan(&mut self, plan: &Plan) {
        self.streams = find_remote_streams(plan, &self.places, &self.own);
    }

    /// Returns the index of each remote stream, with the shift at `now` between its sender's clock
    /// and this node's clock.
    pub(crate) fn clock_shifts(&self, own: &ClockFit, now: MonoTime) -> Vec<(usize, ClockShift)> {
        let streams = self.streams.iter();
        let shifts = streams.filter_map(|(stream, node)| {
            // A sender without a clock comparison gets no shift: packetrig does not guess its clock.
            let sender = self.fits.iter().find(|(name, _)| name == node)?;
            Some((*stream, compute_clock_shift(own, &sender.1, now)))
        });
        shifts.collect()
    }
}

/// Finds the streams that other nodes send to `own`, with the sending nodes.
fn find_remote_streams(plan: &Plan, places: &[PortPlace], own: &NodeName) -> Vec<(usize, NodeName)> {
    let all = plan.streams.iter().enumerate();
    all.filter_map(|(index, stream)| Some((index, find_remote_sender(stream, places, own)?))).collect()
}

/// Returns the node that sends a stream, if `own` receives the stream and another node sends it.
fn find_remote_sender(stream: &Stream, places: &[PortPlace], own: &NodeName) -> Option<NodeName> {
    let sender = &places.get(stream.tx)?.node;
    let mut receivers = stream.rx.iter().filter_map(|port| places.get(*port));
    (sender != own && receivers.any(|place| place.node == *own)).then(|| sender.clone())
}

/// Computes the shift between a receiver's and a sender's clock from the comparison of each with the controller's
/// clock. `now` is a time on the receiver's clock; the shift is exact near it.
fn compute_clock_shift(receiver: &ClockFit, sender: &ClockFit, now: MonoTime) -> ClockShift {
    // Both fits relate a clock to the controller's clock. Their difference at a time of that clock relates the two
    // clocks.
    let lead = receiver.clock_lead_over(sender, receiver.to_controller(now));
    ClockShift { at: now, offset_ns: lead.offset_ns, rate_ppb: lead.rate_ppb }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_plan::PlanParseOptions;

    fn plan(flows: &[(&str, &str)]) -> Plan {
        let flow = |(tx, rx): &(&str, &str)| {
            format!("{{name: {tx}{rx}, tx_rx: {{choice: port, port: {{tx_name: {tx}, rx_names: [{rx}]}}}}}}")
        };
        let flows: Vec<String> = flows.iter().map(flow).collect();
        let ports = "[{name: a, location: east/a}, {name: b, location: west/b}]";
        let document = format!("{{ports: {ports}, flows: [{}]}}", flows.join(", "));
        Plan::from_text_with(&document, PlanParseOptions { fleet: true, ..PlanParseOptions::default() })
            .unwrap()
    }

    #[test]
    fn added_remote_stream_gets_known_clock_shift() {
        let place = |node: &str| PortPlace { node: NodeName(node.into()), interface: "eth1".into() };
        let west = NodeName("west".into());
        let mut foreign =
            RemoteStreams::from_plan(&plan(&[("b", "a")]), vec![place("east"), place("west")], west);
        let east = ClockFit { offset_ns: 5_000, ..ClockFit::same_clock() };
        foreign.update_clock_fits(vec![(NodeName("east".into()), east)]);
        let of = |foreign: &RemoteStreams| {
            let shifts = foreign.clock_shifts(&ClockFit::same_clock(), MonoTime::from_nanos(1));
            shifts.into_iter().map(|(stream, shift)| (stream, shift.offset_ns)).collect::<Vec<_>>()
        };
        assert_eq!(of(&foreign), []);
        foreign.apply_grown_plan(&plan(&[("b", "a"), ("a", "b")]));
        assert_eq!(of(&foreign), [(1, -5_000)]);
    }
}
