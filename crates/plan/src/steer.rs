//! Changes while a plan runs: single streams begin, pause and end, rates and sizes change, streams are added.
//!
//! The lists of streams and ports only grow. An index means the same stream during the whole run, even after
//! its flow was removed from the document.

use crate::device::Mac;
use crate::growth::{PlanDocument, SentDocument};
use crate::model::{Plan, Stream};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;

/// A change of an open run. Streams and ports are given by index.
///
/// `D` says how far the document of [`PlanChange::Replan`] is processed: a [`SentDocument`] in a message, a
/// [`PlanDocument`] where it was read, and a [`PlanGrowth`](crate::PlanGrowth) for a rig.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanChange<D = SentDocument> {
    /// Send these from their first frame, with new counts. Streams that are already sending continue undisturbed.
    Start(Vec<usize>),
    /// Stop these; the next start is from the first frame.
    Stop(Vec<usize>),
    /// Hold these at their current frame.
    Pause(Vec<usize>),
    /// Continue paused streams; start stopped ones.
    Resume(Vec<usize>),
    /// Follow this document from now on: rates and sizes of its flows, and its new flows. Flows that it lacks
    /// are stopped. Ports stay as they are.
    Replan(D),
    /// Begin or end the captures of these ports. A capture that begins discards its earlier frames.
    Capture { ports: Vec<usize>, on: bool },
    /// Start or stop the emulated interfaces: their answers, and their questions for neighbours.
    Protocols { on: bool },
    /// Have emulated interfaces send echo requests. The counts that follow report the results.
    Ping(Vec<PingRequest>),
    /// Switch the links of these ports up or down.
    Link { ports: Vec<usize>, up: bool },
}

/// An echo request to send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingRequest {
    /// Identifies its result; greater than all numbers before.
    pub number: u64,
    /// Name of the interface or of its address.
    pub source: String,
    pub to: IpAddr,
}

impl<D> PlanChange<D> {
    /// The same change with another form of its document.
    pub fn try_map_document<T, E>(self, replan: impl FnOnce(D) -> Result<T, E>) -> Result<PlanChange<T>, E> {
        Ok(match self {
            Self::Replan(document) => PlanChange::Replan(replan(document)?),
            Self::Start(streams) => PlanChange::Start(streams),
            Self::Stop(streams) => PlanChange::Stop(streams),
            Self::Pause(streams) => PlanChange::Pause(streams),
            Self::Resume(streams) => PlanChange::Resume(streams),
            Self::Capture { ports, on } => PlanChange::Capture { ports, on },
            Self::Protocols { on } => PlanChange::Protocols { on },
            Self::Ping(pings) => PlanChange::Ping(pings),
            Self::Link { ports, up } => PlanChange::Link { ports, up },
        })
    }

    /// True if it makes new segments of streams, which receivers must know before the senders begin with them.
    pub const fn makes_segments(&self) -> bool {
        matches!(self, Self::Start(_) | Self::Resume(_) | Self::Replan(_))
    }

    /// True if streams start with the change; all of them start at the same time.
    pub const fn starts_streams(&self) -> bool {
        matches!(self, Self::Start(_) | Self::Resume(_))
    }
}

impl From<PlanChange<PlanDocument>> for PlanChange {
    fn from(change: PlanChange<PlanDocument>) -> Self {
        // The error type has no value, so this pattern always matches.
        let Ok(sent) = change.try_map_document(|document| Ok::<_, Infallible>(document.into()));
        sent
    }
}

/// The frame at which a stream was held: receivers on other nodes must know it for the next segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldStream {
    pub stream: usize,
    /// The number that its next frame carries.
    pub number: u64,
    /// The index of that frame in the template: 0 after a start, the next one after a pause or a change.
    pub index: u64,
    /// Destination MAC address, if the stream had to ask for it.
    pub mac: Option<Mac>,
}

/// Identifies a stream across documents: flow, ports, and its number among streams that have both in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct StreamKey<'a> {
    name: &'a str,
    tx: usize,
    rx: &'a [usize],
    number: usize,
}

fn build_stream_keys(streams: &[Stream]) -> Vec<StreamKey<'_>> {
    let mut alike: HashMap<(&str, usize, &[usize]), usize> = HashMap::new();
    let mut keys = Vec::with_capacity(streams.len());
    for Stream { name, tx, rx, .. } in streams {
        // Placeholders of other nodes have equal names and ports. Their order distinguishes them.
        let count = alike.entry((name, *tx, rx)).or_default();
        *count += 1;
        keys.push(StreamKey { name, tx: *tx, rx, number: *count });
    }
    keys
}

impl Plan {
    /// Takes over the streams of `newer`, which has the same ports. Known streams are replaced, new ones are added at
    /// the end, and streams that `newer` lacks stay. Returns the index of each stream of `newer`.
    // This is not public: a plan that grows has one owner in its process, a `GrowingPlan`.
    pub(crate) fn grow_with(&mut self, newer: &Self) -> Vec<usize> {
        // A plan may have 65 536 streams, so each key is looked up in a map and not searched in a list.
        let known: HashMap<_, _> = build_stream_keys(&self.streams).into_iter().zip(0..).collect();
        let mut next = self.streams.len();
        let mut places = Vec::with_capacity(newer.streams.len());
        // New streams get the next indices here; the second loop pushes them in the same order.
        for key in build_stream_keys(&newer.streams) {
            if let Some(place) = known.get(&key) {
                places.push(*place);
            } else {
                places.push(next);
                next += 1;
            }
        }
        for (place, stream) in places.iter().zip(&newer.streams) {
            match self.streams.get_mut(*place) {
                Some(own) => own.clone_from(stream),
                None => self.streams.push(stream.clone()),
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(flows: &[(&str, &str, u64)]) -> Plan {
        let flow = |(name, tx, pps): &(&str, &str, u64)| {
            format!(
                "{{name: {name}, tx_rx: {{choice: port, port: {{tx_name: {tx}, rx_names: [b]}}}}, rate: {{choice: pps, pps: {pps}}}}}"
            )
        };
        let flows: Vec<String> = flows.iter().map(flow).collect();
        let ports = "[{name: a, location: a}, {name: b, location: b}]";
        Plan::from_text(&format!("{{ports: {ports}, flows: [{}]}}", flows.join(", "))).expect("reads")
    }

    #[test]
    fn stream_number_is_stable_as_plan_grows() {
        let mut own = plan(&[("x", "a", 1), ("y", "a", 2)]);
        assert_eq!(own.grow_with(&plan(&[("y", "a", 5), ("z", "a", 7)])), [1, 2]);
        let rates = |plan: &Plan| plan.streams.iter().map(|s| format!("{:?}", s.rate)).collect::<Vec<_>>();
        assert_eq!(rates(&own), rates(&plan(&[("x", "a", 1), ("y", "a", 5), ("z", "a", 7)])));
        // Gone and back again, it is the same stream; from another port it is another one.
        assert_eq!(own.grow_with(&plan(&[("z", "b", 1), ("x", "a", 9)])), [3, 0]);
        assert_eq!(own.streams.len(), 4);
    }
}
