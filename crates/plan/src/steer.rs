//! Changes while a plan runs: single streams begin, pause and end, rates and sizes change, streams are added.
//!
//! The list of streams only grows, and the ports stay the same. So an index means the same stream during the whole run,
//! even after its flow was removed from the document.

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
/// [`PlanDocument`] where it was read, and a [`PlanGrowth`](crate::PlanGrowth) where a rig applies it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanChange<D = SentDocument> {
    /// Send these streams from their first frame, with new counters. Streams that are
    /// already sending continue unchanged.
    Start(Vec<usize>),
    /// Stop these streams; their next start is from the first frame.
    Stop(Vec<usize>),
    /// Pause these streams at their current frame.
    Pause(Vec<usize>),
    /// Continue those of these streams that are paused, and start those that are stopped.
    Resume(Vec<usize>),
    /// Apply this document: the new rates and sizes of its flows, and its new flows. Flows that the document lacks are
    /// stopped. The ports stay as they are.
    Replan(D),
    /// Begin or end the captures of these ports. A capture that begins discards its earlier frames.
    Capture { ports: Vec<usize>, on: bool },
    /// Start or stop the emulated interfaces: whether they answer, and whether they resolve addresses of neighbours.
    Protocols { on: bool },
    /// Make emulated interfaces send echo requests. Later counts of the run contain the results.
    Ping(Vec<PingRequest>),
    /// Switch the links of these ports up or down.
    Link { ports: Vec<usize>, up: bool },
}

/// An echo request to send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingRequest {
    /// Identifies the result of this request; greater than all earlier numbers.
    pub number: u64,
    /// Name of the sending interface, or of one of its addresses.
    pub source: String,
    pub to: IpAddr,
}

impl<D> PlanChange<D> {
    /// Converts the document of [`PlanChange::Replan`] with `replan`; other changes stay as they are.
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

    /// True if the change begins new segments of streams: runs of frames with one schedule. Receivers must know a
    /// segment before its first frame is sent.
    pub const fn begins_new_segments(&self) -> bool {
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

/// The frame with which a stream continues. Receivers on other nodes must know it for the stream's next segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamResumePoint {
    pub stream: usize,
    /// The number that the next frame carries in its test tag.
    pub number: u64,
    /// The index of that frame in the template: 0 after a start, the next one after a pause or a change.
    pub index: u64,
    /// Destination MAC address, if it was resolved for the stream at run time.
    pub mac: Option<Mac>,
}

/// Identifies a stream across documents: by its name, its ports, and its number among the streams with the
/// same name and ports.
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
    /// Adds the streams of `newer`, which has the same ports. A stream that is already in this plan is replaced, a
    /// new one is added at the end, and a stream that `newer` lacks stays. Returns, for each stream of `newer`, its
    /// index in this plan.
    // This is not public: a plan that grows has one owner in its process, a `GrowingPlan`.
    pub(crate) fn add_or_replace_streams_of(&mut self, newer: &Self) -> Vec<usize> {
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
        assert_eq!(own.add_or_replace_streams_of(&plan(&[("y", "a", 5), ("z", "a", 7)])), [1, 2]);
        let rates = |plan: &Plan| plan.streams.iter().map(|s| format!("{:?}", s.rate)).collect::<Vec<_>>();
        assert_eq!(rates(&own), rates(&plan(&[("x", "a", 1), ("y", "a", 5), ("z", "a", 7)])));
        // Gone and back again, it is the same stream; from another port it is another one.
        assert_eq!(own.add_or_replace_streams_of(&plan(&[("z", "b", 1), ("x", "a", 9)])), [3, 0]);
        assert_eq!(own.streams.len(), 4);
    }
}
