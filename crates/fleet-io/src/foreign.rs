//! Streams that come to this node from other nodes, and the relations of their senders' clocks to its own.
//!
//! Pure. It takes in a changed plan as soon as that is decided, so that the latency of an added stream is measured from its first frame.

use packetrig_engine::stream::ClockShift;
use packetrig_fleet::NodeName;
use packetrig_fleet::message::PortPlace;
use packetrig_plan::{Plan, Stream};
use packetrig_stats::clock::ClockFit;
use packetrig_units::MonoTime;

#[derive(Debug)]
pub(crate) struct ForeignFrames {
    own: NodeName,
    places: Vec<PortPlace>,
    /// Indices of the streams, with the nodes that send them.
    streams: Vec<(usize, NodeName)>,
    /// Latest comparisons of the nodes' clocks with the controller's.
    fits: Vec<(NodeName, ClockFit)>,
}

impl Default for ForeignFrames {
    fn default() -> Self {
        Self::of(&Plan::default(), Vec::new(), NodeName::local())
    }
}

impl ForeignFrames {
    /// Finds the streams that come to `own`.
    pub(crate) fn of(plan: &Plan, places: Vec<PortPlace>, own: NodeName) -> Self {
        let streams = streams(plan, &places, &own);
        Self { own, places, streams, fits: Vec::new() }
    }

    /// Takes in new comparisons of the nodes' clocks.
    pub(crate) fn learn(&mut self, fits: Vec<(NodeName, ClockFit)>) {
        self.fits = fits;
    }

    /// Takes in a plan that has grown.
    pub(crate) fn follow(&mut self, plan: &Plan) {
        self.streams = streams(plan, &self.places, &self.own);
    }

    /// The relation of each sender's clock to this node's, at `now`.
    pub(crate) fn shifts(&self, own: &ClockFit, now: MonoTime) -> Vec<(usize, ClockShift)> {
        let streams = self.streams.iter();
        let shifts = streams.filter_map(|(stream, node)| {
            let sender = self.fits.iter().find(|(name, _)| name == node)?;
            Some((*stream, shift(own, &sender.1, now)))
        });
        shifts.collect()
    }
}

/// Streams that come to `own` from other nodes, with those nodes.
fn streams(plan: &Plan, places: &[PortPlace], own: &NodeName) -> Vec<(usize, NodeName)> {
    let all = plan.streams.iter().enumerate();
    all.filter_map(|(index, stream)| Some((index, sender_elsewhere(stream, places, own)?))).collect()
}

/// The node that sends a stream, if that is another one and `own` receives it.
fn sender_elsewhere(stream: &Stream, places: &[PortPlace], own: &NodeName) -> Option<NodeName> {
    let sender = &places.get(stream.tx)?.node;
    let mut receivers = stream.rx.iter().filter_map(|port| places.get(*port));
    (sender != own && receivers.any(|place| place.node == *own)).then(|| sender.clone())
}

/// Relation of a receiver's clock to a sender's, from the comparison of each with the controller's; near `now`, which is the
/// receiver's.
fn shift(receiver: &ClockFit, sender: &ClockFit, now: MonoTime) -> ClockShift {
    // Both fits relate a clock to the controller's, so their difference at one of its times relates the two clocks.
    let lead = receiver.lead_over(sender, receiver.to_controller(now));
    ClockShift { at: now, offset_ns: lead.offset_ns, rate_ppb: lead.rate_ppb }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_plan::ReadOptions;

    fn plan(flows: &[(&str, &str)]) -> Plan {
        let flow = |(tx, rx): &(&str, &str)| {
            format!("{{name: {tx}{rx}, tx_rx: {{choice: port, port: {{tx_name: {tx}, rx_names: [{rx}]}}}}}}")
        };
        let flows: Vec<String> = flows.iter().map(flow).collect();
        let ports = "[{name: a, location: east/a}, {name: b, location: west/b}]";
        let document = format!("{{ports: {ports}, flows: [{}]}}", flows.join(", "));
        Plan::read_with(&document, ReadOptions { fleet: true, ..ReadOptions::default() }).unwrap()
    }

    #[test]
    fn what_is_added_has_a_shift_once_it_is_decided() {
        let place = |node: &str| PortPlace { node: NodeName(node.into()), interface: "eth1".into() };
        let west = NodeName("west".into());
        let mut foreign = ForeignFrames::of(&plan(&[("b", "a")]), vec![place("east"), place("west")], west);
        let east = ClockFit { offset_ns: 5_000, ..ClockFit::same() };
        foreign.learn(vec![(NodeName("east".into()), east)]);
        let of = |foreign: &ForeignFrames| {
            let shifts = foreign.shifts(&ClockFit::same(), MonoTime::from_nanos(1));
            shifts.into_iter().map(|(stream, shift)| (stream, shift.offset_ns)).collect::<Vec<_>>()
        };
        assert_eq!(of(&foreign), []);
        foreign.follow(&plan(&[("b", "a"), ("a", "b")]));
        assert_eq!(of(&foreign), [(1, -5_000)]);
    }
}
