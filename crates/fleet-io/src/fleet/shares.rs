//! Computes the part of a run that each of its nodes needs.
//!
//! If every node received everything, the traffic would grow with the square of the number of nodes: each of 10 000
//! nodes would read about 10 000 ports, streams and clocks.
//!
//! Invariant: a node gets all ports, streams and clock fits that concern it. Placeholders replace all other ports and
//! streams of the plan, so that indices stay the same.

use packetrig_fleet::message::{NodeReply, RunPreparation, SentTotal};
use packetrig_plan::{Plan, PlanPart, PlanPartCutter};
use packetrig_report::{NodeName, PlanHash, PortPlace};
use packetrig_stats::clock::ClockFit;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// If a plan is longer than this many bytes, each node gets only its part of the plan.
const LONG_PLAN_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct NodeRunParts {
    by_node: BTreeMap<NodeName, NodeRunPart>,
    parts: Option<DividedPlan>,
}

#[derive(Debug, Default)]
struct NodeRunPart {
    /// Indices of the node's ports.
    ports: Vec<usize>,
    /// Indices of the streams that the node receives.
    receives: BTreeSet<usize>,
    /// Nodes that send these streams.
    senders: BTreeSet<NodeName>,
}

/// A plan that is too long to be sent to every node whole.
#[derive(Debug)]
struct DividedPlan {
    hash: PlanHash,
    parts: PlanPartCutter,
    places: Vec<PortPlace>,
}

impl DividedPlan {
    fn extract_from(preparation: &mut RunPreparation) -> Option<Self> {
        if preparation.document.text().len() <= LONG_PLAN_BYTES {
            return None;
        }
        // A document that cannot be divided goes to every node as a whole.
        let parts = PlanPartCutter::from_document(preparation.document.text())?;
        let document = std::mem::take(&mut preparation.document);
        Some(Self {
            hash: PlanHash::from_document(document.text()),
            parts,
            places: std::mem::take(&mut preparation.places),
        })
    }
}

impl NodeRunParts {
    /// Computes what each node needs, from the places of the ports in the preparation. The document and the places of a
    /// long plan are moved out of the preparation, because each node gets its own part of them. Must not be used for a
    /// plan that gets more streams while it runs.
    pub(super) fn from_plan(plan: &Plan, preparation: &mut RunPreparation) -> Self {
        let places = &preparation.places;
        let mut by_node: BTreeMap<NodeName, NodeRunPart> = BTreeMap::new();
        for (port, place) in places.iter().enumerate() {
            by_node.entry(place.node.clone()).or_default().ports.push(port);
        }
        for (number, stream) in plan.streams.iter().enumerate() {
            for receiver in stream.rx.iter().filter_map(|port| places.get(*port)) {
                let share = by_node.entry(receiver.node.clone()).or_default();
                share.receives.insert(number);
                share.senders.extend(places.get(stream.tx).map(|sender| sender.node.clone()));
            }
        }
        Self { by_node, parts: DividedPlan::extract_from(preparation) }
    }

    /// Returns the preparation for `node`, with its part of the plan if the plan is divided.
    pub(super) fn build_preparation_for_node(
        &self,
        node: &NodeName,
        whole: Box<RunPreparation>,
    ) -> Box<RunPreparation> {
        // A short plan goes to every node as a whole.
        let Some(DividedPlan { hash, parts, places }) = &self.parts else { return whole };
        let own = self.by_node.get(node).map_or(&[][..], |share| &share.ports);
        let PlanPart { document, ports } = parts.cut_plan_part_for_ports(own);
        // Port indices are those of the whole plan on every node, so this list has an entry for each of its ports.
        let mut own_places = vec![PortPlace::elsewhere(); places.len()];
        for port in ports {
            own_places[port] = places[port].clone();
        }
        Box::new(RunPreparation {
            document: document.into(),
            part_of: Some(hash.clone()),
            places: own_places,
            ..*whole
        })
    }

    /// Returns the sent totals of the streams that `node` receives; it measures their loss with them.
    pub(super) fn sent_totals_of_streams_received_by(
        &self,
        node: &NodeName,
        all: &[SentTotal],
    ) -> Arc<[SentTotal]> {
        let Some(share) = self.by_node.get(node) else { return Arc::default() };
        all.iter().filter(|total| share.receives.contains(&total.stream)).copied().collect()
    }

    /// Returns the clock fits of the nodes from which `node` receives streams.
    pub(super) fn clock_fits_of_senders_to(
        &self,
        node: &NodeName,
        all: &BTreeMap<NodeName, ClockFit>,
    ) -> Vec<(NodeName, ClockFit)> {
        let senders = self.by_node.get(node).into_iter().flat_map(|share| &share.senders);
        senders.filter_map(|sender| Some((sender.clone(), *all.get(sender)?))).collect()
    }
}

/// The node that sends each stream of a plan. What other nodes report about the sending of a stream is ignored:
/// receivers compute their loss from the sent total, so a node with a wrong total would cause a false loss in the
/// results of other nodes.
#[derive(Debug, Default)]
pub(super) struct StreamSenders(Vec<NodeName>);

impl StreamSenders {
    pub(super) fn from_plan(plan: &Plan, places: &[PortPlace]) -> Self {
        // No node has an empty name.
        let nobody = PortPlace::elsewhere().node;
        let senders =
            plan.streams.iter().map(|stream| places.get(stream.tx).map_or(&nobody, |place| &place.node));
        Self(senders.cloned().collect())
    }

    /// Returns whether a node may report how a stream was sent. Streams that a steered run got later are not known
    /// here, so every node may report them.
    fn may_report_stream(&self, node: &NodeName, stream: usize) -> bool {
        self.0.get(stream).is_none_or(|sender| sender == node)
    }

    /// Returns the reply without the entries about streams that other nodes send.
    pub(super) fn filter_reply(&self, node: &NodeName, reply: NodeReply) -> NodeReply {
        match reply {
            NodeReply::SendersDone { mut sent, why } => {
                sent.retain(|total| self.may_report_stream(node, total.stream));
                NodeReply::SendersDone { sent, why }
            }
            NodeReply::Held { number, fault, mut held } => {
                held.retain(|held| self.may_report_stream(node, held.stream));
                NodeReply::Held { number, fault, held }
            }
            reply => reply,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_fleet::message::StopReason;
    use packetrig_plan::{PlanParseOptions, StreamResumePoint};

    fn pairs(nodes: usize) -> (String, Plan, Vec<PortPlace>) {
        let port = |n: usize| format!(r#"{{"name":"p{n}","location":"n{n}/eth1"}}"#);
        let flow = |n: usize| {
            format!(
                r#"{{"name":"f{n}","tx_rx":{{"choice":"port","port":{{"tx_name":"p{}","rx_names":["p{}"]}}}},"packet":[{{"choice":"ethernet","ethernet":{{}}}}]}}"#,
                2 * n,
                2 * n + 1
            )
        };
        let ports: Vec<String> = (0..nodes).map(port).collect();
        let flows: Vec<String> = (0..nodes / 2).map(flow).collect();
        let text = format!(r#"{{"ports":[{}],"flows":[{}]}}"#, ports.join(","), flows.join(","));
        let plan =
            Plan::from_text_with(&text, PlanParseOptions { fleet: true, ..PlanParseOptions::default() })
                .unwrap();
        let place = |n: usize| PortPlace { node: NodeName(format!("n{n}")), interface: "eth1".into() };
        (text, plan, (0..nodes).map(place).collect())
    }

    #[test]
    fn node_preparation_contains_only_its_share() {
        let (text, plan, places) = pairs(1000);
        let mut whole =
            RunPreparation { document: text.into(), places: places.clone(), ..RunPreparation::default() };
        let shares = NodeRunParts::from_plan(&plan, &mut whole);
        assert_eq!(whole, RunPreparation::default(), "all of it is in the parts");
        let node = NodeName("n7".into());
        let own = shares.build_preparation_for_node(&node, Box::default());
        let read = PlanParseOptions { fleet: true, part: true, ..PlanParseOptions::default() };
        let own_plan = Plan::from_text_with(own.document.text(), read).unwrap();
        assert_eq!((own_plan.streams.len(), own_plan.ports.len(), own.places.len()), (500, 1000, 1000));
        assert_eq!(
            (&own_plan.streams[3].name[..], &own.places[6], &own.places[7]),
            ("f3", &places[6], &places[7])
        );
        assert!(own.places.iter().filter(|place| !place.is_elsewhere()).count() == 2);
        let sent: Vec<SentTotal> = (0..500).map(|stream| SentTotal { stream, frames: 9 }).collect();
        assert_eq!(
            *shares.sent_totals_of_streams_received_by(&node, &sent),
            [SentTotal { stream: 3, frames: 9 }]
        );
        assert!(
            shares.sent_totals_of_streams_received_by(&NodeName("n6".into()), &sent).is_empty(),
            "it only sends"
        );
        let fits = places.iter().map(|place| (place.node.clone(), ClockFit::default())).collect();
        assert_eq!(
            shares.clock_fits_of_senders_to(&node, &fits),
            [(NodeName("n6".into()), ClockFit::default())]
        );
    }

    #[test]
    fn node_cannot_state_totals_of_foreign_streams() {
        let (_, plan, places) = pairs(6);
        let senders = StreamSenders::from_plan(&plan, &places);
        let total = |stream, frames| SentTotal { stream, frames };
        let claimed = vec![total(0, 10), total(1, 999_999), total(2, 999_999), total(7, 1)];
        let reply = NodeReply::SendersDone { sent: claimed, why: StopReason::Done };
        let own = senders.filter_reply(&NodeName("n0".into()), reply);
        assert_eq!(
            own,
            NodeReply::SendersDone { sent: vec![total(0, 10), total(7, 1)], why: StopReason::Done }
        );
        let held = |stream| StreamResumePoint { stream, number: 5, index: 0, mac: None };
        let reply = NodeReply::Held { number: 1, fault: None, held: vec![held(0), held(1)] };
        let own = senders.filter_reply(&NodeName("n2".into()), reply);
        assert_eq!(own, NodeReply::Held { number: 1, fault: None, held: vec![held(1)] });
        assert_eq!(senders.filter_reply(&NodeName("n1".into()), NodeReply::Armed), NodeReply::Armed);
    }

    #[test]
    fn a_short_plan_is_given_out_whole() {
        let (text, plan, places) = pairs(4);
        let mut whole = RunPreparation { document: text.into(), places, ..RunPreparation::default() };
        let shares = NodeRunParts::from_plan(&plan, &mut whole);
        assert!(!whole.document.text().is_empty());
        let node = NodeName("n1".into());
        assert_eq!(*shares.build_preparation_for_node(&node, Box::new(whole.clone())), whole);
    }
}
